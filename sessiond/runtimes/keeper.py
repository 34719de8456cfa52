"""The keeper of one program: starts it, reports its exit, and ends all processes that it leaves behind.

A single-threaded process forked by `forkserver`, standard library only. It is a subreaper, so descendants that leave
their parent or process group are reparented to it: when it has no children, nothing of the program is left. When the
other end of `control` is closed, the daemon is gone and everything is killed at once.

The daemon sends a length and a JSON object (argv, env, cwd, numbers, grace_s), and later `T` to terminate the program.
The keeper answers with lines of JSON: `starting`, `started` or `error`, then `exited`. The end of its stream says that
nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct("!I")
END = b"T"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# A process that does not end within this time after KILL is stuck in the kernel; the keeper gives up.
_REAP_S = 5.0
# While killing, look for newly forked processes this often.
_ROUND_S = 0.02

try:
    _prctl: Any = ctypes.CDLL(None, use_errno=True).prctl
except (OSError, AttributeError):  # not Linux: only the process group can be ended
    _prctl = None


def become_subreaper() -> None:
    """Make this process the parent of every orphan among its descendants."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep(control: socket.socket, fds: list[int]) -> None:
    """Start the program described on `control` with `fds` (stdin, stdout, stderr, inherited); wait for all to end."""
    become_subreaper()
    try:
        command = _read_command(control)
    except EOFError:
        return
    # The descriptors arrive with arbitrary numbers; the program expects the inherited ones under `numbers`. The others
    # are right above, as there may be few.
    lowest = max([2, *command["numbers"]]) + 1
    control = _move_fd_up(control, lowest)
    wake_fd = _open_child_wakeup(lowest)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved[3:], command["numbers"], strict=True):
        os.dup2(fd, number)
    # The program may kill this process before that can say `started`.
    _send(control, starting=True)
    try:
        program = _start(command, moved)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _send(control, error=getattr(error, "errno", None), text=str(error))
        return
    for fd in (*moved, *command["numbers"]):
        os.close(fd)
    _send(control, started=program)
    _KeptProgram(control, wake_fd, program, command["grace_s"]).supervise()


def _start(command: dict[str, Any], fds: list[int]) -> int:
    parent = os.getpid()

    def prepare_child() -> None:
        # Safe to run Python between fork and exec: this process has one thread, so no lock can be held by another.
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)

    program = subprocess.Popen(
        command["argv"],
        stdin=fds[0],
        stdout=fds[1],
        stderr=fds[2],
        cwd=command["cwd"],
        env=command["env"],
        start_new_session=True,
        pass_fds=command["numbers"],
        preexec_fn=prepare_child,  # noqa: PLW1509
    )
    program.returncode = 0  # reaped here, by `_KeptProgram`
    return program.pid


class _KeptProgram:
    """A running program. `kill_at`: when TERM is followed by KILL; `give_up_at`: when the keeper stops waiting."""

    def __init__(self, control: socket.socket, wake_fd: int, program: int, grace_s: float) -> None:
        self.control, self.wake_fd, self.program, self.grace_s = control, wake_fd, program, grace_s
        self.kill_at = self.give_up_at = float("inf")

    def supervise(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_fd, select.POLLIN)
        while self._reap():
            now = time.monotonic()
            if now >= self.give_up_at:
                return
            if now >= self.kill_at:
                self._kill()
            for fd, _ in poll.poll(self._poll_timeout_ms()):
                if fd == self.wake_fd:
                    os.read(fd, 4096)
                elif not self._handle_message():
                    poll.unregister(self.control)

    def _poll_timeout_ms(self) -> float | None:
        if self.kill_at == float("inf"):
            return None
        left_s = self.kill_at - time.monotonic()
        return 1000 * (left_s if left_s > 0 else _ROUND_S)

    def _reap(self) -> bool:
        """Reap the processes that have ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.program:
                _send(self.control, exited=os.waitstatus_to_exitcode(status))

    def _handle_message(self) -> bool:
        """Handle a message of the daemon; False once the daemon is gone."""
        try:
            said = self.control.recv(64)
        except OSError:
            said = b""
        if said and self.kill_at == float("inf"):
            self._terminate()
            self.kill_at = time.monotonic() + self.grace_s
        elif not said:
            self.kill_at = time.monotonic()
        if self.kill_at < float("inf"):
            self.give_up_at = min(self.give_up_at, self.kill_at + _REAP_S)
        return bool(said)

    def _terminate(self) -> None:
        try:
            found = list(descendants(os.getpid()))
        except FileNotFoundError:  # no /proc
            os.killpg(self.program, signal.SIGTERM)
            return
        for pid, started_ticks in found:
            _signal(pid, started_ticks, signal.SIGTERM)

    def _kill(self) -> None:
        """Kill every child. Only this process reaps them, so no pid is reused; their children are reparented here."""
        kill_children(os.getpid(), ())
        if not os.path.isdir("/proc/self"):
            os.killpg(self.program, signal.SIGKILL)


def kill_children(parent: int, excepted: tuple[int, ...]) -> None:
    """Kill the children of this process except those in `excepted`."""
    for pid, (its_parent, _) in _processes().items():
        if its_parent == parent and pid not in excepted:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has ended, or belongs to another user


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """`(pid, start time)` of each living descendant. FileNotFoundError without /proc."""
    os.stat("/proc/self/stat")
    processes = _processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        yield pid, processes[pid][1]
        todo += children.get(pid, ())


def _processes() -> dict[int, tuple[int, str]]:
    """`{pid: (parent, start time)}` of all processes; times in ticks since boot. Empty without /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def _stat(pid: int) -> tuple[int, str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may contain parentheses itself. Fields 4 and 22 of proc(5).
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), fields[19].decode()
    except (OSError, ValueError, IndexError):
        return None


def _signal(pid: int, started_ticks: str, number: signal.Signals) -> None:
    """Signal the process `pid` with this start time, never another process that has reused the pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = _stat(pid)
        if stat is not None and stat[1] == started_ticks:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        pass  # it has ended, or belongs to another user
    finally:
        os.close(fd)


def _move_fd_up(control: socket.socket, lowest: int) -> socket.socket:
    fd = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, lowest)
    control.close()
    return socket.socket(fileno=fd)


def _open_child_wakeup(lowest: int) -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe()
    pair = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest) for fd in (reader, writer)]
    os.close(reader)
    os.close(writer)
    for fd in pair:
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(pair[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, ignore_signal)
    return pair[0]


def ignore_signal(_number: int, _frame: object) -> None:
    """A handler that does nothing: unlike SIG_IGN it is not inherited by the program."""


def _read_command(control: socket.socket) -> dict[str, Any]:
    (length,) = LENGTH.unpack(_read_exactly(control, LENGTH.size))
    command: dict[str, Any] = json.loads(_read_exactly(control, length))
    return command


def _read_exactly(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = control.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _send(control: socket.socket, **fields: object) -> None:
    # `_handle_message` notices that the daemon is gone.
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(fields).encode() + b"\n")
