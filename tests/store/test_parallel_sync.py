"""Several syncs at once: all of them done, the error of one, and no thread left."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faults.record import record
from support.patience import PATIENCE_S

from sessiond.store import parallel_sync
from sessiond.store.parallel_sync import sync_together

SCRIPT = """
import os, resource, sys, threading
from sessiond.store.parallel_sync import sync_together
root, count, without_threads = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
fds = [os.open(f"{root}/{number}", os.O_CREAT | os.O_WRONLY) for number in range(count)]
if without_threads:
    # No address space is left for the stack of another thread.
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE") + (2 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        print("no thread left")
sync_together(fds)
"""


def run_script(folder: Path, count: int, prefix: list[str], *, without_threads: bool = False) -> str:
    command = [*prefix, sys.executable, "-c", SCRIPT, str(folder), str(count), str(without_threads)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def strace_works() -> bool:
    command = ["strace", "-o", "/dev/null", "true"]
    return shutil.which("strace") is not None and not subprocess.run(command, check=False).returncode


def test_each_file_is_synced_once(tmp_path: Path) -> None:
    counts = [0, 1, 2, 8, 9, 40]
    (tmp_path / "files").mkdir()
    calls = record(
        tmp_path / "shim",
        tmp_path / "files",
        f"""
import os
from sessiond.store.parallel_sync import sync_together
for count in {counts}:
    sync_together([os.open(f"{{root}}/{{number}} of {{count}}", os.O_CREAT | os.O_WRONLY) for number in range(count)])
    os.mkdir(f"{{root}}/{{count}} were synced")
""",
    )
    for count in counts:
        end = next(place for place, call in enumerate(calls) if call.path == f"/{count} were synced")
        synced = sorted(call.path.removeprefix("/") for call in calls[:end] if call.name == "sync")
        assert synced == sorted(f"{number} of {count}" for number in range(count))
        del calls[: end + 1]


def test_the_error_of_one_is_raised_after_all_were_tried(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    calls = record(
        tmp_path / "shim",
        tmp_path / "files",
        """
import os
from sessiond.store.parallel_sync import sync_together
fds = [os.open(f"{root}/{number}", os.O_CREAT | os.O_WRONLY) for number in range(20)]
fds[3], fds[12] = os.pipe()  # which cannot be synced
try:
    sync_together(fds)
except OSError as error:
    os.mkdir(f"{root}/error {error.errno}")
""",
    )
    names = [(call.name, call.path.removeprefix("/")) for call in calls]
    assert sum(name == "sync" for name, _ in names) == 18
    assert names[-1] == ("mkdir", f"error {errno.EINVAL}")


def test_it_returns_when_the_last_sync_of_any_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    caller, begun, returned = threading.current_thread(), threading.Event(), threading.Event()
    too_early: list[bool] = []

    def fsync(_fd: int) -> None:
        if threading.current_thread() is caller:
            assert begun.wait(PATIENCE_S)
        else:
            begun.set()
            too_early.append(returned.wait(0.2))  # it has that long for returning too early

    with monkeypatch.context() as patched:
        patched.setattr(parallel_sync.os, "fsync", fsync)
        sync_together([0, 1])
        returned.set()
    assert too_early and not any(too_early)


def test_a_closed_descriptor_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_together([fd])


def test_without_a_free_thread_one_syncs_them_all(tmp_path: Path) -> None:
    assert run_script(tmp_path, 20, [], without_threads=True) == "no thread left\n"


@pytest.mark.skipif(not strace_works(), reason="strace is not there or may not trace")
def test_they_wait_for_the_disk_at_the_same_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "files").mkdir()
    # Each sync takes a second longer; one that begins within that second shows as unfinished beside the first.
    slow = ["strace", "-f", "-o", str(log), "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=1000000"]
    run_script(tmp_path / "files", 20, slow)
    going_on = most = 0
    for line in log.read_text().splitlines():
        if "fsync" in line:
            going_on += "unfinished" in line
            most = max(most, going_on)
            going_on -= "resumed" in line
    assert 1 < most <= 8
    assert len(set(re.findall(r"^(\d+) .*fsync", log.read_text(), re.MULTILINE))) == most
