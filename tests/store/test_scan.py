"""Finding the sessions at start: which files are read, what of the index is trusted, and what is adopted."""

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
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, Spawn
from sessiond.model.fold import FOLD_VERSION
from sessiond.store import index, paging, scan
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.scan import Problem, ScanSettings

GOLDEN = Path(__file__).parent.parent / "golden" / "openclaw-store" / "agents" / "main" / "sessions"
T = 1795224660000
MAIN_ID = "0e821bfa-101c-4841-b9ad-71d2ff5627e8"
DASHBOARD_ID = "7c6e02b0-3378-43ba-bbba-c0235dfc4f3f"
# Its transcript was reset; the index has the id of the next one, which has no file yet.
GROUP_ID = "a7babc4c-d7fe-41ff-816a-0c8e1678f22a"
DASHBOARD = "agent:main:dashboard:f034105b-b1bc-4243-8407-fcc314e9dca7"


class FolderScan:
    """Scans a folder as at a start. `read` counts the files that were read."""

    def __init__(self, path: Path, folder: Folder, settings: ScanSettings) -> None:
        self.path, self.folder, self.settings = path, folder, settings
        self.problems: list[Problem] = []
        self.read = 0

    def __call__(self) -> dict[str, Session]:
        """The sessions by id; the index is saved if it changed."""
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
def folder_scan(tmp_path: Path, folder: Folder, settings: ScanSettings) -> FolderScan:
    return FolderScan(tmp_path, folder, settings)


def header(name: str, key: str | None = None, at: int = T) -> dict[str, Any]:
    ours = {"sessionKey": key, "agentId": "main"} if key is not None else {}
    return {"type": "session", "version": 3, "id": name, "timestamp": iso_ms(at), "cwd": "/w", **ours}


def message(number: int) -> dict[str, Any]:
    return {"type": "message", "id": f"m{number}", "timestamp": iso_ms(T + number), "message": {"role": "user"}}


@contextmanager
def garbled(*files: Path) -> Iterator[None]:
    """Overwrites the files without changing size, time or inode, so that a scan that reads them gives other results."""
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


def test_files_unchanged_since_the_index_are_not_read(folder_scan):
    files = [folder_scan.write(f"s{n}", header(f"s{n}", f"agent:main:cron:{n}"), message(n)) for n in range(3)]
    first = folder_scan()
    assert folder_scan.read == 3
    with garbled(*files):
        assert entries(folder_scan()) == entries(first)
        assert (folder_scan.read, folder_scan.folder.dirty) == (0, False)


def test_a_touched_file_keeps_its_entry_and_one_overwritten_with_the_same_size_is_read(folder_scan):
    key = "agent:main:cron:1"
    file = folder_scan.write("s1", header("s1", key), message(1))
    before = folder_scan()["s1"].entry
    os.utime(file, ns=(0, before.file.mtime_ns + 10**9))
    touched = folder_scan()["s1"].entry
    assert touched == replace(before, file=replace(before.file, mtime_ns=before.file.mtime_ns + 10**9))
    assert (folder_scan.read, touched.file.had_messages) == (1, 0)
    size = file.stat().st_size
    file.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in (header("s1", key), message(2))))
    assert file.stat().st_size == size
    os.utime(file, ns=(0, before.file.mtime_ns + 2 * 10**9))
    assert (folder_scan()["s1"].entry.file.last_id, folder_scan.read) == ("m2", 1)


def test_without_the_index_a_scan_gives_the_same_entries(folder_scan):
    for number in range(5):
        folder_scan.write(f"s{number}", header(f"s{number}", f"agent:main:cron:{number}"), message(number), b"{torn\n")
    first = folder_scan()
    (folder_scan.path / "sessions.json").unlink()
    assert entries(folder_scan()) == entries(first)
    assert (folder_scan.read, folder_scan.folder.dirty) == (5, True)
    assert first["s3"].entry.corrupt_records == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 100, b'{"agent:main:cron:1": 5}'])
def test_with_a_damaged_index_all_files_are_read_and_no_data_is_lost(folder_scan, content):
    folder_scan.write("s1", header("s1", "agent:main:cron:1"), message(1))
    first = folder_scan()
    (folder_scan.path / "sessions.json").write_bytes(content)
    assert entries(folder_scan()) == entries(first)
    assert folder_scan.read == 1
    folder_scan()
    assert folder_scan.read == 0


def test_a_file_that_grew_is_read_from_the_last_folded_offset(folder_scan):
    file = folder_scan.write("s1", header("s1", "agent:main:cron:1"), message(1))
    folder_scan.write("s2", header("s2", "agent:main:cron:2"))
    first = folder_scan()["s1"].entry
    # The first line is damaged, so that reading the file from its start would count a bad line.
    with file.open("r+b") as opened:
        opened.write(b"#")
    folder_scan.write("s1", message(2), b'{"type":"mess')
    grown = folder_scan()["s1"].entry
    assert grown == replace(first, message_count=2, updated_at=T + 2, file=grown.file)
    assert (grown.file.last_id, grown.file.bytes - grown.file.folded_to, folder_scan.read) == ("m2", 13, 1)


def test_a_half_line_is_folded_once_it_is_complete(folder_scan):
    folder_scan.write("s1", header("s1", "agent:main:cron:1"), b'{"type":"message","id":"m1","timest')
    assert folder_scan()["s1"].entry.message_count == 0
    folder_scan.write("s1", f'amp":"{iso_ms(T + 9)}","message":{{"role":"user"}}}}\n'.encode())
    entry = folder_scan()["s1"].entry
    assert (entry.message_count, entry.updated_at, entry.corrupt_records) == (1, T + 9, 0)


@pytest.mark.parametrize("way", ["shrunk", "replaced", "written anew in place", "shrunk and grown again"])
def test_a_replaced_or_rewritten_file_is_read_from_the_start(folder_scan, way):
    key = "agent:main:cron:1"
    file = folder_scan.write("s1", header("s1", key), message(1), message(2))
    folder_scan()
    new = [header("s1", key), message(7)] if way == "shrunk" else [header("s1", key), *map(message, range(3, 9))]
    if way == "shrunk":
        file.write_bytes(file.read_bytes()[: len(json.dumps(header("s1", key))) + 1])
        folder_scan.write("s1", message(7))
    elif way == "replaced":
        file.rename(folder_scan.path / "old")
        folder_scan.write("s1", *new)
    else:
        os.truncate(file, 0)
        folder_scan.write("s1", *new)
    entry = folder_scan()["s1"].entry
    (folder_scan.path / "sessions.json").unlink()
    # Only the index still has the number of messages before the rewrite.
    assert entry.file.had_messages == 2
    past = {"had_messages": 2, "rewritten_at": entry.file.rewritten_at}
    again = folder_scan()["s1"].entry
    assert entry == replace(again, file=replace(again.file, **past))
    assert (entry.message_count, entry.file.last_id) == (len(new) - 1, f"m{7 if way == 'shrunk' else 8}")


def test_a_file_rewritten_without_a_key_keeps_its_key(folder_scan):
    file = folder_scan.write("s1", header("s1", "agent:main:cron:1"), message(1))
    folder_scan()
    file.unlink()
    folder_scan.write("s1", header("s1"), message(2))
    assert folder_scan()["s1"].key == "agent:main:cron:1"
    (folder_scan.path / "sessions.json").unlink()
    assert folder_scan()["s1"].key == "agent:main:cron:1"


@pytest.mark.parametrize("key", [None, "agent:main:cron:1"])
def test_a_file_rewritten_while_the_daemon_was_down_stays_sandboxed(folder_scan, key):
    fields = {"label": "dear", "sandboxed": True, "spawn": {"mode": "run"}}
    data = {"type": "custom", "id": "c1", "customType": "sessiond/entry", "data": fields}
    file = folder_scan.write("s1", header("s1", "agent:main:cron:1"), data)
    folder_scan()
    file.unlink()
    folder_scan.write("s1", header("s1", key), message(2))
    for _ in range(2):
        entry = folder_scan()["s1"].entry
        assert (entry.sandboxed, entry.message_count) == (True, 1)
        # A file with its key is believed in all its settings; one without it gets the settings it had before.
        assert (entry.label, entry.spawn) == (("dear", Spawn(mode="run")) if key is None else (None, None))
        with contextlib.suppress(FileNotFoundError):
            (folder_scan.path / "sessions.json").unlink()
    assert len(folder_scan.lines("s1")) == 3


def test_a_session_whose_file_was_removed_is_removed_from_the_index(folder_scan):
    file = folder_scan.write("s1", header("s1", "agent:main:cron:1"))
    folder_scan.write("s2", header("s2", "agent:main:cron:2"))
    folder_scan()
    file.unlink()
    assert list(folder_scan()) == ["s2"]
    assert list(index.load(folder_scan.folder.fd).ours) == ["s2"]


def test_an_openclaw_store_is_adopted_with_keys_and_settings(folder_scan):
    shutil.copytree(GOLDEN, folder_scan.path, dirs_exist_ok=True)
    foreign = json.loads((GOLDEN / "sessions.json").read_text())
    found = folder_scan()
    assert {session.key: name for name, session in found.items()} == {
        "agent:main:main": MAIN_ID,
        DASHBOARD: DASHBOARD_ID,
        "agent:main:telegram:group:-100123": GROUP_ID,
    }
    assert [line["type"] for line in folder_scan.lines(GROUP_ID)] == ["session", "custom"]
    assert found[GROUP_ID].entry.display_name == foreign["agent:main:telegram:group:-100123"].get("displayName")
    entry = found[MAIN_ID].entry
    assert entry == Entry(
        session_id=MAIN_ID,
        session_key="agent:main:main",
        created_at=1795224660653,
        updated_at=1795224687822,
        title="please run the tool",
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
        usage=entry.usage,
        file=entry.file,
    )
    assert found[DASHBOARD_ID].entry.label == foreign[DASHBOARD]["label"] == "research"
    assert folder_scan.problems == []


def test_every_message_of_an_openclaw_store_is_read(folder_scan):
    shutil.copytree(GOLDEN, folder_scan.path, dirs_exist_ok=True)
    found = folder_scan()
    assert found.pop(GROUP_ID).entry.message_count == 0
    assert set(found) == {MAIN_ID, DASHBOARD_ID}
    for name, session in found.items():
        original = (GOLDEN / f"{name}.jsonl").read_bytes()
        assert (folder_scan.path / f"{name}.jsonl").read_bytes().startswith(original)
        wanted = [line for line in original.splitlines() if json.loads(line)["type"] == "message"]
        fd = os.open(folder_scan.path / f"{name}.jsonl", os.O_RDONLY)
        page = paging.page_backwards(
            fd,
            session.entry.file.folded_to,
            session.entry.message_count,
            wanted=lambda record: True,
            limit=1000,
            max_bytes=1 << 20,
            record_limit=1 << 20,
            dialect=V3,
        )
        os.close(fd)
        assert [line.record.raw for line, _ in page.lines] == wanted
        assert [seq for _, seq in page.lines] == list(range(1, len(wanted) + 1))
        assert all(line.record.message in line.record.raw for line, _ in page.lines)
        assert (page.has_more, page.skipped) == (False, 0)


def test_an_adopted_store_gives_the_same_entries_without_any_index(folder_scan):
    shutil.copytree(GOLDEN, folder_scan.path, dirs_exist_ok=True)
    first = folder_scan()
    files = {name: (folder_scan.path / f"{name}.jsonl").read_bytes() for name in first}
    folder_scan()
    assert folder_scan.read == 0
    (folder_scan.path / "sessions.json").unlink()
    assert entries(folder_scan()) == entries(first)
    assert {name: (folder_scan.path / f"{name}.jsonl").read_bytes() for name in first} == files


def test_adoption_appends_exactly_one_record(folder_scan):
    shutil.copytree(GOLDEN, folder_scan.path, dirs_exist_ok=True)
    before = (GOLDEN / f"{MAIN_ID}.jsonl").read_text().splitlines()
    folder_scan()
    *rest, last = folder_scan.lines(MAIN_ID)
    fields = json.loads((GOLDEN / "sessions.json").read_text())["agent:main:main"]
    del fields["sessionId"]
    assert rest == [json.loads(line) for line in before]
    assert last == {
        "type": "custom",
        "customType": "sessiond/entry",
        "data": {"sessionKey": "agent:main:main", **fields},
        "id": last["id"],
        "parentId": rest[-1]["id"],
        "timestamp": iso_ms(folder_scan.settings.clock.wall_ms()),
    }


NOW_NS = 1_795_300_000_000_000_000
HALF = b'{"type":"message","id":"h","message":{"role":"us'
REST = b'er","content":"x"}}\n'


@pytest.mark.parametrize("age_s", [-59, 0, 59])
def test_a_file_with_a_line_still_being_written_is_not_adopted(folder_scan, age_s):
    file = folder_scan.write("s1", header("s1"), HALF)
    os.utime(file, ns=(0, NOW_NS - age_s * 10**9))
    before = file.read_bytes()
    assert folder_scan() == {}
    assert folder_scan.problems == [
        Problem("agents/main/sessions/s1.jsonl", "another program is in the middle of a line"),
    ]
    assert file.read_bytes() == before
    folder_scan.write("s1", REST)
    (session,) = folder_scan().values()
    assert (session.entry.message_count, session.entry.corrupt_records) == (1, 0)


def test_a_file_with_an_old_torn_line_is_adopted(folder_scan):
    os.utime(folder_scan.write("s1", header("s1"), HALF), ns=(0, NOW_NS - 60 * 10**9))
    (session,) = folder_scan().values()
    assert (session.key, session.entry.corrupt_records) == ("agent:main:import:s1", 1)


def test_a_half_line_written_during_adoption_can_still_be_completed(folder_scan):
    file = folder_scan.write("s1", header("s1"), message(1))
    ids = folder_scan.settings.ids

    def stranger_writes() -> str:
        folder_scan.write("s1", HALF)
        return "0" * 16

    # The id of the adoption record is made after the end of the file was checked.
    folder_scan.settings = replace(folder_scan.settings, ids=Ids(uuid=ids.uuid, record=stranger_writes))
    assert folder_scan() == {}
    assert b"sessionKey" not in file.read_bytes()
    folder_scan.write("s1", REST)
    folder_scan.settings = replace(folder_scan.settings, ids=ids)
    (session,) = folder_scan().values()
    assert (session.entry.message_count, session.entry.corrupt_records) == (2, 0)


def test_a_foreign_index_is_kept_until_its_files_are_adopted(folder_scan):
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "label": "dear"}})
    os.utime(folder_scan.write("s1", header("s1"), HALF), ns=(0, NOW_NS))
    assert folder_scan() == {}
    assert folder_scan.folder.waiting == {"s1.jsonl"}
    folder_scan.folder.waiting.clear()


@pytest.mark.parametrize("torn", ['{"agent:main:main": {"sessionId": "s1", "la', ""])
def test_no_file_is_adopted_while_the_foreign_index_is_being_written(folder_scan, torn):
    folder_scan.write("s1", header("s1"), message(1))
    file = folder_scan.path / "sessions.json"
    file.write_text(torn)
    os.utime(file, ns=(0, NOW_NS))
    assert folder_scan() == {}
    assert folder_scan.folder.waiting == {"s1.jsonl", "sessions.json"}
    assert b"sessionKey" not in (folder_scan.path / "s1.jsonl").read_bytes()
    folder_scan.folder.waiting.clear()
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "label": "dear"}})
    (session,) = folder_scan().values()
    assert (session.key, session.entry.label) == ("agent:main:main", "dear")


def test_an_index_that_stays_torn_is_kept_under_another_name_and_adoption_goes_on(folder_scan):
    folder_scan.write("s1", header("s1"), message(1))
    file, kept = folder_scan.path / "sessions.json", folder_scan.path / "sessions.json.damaged"
    for number, name in enumerate(["sessions.json.damaged", "sessions.json.damaged.2"]):
        torn = f'{{"agent:main:main": {{"sessionId": "s1", "{number}'
        file.write_text(torn)
        os.utime(file, ns=(0, NOW_NS - 61 * 10**9))
        found = folder_scan()
        assert [session.key for session in found.values()] == ["agent:main:import:s1"]
        assert folder_scan.folder.has_torn_index
        file.write_text(torn)
        os.utime(file, ns=(0, NOW_NS))
        index.save(folder_scan.folder.fd, index.encode_index(found.values()), kept_at_ms=NOW_NS // 10**6 + 60_000)
        assert (folder_scan.path / name).read_text() == torn
        assert index.load(folder_scan.folder.fd).damaged == []
    assert kept.read_text().endswith("0")


def test_an_index_that_cannot_be_opened_for_lack_of_descriptors_is_unknown(folder_scan):
    folder_scan.index({"agent:main:main": {"sessionId": "s1"}})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        known = index.load(folder_scan.folder.fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (known.unread, known.foreign) == (True, {})
    assert scan.foreign_of(known, folder_scan.folder, folder_scan.settings) is None
    assert scan.foreign_of(index.load(folder_scan.folder.fd), folder_scan.folder, folder_scan.settings)


def test_a_pi_transcript_without_an_index_gets_an_import_key(folder_scan):
    folder_scan.write("2026-11-21_AbC", header("AbC"), message(1))
    found = folder_scan()
    assert [session.key for session in found.values()] == ["agent:main:import:2026-11-21_abc"]
    assert folder_scan.lines("2026-11-21_AbC")[-1]["data"] == {"sessionKey": "agent:main:import:2026-11-21_abc"}


def test_the_session_id_is_the_file_name_and_not_the_id_in_the_header(folder_scan):
    folder_scan.write("s1", header("another", "agent:main:cron:1"))
    assert folder_scan()["s1"].entry.session_id == "s1"


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
def test_a_header_key_that_is_invalid_in_this_folder_is_ignored(folder_scan, key):
    folder_scan.write("s1", header("s1", key), message(1))
    assert folder_scan()["s1"].key == "agent:main:import:s1"
    folder_scan()
    assert folder_scan.read == 0


def test_an_index_entry_with_another_agents_key_is_ignored(folder_scan):
    folder_scan.write("s1", header("s1", "agent:main:cron:1"))
    folder_scan()
    text = (folder_scan.path / "sessions.json").read_text()
    (folder_scan.path / "sessions.json").write_text(text.replace("agent:main:cron:1", "agent:oops:cron:1"))
    assert folder_scan()["s1"].key == "agent:main:cron:1"


@pytest.mark.parametrize("foreign_key", ["main", "Agent:MAIN:Main", "agent:main:main"])
def test_a_foreign_key_is_resolved_like_a_callers_key(folder_scan, foreign_key):
    folder_scan.write("s1", header("s1"))
    folder_scan.index({foreign_key: {"sessionId": "s1", "updatedAt": T}})
    assert folder_scan()["s1"].key == "agent:main:main"


@pytest.mark.parametrize("foreign_key", ["global", "agent:ops:main", "agent:", "\x00"])
def test_settings_under_an_unusable_foreign_key_are_kept_with_an_import_key(folder_scan, foreign_key):
    folder_scan.write("s1", header("s1"))
    folder_scan.index({foreign_key: {"sessionId": "s1", "label": "kept"}})
    session = folder_scan()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:import:s1", "kept")


def test_of_several_foreign_keys_for_a_session_the_last_updated_one_is_used(folder_scan):
    folder_scan.write("s1", header("s1"))
    folder_scan.index(
        {
            "agent:main:a": {"sessionId": "s1", "updatedAt": 1, "label": "a"},
            "agent:main:b": {"sessionId": "s1", "updatedAt": 3, "label": "b"},
            "agent:main:c": {"sessionId": "s1", "updatedAt": 2, "label": "c"},
            "agent:main:d": {"sessionId": "s1", "updatedAt": "late", "label": "d"},
            "agent:main:e": {"sessionId": "other", "updatedAt": 9},
        }
    )
    session = folder_scan()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:b", "b")


def test_a_foreign_entry_without_a_transcript_gets_one_with_its_settings(folder_scan):
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, "label": "kept", "status": "running"}})
    entry = folder_scan()["s1"].entry
    assert entry == Entry(
        session_id="s1",
        session_key="agent:main:main",
        created_at=T,
        updated_at=T,
        label="kept",
        file=entry.file,
    )
    assert [line["type"] for line in folder_scan.lines("s1")] == ["session", "custom"]
    (folder_scan.path / "sessions.json").unlink()
    assert folder_scan()["s1"].entry == entry


@pytest.mark.parametrize("updated", [None, "x", -1, 10**40, True])
def test_a_foreign_entry_without_a_valid_time_is_created_now(folder_scan, updated):
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "updatedAt": updated}})
    assert folder_scan()["s1"].entry.created_at == folder_scan.settings.clock.wall_ms()


@pytest.mark.parametrize("session_id", [None, 5, "", "../up", "a/b", ".hidden", "x" * 200, "\0"])
def test_a_foreign_entry_whose_id_is_not_a_file_name_creates_no_file(folder_scan, session_id):
    folder_scan.index({"agent:main:main": {"sessionId": session_id, "updatedAt": T}})
    assert folder_scan() == {}
    assert [path.name for path in folder_scan.path.iterdir()] == ["sessions.json"]


def test_an_adoption_interrupted_after_the_header_is_completed_at_the_next_start(folder_scan):
    folder_scan.write("s1", header("s1"))
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, "label": "kept"}})
    session = folder_scan()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:main", "kept")


def test_an_adopted_entry_too_large_for_a_record_keeps_the_fields_that_sessiond_uses(folder_scan):
    folder_scan.settings = replace(folder_scan.settings, record_limit=2000)
    folder_scan.write("s1", header("s1"))
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "label": "kept", "skillsSnapshot": "x" * 5000}})
    session = folder_scan()["s1"]
    assert (session.key, session.entry.label) == ("agent:main:main", "kept")
    assert folder_scan.lines("s1")[-1]["data"] == {"sessionKey": "agent:main:main", "label": "kept"}
    folder_scan.write("s2", header("s2"))
    folder_scan.index({"agent:main:two": {"sessionId": "s2", "label": "x" * 5000}})
    assert folder_scan()["s2"].key == "agent:main:two"
    assert folder_scan.lines("s2")[-1]["data"] == {"sessionKey": "agent:main:two"}


def test_json_lines_files_that_are_not_transcripts_are_left_alone(folder_scan):
    file = folder_scan.write("s1.trajectory", {"type": "step", "n": 1})
    empty, half = folder_scan.write("s2"), folder_scan.write("s3", b'{"type":"session"')
    before = [path.read_bytes() for path in (file, empty, half)]
    assert folder_scan() == {}
    assert [path.read_bytes() for path in (file, empty, half)] == before


def test_the_messages_after_a_damaged_header_are_read(folder_scan):
    folder_scan.write("s1", b'{"type":"sess\0\0\n', message(1), message(2))
    entry = folder_scan()["s1"].entry
    assert (entry.session_key, entry.message_count, entry.corrupt_records) == ("agent:main:import:s1", 2, 1)


def test_of_several_files_for_a_key_the_newest_is_live_and_the_others_are_archived(folder_scan):
    for name, at in (("old", T), ("new", T + 2), ("mid", T + 1)):
        folder_scan.write(name, header(name, "agent:main:cron:1", at), message(1))
    catalogs = []
    for _ in range(2):
        catalog = Catalog()
        catalog.load(list(folder_scan().values()))
        catalogs.append(catalog)
        assert catalog.by_key["agent:main:cron:1"].session_id == "new"
        assert {name: session.archived for name, session in catalog.by_id.items()} == {
            "old": True,
            "mid": True,
            "new": False,
        }
        assert set(index.load(folder_scan.folder.fd).ours) == {"old", "new", "mid"}


def test_symlinks_are_skipped_and_reported_and_other_files_are_ignored(folder_scan, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "t.jsonl"
    outside.write_bytes(json.dumps(header("out", "agent:main:cron:9")).encode() + b"\n")
    before = outside.read_bytes()
    (folder_scan.path / "linked.jsonl").symlink_to(outside)
    (folder_scan.path / "dangling.jsonl").symlink_to("nowhere")
    (folder_scan.path / "folder.jsonl").mkdir()
    (folder_scan.path / "notes.txt").write_text("x")
    os.mkfifo(folder_scan.path / "fifo.jsonl")
    assert folder_scan() == {}
    assert sorted((problem.path, problem.reason) for problem in folder_scan.problems) == [
        ("agents/main/sessions/dangling.jsonl", "a symlink; it is not followed"),
        ("agents/main/sessions/linked.jsonl", "a symlink; it is not followed"),
    ]
    assert outside.read_bytes() == before


def test_an_archived_file_is_read_and_adopted_in_the_archive(tmp_path, settings):
    (tmp_path / "archive").mkdir()
    fd = os.open(tmp_path / "archive", os.O_RDONLY)
    archive = Folder("main", fd, archived=True, dialect=V3)
    folder_scan = FolderScan(tmp_path / "archive", archive, settings)
    folder_scan.write("s1", header("s1", "agent:main:cron:1"))
    folder_scan.write("s2", header("s2"))
    folder_scan.index({"agent:main:x": {"sessionId": "nowhere"}})
    try:
        found = folder_scan()
        assert {name: (session.key, session.archived) for name, session in found.items()} == {
            "s1": ("agent:main:cron:1", True),
            "s2": ("agent:main:import:s2", True),
        }
        folder_scan()
        assert folder_scan.read == 0
    finally:
        os.close(fd)


def test_a_file_that_cannot_be_written_is_reported_and_the_others_are_found(folder_scan):
    folder_scan.write("good", header("good", "agent:main:cron:1"))
    file = folder_scan.write("bad", header("bad"), b" " * 100_000 + b"\n")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        found = scan.scan_folder(folder_scan.folder, folder_scan.settings, folder_scan.progress, folder_scan.problems)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert [session.session_id for session in found] == ["good"]
    assert folder_scan.problems == [Problem("agents/main/sessions/bad.jsonl", "File too large")]
    assert len(folder_scan()) == 2


def test_an_entry_of_another_fold_version_is_folded_again(folder_scan):
    file = folder_scan.write("s1", header("s1", "agent:main:cron:1"), message(1))
    right = folder_scan()
    rows = json.loads((folder_scan.path / "sessions.json").read_text())
    rows["agent:main:cron:1"]["messageCount"] = 7
    folder_scan.index(rows)
    assert folder_scan()["s1"].entry.message_count == 7, "an entry of this fold is believed"
    for fold in (None, 0, 1, FOLD_VERSION + 1):
        rows["agent:main:cron:1"]["file"]["fold"] = fold
        if fold is None:
            del rows["agent:main:cron:1"]["file"]["fold"]
        folder_scan.index(rows)
        assert entries(folder_scan()) == entries(right)
        assert (folder_scan.read, folder_scan.folder.dirty) == (1, True)
    with garbled(file):
        assert entries(folder_scan()) == entries(right)


def test_a_bad_or_ineffective_line_is_reported_with_its_file_and_number(folder_scan):
    odd = {"type": "custom", "customType": "sessiond/run", "data": {"runId": "r", "status": []}}
    folder_scan.write("s1", header("s1", "agent:main:cron:1"), message(1), b"{torn\n", b"\n", odd)
    folder_scan()
    path = "agents/main/sessions/s1.jsonl"
    first = len((folder_scan.path / "s1.jsonl").read_bytes().split(b"{torn")[0])
    assert folder_scan.problems == [
        Problem(path, f"line 3 (at byte {first}): torn or not JSON"),
        Problem(path, f"line 5 (at byte {first + 7}): a sessiond/run record that says nothing"),
    ]
    folder_scan.write("s2", header("s2", "agent:main:cron:2"), *[b"{torn\n"] * 30)
    folder_scan()
    assert [problem.reason for problem in folder_scan.problems][-1] == "25 more lines like that"
    assert len(folder_scan.problems) == 6


@pytest.mark.parametrize("value", [10**400, [[]] * 3, {"a": 10**400}, "cut \ud83d", None, True])
@pytest.mark.parametrize("field", ["updatedAt", "sessionId", "label", "deliveryContext", "spawn", "contextTokens", "x"])
def test_files_are_adopted_whatever_values_the_foreign_index_has(folder_scan, field, value):
    folder_scan.write("s1", header("s1"), message(1))
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "updatedAt": T, field: value}})
    (session,) = folder_scan().values()
    assert session.key in ("agent:main:main", "agent:main:import:s1")
    assert (session.entry.message_count, session.entry.corrupt_records) == (1, 0)
    first = session.entry
    (folder_scan.path / "sessions.json").unlink()
    assert folder_scan()["s1"].entry == first


def test_values_nested_too_deeply_in_a_foreign_entry_are_left_out(folder_scan):
    deep = json.loads("[" * 100 + "]" * 100)
    folder_scan.write("s1", header("s1"), message(1))
    folder_scan.index({"agent:main:main": {"sessionId": "s1", "label": "x", "skills": deep}})
    (session,) = folder_scan().values()
    assert (session.key, session.entry.label, session.entry.corrupt_records) == ("agent:main:main", "x", 0)


def test_a_file_with_a_negative_mtime_is_read(folder_scan):
    head = {"type": "session", "id": "s1", "sessionKey": "agent:main:cron:1"}
    file = folder_scan.write("s1", head, {"type": "message", "message": {"role": "user"}})
    os.utime(file, (-5, -5))
    assert folder_scan()["s1"].entry.updated_at == 0
