"""Run one program: write its input, read its output, and end it with all its processes.

Knows pipes and time limits. Does not know agents, runs or what the output means. The processes are started and ended by
`launcher` and `keeper`.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable

import msgspec
import trio

from sessiond.errors import SessiondError
from sessiond.runtimes import launcher
from sessiond.runtimes.launcher import CannotStart, Program, ProgramCommand
from sessiond.runtimes.runtime import raise_shortage

READ_BYTES = 65_536
# How much of stderr is shown: enough for the end of a traceback.
STDERR_TAIL_BYTES = 2048
# The time from TERM to KILL.
KILL_GRACE_S = 2.0
# When the program exits, all its output is in the pipe. What a child of it writes later is read for this long only.
PIPE_GRACE_S = 0.5
# The largest pipe that an unprivileged program can have (/proc/sys/fs/pipe-max-size).
_PIPE_BYTES = 1_048_576
# How long to wait for the keeper after KILL. A process that has not ended by then is stuck in the kernel.
REAP_S = 10.0
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ProgramExit(msgspec.Struct, frozen=True):
    """The end of a program. `status` is its exit status, or the negative number of the signal that killed it.

    `was_lost`: its keeper was killed, which killed the program too.
    """

    status: int
    stderr: str
    was_lost: bool = False

    def describe(self) -> str | None:
        """A sentence about the failure; None for success."""
        if self.status == 0:
            return None
        if self.was_lost:
            return "command was ended, because the process that sessiond runs it by was killed, perhaps by the command"
        if self.status > 0:
            return f"command exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"command was killed by {name}"


class OutputTail:
    """The last whole lines of a stream, in bounded memory."""

    def __init__(self, max_bytes: int = STDERR_TAIL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = b""
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Take one more piece."""
        joined = self._data + data[-self._max_bytes - 1 :]
        self._cut = self._cut or len(joined) > self._max_bytes or len(data) > self._max_bytes
        # Keep one byte more than is shown, to know whether the first line shown is complete.
        self._data = joined[-self._max_bytes - 1 :]

    def text(self) -> str:
        """The tail without terminal codes. An incomplete first line is left out, unless it is the only one."""
        data = self._data
        if self._cut:
            _, newline, rest = data.partition(b"\n")
            data = rest if newline and rest.strip() else data[-self._max_bytes :]
        return _CONTROL.sub("", data.decode("utf-8", "replace")).strip()


class PipeReader:
    """Reads a pipe to its end; after the program's exit, only what the pipe can still hold."""

    def __init__(self, stream: trio.lowlevel.FdStream, take: Callable[[bytes], Awaitable[None]]) -> None:
        self._stream = stream
        self._take = take
        self._bytes_left = math.inf
        self._patience_s = math.inf
        self._scope = trio.CancelScope()
        self.done = trio.Event()

    async def read(self) -> None:
        """Pass every piece to `take`."""
        while self._bytes_left > 0:
            with trio.CancelScope(deadline=trio.current_time() + self._patience_s) as self._scope:
                data = await self._stream.receive_some(READ_BYTES)
            if self._scope.cancelled_caught or not data:
                break
            self._bytes_left -= len(data)
            await self._take(data)
        self.done.set()

    def program_is_gone(self, patience_s: float) -> None:
        """Read no more than fits into a pipe from now on, and wait at most `patience_s` for each piece.

        A surviving child may hold the pipe open or write to it for ever. The time only counts while the pipe is empty,
        so that no output is lost if `take` is slow.
        """
        self._bytes_left = _PIPE_BYTES
        self._patience_s = patience_s
        self._scope.deadline = trio.current_time() + patience_s


async def run(
    command: ProgramCommand,
    read: Callable[[bytes], Awaitable[None]],
    *,
    kill_grace_s: float = KILL_GRACE_S,
    pipe_grace_s: float = PIPE_GRACE_S,
) -> ProgramExit:
    """Run `command` to its end, giving its stdout to `read`, and end whatever is left of it.

    Raises CannotStart or Shortage, and the SessiondError that `read` raised, which ends the program. Cancelled: TERM to
    all, KILL after `kill_grace_s`, then Cancelled again.
    """
    program = await start_program(command, kill_grace_s)
    tail, failures = OutputTail(), list[SessiondError]()

    async def keep_tail(data: bytes) -> None:
        tail.feed(data)

    async def watched_read() -> None:
        # Not raised here, because the nursery would wrap it in an exception group.
        try:
            await readers[0].read()
        except SessiondError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    try:
        readers = (PipeReader(program.stdout, read), PipeReader(program.stderr, keep_tail))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, program, command.stdin)
            nursery.start_soon(watched_read)
            nursery.start_soon(readers[1].read)
            # Returns at the exit of the program, or if its keeper was killed, which kills the program too.
            await program.receive()
            for reader in readers:
                reader.program_is_gone(pipe_grace_s)
            for reader in readers:
                await reader.done.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await program.end(kill_grace_s + REAP_S)
            await program.aclose()
    if failures:
        raise failures[0]
    if program.status is None:
        return ProgramExit(-signal.SIGKILL, tail.text(), was_lost=True)
    return ProgramExit(program.status, tail.text())


async def start_program(command: ProgramCommand, grace_s: float) -> Program:
    """Start a program. CannotStart or Shortage where that is not possible."""
    if not command.argv:
        raise CannotStart("the runtime has no command")
    try:
        with raise_shortage(f"command cannot be started: {command.argv[0]}"):
            return await launcher.current().start(command, grace_s)
    except (OSError, ValueError) as error:
        raise CannotStart(_explain(command, error)) from None


def _explain(command: ProgramCommand, error: OSError | ValueError) -> str:
    """Why the program could not be started, without the paths in the message of the exception."""
    program = command.argv[0] if command.argv else ""
    match error:
        case FileNotFoundError() | NotADirectoryError() if not command.cwd.is_dir():
            return "the folder in which the agent works is not there, or no folder"
        case FileNotFoundError() | NotADirectoryError():
            return _describe_not_found(program)
        # Where a folder of PATH may not be searched, the system says this of a program that is nowhere.
        case PermissionError() if os.sep not in program and shutil.which(program, path=command.env.get("PATH")) is None:
            return _describe_not_found(program)
        case PermissionError():
            return f"command cannot be executed: {program} (permission denied)"
        case OSError():
            return f"command cannot be started: {program} ({os.strerror(error.errno or 0)})"
        case _:
            return f"command cannot be started: {program} ({error})"


def _describe_not_found(program: str) -> str:
    return f"command not found: {program} (give its full path, or set PATH in the runtime's env)"


async def _feed(program: Program, data: bytes) -> None:
    # A program may exit without having read all its input.
    try:
        async with program.stdin:
            await program.stdin.send_all(data)
    except trio.BrokenResourceError:
        pass
