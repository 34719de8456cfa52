"""Other programs act on the file at every moment of a commit: what is acknowledged stands once, under the name."""

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

from sessiond.model.entry import Entry, Spawn
from sessiond.model.record import ENTRY, custom_line, header_line
from sessiond.store import dirfd, folding, scan
from sessiond.store.catalog import Folder, Remnant, Session
from sessiond.store.refusals import StoreDisplaced, Unsettled, storage_error
from sessiond.store.scan import ScanSettings
from sessiond.store.writing import Append, Writing

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


class House:
    """One transcript with a header and a first message, and what others do to it."""

    def __init__(self, path: Path, folder: Folder, settings: ScanSettings) -> None:
        self.settings = settings
        self.file = path / "s.jsonl"
        self.file.write_bytes(header() + record("first"))
        self.session = Session(key=KEY, entry=Entry(session_id="s"), folder=folder)
        self.follow()

    def follow(self) -> None:
        self.session.entry = folding.advance(self.session.folder.fd, self.session.entry, "s.jsonl", LIMIT).entry

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as opened:
            opened.write(data)

    def put(self, data: bytes) -> None:
        """Another file under the name, as editors and `sed -i` put it there."""
        new = self.file.with_suffix(".new")
        new.write_bytes(data)
        new.rename(self.file)

    def write(self, *ids: str, between: Act = lambda: None, synced: Act = lambda: None, times: int = 1) -> list[Append]:
        """Commit records with these ids. `between` happens between the look and the write, `synced` right after the
        sync; each for so many times."""
        left = {"between": times, "synced": times}

        def once(name: str, act: Act) -> None:
            if left[name]:
                left[name] -= 1
                act()

        def appended(own: str) -> Append:
            def compose(parent: str | None) -> list[bytes]:
                return [record(own, parent)]

            return Append(compose, own)

        def sync(fd: int) -> None:
            os.fdatasync(fd)
            once("synced", synced)

        appends = [appended(own) for own in ids]
        first = appends[0].compose

        def hooked(parent: str | None) -> list[bytes]:
            once("between", between)
            return first(parent)

        appends[0].compose = hooked
        parent = self.session.entry.file.last_id
        Writing(self.session, list(appends), parent, record_limit=LIMIT, sync=sync).run()
        return appends

    def check(self, *appends: Append) -> None:
        """Each stands once, at its places, in a file that is the session's after a start without an index."""
        content = self.file.read_bytes()
        for append in appends:
            assert append.error is None
            assert [json.loads(content[begin:end])["id"] for begin, end in append.places] == [append.last_id]
            for begin, end in append.places:
                assert content[end - 1 : end] == b"\n" and (not begin or content[begin - 1 : begin] == b"\n")
            assert self.ids().count(append.last_id) == 1
        (found,) = [one for one in self.scanned() if one.session_id == "s"]
        assert found.key == KEY

    def scanned(self) -> list[Session]:
        return scan.scan_folder(self.session.folder, self.settings, lambda *_: None, [])

    def ids(self) -> list[str]:
        found = []
        for line in self.file.read_bytes().splitlines():
            try:
                found.append(json.loads(line)["id"])
            except ValueError:
                continue
        return found


@pytest.fixture
def house(tmp_path: Path, folder: Folder, settings: ScanSettings) -> House:
    return House(tmp_path, folder, settings)


def test_a_commit_stands_where_it_says_and_names_the_one_before(house):
    appends = house.write("a", "b", "c")
    house.check(*appends)
    lines = [json.loads(line) for line in house.file.read_bytes().splitlines()]
    assert [(line["id"], line["parentId"]) for line in lines[1:]] == [
        ("first", None),
        ("a", "first"),
        ("b", "a"),
        ("c", "b"),
    ]


@pytest.mark.parametrize("when", ["between", "synced"])
def test_a_strangers_half_line_beside_a_commit_costs_no_record_of_ours(house, when):
    # `compose` is called behind the look at the end of the file; the write follows.
    appends = house.write("a", "b", **{when: lambda: house.add(HALF)})
    house.add(REST)
    house.check(*appends)
    # Behind our records his line comes to its end; before them it cannot.
    assert [own for own in house.ids() if own != "str"] == ["s", "first", "a", "b"]
    assert ("str" in house.ids()) is (when == "synced")


def test_a_stranger_who_ends_his_line_later_keeps_it_where_ours_came_behind_it(house):
    whole = record("stranger")
    house.check(*house.write("a", between=lambda: house.add(whole[:-1])))
    # Ours stood behind his line without its newline; blanked out, it gave his line its end.
    assert house.ids() == ["s", "first", "stranger", "a"]


def emptied(house: House) -> None:
    house.file.write_bytes(b"")


def emptied_and_written_on(house: House) -> None:
    house.file.write_bytes(record("other"))


def replaced_by_a_copy(house: House) -> None:
    house.put(house.file.read_bytes())


def replaced_by_an_edited_copy(house: House) -> None:
    house.put(house.file.read_bytes().replace(b'"hi"', b'"ho"').replace(b'": ', b'" : '))


def replaced_by_an_older_copy(house: House) -> None:
    house.put(header() + record("first"))


def replaced_without_a_header(house: House) -> None:
    house.put(record("first"))


def replaced_with_a_bare_header(house: House) -> None:
    house.put(json.dumps({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z"}).encode())


def replaced_by_nothing(house: House) -> None:
    house.put(b"")


def cut_in_the_last_record(house: House) -> None:
    os.truncate(house.file, house.file.stat().st_size - 5)


def cut_to_the_header(house: House) -> None:
    os.truncate(house.file, len(header()))


def with_sed(house: House) -> None:
    subprocess.run(["sed", "-i", "s/hi/ho/", house.file], check=True)


def copied_back_in_place(house: House) -> None:
    copy = house.file.with_suffix(".bak")
    shutil.copyfile(house.file, copy)
    shutil.copyfile(copy, house.file)


ACTS = [
    emptied,
    emptied_and_written_on,
    replaced_by_a_copy,
    replaced_by_an_older_copy,
    replaced_without_a_header,
    replaced_with_a_bare_header,
    replaced_by_nothing,
    cut_in_the_last_record,
    cut_to_the_header,
    with_sed,
    copied_back_in_place,
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("when", ["before", "between", "synced"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_file_changed_around_a_commit_has_its_records_once_and_says_its_key(house, act, when, times):
    if when == "before":
        act(house)
        appends = house.write("a", "b")
    else:
        appends = house.write("a", "b", times=times, **{when: lambda: act(house)})
    house.check(*appends)
    house.follow()
    house.check(*appends, *house.write("c"))


def test_a_record_that_a_rewriting_program_formatted_anew_is_found_and_not_written_twice(house):
    appends = house.write("a", synced=lambda: replaced_by_an_edited_copy(house))
    assert [one.error for one in appends] == [None]
    content = house.file.read_bytes()
    assert content.count(b'"a"') == 1 and b'"ho"' in content
    ((begin, end),) = appends[0].places
    assert json.loads(content[begin:end])["id"] == "a"


def test_a_copy_with_some_of_our_lines_that_is_put_back_between_search_and_write_doubles_nothing(house):
    kept = b""

    def keep_and_cut() -> None:
        nonlocal kept
        if not kept:
            kept = house.file.read_bytes()
            cut_to_the_header(house)

    def tear() -> None:
        os.truncate(house.file, house.file.stat().st_size - 3)

    acts: list[Act] = [tear, lambda: house.file.write_bytes(kept)]

    def act_next() -> None:
        acts.pop(0)()

    appends = house.write("a", "b", between=act_next, synced=keep_and_cut, times=2)
    house.check(*appends)


@pytest.mark.parametrize("rest", [b"", record("other")])
def test_a_header_is_written_though_the_emptied_file_was_folded_meanwhile(house, rest):
    house.check(*house.write("a"))
    house.file.write_bytes(rest)
    house.session.epoch += 1
    house.follow()
    house.session.entry = replace(house.session.entry, session_key=KEY)  # as the feed keeps it
    house.check(*house.write("b"))
    house.follow()
    house.check(*house.write("c"))
    # In a header, which may come to stand behind a stranger's line, and in a record; in that one alone behind others.
    assert house.file.read_bytes().count(b"sessionKey") == (1 if rest else 2)


def test_a_header_that_was_emptied_away_keeps_what_the_session_came_from(house):
    house.check(*house.write("a", synced=lambda: emptied(house)))
    first = json.loads(house.file.read_bytes().splitlines()[0])
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


def fresh(house: House) -> Entry:
    """What a start without an index makes of the file."""
    return folding.advance(house.session.folder.fd, Entry(session_id="s"), "s.jsonl", LIMIT).entry


@pytest.mark.parametrize(
    "act",
    [emptied, emptied_and_written_on, replaced_without_a_header, replaced_with_a_bare_header, replaced_by_nothing],
)
@pytest.mark.parametrize("when", ["before", "between", "synced"])
def test_a_file_that_lost_its_header_gets_back_all_that_was_set(house, act, when):
    house.add(custom_line("set", "first", 1, ENTRY, SET))
    house.follow()
    if when == "before":
        act(house)
        when = "between"
    house.check(*house.write("a", **{when: lambda: act(house)}))
    got = fresh(house)
    assert (got.label, got.sandboxed, got.spawn_depth, got.model_override) == ("dear", True, 1, "openai/gpt")
    assert (got.spawn, got.spawned_by, got.cwd) == (Spawn(**SET["spawn"]), "agent:main:boss", "/w")
    # Of what stood in the file nothing is told that stands there no more.
    assert (got.input_tokens, got.inbox_cursor) == (None, None)


@pytest.mark.parametrize("when", ["between", "synced"])
def test_a_file_that_says_its_key_is_believed_except_that_it_left_its_sandbox(house, when):
    house.add(custom_line("set", "first", 1, ENTRY, SET))
    house.follow()
    house.check(*house.write("a", **{when: lambda: cut_to_the_header(house)}))
    assert (fresh(house).label, fresh(house).sandboxed) == (None, True)


def test_settings_too_large_for_a_record_do_not_cost_the_sandbox(house):
    house.session.entry = replace(house.session.entry, sandboxed=True, subject="x" * LIMIT)
    house.check(*house.write("a", between=lambda: emptied(house)))
    assert (fresh(house).sandboxed, fresh(house).subject) == (True, None)


def test_a_line_that_comes_before_the_header_does_not_cost_the_key(house):
    emptied(house)
    house.check(*house.write("a", between=lambda: house.add(record("other"))))
    assert house.ids()[:2] == ["other", "s"]


def test_an_editors_moment_without_a_file_is_waited_for(house):
    away = house.file.with_suffix(".away")

    def take_away() -> None:
        house.file.rename(away)

    class Back:
        looks = 0

        def __init__(self, folder: Folder) -> None:
            self.agent_id, self.archived, self.path, self._fd = folder.agent_id, False, "", folder.fd

        @property
        def fd(self) -> int:
            self.looks += 1
            if self.looks == 8:
                away.rename(house.file)
            return self._fd

    house.session.folder = Back(house.session.folder)  # type: ignore[assignment]
    appends = house.write("a", synced=take_away)
    house.check(*appends)


def test_a_file_that_is_gone_for_good_has_nothing_stored_where_it_went(house):
    away = house.file.with_suffix(".away")
    (append,) = house.write("a", synced=lambda: house.file.rename(away))
    assert isinstance(append.error, FileNotFoundError)
    assert not house.file.exists()
    assert b'"a"' not in away.read_bytes()


@pytest.fixture
def housed(tmp_path: Path, settings: ScanSettings) -> Iterator[House]:
    """A house whose folder is known by its path."""
    place = tmp_path / "above" / "sessions"
    place.mkdir(parents=True)
    with dirfd.closing(dirfd.open_root(place)) as fd:
        yield House(place, Folder("main", fd, path=str(place)), settings)


@pytest.mark.parametrize("part", ["above", "above/sessions"])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("when", ["before", "between", "synced"])
def test_nothing_is_stored_in_a_folder_that_was_moved_away(housed, tmp_path, part, copied, when):
    away = tmp_path / "away"

    def move() -> None:
        (tmp_path / part).rename(away)
        if copied:
            shutil.copytree(away, tmp_path / part)

    if when == "before":
        move()
    (append,) = housed.write("a", **({} if when == "before" else {when: move}))
    assert isinstance(append.error, StoreDisplaced)
    left = [path.read_bytes() for path in tmp_path.rglob("s.jsonl")]
    assert len(left) == 1 + copied
    assert all(b'"first"' in content and b'"a"' not in content for content in left)
    assert "its folder is not where it was; nothing was stored" in str(storage_error(append.error, KEY))


def test_a_folder_that_comes_back_in_the_middle_of_a_commit_has_it_once(housed, tmp_path):
    place, away = tmp_path / "above", tmp_path / "away"
    fd, looks = housed.session.folder.fd, 0

    class Back(Folder):
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

    housed.session.folder = Back("main", fd)
    housed.check(*housed.write("a", between=lambda: place.rename(away)))


def test_who_changes_the_file_each_time_gets_an_error_to_the_caller_and_no_record(house):
    appends = house.write("a", "b", synced=lambda: emptied(house), times=100)
    assert all(isinstance(one.error, Unsettled) for one in appends)
    assert house.file.read_bytes().strip() == b""


def failing(code: int) -> Callable[[int], None]:
    def sync(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    return sync


def test_a_sync_that_fails_for_good_leaves_nothing_of_any_append(house):
    before = house.file.read_bytes()
    for _ in range(3):
        appends = [Append(lambda parent, own=own: [record(own, parent)], own) for own in ("a", "b")]
        Writing(house.session, list(appends), "first", record_limit=LIMIT, sync=failing(errno.EIO)).run()
        assert [one.error.errno for one in appends if one.error] == [errno.EIO, errno.EIO]
    after = house.file.read_bytes()
    assert after.startswith(before) and not after[len(before) :].strip()
    house.check(*house.write("a"))


def test_the_blanks_over_a_refused_append_are_synced(house):
    synced: list[bytes] = []

    def sync(fd: int) -> None:
        synced.append(os.pread(fd, 1 << 16, 0))
        if len(synced) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    append = Append(lambda parent: [record("a", parent)], "a")
    Writing(house.session, [append], "first", record_limit=LIMIT, sync=sync).run()
    assert append.error is not None
    assert [b'"a"' in content for content in synced] == [True, False]


def test_a_refused_append_is_blanked_out_where_no_descriptor_is_left(house):
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
        Writing(house.session, [append], "first", record_limit=LIMIT, sync=sync).run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in opened:
            os.close(fd)
    assert append.error is not None and house.ids() == ["s", "first"]


def test_what_could_not_be_blanked_out_goes_before_the_next_append(house):
    offset = house.file.stat().st_size
    house.add(record("refused"))
    house.session.remnants = (Remnant(house.file.stat().st_ino, offset, record("refused")),)
    house.check(*house.write("again"))
    assert house.ids() == ["s", "first", "again"]
    assert house.session.remnants == ()


def test_a_strangers_bytes_in_the_place_of_a_remnant_are_left_alone(house):
    house.session.remnants = (Remnant(house.file.stat().st_ino, len(header()), record("refused")),)
    house.check(*house.write("again"))
    assert house.ids() == ["s", "first", "again"]


def test_another_file_that_begins_alike_loses_nothing_to_a_remnant(house):
    """A write that was cut short may leave a few bytes only, and those stand in many a file."""
    house.session.remnants = (Remnant(house.file.stat().st_ino, len(header()), record("first")[:9]),)
    replaced_by_a_copy(house)
    house.check(*house.write("again"))
    assert house.ids() == ["s", "first", "again"]
    assert house.session.remnants == ()
