"""One system call that really fails or does half its work: in a separate process, with the shim loaded before libc."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import power
from faults.record import run_with_fault
from faults.shim import Call, Mode, Point
from support.sampling import spread

_SCRIPT_HEAD = """
import os, sys
[place] = sys.argv[1:]
"""


def run(folder: Path, script: str, point: Point | None) -> tuple[str, list[Call]]:
    """Run the script on `folder/place` with a fault at one call; returns its output and the calls it made there."""
    place = folder / "place"
    place.mkdir(parents=True, exist_ok=True)
    done, calls = run_with_fault(folder, place, _SCRIPT_HEAD + script, point, str(place))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), calls


_BLANK_OUT_SCRIPT = """
from sessiond.store import transcript
fd = os.open(place + "/t.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(fd, b"one\\nrefused\\nstranger\\n")
transcript.blank_out(fd, 4, 8)
"""


def test_a_half_written_blank_out_is_completed(tmp_path: Path) -> None:
    # Calls 1 and 2 create and write the file; the third writes the blanks.
    _, calls = run(tmp_path, _BLANK_OUT_SCRIPT, Point(Mode.HALF, 3))
    assert [(call.offset, call.data) for call in calls if call.name == "write"][1:] == [(4, b"    "), (8, b"   \n")]
    assert (tmp_path / "place/t.jsonl").read_bytes() == b"one\n       \nstranger\n"


_BLANK_OUT_THREE_LINES_SCRIPT = """
from sessiond.store import transcript
fd = os.open(place + "/t.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT)
os.write(fd, b"one\\na\\nbb\\nccc\\nstranger\\n")
try:
    transcript.blank_out(fd, 4, 9)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize(
    ("number", "left"), [(3, b"a\nbb\nccc\n"), (4, b"a\nbb\n   \n"), (5, b"a\n  \n   \n"), (6, b" \n  \n   \n")]
)
def test_refused_lines_are_blanked_out_from_the_last_to_the_first(tmp_path: Path, number: int, left: bytes) -> None:
    """So that an interruption never leaves the start of a run without its acceptance."""
    printed, _ = run(tmp_path, _BLANK_OUT_THREE_LINES_SCRIPT, Point(Mode.FAIL, number, 5))
    assert printed == ("5" if number < 6 else "")
    assert (tmp_path / "place/t.jsonl").read_bytes() == b"one\n" + left + b"stranger\n"


_DURABLE_SCRIPTS = {
    "made": """
from sessiond.store import making
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder
folder = Folder("main", os.open(place, os.O_RDONLY | os.O_DIRECTORY), path=place, dialect=V3)
making.create_file(folder, "s.jsonl", b'{"type":"session","id":"s"}\\n', 1 << 20, True)
""",
    "replaced": """
from sessiond.store import dirfd
dirfd.write_atomic(os.open(place, os.O_RDONLY | os.O_DIRECTORY), "s.jsonl", [b'{"type":"session"', b',"id":"s"}\\n'])
""",
}


@pytest.mark.parametrize("how", _DURABLE_SCRIPTS)
def test_a_created_or_replaced_file_survives_a_power_cut(tmp_path: Path, how: str) -> None:
    _, calls = run(tmp_path, _DURABLE_SCRIPTS[how], None)
    assert power.last_cut({}, calls).files == {"s.jsonl": b'{"type":"session","id":"s"}\n'}
    # At no moment does the name refer to bytes that are not synced.
    assert not list(power.find_unsynced({}, calls))


_MOVE_SCRIPT = """
from sessiond.store import dirfd
os.mkdir(place + "/archive")
os.close(os.open(place + "/s.jsonl", os.O_WRONLY | os.O_CREAT))
here, there = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (place, place + "/archive"))
assert dirfd.move(here, there, "s.jsonl", True)
"""


def test_a_moved_file_is_on_disk_in_its_new_folder_before_it_leaves_the_old_one(tmp_path: Path) -> None:
    """A file system may write one folder before the other: in between, the file must be in both, not in neither."""
    _, calls = run(tmp_path, _MOVE_SCRIPT, None)
    assert [(call.name, call.path) for call in calls][2:] == [
        ("rename", "/s.jsonl"),
        ("sync", "/archive"),
        ("sync", ""),
    ]


@pytest.mark.parametrize("failing", [4, 5])
def test_a_move_that_is_refused_is_undone_and_that_is_on_disk(tmp_path: Path, failing: int) -> None:
    """The disk may have the move already, and nobody syncs these folders again."""
    script = _MOVE_SCRIPT.replace("assert dirfd", "dirfd").replace("dirfd.move", "try:\n    dirfd.move")
    script += "except OSError as error:\n    print(error.errno)\n"
    printed, calls = run(tmp_path, script, Point(Mode.FAIL, failing, 5))
    assert printed == "5"
    assert [(call.name, call.path) for call in calls][-3:] == [
        ("rename", "/archive/s.jsonl"),
        ("sync", ""),
        ("sync", "/archive"),
    ]
    assert (tmp_path / "place" / "s.jsonl").exists()


def test_the_removal_of_a_refused_file_is_synced(tmp_path: Path) -> None:
    _, calls = run(tmp_path, _CREATE_SCRIPT, None)
    (named,) = [number for number, call in enumerate(calls, 1) if call.name == "rename"]
    printed, calls = run(tmp_path / "again", _CREATE_SCRIPT, Point(Mode.FAIL, named + 1, 5))
    assert (printed, [call.name for call in calls][-2:]) == ("5", ["remove", "sync"])


_APPEND_SCRIPT = """
from sessiond.store import transcript
fd = os.open(place + "/t.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT)
try:
    transcript.append(fd, b"refused\\n")
except OSError as error:
    print(error.errno)
"""


def test_the_blank_out_of_a_refused_append_is_synced(tmp_path: Path) -> None:
    printed, calls = run(tmp_path, _APPEND_SCRIPT, Point(Mode.HALF, 2))
    assert (printed, [call.name for call in calls]) == ("28", ["create", "write", "write", "sync"])


_CREATE_SCRIPT = """
from sessiond.store import making
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder
folder = Folder("main", os.open(place, os.O_RDONLY | os.O_DIRECTORY), path=place, dialect=V3)
try:
    making.create_file(folder, "s.jsonl", b'{"type":"session","id":"s"}\\n', 1 << 20, True)
    print("made")
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize(("failing", "left"), spread([(["fsync", "unlink", "unlinkat"], [b""]), (["fsync"], [])], 1))
def test_a_refused_file_is_removed_or_at_least_emptied(tmp_path: Path, failing: list[str], left: list[bytes]) -> None:
    inject = [part for name in failing for part in ("-e", f"inject={name}:error=EIO")]
    command = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={','.join(failing)}", *inject, sys.executable, "-c"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    script = "import os, sys\nplace = sys.argv[1]\n" + _CREATE_SCRIPT
    try:
        done = subprocess.run(
            [*command, script, tmp_path], env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("strace is not there")
    if done.returncode:
        pytest.skip("strace may not trace")
    assert done.stdout.strip() == "5"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == left


_SESSION_SETUP = """
from sessiond.model.entry import Entry
from sessiond.model.record import header_line
from sessiond.store import folding
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder, Session
from sessiond.store.append import Append
from sessiond.store.kept_files import KeptFiles
from sessiond.store.writing import Writing
def record(own, parent):
    parent = '"' + parent + '"' if parent else "null"
    return ('{"type":"message","id":"%s","parentId":%s,"message":{}}\\n' % (own, parent)).encode()
def appends(*ids):
    return [Append(lambda parent, own=own: [record(own, parent)], own) for own in ids]
def put(name):
    with open(place + "/" + name, "wb") as file:
        file.write(header_line("s", "agent:main:main", "main", 1, cwd="/") + record("first", None))
        file.flush()
        os.fsync(file.fileno())
put("s.jsonl")
fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
os.fsync(fd)
session = Session("agent:main:main", Entry(session_id="s"), Folder("main", fd, dialect=V3))
session.entry = folding.advance(fd, session.entry, "s.jsonl", 1 << 20, dialect=V3).entry
"""
_APPEND_THREE_SCRIPT = """
some = appends("a", "b", "c")
Writing(session, some, "first", record_limit=1 << 20, sync=os.fdatasync, files=KeptFiles()).run()
print([one.error for one in some])
"""
_APPEND_AFTER_REPLACEMENT_SCRIPT = """
put("new")
os.rename(place + "/new", place + "/s.jsonl")
(one,) = appends("a")
Writing(session, [one], "first", record_limit=1 << 20, sync=os.fdatasync, files=KeptFiles()).run()
print([one.error])
"""


def test_appends_that_are_written_one_by_one_have_the_right_parents(tmp_path: Path) -> None:
    _, calls = run(tmp_path, _SESSION_SETUP + _APPEND_THREE_SCRIPT, None)
    (joint,) = [number for number, call in enumerate(calls, 1) if call.name == "write" and b'"c"' in call.data]
    printed, _ = run(tmp_path / "again", _SESSION_SETUP + _APPEND_THREE_SCRIPT, Point(Mode.FAIL, joint, errno.ENOSPC))
    assert printed == "[None, None, None]"
    lines = [json.loads(line) for line in (tmp_path / "again/place/s.jsonl").read_bytes().splitlines()]
    assert [(line["id"], line["parentId"]) for line in lines[1:]] == [
        ("first", None),
        ("a", "first"),
        ("b", "a"),
        ("c", "b"),
    ]


def test_an_append_to_a_replaced_file_survives_a_power_cut(tmp_path: Path) -> None:
    """The program that replaced the file may not have synced the folder; if the old file came back, our record would be
    lost."""
    printed, calls = run(tmp_path, _SESSION_SETUP + _APPEND_AFTER_REPLACEMENT_SCRIPT, None)
    assert printed == "[None]"
    left = power.last_cut({}, calls).files["s.jsonl"]
    assert left is not None and [json.loads(line)["id"] for line in left.splitlines()][1:] == ["first", "a"]


_ADOPTION_SCRIPT = """
from sessiond.clock import Clock, Ids
from sessiond.model.keys import KeyRules
from sessiond.store import index, scan
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder
fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
for name, text in (
    ("s.jsonl", '{"type":"session","id":"s"}\\n'),
    ("sessions.json", '{"agent:main:main":{"sessionId":"s","label":"dear"}}'),
):
    with open(place + "/" + name, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
os.fsync(fd)
settings = scan.ScanSettings(KeyRules(), 1 << 20, Clock(), Ids())
found = scan.scan_folder(Folder("main", fd, dialect=V3), settings, lambda *_: None, [])
index.save(fd, index.encode_index(found))
print([one.key for one in found])
"""


def test_settings_of_a_foreign_index_survive_a_power_cut_after_it_was_replaced(tmp_path: Path) -> None:
    printed, calls = run(tmp_path, _ADOPTION_SCRIPT, None)
    assert printed == "['agent:main:main']"
    left = power.last_cut({}, calls).files["s.jsonl"]
    assert left is not None and b'"label":"dear"' in left


_IMPORT_SCRIPT = """
import json
from sessiond.clock import Clock, Ids
from sessiond.model.keys import KeyRules
from sessiond.sessions.importing import TranscriptCopy
from sessiond.sessions.openclaw import PlannedSession, ImportPlan
from sessiond.store import making
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder
from sessiond.store.scan import ScanSettings
fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
source = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)
item = PlannedSession(session_id="a", name="a.jsonl", key_id="a")
settings = ScanSettings(KeyRules(), 1 << 20, Clock(), Ids())
folder = Folder("main", fd, path=place, dialect=V3)
copy = TranscriptCopy(ImportPlan("main", "", source, [item], {}), item, folder, settings)
for _ in copy.steps():
    pass
copy.discard()
left = os.listdir(place)
making.remove_leftovers(fd)
print(json.dumps([copy.refused, len(left), os.listdir(place)]))
"""


@pytest.mark.parametrize("fails", [False, True])
def test_an_import_copy_that_cannot_be_removed_now_is_removed_at_the_next_start(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "a.jsonl").write_text('{"type":"note"}\n')
    printed, calls = run(tmp_path, _IMPORT_SCRIPT, None)
    number = [call.name for call in calls].index("remove") + 1
    printed, _ = run(tmp_path, _IMPORT_SCRIPT, Point(Mode.FAIL, number, 5) if fails else None)
    why = "no transcript: it does not begin with the header of a session"
    assert json.loads(printed) == [why, int(fails), []]
