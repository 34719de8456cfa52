"""The kernel syncs several files at once, and says of each whether it is on disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.rows import check_each

from sessiond.store import kernel_syncs
from sessiond.store.kernel_syncs import MOST_AT_ONCE, KernelSyncs, SyncsPool


class Written:
    """A commit as the kernel syncs it; `told` is what was said of it."""

    def __init__(self, fd: int) -> None:
        self.unsynced_fd: int | None = fd
        self.told: list[OSError | None] = []

    def sync(self) -> None:
        raise AssertionError("the kernel does")

    def note_synced(self, error: OSError | None) -> None:
        self.told.append(error)

    def finish(self) -> None:
        raise AssertionError("others do")


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    opened = KernelSyncs.open()
    if opened is None:
        pytest.skip("this kernel has no syncs of its own (io_setup)")
    yield opened
    opened.close()


@contextlib.contextmanager
def files_of(folder: Path, count: int) -> Iterator[list[Written]]:
    with contextlib.ExitStack() as stack:
        written = []
        for number in range(count):
            file = stack.enter_context((folder / str(number)).open("wb", buffering=0))
            file.write(b"text")
            written.append(Written(file.fileno()))
        yield written


def wait_for_all(syncs: KernelSyncs) -> list[Any]:
    ended = []
    while syncs.is_busy:
        syncs.wait(1, PATIENCE_S)
        ended += list(syncs.take_ended())
    return ended


@check_each("count", [1, 2, MOST_AT_ONCE])
def test_each_file_is_synced_and_given_once(tmp_path: Path, syncs: KernelSyncs, count: int) -> None:
    with files_of(tmp_path, count) as written:
        for rounds in range(1, 4):  # the same set does it again and again
            assert syncs.begin(written) == count
            assert syncs.is_busy
            ended = wait_for_all(syncs)
            assert sorted(map(id, ended)) == sorted(map(id, written))
            assert [one.told for one in written] == [[None] * rounds] * count


def test_more_than_there_is_room_for_are_left(tmp_path: Path, syncs: KernelSyncs) -> None:
    with files_of(tmp_path, MOST_AT_ONCE + 1) as written:
        assert syncs.begin(written) == MOST_AT_ONCE
        assert wait_for_all(syncs)
    assert [len(one.told) for one in written] == [1] * MOST_AT_ONCE + [0]


def test_a_file_that_cannot_be_synced_and_those_behind_it_are_left(tmp_path: Path, syncs: KernelSyncs) -> None:
    readable, writable = os.pipe()
    with files_of(tmp_path, 3) as written:
        os.close(readable)
        for fd in (writable, readable):  # not to be synced; not open
            unfit = Written(fd)
            assert syncs.begin([written[0], unfit, written[1]]) == 1
            assert wait_for_all(syncs) == [written[0]]
            assert syncs.begin([unfit, *written]) == 0
            assert not syncs.is_busy
            assert unfit.told == []
        assert written[1].told == written[2].told == []
    os.close(writable)


def test_an_error_of_the_disk_is_told(tmp_path: Path, syncs: KernelSyncs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says is changed on its way: a disk that fails is not to be had."""
    call = kernel_syncs._call

    def fail_second(number: int, *arguments: int) -> int:
        result = call(number, *arguments)
        if number == syncs._numbers.getevents:
            for place in range(result):
                data, request, _, more = kernel_syncs._EVENT.unpack_from(syncs._events, 32 * place)
                if data == 1:
                    kernel_syncs._EVENT.pack_into(syncs._events, 32 * place, data, request, -errno.EIO, more)
        return result

    monkeypatch.setattr(kernel_syncs, "_call", fail_second)
    with files_of(tmp_path, 3) as written:
        syncs.begin(written)
        wait_for_all(syncs)
    (failed,) = written[1].told
    assert isinstance(failed, OSError)
    assert (failed.errno, failed.strerror) == (errno.EIO, os.strerror(errno.EIO))
    assert written[0].told == written[2].told == [None]


def test_where_the_kernel_tells_no_more_each_is_synced_and_the_set_is_used_no_longer(
    tmp_path: Path, syncs: KernelSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Synced(Written):
        def sync(self) -> None:
            self.told.append(None)

    with files_of(tmp_path, 3) as written:
        commits = [Synced(one.unsynced_fd or 0) for one in written]
        syncs.begin(commits)
        monkeypatch.setattr(syncs, "_context", 1)  # there is none
        assert sorted(map(id, wait_for_all(syncs))) == sorted(map(id, commits))
        monkeypatch.undo()
    assert [one.told for one in commits] == [[None]] * 3
    pool = SyncsPool(lambda: syncs)
    assert pool.take() is syncs
    pool.give_back(syncs)
    assert not pool.has_one


def test_a_wait_ends_when_its_time_is_over(syncs: KernelSyncs) -> None:
    began = time.monotonic()
    syncs.wait(1, 0.25)
    assert time.monotonic() - began >= 0.25
    assert list(syncs.take_ended()) == []


def test_a_loop_that_is_left_in_the_middle_goes_on_where_it_was(tmp_path: Path, syncs: KernelSyncs) -> None:
    """As where memory runs out in between: what the kernel said once it does not say again."""
    with files_of(tmp_path, 4) as written:
        syncs.begin(written)
        syncs.wait(4, PATIENCE_S)
        first = next(syncs.take_ended())
        syncs.wait(1, None)  # not for ever: three are there
        rest = list(syncs.take_ended())
    assert sorted(map(id, [first, *rest])) == sorted(map(id, written))
    assert not syncs.is_busy


@check_each("lacks", ["the machine", "the system", "room"])
def test_where_the_kernel_has_none_there_are_none(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    if lacks == "the machine":
        monkeypatch.setattr(kernel_syncs, "_NUMBERS", {})
    elif lacks == "the system":
        monkeypatch.setattr(kernel_syncs.sys, "platform", "freebsd")
    else:
        monkeypatch.setattr(kernel_syncs, "_call", lambda *_: -1)
    assert KernelSyncs.open() is None


def test_a_pool_has_two_and_closes_those_that_come_back_late(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closable:
        closed, is_broken = 0, False

        def close(self) -> None:
            self.closed += 1

    pool = SyncsPool(Closable)  # type: ignore[arg-type]
    one, other = pool.take(), pool.take()
    assert one is not None and other is not None and one is not other
    assert not pool.has_one and pool.take() is None
    pool.give_back(one)
    assert pool.has_one and pool.take() is one
    pool.give_back(one)
    pool.close()
    assert not pool.has_one and pool.take() is None
    assert [one.closed, other.closed] == [1, 0]  # type: ignore[attr-defined]
    pool.give_back(other)
    assert [one.closed, other.closed] == [1, 1]  # type: ignore[attr-defined]
    assert not pool.has_one


CLIENTS = 8


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    "inject",
    [
        None,
        "io_setup:error=ENOSYS",
        "io_submit:error=EAGAIN:when=3+",
        "io_getevents:delay_enter=20000",
        "io_getevents:error=EPERM",
    ],
)
def test_a_daemon_stores_what_many_clients_append_to_many_sessions(tmp_path: Path, inject: str | None) -> None:
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode:
        pytest.skip("strace cannot trace here")
    calls = tmp_path / "calls"
    tracer = ("strace", "-f", "-qq", "-o", str(calls), "-e", "trace=io_setup,io_submit,io_getevents")
    daemon = Daemon(tmp_path).start(prefix=(*tracer, *(("-e", f"inject={inject}") if inject else ()), "--"))
    keys = [f"agent:main:s{number}" for number in range(CLIENTS)]
    try:
        for key in keys:
            daemon.call("sessions.create", key=key)
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(daemon.connect()) for _ in keys]
            for text in map(str, range(20)):
                for key, wire in zip(keys, wires, strict=True):
                    params = {"sessionKey": key, "messages": [{"role": "user", "content": text}]}
                    wire.send({"jsonrpc": "2.0", "id": text, "method": "chat.inject", "params": params})
                for wire in wires:
                    assert "result" in wire.receive()
        daemon.kill()
        daemon.start()
        for key in keys:
            page = daemon.call("sessions_history", sessionKey=key)
            assert [message["content"] for message in page["messages"]] == list(map(str, range(20)))
    finally:
        daemon.kill()
    traced = calls.read_text()
    if inject is None and "io_setup" in traced and "ENOSYS" not in traced and "EPERM" not in traced:
        assert "io_submit(" in traced and "io_getevents(" in traced
