"""Removal while a thread swaps, fills and moves what is being removed: nothing outside is ever touched."""

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
# Root's race again as an ordinary user is shorter: what differs is who is refused what, and not the order of things.
ROUNDS, SHORTER = amount(10_000, 400), amount(2_000, 200)
LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def racing(step: Callable[[], None]) -> Iterator[list[int]]:
    """Do `step` again and again in a thread, whatever errors it meets; yields how often it went through."""
    done, count = threading.Event(), [0]

    def run() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                step()
                count[0] += 1

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    # The usual 5 ms would have one thread do many rounds before the other does one.
    sys.setswitchinterval(1e-4)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def until_raced(count: list[int], rounds: int, more_than: int) -> Iterator[None]:
    """Rounds, and then as many again as it takes until the other thread went through more often than that."""
    deadline = time.monotonic() + PATIENCE_S
    done = 0
    while done < rounds or (count[0] <= more_than and time.monotonic() < deadline):
        yield
        done += 1


def fill(folder: Path) -> None:
    """A small tree at `folder`, or whatever of it can be made just now."""
    with contextlib.suppress(OSError):
        os.makedirs(folder / "sub")
    for name in ("precious", "sub/precious"):
        with contextlib.suppress(OSError):
            os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW))


def exchange(folder: Path, aside: Path, target: Path) -> None:
    """Let `folder` and a link to `target` at `aside` change places in one step: at no time is nothing there."""
    at_cwd, rename_exchange = -100, 2
    if LIBC.renameat2(at_cwd, os.fsencode(folder), at_cwd, os.fsencode(aside), rename_exchange):
        # The link was in its place and has been removed, or it is the start.
        if not aside.is_symlink():
            with contextlib.suppress(OSError):
                os.rename(aside, folder)
            os.symlink(target, aside)
        raise OSError


def clear(path: Path) -> None:
    """Remove what the race left aside: a link, a folder, or nothing."""
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mode, path.lstat().st_ino) for path in [folder, *folder.rglob("*")]}


def test_a_folder_swapped_for_a_symlink_all_the_time_leads_nowhere(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / ".openclaw/attachments/aside"
    folder.mkdir(parents=True)
    before = listing(outside)
    rounds = ROUNDS if os.geteuid() == os.getuid() else SHORTER
    with racing(lambda: exchange(folder, aside, outside)) as swaps:
        for _ in until_raced(swaps, rounds, rounds):
            fill(folder)
            remove_attachments(workspace, ID)
    assert swaps[0] > rounds
    assert listing(outside) == before
    clear(aside)
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))
    assert os.listdir(folder.parent) == []


def test_a_folder_inside_swapped_for_a_symlink_leads_nowhere(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / "aside"
    folder.mkdir(parents=True)
    before = listing(outside)
    with racing(lambda: exchange(folder / "sub", aside, outside)):
        for _ in range(ROUNDS // 20):
            fill(folder)
            remove_attachments(workspace, ID)
    assert listing(outside) == before
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))


@pytest.mark.parametrize("parent", [".openclaw", ".openclaw/attachments"])
def test_a_parent_swapped_for_a_symlink_leads_nowhere(workspace: Path, outside: Path, parent: str) -> None:
    """The link's target holds a folder of the same id: the only way to reach it is to follow the link."""
    folder, aside = workspace / REL, workspace / "aside"
    folder.mkdir(parents=True)
    bait = outside / REL.removeprefix(parent + "/")
    bait.mkdir(parents=True)
    (bait / "precious").touch()
    before = listing(outside)
    with racing(lambda: exchange(workspace / parent, aside, outside)) as swaps:
        for _ in until_raced(swaps, ROUNDS // 5, ROUNDS // 10):
            with contextlib.suppress(OSError):
                os.makedirs(folder)  # where it is; through the link there is such a folder already
            remove_attachments(workspace, ID)
    assert swaps[0] > ROUNDS // 10
    assert listing(outside) == before
    if (workspace / parent).is_symlink():
        os.unlink(workspace / parent)
        os.rename(aside, workspace / parent)
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))


def test_a_shut_folder_swapped_for_a_symlink_lends_nobody_its_mode(workspace: Path, outside: Path) -> None:
    folder, aside = workspace / REL, workspace / ".openclaw/attachments/aside"
    folder.mkdir(parents=True)
    (outside / "sub").chmod(0o500)
    before = listing(outside)
    with racing(lambda: exchange(folder / "sub", aside, outside / "sub")):
        for _ in range(ROUNDS // 20):
            fill(folder)
            with contextlib.suppress(OSError):
                # Not Path.chmod: it would follow the link itself.
                fd = os.open(folder / "sub", os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
                os.fchmod(fd, 0)
                os.close(fd)
            remove_attachments(workspace, ID)
    assert listing(outside) == before


def test_a_folder_that_is_filled_all_the_time_ends_with_a_report(workspace: Path) -> None:
    folder = workspace / REL

    def add() -> None:
        fill(folder)

    with racing(add):
        reports = [remove_attachments(workspace, ID) for _ in range(amount(200, 50))]
    reasons = {reason for report in reports for _, reason in report.left}
    assert reasons <= {"it keeps changing"}
    assert remove_attachments(workspace, ID) in (RemovalReport(removed=True), RemovalReport(False, missing=True))
