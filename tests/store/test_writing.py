"""Other programs change the file at every moment of a commit: an acknowledged record is in it exactly once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.rows import check_each
from support.scarce_lines import ScarceLines

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, Spawn
from sessiond.model.record import ENTRY, custom_line, header_line
from sessiond.store import dirfd, folding, scan
from sessiond.store.append import Append
from sessiond.store.catalog import Folder, Remnant, Session
from sessiond.store.kept_files import KeptFile, KeptFiles
from sessiond.store.refusals import StoreDisplaced, Unsettled, storage_error
from sessiond.store.scan import ScanSettings
from sessiond.store.transcript import WrittenBytes
from sessiond.store.writing import Writing

KEY = "agent:main:main"
LIMIT = 1 << 20
HALF = b'{"type":"message","id":"str","message":{"role":"us'
REST = b'er","content":"x"}}\n'
Act = Callable[[], object]


def header(name: str = "s") -> bytes:
    return header_line(name, KEY, "main", 1_795_300_000_000, cwd="/w", spawned_by="agent:main:boss")


def record(own: str, parent: str | None = None, text: str = "hi") -> bytes:
    body = {"type": "message", "id": own, "parentId": parent, "message": {"role": "user", "content": text}}
    return json.dumps(body).encode() + b"\n"


class ContestedFile:
    """One transcript with a header and a first message, commits to it, and changes to it by others."""

    def __init__(self, path: Path, folder: Folder, settings: ScanSettings) -> None:
        self.settings = settings
        self.file = path / "s.jsonl"
        self.file.write_bytes(header() + record("first"))
        self.session = Session(key=KEY, entry=Entry(session_id="s"), folder=folder)
        self.files = KeptFiles()
        self.written: WrittenBytes | None = None
        self.fold_new_lines()

    def keep_open(self) -> None:
        """As if the daemon's last append had left the file as it is now."""
        self.files.forget(self.session)
        fd = os.open(self.file, os.O_RDWR | os.O_APPEND)
        status = os.fstat(fd)
        kept = KeptFile(fd, status.st_ino, status.st_size, status.st_mtime_ns, self.file.read_bytes()[-128:])
        self.files.keep(self.session, kept)
        self.session.activity.keyed_epoch = self.session.epoch

    def fold_new_lines(self) -> None:
        self.session.entry = folding.advance(
            self.session.folder.fd, self.session.entry, "s.jsonl", LIMIT, dialect=V3
        ).entry

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as opened:
            opened.write(data)

    def replace_file(self, data: bytes) -> None:
        """Replace the file by another one, as editors and `sed -i` do."""
        new = self.file.with_suffix(".new")
        new.write_bytes(data)
        new.rename(self.file)

    def write(self, *ids: str, between: Act = lambda: None, synced: Act = lambda: None, times: int = 1) -> list[Append]:
        """Commit records with these ids. `between` is called between the check of the file and the write, `synced`
        right after the sync; each at most `times` times."""
        left = {"between": times, "synced": times}

        def act_while_left(name: str, act: Act) -> None:
            if left[name]:
                left[name] -= 1
                act()

        def new_append(own: str) -> Append:
            def compose(parent: str | None) -> list[bytes]:
                return [record(own, parent)]

            return Append(compose, own)

        def sync(fd: int) -> None:
            os.fdatasync(fd)
            act_while_left("synced", synced)

        appends = [new_append(own) for own in ids]
        first = appends[0].compose

        def compose_after_act(parent: str | None) -> list[bytes]:
            act_while_left("between", between)
            return first(parent)

        appends[0].compose = compose_after_act
        parent = self.session.entry.file.last_id
        writing = Writing(self.session, list(appends), parent, record_limit=LIMIT, sync=sync, files=self.files)
        writing.run()
        self.written = writing.written
        return appends

    def check(self, *appends: Append) -> None:
        """Assert that each record is in the file once, at the returned place, and that a scan without an index gives
        the file its key."""
        content = self.file.read_bytes()
        for append in appends:
            assert append.error is None
            assert [json.loads(content[begin:end])["id"] for begin, end in append.places] == [append.last_id]
            for begin, end in append.places:
                assert content[end - 1 : end] == b"\n" and (not begin or content[begin - 1 : begin] == b"\n")
            assert self.ids().count(append.last_id) == 1
        (found,) = [one for one in self.scan_sessions() if one.session_id == "s"]
        assert found.key == KEY

    def scan_sessions(self) -> list[Session]:
        return scan.scan_folder(self.session.folder, self.settings, lambda *_: None, [])

    def ids(self) -> list[str]:
        found = []
        for line in self.file.read_bytes().splitlines():
            try:
                found.append(json.loads(line)["id"])
            except ValueError:
                continue
        return found


OPENED = ["opened", "kept open"]


@pytest.fixture(params=OPENED)
def contested(
    tmp_path: Path, folder: Folder, settings: ScanSettings, request: pytest.FixtureRequest
) -> Iterator[ContestedFile]:
    """A transcript that has to be opened, or is open since the last append."""
    with open_contested(tmp_path, folder, settings, request.param) as contested:
        yield contested


@contextlib.contextmanager
def open_contested(path: Path, folder: Folder, settings: ScanSettings, opened: str) -> Iterator[ContestedFile]:
    contested = ContestedFile(path, folder, settings)
    if opened == "kept open":
        contested.keep_open()
    yield contested
    contested.files.close()


@contextlib.contextmanager
def open_contested_by_path(path: Path, settings: ScanSettings, opened: str) -> Iterator[ContestedFile]:
    """Its folder, `above/sessions`, is known by its path."""
    place = path / "above" / "sessions"
    place.mkdir(parents=True)
    with dirfd.closing(dirfd.open_root(place)) as fd:
        with open_contested(place, Folder("main", fd, path=str(place), dialect=V3), settings, opened) as contested:
            yield contested


def test_a_commit_returns_its_places_and_sets_the_parents(contested):
    appends = contested.write("a", "b", "c")
    contested.check(*appends)
    lines = [json.loads(line) for line in contested.file.read_bytes().splitlines()]
    assert [(line["id"], line["parentId"]) for line in lines[1:]] == [
        ("first", None),
        ("a", "first"),
        ("b", "a"),
        ("c", "b"),
    ]


@pytest.mark.parametrize("when", ["between", "synced"])
def test_a_strangers_half_line_during_a_commit_damages_no_record_of_ours(contested, when):
    # `compose` is called after the end of the file was checked and before the write.
    appends = contested.write("a", "b", **{when: lambda: contested.add(HALF)})
    contested.add(REST)
    contested.check(*appends)
    # A half line after our records can be completed; one before them cannot.
    assert [own for own in contested.ids() if own != "str"] == ["s", "first", "a", "b"]
    assert ("str" in contested.ids()) is (when == "synced")


def test_a_strangers_line_without_a_newline_is_kept_if_our_record_follows_it(contested):
    whole = record("stranger")
    contested.check(*contested.write("a", between=lambda: contested.add(whole[:-1])))
    # Our record was written right after the stranger's line without a newline; its blanked out copy ends that line.
    assert contested.ids() == ["s", "first", "stranger", "a"]


def empty_file(contested: ContestedFile) -> None:
    contested.file.write_bytes(b"")


def empty_and_write_another_line(contested: ContestedFile) -> None:
    contested.file.write_bytes(record("other"))


def replace_by_a_copy(contested: ContestedFile) -> None:
    contested.replace_file(contested.file.read_bytes())


def replace_by_an_edited_copy(contested: ContestedFile) -> None:
    contested.replace_file(contested.file.read_bytes().replace(b'"hi"', b'"ho"').replace(b'": ', b'" : '))


def replace_by_an_older_copy(contested: ContestedFile) -> None:
    contested.replace_file(header() + record("first"))


def replace_without_a_header(contested: ContestedFile) -> None:
    contested.replace_file(record("first"))


def replace_with_a_bare_header(contested: ContestedFile) -> None:
    contested.replace_file(
        json.dumps({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z"}).encode()
    )


def replace_by_an_empty_file(contested: ContestedFile) -> None:
    contested.replace_file(b"")


def cut_within_the_last_record(contested: ContestedFile) -> None:
    os.truncate(contested.file, contested.file.stat().st_size - 5)


def cut_after_the_header(contested: ContestedFile) -> None:
    os.truncate(contested.file, len(header()))


def edit_with_sed(contested: ContestedFile) -> None:
    subprocess.run(["sed", "-i", "s/hi/ho/", contested.file], check=True)


def copy_back_in_place(contested: ContestedFile) -> None:
    copy = contested.file.with_suffix(".bak")
    shutil.copyfile(contested.file, copy)
    shutil.copyfile(copy, contested.file)


ACTS = [
    empty_file,
    empty_and_write_another_line,
    replace_by_a_copy,
    replace_by_an_older_copy,
    replace_without_a_header,
    replace_with_a_bare_header,
    replace_by_an_empty_file,
    cut_within_the_last_record,
    cut_after_the_header,
    edit_with_sed,
    copy_back_in_place,
]


@check_each("act", ACTS, ids=lambda act: act.__name__)
@check_each("when", ["before", "between", "synced"])
@check_each("times", [1, 3])
@check_each("opened", OPENED)
def test_a_file_changed_during_a_commit_has_its_records_once_and_keeps_its_key(
    tmp_path, settings, *, opened, act, when, times
):
    with open_contested_by_path(tmp_path, settings, opened) as contested:
        if when == "before":
            act(contested)
            appends = contested.write("a", "b")
        else:
            appends = contested.write("a", "b", times=times, **{when: lambda: act(contested)})
        contested.check(*appends)
        contested.fold_new_lines()
        contested.check(*appends, *contested.write("c"))


def test_a_record_reformatted_by_another_program_is_found_and_not_written_twice(contested):
    appends = contested.write("a", synced=lambda: replace_by_an_edited_copy(contested))
    assert [one.error for one in appends] == [None]
    content = contested.file.read_bytes()
    assert content.count(b'"a"') == 1 and b'"ho"' in content
    ((begin, end),) = appends[0].places
    assert json.loads(content[begin:end])["id"] == "a"


def test_restoring_a_copy_with_some_of_our_records_duplicates_none(contested):
    kept = b""

    def keep_and_cut() -> None:
        nonlocal kept
        if not kept:
            kept = contested.file.read_bytes()
            cut_after_the_header(contested)

    def tear() -> None:
        os.truncate(contested.file, contested.file.stat().st_size - 3)

    acts: list[Act] = [tear, lambda: contested.file.write_bytes(kept)]

    def act_next() -> None:
        acts.pop(0)()

    appends = contested.write("a", "b", between=act_next, synced=keep_and_cut, times=2)
    contested.check(*appends)


@pytest.mark.parametrize("rest", [b"", record("other")])
def test_the_key_is_written_again_even_if_the_emptied_file_was_folded_meanwhile(contested, rest):
    contested.check(*contested.write("a"))
    contested.file.write_bytes(rest)
    contested.session.activity.epoch += 1
    contested.fold_new_lines()
    contested.session.entry = replace(contested.session.entry, session_key=KEY)  # the feed keeps the key as well
    contested.check(*contested.write("b"))
    contested.fold_new_lines()
    contested.check(*contested.write("c"))
    # An empty file gets a header and a record with the key; after other lines there is only the record.
    assert contested.file.read_bytes().count(b"sessionKey") == (1 if rest else 2)


def test_the_key_is_written_again_if_a_rewrite_left_size_and_time_alone(contested):
    """The clock of file systems ticks every few milliseconds."""
    contested.check(*contested.write("a"))
    contested.fold_new_lines()
    written = contested.file.stat()
    content = contested.file.read_bytes()
    with contested.file.open("r+b", buffering=0) as opened:
        opened.write(content.replace(b'"session"', b'"sessiom"').replace(b"hi", b"ho"))
        os.utime(opened.fileno(), ns=(written.st_atime_ns, written.st_mtime_ns))
    contested.session.activity.epoch += 1
    contested.fold_new_lines()
    contested.session.entry = replace(contested.session.entry, session_key=KEY)  # the feed keeps the key as well
    contested.check(*contested.write("b"))


def test_what_is_written_behind_a_rewrite_is_not_folded_onto_what_was_there_before(contested):
    contested.check(*contested.write("a"))
    assert folding.advance_written(contested.session.entry, contested.written, LIMIT, dialect=V3)
    contested.fold_new_lines()
    content = contested.file.read_bytes()
    contested.file.write_bytes(content.replace(b"hi", b"ho"))  # as long as before
    contested.check(*contested.write("b"))
    folded = contested.written and folding.advance_written(
        contested.session.entry, contested.written, LIMIT, dialect=V3
    )
    assert folded is None
    got = folding.advance(contested.session.folder.fd, contested.session.entry, "s.jsonl", LIMIT, dialect=V3)
    assert got.rewritten and [step.line.record.id for step in got.steps] == ["s", "first", "a", "b"]


def test_a_file_that_lost_its_header_is_not_known_by_its_end(contested):
    """Behind the same bytes as before, but at another place."""
    contested.check(*contested.write("long", "a"))
    contested.fold_new_lines()

    def remove_header() -> None:
        contested.file.write_bytes(contested.file.read_bytes().partition(b"\n")[2])

    contested.check(*contested.write("b", between=remove_header))


def test_a_rewritten_header_keeps_parent_folder_and_time(contested):
    contested.check(*contested.write("a", synced=lambda: empty_file(contested)))
    first = json.loads(contested.file.read_bytes().splitlines()[0])
    assert (first["sessionKey"], first["cwd"], first["spawnedBy"]) == (KEY, "/w", "agent:main:boss")
    assert first["timestamp"] == "2026-11-21T22:26:40.000Z"


SET = {
    "label": "dear",
    "sandboxed": True,
    "spawnDepth": 1,
    "modelOverride": "openai/gpt",
    "spawn": {"mode": "run", "announced": "r1"},
    "inputTokens": 7,
    "inboxCursor": "c",
}


def fold_from_start(contested: ContestedFile) -> Entry:
    """The entry that a start without an index gives."""
    return folding.advance(contested.session.folder.fd, Entry(session_id="s"), "s.jsonl", LIMIT, dialect=V3).entry


@check_each(
    "act",
    [
        empty_file,
        empty_and_write_another_line,
        replace_without_a_header,
        replace_with_a_bare_header,
        replace_by_an_empty_file,
    ],
)
@check_each("when", ["before", "between", "synced"])
@check_each("opened", OPENED)
def test_a_file_that_lost_its_header_gets_its_settings_back(tmp_path, settings, *, opened, act, when):
    with open_contested_by_path(tmp_path, settings, opened) as contested:
        contested.add(custom_line("set", "first", 1, ENTRY, SET))
        contested.fold_new_lines()
        if when == "before":
            act(contested)
            when = "between"
        contested.check(*contested.write("a", **{when: lambda: act(contested)}))
        got = fold_from_start(contested)
    assert (got.label, got.sandboxed, got.spawn_depth, got.model_override) == ("dear", True, 1, "openai/gpt")
    assert (got.spawn, got.spawned_by, got.cwd) == (Spawn(**SET["spawn"]), "agent:main:boss", "/w")
    # Values derived from removed records are not restored.
    assert (got.input_tokens, got.inbox_cursor) == (None, None)


@pytest.mark.parametrize("when", ["between", "synced"])
def test_a_file_with_its_key_is_believed_except_that_it_stays_sandboxed(contested, when):
    contested.add(custom_line("set", "first", 1, ENTRY, SET))
    contested.fold_new_lines()
    contested.check(*contested.write("a", **{when: lambda: cut_after_the_header(contested)}))
    assert (fold_from_start(contested).label, fold_from_start(contested).sandboxed) == (None, True)


def test_a_session_stays_sandboxed_if_its_settings_are_too_large_for_a_record(contested):
    contested.session.entry = replace(contested.session.entry, sandboxed=True, subject="x" * LIMIT)
    contested.check(*contested.write("a", between=lambda: empty_file(contested)))
    assert (fold_from_start(contested).sandboxed, fold_from_start(contested).subject) == (True, None)


def test_a_strangers_line_before_the_new_header_does_not_lose_the_key(contested):
    empty_file(contested)
    contested.check(*contested.write("a", between=lambda: contested.add(record("other"))))
    assert contested.ids()[:2] == ["other", "s"]


def test_a_commit_waits_for_an_editor_that_removes_the_file_for_a_moment(contested):
    away = contested.file.with_suffix(".away")

    def take_away() -> None:
        contested.file.rename(away)

    class ReturningFolder:
        looks = 0

        def __init__(self, folder: Folder) -> None:
            self.agent_id, self.archived, self.path, self.dialect = folder.agent_id, False, "", V3
            self._fd = folder.fd

        @property
        def fd(self) -> int:
            self.looks += 1
            if self.looks == 8:
                away.rename(contested.file)
            return self._fd

    contested.session.folder = ReturningFolder(contested.session.folder)  # type: ignore[assignment]
    appends = contested.write("a", synced=take_away)
    contested.check(*appends)


def test_nothing_is_stored_in_a_file_that_was_moved_away_for_good(contested):
    away = contested.file.with_suffix(".away")
    (append,) = contested.write("a", synced=lambda: contested.file.rename(away))
    assert isinstance(append.error, FileNotFoundError)
    assert not contested.file.exists()
    assert b'"a"' not in away.read_bytes()


@pytest.fixture(params=OPENED)
def contested_by_path(
    tmp_path: Path, settings: ScanSettings, request: pytest.FixtureRequest
) -> Iterator[ContestedFile]:
    with open_contested_by_path(tmp_path, settings, request.param) as contested:
        yield contested


@check_each("part", ["above", "above/sessions"])
@check_each("copied", [False, True])
@check_each("when", ["before", "between", "synced"])
@check_each("opened", OPENED)
def test_nothing_is_stored_in_a_folder_that_was_moved_away(tmp_path, settings, *, opened, part, copied, when):
    away = tmp_path / "away"

    def move() -> None:
        (tmp_path / part).rename(away)
        if copied:
            shutil.copytree(away, tmp_path / part)

    with open_contested_by_path(tmp_path, settings, opened) as contested:
        if when == "before":
            move()
        (append,) = contested.write("a", **({} if when == "before" else {when: move}))
    assert isinstance(append.error, StoreDisplaced)
    left = [path.read_bytes() for path in tmp_path.rglob("s.jsonl")]
    assert len(left) == 1 + copied
    assert all(b'"first"' in content and b'"a"' not in content for content in left)
    assert "its folder is not where it was; nothing was stored" in str(storage_error(append.error, KEY))


@pytest.mark.parametrize("syncs", [1, 2])
def test_without_memory_to_read_the_folder_that_replaced_it_the_append_is_refused_all_the_same(
    contested_by_path, tmp_path, syncs
):
    lines, synced = ScarceLines([record("a")]), 0

    def sync(fd: int) -> None:
        nonlocal synced
        synced += 1
        if not lines.lacking:
            (tmp_path / "above").rename(tmp_path / "away")
            shutil.copytree(tmp_path / "away", tmp_path / "above")
            lines.lacking = True
        elif syncs == 1:
            raise MemoryError

    append = Append(lambda _parent: lines, "a")
    Writing(
        contested_by_path.session, [append], None, record_limit=LIMIT, sync=sync, files=contested_by_path.files
    ).run()
    assert isinstance(append.error, StoreDisplaced)
    assert synced == 2
    kept = (tmp_path / "away/sessions/s.jsonl").read_bytes()
    assert b'"first"' in kept and b'"a"' not in kept


def test_a_folder_moved_back_during_a_commit_has_the_record_once(contested_by_path, tmp_path):
    place, away = tmp_path / "above", tmp_path / "away"
    fd, looks = contested_by_path.session.folder.fd, 0

    class ReturningFolder(Folder):
        @property
        def path(self) -> str:
            nonlocal looks
            looks += away.exists()
            if looks == 5 and away.exists():
                away.rename(place)
            return str(place / "sessions")

        @path.setter
        def path(self, path: str) -> None:
            pass

    contested_by_path.session.folder = ReturningFolder("main", fd, V3)
    contested_by_path.check(*contested_by_path.write("a", between=lambda: place.rename(away)))


def test_a_file_that_changes_at_every_attempt_is_an_error_and_stores_nothing(contested):
    appends = contested.write("a", "b", synced=lambda: empty_file(contested), times=100)
    assert all(isinstance(one.error, Unsettled) for one in appends)
    assert contested.file.read_bytes().strip() == b""


def failing_sync(code: int) -> Callable[[int], None]:
    def sync(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    return sync


def test_a_sync_that_always_fails_leaves_nothing_of_any_append(contested):
    before = contested.file.read_bytes()
    for _ in range(3):
        appends = [Append(lambda parent, own=own: [record(own, parent)], own) for own in ("a", "b")]
        Writing(
            contested.session,
            list(appends),
            "first",
            record_limit=LIMIT,
            sync=failing_sync(errno.EIO),
            files=contested.files,
        ).run()
        assert [one.error.errno for one in appends if one.error] == [errno.EIO, errno.EIO]
    after = contested.file.read_bytes()
    assert after.startswith(before) and not after[len(before) :].strip()
    contested.check(*contested.write("a"))


def test_the_blanks_over_a_refused_append_are_synced(contested):
    synced: list[bytes] = []

    def sync(fd: int) -> None:
        synced.append(os.pread(fd, 1 << 16, 0))
        if len(synced) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    append = Append(lambda parent: [record("a", parent)], "a")
    Writing(contested.session, [append], "first", record_limit=LIMIT, sync=sync, files=contested.files).run()
    assert append.error is not None
    assert [b'"a"' in content for content in synced] == [True, False]


def test_a_refused_append_is_blanked_out_even_without_free_descriptors(contested):
    def sync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    append = Append(lambda parent: [record("a", parent)], "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []

    def compose(parent: str | None) -> list[bytes]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(0))
        return [record("a", parent)]

    append.compose = compose
    try:
        Writing(contested.session, [append], "first", record_limit=LIMIT, sync=sync, files=contested.files).run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in opened:
            os.close(fd)
    assert append.error is not None and contested.ids() == ["s", "first"]


def test_a_remnant_that_could_not_be_blanked_out_is_removed_before_the_next_append(contested):
    offset = contested.file.stat().st_size
    contested.add(record("refused"))
    contested.session.activity.remnants = (Remnant(contested.file.stat().st_ino, offset, record("refused")),)
    contested.check(*contested.write("again"))
    assert contested.ids() == ["s", "first", "again"]
    assert contested.session.activity.remnants == ()


def test_a_remnant_is_removed_even_if_nothing_happened_to_the_file_since(contested):
    offset = contested.file.stat().st_size
    contested.add(record("refused"))
    contested.keep_open()
    contested.session.activity.remnants = (Remnant(contested.file.stat().st_ino, offset, record("refused")),)
    contested.check(*contested.write("again"))
    assert contested.ids() == ["s", "first", "again"]


def test_a_strangers_bytes_at_the_offset_of_a_remnant_are_left_alone(contested):
    contested.session.activity.remnants = (Remnant(contested.file.stat().st_ino, len(header()), record("refused")),)
    contested.check(*contested.write("again"))
    assert contested.ids() == ["s", "first", "again"]


def test_a_remnant_of_another_file_removes_nothing_from_this_one(contested):
    """A write that was cut short may leave only a few bytes, which may occur in other files too."""
    contested.session.activity.remnants = (Remnant(contested.file.stat().st_ino, len(header()), record("first")[:9]),)
    replace_by_a_copy(contested)
    contested.check(*contested.write("again"))
    assert contested.ids() == ["s", "first", "again"]
    assert contested.session.activity.remnants == ()
