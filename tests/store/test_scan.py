"""Finding the sessions at start: what is read, what is trusted, what is adopted."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sessiond.clock import Ids, iso_ms
from sessiond.model.entry import Entry, Spawn
from sessiond.model.fold import FOLD_VERSION
from sessiond.store import index, paging, scan
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.scan import Problem, ScanSettings

GOLDEN = Path(__file__).parent.parent / "golden" / "openclaw-store" / "agents" / "main" / "sessions"
T = 1795224660000
MAIN_ID = "0e821bfa-101c-4841-b9ad-71d2ff5627e8"
DASHBOARD_ID = "7c6e02b0-3378-43ba-bbba-c0235dfc4f3f"
# Its transcript was reset; the index has the id of the next one, of which there is no file yet.
GROUP_ID = "a7babc4c-d7fe-41ff-816a-0c8e1678f22a"
DASHBOARD = "agent:main:dashboard:f034105b-b1bc-4243-8407-fcc314e9dca7"


class Scan:
    """A folder, scanned as at a start. `read` names the files that were opened for reading on."""

    def __init__(self, path: Path, folder: Folder, settings: ScanSettings) -> None:
        self.path, self.folder, self.settings = path, folder, settings
        self.problems: list[Problem] = []
        self.read = 0

    def __call__(self) -> dict[str, Session]:
        """The sessions by id, and the index saved as it then is."""
        self.problems, self.read = [], 0
        self.folder.dirty = False
        found = scan.scan_folder(self.folder, self.settings, self.progress, self.problems)
        Catalog().load(found)
        if self.folder.dirty:
            index.save(self.folder.fd, index.encode_index(found))
        assert len({session.session_id for session in found}) == len(found)
        return {session.session_id: session for session in found}

    def progress(self, done: int, total: int, agent_id: str) -> None:
        assert 0 <= done < total
        assert agent_id == "main"
        self.read += 1

    def write(self, name: str, *bodies: dict[str, Any] | bytes) -> Path:
        file = self.path / f"{name}.jsonl"
        lines = [body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n" for body in bodies]
        with file.open("ab") as opened:
            opened.writelines(lines)
        return file

    def index(self, content: dict[str, Any]) -> None:
        (self.path / "sessions.json").write_text(json.dumps(content, indent=2))

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture
def scanned(tmp_path: Path, folder: Folder, settings: ScanSettings) -> Scan:
    return Scan(tmp_path, folder, settings)


def header(name: str, key: str | None = None, at: int = T) -> dict[str, Any]:
    ours = {"sessionKey": key, "agentId": "main"} if key is not None else {}
    return {"type": "session", "version": 3, "id": name, "timestamp": iso_ms(at), "cwd": "/w", **ours}


def message(number: int) -> dict[str, Any]:
    return {"type": "message", "id": f"m{number}", "timestamp": iso_ms(T + number), "message": {"role": "user"}}


@contextmanager
def unreadable(*files: Path) -> Iterator[None]:
    """The same files by size, time and inode, with other bytes in them: who reads them sees it."""
    kept = {file: (file.read_bytes(), file.stat()) for file in files}
    for file, (content, stat) in kept.items():
        with file.open("r+b") as opened:
            opened.write(b"x" * len(content))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    yield
    for file, (content, stat) in kept.items():
        with file.open("r+b") as opened:
            opened.write(content)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def entries(sessions: dict[str, Session]) -> dict[str, Entry]:
    return {name: session.entry for name, session in sessions.items()}


def test_files_that_did_not_change_since_the_index_are_not_read(scanned):
    files = [scanned.write(f"s{n}", header(f"s{n}", f"agent:main:cron:{n}"), message(n)) for n in range(3)]
    first = scanned()
    assert scanned.read == 3
    with unreadable(*files):
        assert entries(scanned()) == entries(first)
        assert (scanned.read, scanned.folder.dirty) == (0, False)


def test_a_touched_file_is_the_same_session_and_one_overwritten_in_its_size_is_not(scanned):
    key = "agent:main:cron:1"
    file = scanned.write("s1", header("s1", key), message(1))
    before = scanned()["s1"].entry
    os.utime(file, ns=(0, before.file.mtime_ns + 10**9))
    touched = scanned()["s1"].entry
    assert touched == replace(before, file=replace(before.file, mtime_ns=before.file.mtime_ns + 10**9))
    assert (scanned.read, touched.file.had_messages) == (1, 0)
    size = file.stat().st_size
    file.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in (header("s1", key), message(2))))
    assert file.stat().st_size == size
    os.utime(file, ns=(0, before.file.mtime_ns + 2 * 10**9))
    assert (scanned()["s1"].entry.file.last_id, scanned.read) == ("m2", 1)


def test_without_the_index_every_entry_comes_back_equal(scanned):
    for number in range(5):
        scanned.write(f"s{number}", header(f"s{number}", f"agent:main:cron:{number}"), message(number), b"{torn\n")
    first = scanned()
    (scanned.path / "sessions.json").unlink()
    assert entries(scanned()) == entries(first)
    assert (scanned.read, scanned.folder.dirty) == (5, True)
    assert first["s3"].entry.corrupt_records == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 100, b'{"agent:main:cron:1": 5}'])
def test_a_damaged_index_costs_a_reading_and_no_data(scanned, content):
    scanned.write("s1", header("s1", "agent:main:cron:1"), message(1))
    first = scanned()
    (scanned.path / "sessions.json").write_bytes(content)
    assert entries(scanned()) == entries(first)
    assert scanned.read == 1
    scanned()
    assert scanned.read == 0


def test_a_file_that_grew_is_read_from_where_the_fold_was(scanned):
    file = scanned.write("s1", header("s1", "agent:main:cron:1"), message(1))
    scanned.write("s2", header("s2", "agent:main:cron:2"))
    first = scanned()["s1"].entry
    # The lines before are spoilt, but for the last: who reads them again counts them as bad.
    with file.open("r+b") as opened:
        opened.write(b"#")
    scanned.write("s1", message(2), b'{"type":"mess')
    grown = scanned()["s1"].entry
    assert grown == replace(first, message_count=2, updated_at=T + 2, file=grown.file)
    assert (grown.file.last_id, grown.file.bytes - grown.file.folded_to, scanned.read) == ("m2", 13, 1)


def test_a_half_line_counts_once_it_has_its_end(scanned):
    scanned.write("s1", header("s1", "agent:main:cron:1"), b'{"type":"message","id":"m1","timest')
    assert scanned()["s1"].entry.message_count == 0
    scanned.write("s1", f'amp":"{iso_ms(T + 9)}","message":{{"role":"user"}}}}\n'.encode())
    entry = scanned()["s1"].entry
    assert (entry.message_count, entry.updated_at, entry.corrupt_records) == (1, T + 9, 0)


@pytest.mark.parametrize("way", ["shrunk", "replaced", "written anew in place", "shrunk and grown again"])
def test_a_file_that_is_another_one_now_is_read_from_the_start(scanned, way):
    key = "agent:main:cron:1"
    file = scanned.write("s1", header("s1", key), message(1), message(2))
    scanned()
    new = [header("s1", key), message(7)] if way == "shrunk" else [header("s1", key), *map(message, range(3, 9))]
    if way == "shrunk":
        file.write_bytes(file.read_bytes()[: len(json.dumps(header("s1", key))) + 1])
        scanned.write("s1", message(7))
    elif way == "replaced":
        file.rename(scanned.path / "old")
        scanned.write("s1", *new)
    else:
        os.truncate(file, 0)
        scanned.write("s1", *new)
    entry = scanned()["s1"].entry
    (scanned.path / "sessions.json").unlink()
    # Only the index knew that there had been others.
    assert entry.file.had_messages == 2
    past = {"had_messages": 2, "rewritten_at": entry.file.rewritten_at}
    again = scanned()["s1"].entry
    assert entry == replace(again, file=replace(again.file, **past))
    assert (entry.message_count, entry.file.last_id) == (len(new) - 1, f"m{7 if way == 'shrunk' else 8}")


def test_a_file_written_anew_without_a_key_keeps_the_one_it_had(scanned):
    file = scanned.write("s1", header("s1", "agent:main:cron:1"), message(1))
    scanned()
    file.unlink()
    scanned.write("s1", header("s1"), message(2))
    assert scanned()["s1"].key == "agent:main:cron:1"
    (scanned.path / "sessions.json").unlink()
    assert scanned()["s1"].key == "agent:main:cron:1"


@pytest.mark.parametrize("key", [None, "agent:main:cron:1"])
def test_a_file_written_anew_while_nobody_looked_never_leaves_its_sandbox(scanned, key):
    told = {"label": "dear", "sandboxed": True, "spawn": {"mode": "run"}}
    data = {"type": "custom", "id": "c1", "customType": "sessiond/entry", "data": told}
    file = scanned.write("s1", header("s1", "agent:main:cron:1"), data)
    scanned()
    file.unlink()
    scanned.write("s1", header("s1", key), message(2))
    for _ in range(2):
        entry = scanned()["s1"].entry
        assert (entry.sandboxed, entry.message_count) == (True, 1)
        # A file that says its key says what is set, too; one that does not gets back what was.
        assert (entry.label, entry.spawn) == (("dear", Spawn(mode="run")) if key is None else (None, None))
        with contextlib.suppress(FileNotFoundError):
            (scanned.path / "sessions.json").unlink()
    assert len(scanned.lines("s1")) == 3


def test_a_session_whose_file_is_gone_is_gone_from_the_index(scanned):
    file = scanned.write("s1", header("s1", "agent:main:cron:1"))
    scanned.write("s2", header("s2", "agent:main:cron:2"))
    scanned()
    file.unlink()
    assert list(scanned()) == ["s2"]
    assert list(index.load(scanned.folder.fd).ours) == ["s2"]


def test_a_store_of_openclaw_is_adopted_with_keys_and_settings(scanned):
    shutil.copytree(GOLDEN, scanned.path, dirs_exist_ok=True)
    foreign = json.loads((GOLDEN / "sessions.json").read_text())
    found = scanned()
    assert {session.key: name for name, session in found.items()} == {
        "agent:main:main": MAIN_ID,
        DASHBOARD: DASHBOARD_ID,
        "agent:main:telegram:group:-100123": GROUP_ID,
    }
    assert [line["type"] for line in scanned.lines(GROUP_ID)] == ["session", "custom"]
    assert found[GROUP_ID].entry.display_name == foreign["agent:main:telegram:group:-100123"].get("displayName")
    entry = found[MAIN_ID].entry
    assert entry == Entry(
        session_id=MAIN_ID,
        session_key="agent:main:main",
        created_at=1795224660653,
        updated_at=1795224687822,
        cwd="/home/user/ws",
        chat_type="direct",
        delivery_context={"channel": "webchat"},
        last_channel="webchat",
        model="demo-1",
        model_provider="fake",
        thinking_level="low",
        system_sent=True,
        aborted_last_run=False,
        send_policy="deny",
        input_tokens=2403,
        output_tokens=66,
        cache_read=0,
        cache_write=0,
        total_tokens=1202,
        context_tokens=32000,
        estimated_cost_usd=0.002535,
        status="ok",
        started_at=1795224660674,
        ended_at=1795224660934,
        runtime_ms=260,
        message_count=5,
        file=entry.file,
    )
    assert found[DASHBOARD_ID].entry.label == foreign[DASHBOARD]["label"] == "research"
    assert scanned.problems == []


def test_a_store_of_openclaw_is_read_message_for_message(scanned):
    shutil.copytree(GOLDEN, scanned.path, dirs_exist_ok=True)
    found = scanned()
    assert found.pop(GROUP_ID).entry.message_count == 0
    assert set(found) == {MAIN_ID, DASHBOARD_ID}
    for name, session in found.items():
        original = (GOLDEN / f"{name}.jsonl").read_bytes()
        assert (scanned.path / f"{name}.jsonl").read_bytes().startswith(original)
        wanted = [line for line in original.splitlines() if json.loads(line)["type"] == "message"]
        fd = os.open(scanned.path / f"{name}.jsonl", os.O_RDONLY)
        page = paging.page_backwards(
            fd,
            session.entry.file.folded_to,
            session.entry.message_count,
            wanted=lambda record: True,
            limit=1000,
            max_bytes=1 << 20,
            record_limit=1 << 20,
        )
        os.close(fd)
        assert [line.record.raw for line, _ in page.lines] == wanted
        assert [seq for _, seq in page.lines] == list(range(1, len(wanted) + 1))
        assert all(line.record.message in line.record.raw for line, _ in page.lines)
        assert (page.has_more, page.skipped) == (False, 0)


def test_an_adopted_store_says_it_all_without_either_index(scanned):
    shutil.copytree(GOLDEN, scanned.path, dirs_exist_ok=True)
    first = scanned()
    files = {name: (scanned.path / f"{name}.jsonl").read_bytes() for name in first}
    scanned()
    assert scanned.read == 0
    (scanned.path / "sessions.json").unlink()
    assert entries(scanned()) == entries(first)
    assert {name: (scanned.path / f"{name}.jsonl").read_bytes() for name in first} == files


def test_adoption_appends_one_record_behind_the_last(scanned):
    shutil.copytree(GOLDEN, scanned.path, dirs_exist_ok=True)
    before = (GOLDEN / f"{MAIN_ID}.jsonl").read_text().splitlines()
    scanned()
    *rest, last = scanned.lines(MAIN_ID)
    fields = json.loads((GOLDEN / "sessions.json").read_text())["agent:main:main"]
    del fields["sessionId"]
    assert rest == [json.loads(line) for line in before]
    assert last == {
        "type": "custom",
        "customType": "sessiond/entry",
        "data": {"sessionKey": "agent:main:main", **fields},
        "id": last["id"],
        "parentId": rest[-1]["id"],
        "timestamp": iso_ms(scanned.settings.clock.wall_ms()),
    }


NOW_NS = 1_795_300_000_000_000_000
HALF = b'{"type":"message","id":"h","message":{"role":"us'
REST = b'er","content":"x"}}\n'


@pytest.mark.parametrize("age_s", [-59, 0, 59])
def test_a_file_is_not_adopted_within_a_line_that_is_being_written(scanned, age_s):
    file = scanned.write("s1", header("s1"), HALF)
    os.utime(file, ns=(0, NOW_NS - age_s * 10**9))
    before = file.read_bytes()
    assert scanned() == {}
    assert scanned.problems == [
        Problem("agents/main/sessions/s1.jsonl", "another program is in the middle of a line"),
    ]
    assert file.read_bytes() == before
    scanned.write("s1", REST)
    (session,) = scanned().values()
    assert (session.entry.message_count, session.entry.corrupt_records) == (1, 0)


def test_a_line_that_was_left_torn_long_ago_does_not_keep_a_file_from_adoption(scanned):
    os.utime(scanned.write("s1", header("s1"), HALF), ns=(0, NOW_NS - 60 * 10**9))
    (session,) = scanned().values()
    assert (session.key, session.entry.corrupt_records) == ("agent:main:import:s1", 1)


def test_half_a_line_that_comes_between_look_and_adoption_can_still_come_to_its_end(scanned):
    file = scanned.write("s1", header("s1"), message(1))
    ids = scanned.settings.ids

    def stranger_writes() -> str:
        scanned.write("s1", HALF)
        return "0" * 16

    # The record of the adoption gets its id behind the look at the end of the file.
    scanned.settings = replace(scanned.settings, ids=Ids(uuid=ids.uuid, record=stranger_writes))
    assert scanned() == {}
    assert b"sessionKey" not in file.read_bytes()
    scanned.write("s1", REST)
    scanned.settings = replace(scanned.settings, ids=ids)
    (session,) = scanned().values()
    assert (session.entry.message_count, session.entry.corrupt_records) == (2, 0)


def test_another_programs_index_stays_until_its_files_could_be_adopted(scanned):
    scanned.index({"agent:main:main": {"sessionId": "s1", "label": "dear"}})
    os.utime(scanned.write("s1", header("s1"), HALF), ns=(0, NOW_NS))
    assert scanned() == {}
    assert scanned.folder.waiting == {"s1.jsonl"}
    scanned.folder.waiting.clear()


@pytest.mark.parametrize("torn", ['{"agent:main:main": {"sessionId": "s1", "la', ""])
def test_beside_an_index_that_is_being_written_no_file_gets_a_key(scanned, torn):
    scanned.write("s1", header("s1"), message(1))
    file = scanned.path / "sessions.json"
    file.write_text(torn)
    os.utime(file, ns=(0, NOW_NS))
    assert scanned() == {}
    assert scanned.folder.waiting == {"s1.jsonl", "sessions.json"}
    assert b"sessionKey" not in (scanned.path / "s1.jsonl").read_bytes()
    scanned.folder.waiting.clear()
    scanned.index({"agent:main:main": {"sessionId": "s1", "label": "dear"}})
    (session,) = scanned().values()
    assert (session.key, session.entry.label) == ("agent:main:main", "dear")


def test_an_index_that_stays_torn_is_waited_for_no_longer_and_kept_beside_ours(scanned):
    scanned.write("s1", header("s1"), message(1))
    file, kept = scanned.path / "sessions.json", scanned.path / "sessions.json.damaged"
    for number, name in enumerate(["sessions.json.damaged", "sessions.json.damaged.2"]):
        torn = f'{{"agent:main:main": {{"sessionId": "s1", "{number}'
        file.write_text(torn)
        os.utime(file, ns=(0, NOW_NS - 61 * 10**9))
        found = scanned()
        assert [session.key for session in found.values()] == ["agent:main:import:s1"]
        assert scanned.folder.has_torn_index
        file.write_text(torn)
        os.utime(file, ns=(0, NOW_NS))
        index.save(scanned.folder.fd, index.encode_index(found.values()), kept_at_ms=NOW_NS // 10**6 + 60_000)
        assert (scanned.path / name).read_text() == torn
        assert index.load(scanned.folder.fd).damaged == []
    assert kept.read_text().endswith("0")


def test_an_index_that_cannot_be_opened_just_now_is_not_known(scanned):
    scanned.index({"agent:main:main": {"sessionId": "s1"}})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        known = index.load(scanned.folder.fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (known.unread, known.foreign) == (True, {})
    assert scan.foreign_of(known, scanned.folder, scanned.settings) is None
    assert scan.foreign_of(index.load(scanned.folder.fd), scanned.folder, scanned.settings)


def test_a_file_of_pi_without_an_index_is_an_import(scanned):
    scanned.write("2026-11-21_AbC", header("AbC"), message(1))
    found = scanned()
    assert [session.key for session in found.values()] == ["agent:main:import:2026-11-21_abc"]
    assert scanned.lines("2026-11-21_AbC")[-1]["data"] == {"sessionKey": "agent:main:import:2026-11-21_abc"}


def test_the_session_id_is_the_files_name_whatever_the_header_says(scanned):
    scanned.write("s1", header("another", "agent:main:cron:1"))
    assert scanned()["s1"].entry.session_id == "s1"


@pytest.mark.parametrize(
    "key",
    [
        "agent:ops:main",
        "main",
        "agent:main:",
        "agent:main:::",
        "agent:main:UPPER",
        "agent:main:a\x07",
        "agent:main: x ",
    ],
)
def test_a_key_that_the_folder_cannot_have_is_not_believed(scanned, key):
    scanned.write("s1", header("s1", key), message(1))
    assert scanned()["s1"].key == "agent:main:import:s1"
    scanned()
    assert scanned.read == 0


def test_an_index_with_another_agents_key_is_not_believed(scanned):
    scanned.write("s1", header("s1", "agent:main:cron:1"))
    scanned()
    text = (scanned.path / "sessions.json").read_text()
    (scanned.path / "sessions.json").write_text(text.replace("agent:main:cron:1", "agent:oops:cron:1"))
    assert scanned()["s1"].key == "agent:main:cron:1"


@pytest.mark.parametrize("foreign_key", ["main", "Agent:MAIN:Main", "agent:main:main"])
def test_a_foreign_key_is_read_as_a_caller_would_write_it(scanned, foreign_key):
    scanned.write("s1", header("s1"))
    scanned.index({foreign_key: {"sessionId": "s1", "updatedAt": T}})
    assert scanned()["s1"].key == "agent:main:main"


@pytest.mark.parametrize("foreign_key", ["global", "agent:ops:main", "agent:", "\x00"])
def test_settings_under_a_key_that_cannot_be_used_are_kept_on_an_import(scanned, foreign_key):
    scanned.write("s1", header("s1"))
    scanned.index({foreign_key: {"sessionId": "s1", "label": "kept"}})
    session = scanned()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:import:s1", "kept")


def test_of_several_foreign_keys_for_a_session_the_one_used_last_counts(scanned):
    scanned.write("s1", header("s1"))
    scanned.index(
        {
            "agent:main:a": {"sessionId": "s1", "updatedAt": 1, "label": "a"},
            "agent:main:b": {"sessionId": "s1", "updatedAt": 3, "label": "b"},
            "agent:main:c": {"sessionId": "s1", "updatedAt": 2, "label": "c"},
            "agent:main:d": {"sessionId": "s1", "updatedAt": "late", "label": "d"},
            "agent:main:e": {"sessionId": "other", "updatedAt": 9},
        }
    )
    session = scanned()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:b", "b")


def test_a_foreign_entry_without_a_transcript_gets_one_with_its_settings(scanned):
    scanned.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, "label": "kept", "status": "running"}})
    entry = scanned()["s1"].entry
    assert entry == Entry(
        session_id="s1",
        session_key="agent:main:main",
        created_at=T,
        updated_at=T,
        label="kept",
        file=entry.file,
    )
    assert [line["type"] for line in scanned.lines("s1")] == ["session", "custom"]
    (scanned.path / "sessions.json").unlink()
    assert scanned()["s1"].entry == entry


@pytest.mark.parametrize("updated", [None, "x", -1, 10**40, True])
def test_a_foreign_entry_with_no_sensible_time_begins_now(scanned, updated):
    scanned.index({"agent:main:main": {"sessionId": "s1", "updatedAt": updated}})
    assert scanned()["s1"].entry.created_at == scanned.settings.clock.wall_ms()


@pytest.mark.parametrize("session_id", [None, 5, "", "../up", "a/b", ".hidden", "x" * 200, "\0"])
def test_a_foreign_entry_with_an_id_that_is_no_file_name_makes_no_file(scanned, session_id):
    scanned.index({"agent:main:main": {"sessionId": session_id, "updatedAt": T}})
    assert scanned() == {}
    assert [path.name for path in scanned.path.iterdir()] == ["sessions.json"]


def test_an_adoption_that_was_cut_off_after_the_header_goes_on_at_the_next_start(scanned):
    scanned.write("s1", header("s1"))
    scanned.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, "label": "kept"}})
    session = scanned()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:main", "kept")


def test_an_adopted_entry_too_large_for_a_record_keeps_what_is_read_here(scanned):
    scanned.settings = replace(scanned.settings, record_limit=2000)
    scanned.write("s1", header("s1"))
    scanned.index({"agent:main:main": {"sessionId": "s1", "label": "kept", "skillsSnapshot": "x" * 5000}})
    session = scanned()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:main", "kept")
    assert scanned.lines("s1")[-1]["data"] == {"sessionKey": "agent:main:main", "label": "kept"}
    scanned.write("s2", header("s2"))
    scanned.index({"agent:main:two": {"sessionId": "s2", "label": "x" * 5000}})
    assert scanned()["s2"].key == "agent:main:two"
    assert scanned.lines("s2")[-1]["data"] == {"sessionKey": "agent:main:two"}


def test_json_lines_of_another_kind_are_left_alone(scanned):
    file = scanned.write("s1.trajectory", {"type": "step", "n": 1})
    empty, half = scanned.write("s2"), scanned.write("s3", b'{"type":"session"')
    before = [path.read_bytes() for path in (file, empty, half)]
    assert scanned() == {}
    assert [path.read_bytes() for path in (file, empty, half)] == before


def test_a_damaged_header_does_not_cost_the_messages(scanned):
    scanned.write("s1", b'{"type":"sess\0\0\n', message(1), message(2))
    entry = scanned()["s1"].entry
    assert (entry.session_key, entry.message_count, entry.corrupt_records) == ("agent:main:import:s1", 2, 1)


def test_of_two_headers_for_a_key_the_newest_is_live_and_the_other_its_history(scanned):
    for name, at in (("old", T), ("new", T + 2), ("mid", T + 1)):
        scanned.write(name, header(name, "agent:main:cron:1", at), message(1))
    catalogs = []
    for _ in range(2):
        catalog = Catalog()
        catalog.load(list(scanned().values()))
        catalogs.append(catalog)
        assert catalog.by_key["agent:main:cron:1"].session_id == "new"
        assert {name: session.archived for name, session in catalog.by_id.items()} == {
            "old": True,
            "mid": True,
            "new": False,
        }
        assert set(index.load(scanned.folder.fd).ours) == {"old", "new", "mid"}


def test_symlinks_are_skipped_and_reported_and_other_files_are_nobodys_business(scanned, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "t.jsonl"
    outside.write_bytes(json.dumps(header("out", "agent:main:cron:9")).encode() + b"\n")
    before = outside.read_bytes()
    (scanned.path / "linked.jsonl").symlink_to(outside)
    (scanned.path / "dangling.jsonl").symlink_to("nowhere")
    (scanned.path / "folder.jsonl").mkdir()
    (scanned.path / "notes.txt").write_text("x")
    os.mkfifo(scanned.path / "fifo.jsonl")
    assert scanned() == {}
    assert sorted((problem.path, problem.reason) for problem in scanned.problems) == [
        ("agents/main/sessions/dangling.jsonl", "a symlink; it is not followed"),
        ("agents/main/sessions/linked.jsonl", "a symlink; it is not followed"),
    ]
    assert outside.read_bytes() == before


def test_an_archived_file_is_read_and_adopted_where_it_is(tmp_path, settings):
    (tmp_path / "archive").mkdir()
    fd = os.open(tmp_path / "archive", os.O_RDONLY)
    archive = Folder("main", fd, archived=True)
    scanned = Scan(tmp_path / "archive", archive, settings)
    scanned.write("s1", header("s1", "agent:main:cron:1"))
    scanned.write("s2", header("s2"))
    scanned.index({"agent:main:x": {"sessionId": "nowhere"}})
    try:
        found = scanned()
        assert {name: (session.key, session.archived) for name, session in found.items()} == {
            "s1": ("agent:main:cron:1", True),
            "s2": ("agent:main:import:s2", True),
        }
        scanned()
        assert scanned.read == 0
    finally:
        os.close(fd)


def test_a_file_that_cannot_be_written_is_reported_and_costs_only_itself(scanned):
    scanned.write("good", header("good", "agent:main:cron:1"))
    file = scanned.write("bad", header("bad"), b" " * 100_000 + b"\n")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        found = scan.scan_folder(scanned.folder, scanned.settings, scanned.progress, scanned.problems)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert [session.session_id for session in found] == ["good"]
    assert scanned.problems == [Problem("agents/main/sessions/bad.jsonl", "File too large")]
    assert len(scanned()) == 2


def test_an_entry_that_another_fold_made_is_folded_again(scanned):
    file = scanned.write("s1", header("s1", "agent:main:cron:1"), message(1))
    right = scanned()
    rows = json.loads((scanned.path / "sessions.json").read_text())
    rows["agent:main:cron:1"]["messageCount"] = 7
    scanned.index(rows)
    assert scanned()["s1"].entry.message_count == 7, "an entry of this fold is believed"
    for fold in (None, 0, 1, FOLD_VERSION + 1):
        rows["agent:main:cron:1"]["file"]["fold"] = fold
        if fold is None:
            del rows["agent:main:cron:1"]["file"]["fold"]
        scanned.index(rows)
        assert entries(scanned()) == entries(right)
        assert (scanned.read, scanned.folder.dirty) == (1, True)
    with unreadable(file):
        assert entries(scanned()) == entries(right)


def test_a_line_that_says_nothing_is_a_problem_with_its_file_and_number(scanned):
    odd = {"type": "custom", "customType": "sessiond/run", "data": {"runId": "r", "status": []}}
    scanned.write("s1", header("s1", "agent:main:cron:1"), message(1), b"{torn\n", b"\n", odd)
    scanned()
    path = "agents/main/sessions/s1.jsonl"
    first = len((scanned.path / "s1.jsonl").read_bytes().split(b"{torn")[0])
    assert scanned.problems == [
        Problem(path, f"line 3 (at byte {first}): torn or not JSON"),
        Problem(path, f"line 5 (at byte {first + 7}): a sessiond/run record that says nothing"),
    ]
    scanned.write("s2", header("s2", "agent:main:cron:2"), *[b"{torn\n"] * 30)
    scanned()
    assert [problem.reason for problem in scanned.problems][-1] == "25 more lines like that"
    assert len(scanned.problems) == 6


@pytest.mark.parametrize("value", [10**400, [[]] * 3, {"a": 10**400}, "cut \ud83d", None, True])
@pytest.mark.parametrize("field", ["updatedAt", "sessionId", "label", "deliveryContext", "spawn", "contextTokens", "x"])
def test_whatever_a_foreign_index_says_its_files_are_adopted(scanned, field, value):
    scanned.write("s1", header("s1"), message(1))
    scanned.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, field: value}})
    (session,) = scanned().values()
    assert session.key in ("agent:main:main", "agent:main:import:s1")
    assert (session.entry.message_count, session.entry.corrupt_records) == (1, 0)
    first = session.entry
    (scanned.path / "sessions.json").unlink()
    assert scanned()["s1"].entry == first


def test_a_foreign_entry_that_is_nested_deeply_is_adopted_without_what_is_too_deep(scanned):
    deep = json.loads("[" * 100 + "]" * 100)
    scanned.write("s1", header("s1"), message(1))
    scanned.index({"agent:main:main": {"sessionId": "s1", "label": "x", "skills": deep}})
    (session,) = scanned().values()
    assert (session.key, session.entry.label, session.entry.corrupt_records) == ("agent:main:main", "x", 0)


def test_a_file_with_a_time_before_every_calendar_is_read(scanned):
    head = {"type": "session", "id": "s1", "sessionKey": "agent:main:cron:1"}
    file = scanned.write("s1", head, {"type": "message", "message": {"role": "user"}})
    os.utime(file, (-5, -5))
    assert scanned()["s1"].entry.updated_at == 0
