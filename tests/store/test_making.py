"""Creating a transcript: it is there whole or not at all, also after a fault, a kill and a restart."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.record import run_with_fault
from faults.shim import Mode, Point
from support.sampling import whole_only

from sessiond.errors import StorageError
from sessiond.model.dialects import V3
from sessiond.model.record import header_line
from sessiond.store import dirfd, making
from sessiond.store.catalog import Folder
from sessiond.store.refusals import StoreDisplaced

KEY = "agent:main:main"
HEADER = header_line("s", KEY, "main", 1, cwd="/")
LIMIT = 1 << 20


@contextmanager
def limit_free_descriptors(left: int) -> Iterator[None]:
    """At most `left` more descriptors can be opened inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_transcript_is_created_whole_and_its_entry_returned(tmp_path, folder):
    got = making.create_file(folder, "s.jsonl", HEADER, LIMIT, True)
    assert (tmp_path / "s.jsonl").read_bytes() == HEADER
    assert stat.S_IMODE((tmp_path / "s.jsonl").stat().st_mode) == 0o600
    assert (got.entry.session_key, got.entry.file.inode) == (KEY, (tmp_path / "s.jsonl").stat().st_ino)
    assert os.listdir(tmp_path) == ["s.jsonl"]


def test_creating_an_existing_name_fails_and_leaves_nothing_behind(tmp_path, folder):
    (tmp_path / "s.jsonl").write_text("precious")
    with pytest.raises(FileExistsError):
        making.create_file(folder, "s.jsonl", HEADER, LIMIT, True)
    assert (tmp_path / "s.jsonl").read_text() == "precious"
    assert os.listdir(tmp_path) == ["s.jsonl"]


def test_a_file_whose_folder_cannot_be_synced_is_not_created(tmp_path, folder):
    # Syncing a folder opened with O_PATH fails with EBADF.
    path_fd = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        making.create_file(Folder("main", path_fd, dialect=V3), "s.jsonl", HEADER, LIMIT, True)
    os.close(path_fd)
    assert os.listdir(tmp_path) == []


def test_a_file_is_not_created_in_a_folder_that_was_moved_away(tmp_path):
    place, away = tmp_path / "sessions", tmp_path / "away"
    place.mkdir()
    with dirfd.closing(dirfd.open_root(place)) as fd:
        folder = Folder("main", fd, path=str(place), dialect=V3)
        making.create_file(folder, "s.jsonl", HEADER, LIMIT, True)
        place.rename(away)
        with pytest.raises(StoreDisplaced):
            making.create_file(folder, "t.jsonl", HEADER, LIMIT, True)
    assert os.listdir(away) == ["s.jsonl"]


@pytest.mark.parametrize("left", [0, 1, 2, 3])
async def test_a_create_refused_for_lack_of_descriptors_leaves_no_session_after_a_restart(opener, left):
    async with opener() as store:
        await store.create("agent:main:other", "main")
        created = None
        with limit_free_descriptors(left):
            with contextlib.suppress(StorageError):
                created, _ = await store.create(KEY, "main")
        assert (created is None) is (left == 0)
        assert [name for name in os.listdir(store.path / "agents/main/sessions") if name.startswith(".tmp-")] == []
    async with opener() as store:
        assert (KEY in store.catalog.by_key) is (created is not None)


def check_left(target: Path, *, named: bool) -> None:
    """The folder after a kill: the whole transcript if it has its name, else what the next start removes."""
    if named:
        assert os.listdir(target) == ["s.jsonl"]
        assert (target / "s.jsonl").read_bytes() == HEADER
        return
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    assert "s.jsonl" not in os.listdir(target)
    making.remove_leftovers(fd)
    os.close(fd)
    assert os.listdir(target) == []


_CREATE_SCRIPT = """
import os, sys
from sessiond.store import making
from sessiond.model.dialects import V3
from sessiond.store.catalog import Folder
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
making.create_file(Folder("main", fd, dialect=V3), "s.jsonl", sys.argv[2].encode(), 1 << 20, True)
"""


def test_a_kill_before_any_change_leaves_a_whole_transcript_or_none(tmp_path):
    for number in itertools.count(1):
        target = tmp_path / str(number)
        target.mkdir()
        point, words = Point(Mode.KILL_BEFORE, number), (str(target), HEADER.decode())
        done, calls = run_with_fault(tmp_path / "shim", target, _CREATE_SCRIPT, point, *words)
        check_left(target, named=any(call.name == "rename" for call in calls))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert [call.name for call in calls] == ["create", "write", "sync", "rename", "sync"]


@whole_only("test_a_kill_before_any_change_leaves_a_whole_transcript_or_none")
@pytest.mark.parametrize("syscall", ["write", "fdatasync", "renameat2", "fsync"])
def test_a_kill_at_any_step_leaves_a_whole_transcript_or_none(tmp_path, folder, syscall):
    target = tmp_path / "in"
    target.mkdir()
    traced = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace={syscall}"]
    try:
        done = subprocess.run(
            [
                *traced,
                "-e",
                f"inject={syscall}:signal=KILL",
                sys.executable,
                "-c",
                _CREATE_SCRIPT,
                target,
                HEADER.decode(),
            ],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("strace is not there")
    if done.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        pytest.skip("strace may not trace")
    assert len(os.listdir(target)) == 1
    check_left(target, named=syscall == "fsync")


async def test_a_start_removes_the_temporary_files_of_interrupted_writes_and_nothing_else(opener, tmp_path):
    name, others = ".tmp-0123456789abcdef", (".tmp-1", ".tmp-0123456789abcdeg", "x.tmp-0123456789abcdef")
    async with opener() as store:
        session, _ = await store.create(KEY, "main")
        await store.archive(session)
    sessions = store.path / "agents/main/sessions"
    folders = [store.path, store.path / "keys", sessions, sessions / "archive"]
    for path in folders:
        for each in (name, *others):
            (path / each).write_text("x")
    (sessions / ".tmp-00000000000000ff").mkdir()
    (sessions / ".tmp-00000000000000fe").symlink_to(tmp_path)
    async with opener():
        pass
    for path in folders:
        assert [each for each in (name, *others) if (path / each).exists()] == list(others)
    assert (sessions / ".tmp-00000000000000ff").is_dir() and (sessions / ".tmp-00000000000000fe").is_symlink()
