"""Start programs from the daemon: its side of the fork server and of each keeper. Does not block the event loop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import sys
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

import sessiond
from sessiond.runtimes import forkserver
from sessiond.runtimes.keeper import END, LENGTH
from sessiond.store import dirfd

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from sessiond.runtimes.forkserver import main; main()"
_ROOT = str(Path(sessiond.__file__).parents[1])
# Duplicated descriptors are numbered from here on, so that they cannot collide with SOCKET_FD and HOLD_FD.
_SPARE_FD = 10
# How long to wait for the keepers of a killed daemon to end their programs.
EARLIER_S = 10.0
_ROUND_S = 0.01


class CannotStart(Exception):
    """The program could not be started. The message is for people."""


class ProgramCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start. `inherited` are descriptors, by the number that the program expects."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stdin: bytes = b""
    inherited: Mapping[int, int] = {}


class Program:
    """A started program: its pipes, and the control stream of its keeper."""

    def __init__(self, control: trio.SocketStream, pipes: tuple[int, int, int]) -> None:
        self._control = control
        self._received = b""
        self.stdin, self.stdout, self.stderr = (trio.lowlevel.FdStream(fd) for fd in pipes)
        self.status: int | None = None

    async def receive(self) -> dict[str, Any] | None:
        """The keeper's next message; None once nothing of the program is left."""
        while b"\n" not in self._received:
            try:
                piece = await self._control.receive_some(4096)
            except trio.BrokenResourceError:
                piece = b""
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        self.status = message.get("exited", self.status)
        return message

    async def send_command(self, text: bytes) -> None:
        """Send the keeper the description of the program."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self._control.send_all(LENGTH.pack(len(text)) + text)

    async def end(self, patience_s: float) -> bool:
        """Have the keeper send TERM to all processes, and KILL after the grace time; whether all ended in time."""
        with trio.move_on_after(patience_s):
            with contextlib.suppress(trio.BrokenResourceError):
                await self._control.send_all(END)
            while await self.receive() is not None:
                pass
            return True
        return False

    async def aclose(self) -> None:
        """Close the pipes and the control stream; the keeper then kills what is left."""
        for stream in (self._control, self.stdin, self.stdout, self.stderr):
            await trio.aclose_forcefully(stream)


class ForkServer:
    """One fork server, restarted if it was killed. It holds `hold_fd` open until all that it started has ended."""

    def __init__(self, hold_fd: int | None = None) -> None:
        self._hold_fd = hold_fd
        self._socket: socket.socket | None = None
        self._finish: weakref.finalize[..., ForkServer] | None = None

    async def start(self, command: ProgramCommand, grace_s: float) -> Program:
        """Start a program. CannotStart if no process could be made; OSError or ValueError if it cannot be executed.

        Where its keeper is killed while it makes the process it counts as started, and killed.
        """
        with ExitStack() as given, ExitStack() as kept:
            stdin, our_stdin = _pipe(given, kept)
            our_stdout, stdout = _pipe(kept, given)
            our_stderr, stderr = _pipe(kept, given)
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            await self._send([theirs.fileno(), stdin, stdout, stderr, *command.inherited.values()])
            control = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            program = Program(control, (our_stdin, our_stdout, our_stderr))
            kept.pop_all()
        try:
            await program.send_command(_encode(command, grace_s))
            starting = await program.receive()
            message = await program.receive()
        except BaseException:
            await program.aclose()
            raise
        if starting is not None and (message is None or "started" in message):
            return program
        await program.aclose()
        if message is None:
            raise CannotStart(f"command cannot be started: {command.argv[0]} (no process could be made for it)")
        if message["error"] is not None:
            raise OSError(message["error"], os.strerror(message["error"]))
        raise ValueError(message["text"])

    def prepare(self) -> None:
        """Start it, if it is not there: the next program need not wait for it, and gets the error if that failed."""
        if self._socket is None:
            with contextlib.suppress(OSError, CannotStart):
                self._open()

    def close(self) -> None:
        """End the fork server. Programs that it started keep running until their own control streams close."""
        if self._finish is not None:
            self._finish()
        self._socket = self._finish = None

    async def _send(self, fds: list[int]) -> None:
        await trio.lowlevel.checkpoint()
        for attempt in range(2):
            if self._socket is None:
                self._open()
            assert self._socket is not None
            try:
                # Does not block: a few bytes always fit, unless the fork server is stuck.
                socket.send_fds(self._socket, [b"start"], fds)
                return
            except (BrokenPipeError, ConnectionError):
                self.close()
                if attempt:
                    raise

    def _open(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                pid = self._spawn(theirs)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        self._socket = ours
        self._finish = weakref.finalize(self, _finish, ours, pid)

    def _spawn(self, theirs: socket.socket) -> int:
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
        ]
        numbers = {forkserver.SOCKET_FD: theirs.fileno()}
        if self._hold_fd is not None:
            numbers[forkserver.HOLD_FD] = self._hold_fd
        with ExitStack() as spare:
            for number, fd in numbers.items():
                high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _SPARE_FD)
                spare.callback(os.close, high)
                actions.append((os.POSIX_SPAWN_DUP2, high, number))
            argv = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _CODE, _ROOT, str(len(numbers))]
            try:
                return os.posix_spawn(sys.executable, argv, {}, file_actions=actions, setsid=True)
            except OSError as error:
                if dirfd.is_shortage(error):
                    raise
                reason = os.strerror(error.errno or 0)
                raise CannotStart(f"no program can be started: Python itself ({sys.executable}): {reason}") from None


def _finish(ours: socket.socket, pid: int) -> None:
    ours.close()
    # It ends at once, unless it was stopped by a signal; then it is not waited for.
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            select.select([pidfd], [], [], 0.5)
        finally:
            os.close(pidfd)
        os.waitpid(pid, os.WNOHANG)


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """A pipe. `reads` closes its reading end, `writes` its writing end."""
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer


def _encode(command: ProgramCommand, grace_s: float) -> bytes:
    fields = {
        "argv": command.argv,
        "env": dict(command.env),
        "cwd": os.fspath(command.cwd),
        "numbers": list(command.inherited),
        "grace_s": grace_s,
    }
    # The standard library's JSON preserves surrogate escapes, which stand for bytes that are not UTF-8.
    return json.dumps(fields).encode()


_current: trio.lowlevel.RunVar[ForkServer] = trio.lowlevel.RunVar("fork server")


def current() -> ForkServer:
    """The fork server of this Trio run; created at the first call."""
    try:
        return _current.get()
    except LookupError:
        server = ForkServer()
        _current.set(server)
        return server


@asynccontextmanager
async def open_fork_server(hold_fd: int) -> AsyncIterator[bool]:
    """A fork server for the programs started inside, after the programs of an earlier daemon have ended.

    The keepers hold a lock on `hold_fd`. Yields False if an earlier daemon's keepers still hold it after EARLIER_S.
    """
    over = await _try_lock(hold_fd)
    server = ForkServer(hold_fd)
    _current.set(server)
    try:
        yield over
    finally:
        server.close()


async def _try_lock(fd: int) -> bool:
    """Whether the lock was acquired within EARLIER_S; also True on file systems without locks."""
    with trio.move_on_after(EARLIER_S):
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                await trio.sleep(_ROUND_S)  # at most once a start, for milliseconds
            except OSError:
                return True
    return False
