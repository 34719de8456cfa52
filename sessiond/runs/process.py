"""A program in a process group of its own: started, fed, read, and ended with all that it left behind.

Knows processes, pipes and signals. Does not know agents, runs or what the output means.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from subprocess import PIPE

import msgspec
import trio

from sessiond.errors import SessiondError

READ_BYTES = 65_536
# What of stderr is shown: enough for the end of a traceback.
STDERR_TAIL_BYTES = 2048
# From TERM to KILL.
KILL_GRACE_S = 2.0
# After the program's exit its own output is in the pipe already; what comes later is somebody else's.
PIPE_GRACE_S = 0.5
# The largest pipe that an unprivileged program can have (/proc/sys/fs/pipe-max-size).
_PIPE_BYTES = 1_048_576
# A process that KILL does not end within this time hangs in the kernel; nobody can wait for that.
_REAP_S = 5.0
_POLL_S = 0.02
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CannotStart(Exception):
    """The program could not be started; the message says why, for a person."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program and all that it starts with. `keep_fds` are descriptors that it inherits under the same numbers."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stdin: bytes = b""
    keep_fds: tuple[int, ...] = ()


class Exit(msgspec.Struct, frozen=True):
    """How the program ended: `status` is its exit status, or minus the signal that killed it."""

    status: int
    stderr: str

    def describe(self) -> str | None:
        """A sentence about a failure, None for success."""
        if self.status == 0:
            return None
        if self.status > 0:
            return f"command exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"command was killed by {name}"


class Tail:
    """The last whole lines of a stream, in bounded memory."""

    def __init__(self, max_bytes: int = STDERR_TAIL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = b""
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Take one more piece."""
        joined = self._data + data[-self._max_bytes - 1 :]
        self._cut = self._cut or len(joined) > self._max_bytes or len(data) > self._max_bytes
        # One byte more than is shown tells whether the first line shown is whole.
        self._data = joined[-self._max_bytes - 1 :]

    def text(self) -> str:
        """The tail without terminal codes; a first line that was cut is left out, unless there is no other."""
        data = self._data
        if self._cut:
            _, newline, rest = data.partition(b"\n")
            data = rest if newline and rest.strip() else data[-self._max_bytes :]
        return _CONTROL.sub("", data.decode("utf-8", "replace")).strip()


class _Reader:
    """Reads a pipe to its end; once the program is gone, only what it can have left there."""

    def __init__(self, stream: trio.abc.ReceiveStream | None, take: Callable[[bytes], Awaitable[None]]) -> None:
        assert isinstance(stream, trio.lowlevel.FdStream)
        self._stream = stream
        self._take = take
        self._bytes_left = math.inf
        self._patience_s = math.inf
        self._scope = trio.CancelScope()
        self.done = trio.Event()

    async def read(self) -> None:
        """Give every piece to `take`."""
        while self._bytes_left > 0:
            with trio.CancelScope(deadline=trio.current_time() + self._patience_s) as self._scope:
                data = await self._stream.receive_some(READ_BYTES)
            if self._scope.cancelled_caught or not data:
                break
            self._bytes_left -= len(data)
            await self._take(data)
        self.done.set()

    def program_is_gone(self, patience_s: float) -> None:
        """From now on: no more than fits into a pipe, and no longer wait than `patience_s`.

        A child that went on by itself may hold the pipe open for ever, or fill it for ever. The time counts only
        while the pipe is empty: a slow disk behind `take` must not cost output.
        """
        self._bytes_left = _PIPE_BYTES
        self._patience_s = patience_s
        self._scope.deadline = trio.current_time() + patience_s


async def run(
    command: Command,
    read: Callable[[bytes], Awaitable[None]],
    *,
    kill_grace_s: float = KILL_GRACE_S,
    pipe_grace_s: float = PIPE_GRACE_S,
) -> Exit:
    """Run `command` to its end, giving its stdout to `read`, and end whatever is left of its group.

    Raises CannotStart, and the SessiondError that `read` raised, which ends the program. Cancelled: TERM to the group,
    KILL after `kill_grace_s`, reaped, then Cancelled again.
    """
    process = await _start(command)
    tail, failures = Tail(), list[SessiondError]()

    async def keep_tail(data: bytes) -> None:
        tail.feed(data)

    async def watched_read() -> None:
        # Handed over by hand: through the nursery the error would arrive as a group.
        try:
            await readers[0].read()
        except SessiondError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    try:
        readers = (_Reader(process.stdout, read), _Reader(process.stderr, keep_tail))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, process, command.stdin)
            nursery.start_soon(watched_read)
            nursery.start_soon(readers[1].read)
            await _exited(process)
            for reader in readers:
                reader.program_is_gone(pipe_grace_s)
            for reader in readers:
                await reader.done.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process, kill_grace_s)
    if failures:
        raise failures[0]
    status = process.returncode
    return Exit(-signal.SIGKILL if status is None else status, tail.text())


async def _start(command: Command) -> trio.Process:
    if not command.argv:
        raise CannotStart("the runtime has no command")
    try:
        return await trio.lowlevel.open_process(
            list(command.argv),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=command.cwd,
            env=dict(command.env),
            start_new_session=True,
            pass_fds=command.keep_fds,
        )
    except (OSError, ValueError) as error:
        raise CannotStart(_why(command, error)) from None


def _why(command: Command, error: OSError | ValueError) -> str:
    """Why Popen failed, without the paths that its own message has."""
    program = command.argv[0] if command.argv else ""
    match error:
        case FileNotFoundError() | NotADirectoryError() if not command.cwd.is_dir():
            return "the agent's workspace is not a folder"
        case FileNotFoundError() | NotADirectoryError():
            return f"command not found: {program} (give its full path, or set PATH in the runtime's env)"
        case PermissionError():
            return f"command cannot be executed: {program} (permission denied)"
        case OSError():
            return f"command cannot be started: {program} ({os.strerror(error.errno or 0)})"
        case _:
            return f"command cannot be started: {program} ({error})"


async def _feed(process: trio.Process, data: bytes) -> None:
    assert process.stdin is not None
    # A program need not read its input, nor all of it.
    try:
        async with process.stdin:
            await process.stdin.send_all(data)
    except trio.BrokenResourceError:
        pass


async def _exited(process: trio.Process) -> None:
    """Return when the program has ended, without reaping it where that can be had.

    While nobody has reaped it, its pid and its group's id belong to nobody else, so the group can be signalled safely.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        await process.wait()
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def _end(process: trio.Process, kill_grace_s: float) -> None:
    """End the group: TERM, and KILL for what is left of it after the grace. Reap the leader, close the pipes."""
    group = process.pid
    _signal_group(group, signal.SIGTERM)
    with trio.move_on_after(kill_grace_s) as grace:
        await _exited(process)
        await process.wait()
        # No event tells when a group is empty; in the ordinary case it is at once.
        while _has_members(group):  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
    if grace.cancelled_caught:
        _signal_group(group, signal.SIGKILL)
        with trio.move_on_after(_REAP_S):
            await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _signal_group(group: int, number: int) -> bool:
    """Signal the group; whether there was anybody to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _has_members(group: int) -> bool:
    """Whether anything of the group still runs.

    A zombie does not: its parent is the machine's first process by now, which in many a container never collects.
    """
    if not _signal_group(group, 0):
        return False
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return True
    return any(_runs_in(pid, group) for pid in pids)


def _runs_in(pid: str, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in brackets may hold anything, brackets too.
            state, _, its_group, *_ = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
