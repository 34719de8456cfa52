"""Removal while another thread swaps, fills and moves the folder: nothing outside is ever touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.sampling import amount

from sessiond.attachments.remove import RemovalReport, remove_attachments

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
REL = f".openclaw/attachments/{ID}"
# As an ordinary user the same race is shorter: only permissions differ there, and not the order of events.
ROUNDS, SHORTER = amount(10_000, 100), amount(2_000, 50)
LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def repeat_in_thread(step: Callable[[], None]) -> Iterator[list[int]]:
    """Repeat `step` in a thread, ignoring errors; yields the number of times that it succeeded."""
    done, count = threading.Event(), [0]

    def run() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                step()
                count[0] += 1

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    # With the default of 5 ms one thread would do many rounds before the other does one.
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def until_raced(count: list[int], rounds: int, more_than: int) -> Iterator[None]:
    """Yield `rounds` times, and then until the other thread has succeeded more than `more_than` times."""
    deadline = time.monotonic() + PATIENCE_S
    done = 0
    while done < rounds or (count[0] <= more_than and time.monotonic() < deadline):
        yield
        done += 1


def fill(folder: Path) -> None:
    """Create a small tree at `folder`, or as much of it as is possible at the moment."""
    with contextlib.suppress(OSError):
        os.makedirs(folder / "sub")
    for name in ("precious", "sub/precious"):
        with contextlib.suppress(OSError):
            os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW))


def exchange(folder: Path, aside: Path, target: Path) -> None:
    """Atomically exchange `folder` with a symlink to `target` at `aside`: something is at `folder` at any moment."""
    at_cwd, rename_exchange = -100, 2
    if LIBC.renameat2(at_cwd, os.fsencode(folder), at_cwd, os.fsencode(aside), rename_exchange):
        # The symlink was at `folder` and has been removed, or this is the first call.
        if not aside.is_symlink():
            with contextlib.suppress(OSError):
                os.rename(aside, folder)
            os.symlink(target, aside)
        raise OSError


def clear(path: Path) -> None:
    """Remove what the race left at `path`: a symlink, a folder, or nothing."""
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mode, path.lstat().st_ino) for path in [folder, *folder.rglob("*")]}


def test_a_folder_swapped_for_a_symlink_does_not_lead_outside(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / ".openclaw/attachments/aside"
    folder.mkdir(parents=True)
    before = listing(outside)
    rounds = ROUNDS if os.geteuid() == os.getuid() else SHORTER
    with repeat_in_thread(lambda: exchange(folder, aside, outside)) as swaps:
        for _ in until_raced(swaps, rounds, rounds):
            fill(folder)
            remove_attachments(workspace, ID)
    assert swaps[0] > rounds
    assert listing(outside) == before
    clear(aside)
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))
    assert os.listdir(folder.parent) == []


def test_a_folder_inside_swapped_for_a_symlink_does_not_lead_outside(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / "aside"
    folder.mkdir(parents=True)
    before = listing(outside)
    with repeat_in_thread(lambda: exchange(folder / "sub", aside, outside)):
        for _ in range(ROUNDS // 20):
            fill(folder)
            remove_attachments(workspace, ID)
    assert listing(outside) == before
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))


@pytest.mark.parametrize("parent", [".openclaw", ".openclaw/attachments"])
def test_a_parent_swapped_for_a_symlink_does_not_lead_outside(workspace: Path, outside: Path, parent: str) -> None:
    """The target has a folder of the same id, which can only be reached by following the symlink."""
    folder, aside = workspace / REL, workspace / "aside"
    folder.mkdir(parents=True)
    bait = outside / REL.removeprefix(parent + "/")
    bait.mkdir(parents=True)
    (bait / "precious").touch()
    before = listing(outside)
    with repeat_in_thread(lambda: exchange(workspace / parent, aside, outside)) as swaps:
        for _ in until_raced(swaps, ROUNDS // 5, ROUNDS // 10):
            with contextlib.suppress(OSError):
                os.makedirs(folder)  # unless the symlink is there: its target has that folder already
            remove_attachments(workspace, ID)
    assert swaps[0] > ROUNDS // 10
    assert listing(outside) == before
    if (workspace / parent).is_symlink():
        os.unlink(workspace / parent)
        os.rename(aside, workspace / parent)
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))


def test_no_mode_outside_changes_when_a_closed_folder_is_swapped_for_a_symlink(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / ".openclaw/attachments/aside"
    folder.mkdir(parents=True)
    (outside / "sub").chmod(0o500)
    before = listing(outside)
    with repeat_in_thread(lambda: exchange(folder / "sub", aside, outside / "sub")):
        for _ in range(ROUNDS // 20):
            fill(folder)
            with contextlib.suppress(OSError):
                # Path.chmod cannot be used: it would follow the symlink itself.
                fd = os.open(folder / "sub", os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
                os.fchmod(fd, 0)
                os.close(fd)
            remove_attachments(workspace, ID)
    assert listing(outside) == before


def test_the_removal_of_a_folder_that_is_filled_meanwhile_ends_with_a_report(workspace: Path) -> None:
    folder = workspace / REL

    def add() -> None:
        fill(folder)

    with repeat_in_thread(add):
        reports = [remove_attachments(workspace, ID) for _ in range(amount(200, 50))]
    reasons = {reason for report in reports for _, reason in report.left}
    assert reasons <= {"it keeps changing"}
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))
