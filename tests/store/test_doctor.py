from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from support.patience import PATIENCE_S
from support.rows import check_each
from support.store_listeners import SilentListener

from sessiond.errors import StoreInUse
from sessiond.model.entry import MAX_OPEN_RUNS
from sessiond.model.keys import KeyRules
from sessiond.store import checks, dirfd, doctor, making
from sessiond.store.store import Message, open_store

KEY = "agent:main:work"
SESSIONS = "agents/main/sessions"


def _store(folder: Path, *, messages: int = 2) -> Path:
    """Create a healthy store with one session and a saved index; returns the path of its transcript."""

    async def make() -> Path:
        async with open_store(
            folder, listener=SilentListener, durable=False, record_limit=1 << 20, rules=KeyRules()
        ) as store:
            session, _ = await store.create(KEY, "main", [Message({"role": "user", "content": "x"})] * messages)
            for one in store.dirty_folders():
                await store.save(one)
            return store.path / session.path

    return trio.run(make)


def _findings(folder: Path, *levels: str) -> list[dict[str, Any]]:
    found = doctor.report(folder)["findings"]
    return [one for one in found if one["level"] in (levels or ("warn", "error"))]


def _only(folder: Path) -> dict[str, Any]:
    found = _findings(folder)
    assert len(found) == 1, found
    return found[0]


def _state(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_mtime_ns,
                                        path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def test_a_healthy_store_has_no_findings_and_is_not_changed(tmp_path: Path) -> None:
    path = _store(tmp_path)
    before = _state(tmp_path)
    assert doctor.report(tmp_path) == {
        "findings": [
            {"level": "ok", "thing": "store.lock", "what": "no daemon has this store"},
            {
                "level": "ok",
                "thing": "agents",
                "what": f"read: 1 transcript with 3 records in {path.stat().st_size} bytes",
            },
        ]
    }
    assert doctor.fix(tmp_path) == []
    assert _state(tmp_path) == {**before, "store.lock": _state(tmp_path)["store.lock"]}


def test_bad_lines_are_listed_with_their_offsets(tmp_path: Path) -> None:
    path = _store(tmp_path)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\n   \n" + b"torn\n" + b'{"type":"x"}\n' + b'{"a":"\0"}\n' + b'{"type":"message","mess')
    found = _only_transcript(tmp_path)
    torn, nul, half = size + 5, size + 5 + 5 + 13, size + 5 + 5 + 13 + 10
    assert [(one["thing"], one["what"]) for one in found] == [
        (
            f"{SESSIONS}/{path.name}",
            "2 bad lines, passed over by every reader: "
            f"line 6 (at byte {torn}) (not an object), line 8 (at byte {nul}) (NUL bytes)",
        ),
        (f"{SESSIONS}/{path.name}", f"half a line at {half}: still being written, or torn"),
    ]


def _only_transcript(folder: Path) -> list[dict[str, Any]]:
    return [one for one in _findings(folder) if one["thing"].endswith(".jsonl")]


@check_each(("count", "ending"), [(20, "object)"), (21, "and 1 more"), (300, "and 280 more")])
def test_twenty_bad_lines_are_named_and_the_rest_are_counted(tmp_path: Path, count: int, ending: str) -> None:
    path = _store(tmp_path)
    with path.open("a") as file:
        file.write("bad\n" * count)
    what = _only(tmp_path)["what"]
    assert what.startswith(f"{count} bad lines")
    assert what.endswith(ending)
    assert what.count("at byte ") == 20


def test_a_line_over_the_limit_is_listed_as_bad(tmp_path: Path) -> None:
    path = _store(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"type":"x","y":"' + b"z" * doctor.RECORD_LIMIT + b'"}\n')
    assert "over the size limit" in _only(tmp_path)["what"]


def test_what_the_link_keeps_belongs_in_a_store(tmp_path: Path) -> None:
    _store(tmp_path)
    (tmp_path / "link").mkdir(0o700)
    for file in ("link/commands.db-wal", "link/shares.json", "keys/link.key"):
        (tmp_path / file).write_bytes(b"")
        (tmp_path / file).chmod(0o600)
    assert _findings(tmp_path) == []
    (tmp_path / "keys" / "link.key").chmod(0o640)
    assert _only(tmp_path)["thing"] == "keys"


def test_files_that_do_not_belong_in_a_store_are_reported_and_left_alone(tmp_path: Path) -> None:
    _store(tmp_path)
    sessions = tmp_path / SESSIONS
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "agents" / "UPPER").mkdir()
    (tmp_path / "agents" / "main" / "workspace").mkdir()
    (tmp_path / "agents" / "main" / "workspace" / "link").symlink_to("/")
    (sessions / "old.jsonl.reset.2026-01-02T03-04-05.678Z").write_text("{}")
    (sessions / "link.jsonl").symlink_to("/etc/passwd")
    (sessions / ".tmp-0123456789abcdef").write_text("half")
    os.mkfifo(sessions / "pipe.jsonl")
    (sessions / "bad\nname\u202e").write_text("")
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
    found = {one["thing"]: one["what"] for one in _findings(tmp_path)}
    assert found == {
        "notes.txt": "nothing of sessiond's; it is left alone",
        "agents/UPPER": "nothing of sessiond's; it is left alone",
        f"{SESSIONS}/old.jsonl.reset.2026-01-02T03-04-05.678Z": "an archive of another program; it is not read",
        f"{SESSIONS}/link.jsonl": "a symlink; it is not followed",
        f"{SESSIONS}/.tmp-0123456789abcdef": "left over from a write that was cut off",
        f"{SESSIONS}/pipe.jsonl": "neither a file nor a folder",
        f"{SESSIONS}/bad\\nname\\u202e": "nothing of sessiond's; it is left alone",
    }


def test_wide_modes_are_reported_by_folder_and_narrowed(tmp_path: Path) -> None:
    path = _store(tmp_path)
    before = path.read_bytes()
    path.chmod(0o644)
    (tmp_path / "keys" / "signing.key").chmod(0o640)
    (tmp_path / SESSIONS).chmod(0o755)
    found = {one["thing"]: one["what"] for one in _findings(tmp_path)}
    assert found == {
        "keys": "others may read it: signing.key is 0640",
        "agents/main": "others may read it: sessions is 0755",
        SESSIONS: f"others may read it: {path.name} is 0644",
    }
    done = doctor.fix(tmp_path)
    assert done[1:] == [
        "agents/main/sessions: mode 0755 is 0700 now",
        f"{SESSIONS}/{path.name}: mode 0644 is 0600 now",
        "keys/signing.key: mode 0640 is 0600 now",
    ]
    assert _findings(tmp_path) == []
    assert path.read_bytes() == before
    (backup,) = (tmp_path / "backups").iterdir()
    assert done[0] == f"backups/{backup.name}: a backup was made first"
    assert json.loads((backup / "manifest.json").read_text())[0] == {
        "path": "agents/main/sessions",
        "action": "narrow",
        "mode": "0755",
    }
    assert backup.stat().st_mode & 0o777 == 0o700


def test_a_damaged_index_is_rebuilt_and_the_old_one_is_kept(tmp_path: Path) -> None:
    path = _store(tmp_path)
    index = tmp_path / SESSIONS / "sessions.json"
    good = json.loads(index.read_bytes())
    index.write_bytes(b'{"torn": ')
    os.utime(index, ns=(0, 0))
    found = _only(tmp_path)
    assert (found["thing"], found["hint"]) == (f"{SESSIONS}/sessions.json", "sessiond doctor --fix")
    before = path.read_bytes()
    done = doctor.report(tmp_path, fix=True)["findings"]
    assert [one["what"] for one in done if one["thing"] == "repaired"][1] == (
        f"{SESSIONS}/sessions.json: made again from 1 transcript"
    )
    assert json.loads(index.read_bytes()) == good
    (backup,) = (tmp_path / "backups").iterdir()
    assert (backup / "agents__main__sessions__sessions.json").read_bytes() == b'{"torn": '
    assert path.read_bytes() == before
    assert _findings(tmp_path) == []


def test_a_torn_index_of_sessiond_is_rebuilt_even_if_it_is_recent(tmp_path: Path) -> None:
    _store(tmp_path)
    index = tmp_path / SESSIONS / "sessions.json"
    good = index.read_bytes()
    index.write_bytes(good[:-20])
    assert _only(tmp_path)["hint"] == "sessiond doctor --fix"
    assert doctor.fix(tmp_path)[1:] == [f"{SESSIONS}/sessions.json: made again from 1 transcript"]
    assert index.read_bytes() == good


def test_an_index_that_another_program_may_be_writing_is_reported_and_left_alone(tmp_path: Path) -> None:
    _store(tmp_path)
    index = tmp_path / SESSIONS / "sessions.json"
    index.write_bytes(b'{\n  "agent:main:main": {\n    "sessionId": "th')
    found = doctor.report(tmp_path, fix=True)["findings"]
    (finding,) = [one for one in found if one["level"] != "ok"]
    assert (finding["thing"], finding["what"]) == (
        f"{SESSIONS}/sessions.json",
        "torn, and changed within the last minute: another program may be writing it",
    )
    assert [one for one in found if one["thing"] == "repaired"] == []
    assert index.read_bytes().endswith(b'"th')


def test_an_outdated_index_is_not_a_fault_and_is_brought_up_to_date(tmp_path: Path) -> None:
    path = _store(tmp_path)
    line = {"type": "message", "id": "a", "message": {"role": "user", "content": "from elsewhere"}}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert _findings(tmp_path) == []
    (behind,) = (one for one in _findings(tmp_path, "ok") if one["thing"].endswith("sessions.json"))
    assert behind["what"] == "changed since it was saved: 1 of 1 transcript; the next start reads them"
    doctor.fix(tmp_path)
    assert json.loads((tmp_path / SESSIONS / "sessions.json").read_bytes())[KEY]["messageCount"] == 3
    assert not [one for one in _findings(tmp_path, "ok") if one["thing"].endswith("sessions.json")]


def test_an_index_of_another_program_is_not_touched(tmp_path: Path) -> None:
    _store(tmp_path)
    index = tmp_path / SESSIONS / "sessions.json"
    foreign = json.dumps({"agent:main:main": {"sessionId": "theirs", "updatedAt": 1}})
    index.write_text(foreign)
    assert doctor.fix(tmp_path) == []
    assert index.read_text() == foreign


def test_leftover_files_are_moved_to_the_backup(tmp_path: Path) -> None:
    _store(tmp_path)
    left = tmp_path / SESSIONS / ".tmp-0123456789abcdef"
    left.write_text("half")
    left.chmod(0o600)
    assert doctor.fix(tmp_path)[1:] == [f"{SESSIONS}/.tmp-0123456789abcdef: moved to the backup"]
    (backup,) = (tmp_path / "backups").iterdir()
    assert not left.exists()
    assert (backup / "agents__main__sessions__.tmp-0123456789abcdef").read_text() == "half"


def test_leftovers_of_an_interrupted_repair_are_reported_and_removed(tmp_path: Path) -> None:
    _store(tmp_path)
    left = tmp_path / "backups/2026-01-02T03-04-05.000Z/.tmp-0123456789abcdef"
    for folder in (left.parent.parent, left.parent):
        folder.mkdir(mode=0o700)
    kept = left.with_name("agents__main__sessions__sessions.json")
    link = left.parent.with_name("elsewhere")
    link.symlink_to(left.parent)
    for file in (left, kept):
        file.write_text("half")
        file.chmod(0o600)
    what_by_thing = {found["thing"]: found["what"] for found in _findings(tmp_path, "warn")}
    assert what_by_thing == {
        "backups/2026-01-02T03-04-05.000Z/.tmp-0123456789abcdef": "left over from a write that was cut off",
        "backups/elsewhere": "a symlink; it is not followed",
    }
    with dirfd.closing(dirfd.open_root(tmp_path)) as root_fd:
        making.remove_leftovers_of_backups(root_fd)
    assert [path.name for path in left.parent.iterdir()] == [kept.name]
    left.write_text("half")
    left.chmod(0o600)
    assert doctor.fix(tmp_path)[1].endswith("moved to the backup")
    assert _only(tmp_path)["thing"] == "backups/elsewhere"


def test_a_leftover_temporary_file_gets_another_name_in_the_backup(tmp_path: Path) -> None:
    _store(tmp_path)
    left = tmp_path / ".tmp-0123456789abcdef"
    left.write_text("half")
    left.chmod(0o600)
    assert doctor.fix(tmp_path)[1:] == [".tmp-0123456789abcdef: moved to the backup"]
    assert doctor.fix(tmp_path) == []


def test_an_empty_file_is_listed_and_not_a_fault(tmp_path: Path) -> None:
    path = _store(tmp_path).with_name("empty.jsonl")
    path.touch(mode=0o600)
    assert _findings(tmp_path) == []
    (finding,) = (one for one in _findings(tmp_path, "ok") if one["thing"] == f"{SESSIONS}/empty.jsonl")
    assert finding["what"] == "empty; it becomes a session with its first record"


def test_two_transcripts_of_one_key_are_reported(tmp_path: Path) -> None:
    path = _store(tmp_path)
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    assert _only(tmp_path)["thing"] == KEY
    archive = path.parent / "archive"
    archive.mkdir(mode=0o700, exist_ok=True)
    copy.rename(archive / "copy.jsonl")
    assert _findings(tmp_path) == []


@check_each(
    ("name", "content", "level"),
    [
        ("store.json", b"{", "error"),
        ("store.json", b'{"format": 99, "createdAt": 1}', "error"),
        ("keys/signing.key", b"short", "error"),
        ("tokens.jsonl", b'{"type":"issued"}\ntorn\n', "warn"),
        ("outbox/x.json", b"torn", "warn"),
        (
            "outbox/x.json",
            b'{"deliveryId": "x", "channel": "telegram", "to": "1", "sessionKey": "k", "text": "t", "title": "t", '
            b'"createdAt": 1, "failedAt": 5, "lastError": "no such chat"}',
            "warn",
        ),
    ],
)
def test_damaged_files_beside_the_transcripts_are_reported(
    tmp_path: Path, name: str, content: bytes, level: str
) -> None:
    _store(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    found = _only(tmp_path)
    assert (found["thing"], found["level"]) == (name, level)
    if b"failedAt" in content:
        assert found["what"] == "a dead letter to telegram: no such chat"
    # A repair must not guess the content of such files.
    doctor.fix(tmp_path)
    assert path.read_bytes() == content


def test_missing_files_that_the_next_start_creates_are_reported(tmp_path: Path) -> None:
    _store(tmp_path)
    (tmp_path / "store.json").unlink()
    (tmp_path / "keys" / "signing.key").unlink()
    assert [one["thing"] for one in _findings(tmp_path)] == ["store.json", "keys/signing.key"]


def test_token_files_left_by_a_killed_daemon_are_reported(tmp_path: Path) -> None:
    _store(tmp_path)
    folder = tmp_path / "run" / "runs"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / "a.token").write_text("secret text")
    (finding,) = (one for one in _findings(tmp_path, "ok") if one["thing"] == "run/runs")
    assert finding["what"].endswith("a.token")
    assert "secret" not in json.dumps(doctor.report(tmp_path))


def test_a_missing_store_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    for fix in (False, True):
        (found,) = doctor.report(tmp_path / "none", fix=fix)["findings"]
        assert (found["level"], found["thing"]) == ("error", "store")
    assert not (tmp_path / "none").exists()


def test_a_store_in_use_by_a_daemon_is_reported_and_not_repaired(tmp_path: Path) -> None:
    path = _store(tmp_path)
    path.chmod(0o644)
    fd = os.open(tmp_path / "store.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        (lock,) = (one for one in _findings(tmp_path, "ok") if one["thing"] == "store.lock")
        assert lock["what"].startswith(f"process {os.getpid()} (")
        with pytest.raises(StoreInUse):
            doctor.fix(tmp_path)
        found = doctor.report(tmp_path, fix=True)["findings"]
        assert [one["level"] for one in found] == ["error"]
        assert path.stat().st_mode & 0o777 == 0o644
        assert not (tmp_path / "backups").exists()
    finally:
        os.close(fd)


def test_the_report_needs_no_event_loop_and_is_valid_json(tmp_path: Path) -> None:
    _store(tmp_path)
    imports = "import json, sys, pathlib; from sessiond.store import doctor"
    code = f"{imports}; print(json.dumps(doctor.report(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert json.loads(done.stdout) == doctor.report(tmp_path)


def test_records_of_sessiond_without_effect_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = _store(tmp_path)
    number, size = len(path.read_bytes().splitlines()) + 1, path.stat().st_size
    odd = {"type": "custom", "customType": "sessiond/run", "data": {"runId": "r", "status": [], "at": 1}}
    with path.open("a") as file:
        file.write(json.dumps(odd) + "\n")
    assert _only_transcript(tmp_path)[0]["what"] == (
        f"records that say nothing: line {number} (at byte {size}) (a sessiond/run record that says nothing)"
    )


def test_runs_over_the_limit_of_open_runs_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = _store(tmp_path)
    line = '{"type":"custom","customType":"sessiond/run","data":{"runId":"r%05d","status":"accepted","at":1}}\n'
    with path.open("a") as file:
        file.writelines(line % number for number in range(MAX_OPEN_RUNS))
    number, size = len(path.read_bytes().splitlines()) + 1, path.stat().st_size
    assert not any("records that say nothing" in one["what"] for one in _only_transcript(tmp_path))
    with path.open("a") as file:
        file.write(line % MAX_OPEN_RUNS)
    (finding,) = [one["what"] for one in _only_transcript(tmp_path) if "records that say nothing" in one["what"]]
    assert f"line {number} (at byte {size}) (a run accepted while 2000 were open already" in finding


def test_an_index_entry_that_differs_from_its_transcript_is_reported_and_rebuilt(tmp_path: Path) -> None:
    _store(tmp_path)
    index = tmp_path / SESSIONS / "sessions.json"
    right = index.read_bytes()
    rows = json.loads(right)
    (key,) = rows
    rows[key] |= {"messageCount": 7, "label": "forged"}
    index.write_text(json.dumps(rows))
    (found,) = _only_transcript(tmp_path)
    assert found["what"] == "the index says something else of it: label, message_count"
    assert doctor.fix(tmp_path)[-1] == f"{SESSIONS}/sessions.json: made again from 1 transcript"
    assert index.read_bytes() == right
    assert _only_transcript(tmp_path) == []


def test_a_kept_damaged_index_is_reported(tmp_path: Path) -> None:
    _store(tmp_path)
    (tmp_path / SESSIONS / "sessions.json.damaged").write_text("{")
    (found,) = [one for one in doctor.report(tmp_path)["findings"] if one["thing"].endswith(".damaged")]
    assert (found["level"], found["what"]) == ("warn", "stood in the place of the index, torn; it was kept")


def test_a_header_with_a_lone_surrogate_is_not_a_fault(tmp_path: Path) -> None:
    path = _store(tmp_path)
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(head), "cwd": "cut \ud83d"}).encode() + b"\n" + rest)
    assert _only_transcript(tmp_path) == []


def test_messages_lost_by_a_rewrite_in_place_are_reported_without_a_daemon(tmp_path: Path) -> None:
    path = _store(tmp_path, messages=3)
    whole = path.read_bytes()
    header, first, *_ = whole.splitlines(keepends=True)
    path.write_bytes(header + first)
    finding = _only(tmp_path)
    assert finding["thing"] == f"{SESSIONS}/{path.name}"
    assert finding["what"].startswith("cut off or written anew in place at 20")
    assert finding["what"].endswith(": 3 messages were there, and 1 of them now")
    # A rebuilt index still has the number of messages lost, and later messages do not make up for it.
    doctor.fix(tmp_path)
    with path.open("a") as file:
        for number in range(5):
            line = {"type": "message", "id": str(number), "timestamp": "2100-01-01T00:00:00.000Z"}
            file.write(json.dumps({**line, "message": {"role": "user", "content": "later"}}) + "\n")
    assert _only(tmp_path)["what"].endswith(": 3 messages were there, and 1 of them now")
    # With all messages restored, nothing is reported.
    path.write_bytes(whole)
    assert _findings(tmp_path) == []


def test_a_copied_store_is_not_reported_as_having_lost_messages(tmp_path: Path) -> None:
    path = _store(tmp_path / "store")
    # File times lag behind the clock, and archives keep whole seconds: a file may seem older than its messages.
    os.utime(path, ns=(0, 1_000_000_000))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert _findings(tmp_path / "copy") == []
    assert _findings(tmp_path / "store") == []


def test_a_rewrite_that_kept_every_message_is_not_reported(tmp_path: Path) -> None:
    path = _store(tmp_path, messages=3)
    text = path.read_text().replace('"x"', '"y, and longer"')
    path.unlink()
    path.write_text(text)
    path.chmod(0o600)
    assert _findings(tmp_path) == []


def test_a_store_in_git_has_no_findings_and_an_edited_gitignore_is_kept(tmp_path: Path) -> None:
    _store(tmp_path)
    ignores = tmp_path / ".gitignore"
    assert ignores.stat().st_mode & 0o777 == 0o600
    for name in (".git", "agents/main/workspace"):
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)
    assert _findings(tmp_path) == []
    ignores.write_text("mine\n")
    _store(tmp_path)
    assert ignores.read_text() == "mine\n"
    ignores.unlink()
    _store(tmp_path)  # its owner removed it, so it must not be created again
    assert not ignores.exists()


def test_a_symlink_in_place_of_gitignore_is_not_followed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / ".gitignore").symlink_to(tmp_path / "elsewhere")
    _store(store)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("removed", ["a delivery", "a transcript"])
def test_a_file_removed_during_the_check_is_not_reported(tmp_path: Path, removed: str) -> None:
    path = _store(tmp_path)
    (tmp_path / "outbox").mkdir(mode=0o700, exist_ok=True)
    delivery = {"channel": "c", "to": "t", "sessionKey": KEY, "text": "x", "title": "", "createdAt": 5}
    files = [tmp_path / "outbox" / f"{name}.json" for name in ("a", "b")]
    for file in files:
        file.write_text(json.dumps({"deliveryId": file.stem, **delivery}))
    shutil.copy(path, path.with_name("zz.jsonl"))
    with dirfd.closing(dirfd.open_root(tmp_path)) as root_fd:
        if removed == "a delivery":
            steps, gone = checks.check_outbox(root_fd), files[1]
        else:
            steps, gone = checks.check_transcripts(root_fd, 1 << 20), path.with_name("zz.jsonl")
        first = next(steps)
        gone.unlink()
        found = [one for one in (first, *steps) if one is not None and one.level != "ok"]
    assert found == []


@check_each("behind_ms", [0, 4, 10])
def test_a_copied_store_with_a_rebuilt_index_is_not_reported_as_rewritten(tmp_path: Path, behind_ms: int) -> None:
    """The kernel updates file times once a tick, so a message may be newer than the time of its file."""
    path = _store(tmp_path / "store")
    stamp = max(json.loads(line)["timestamp"] for line in path.read_text().splitlines())
    moment_ns = int(datetime.fromisoformat(stamp).timestamp() * 1000 - behind_ms) * 1_000_000
    os.utime(path, ns=(moment_ns, moment_ns))
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)
    doctor.fix(copy)
    assert _findings(copy) == []


@check_each("behind_ms", [0, 4, 10])
def test_messages_of_the_same_tick_as_a_rewrite_are_not_reported_as_lost(tmp_path: Path, behind_ms: int) -> None:
    path = _store(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    stamp = max(json.loads(line)["timestamp"] for line in lines)
    # The same messages, as an editor saves them, but not byte for byte.
    path.write_bytes(b"".join(line.replace(b'"content":"x"', b'"content": "x"') for line in lines))
    moment_ns = int(datetime.fromisoformat(stamp).timestamp() * 1000 - behind_ms) * 1_000_000
    os.utime(path, ns=(moment_ns, moment_ns))
    assert [one for one in _findings(tmp_path) if "written anew" in one["what"]] == []
    # If one of them is missing, it is reported.
    path.write_bytes(b"".join(lines[:-1]))
    os.utime(path, ns=(moment_ns, moment_ns))
    assert ["2 messages were there, and 1 of them now" in one["what"] for one in _findings(tmp_path)] == [True]
