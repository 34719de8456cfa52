"""The fork server: a small single-threaded process that starts the programs of the daemon.

Forks a `keeper` for each program. bubblewrap's --die-with-parent is tied to the thread that forked, and the daemon's
worker threads end; and forking the large daemon would be slow. Orphans whose keeper was killed are reparented to this
process and killed. A keeper that is stopped, which it can do nothing about, is told to go on, and killed the second
time. Standard library only. Ends when the daemon's end of the socket is closed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys

from sessiond.runtimes import keeper

# The descriptors that the daemon passes: the socket, and a file whose lock is held until the last keeper has ended.
SOCKET_FD, HOLD_FD = 3, 4
# The kernel's limit of descriptors in one message (SCM_MAX_FD).
MAX_FDS = 253
_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Serve until the daemon is gone."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, keeper.ignore_signal)
    keeper.become_subreaper()
    server = socket.socket(fileno=SOCKET_FD)
    server.set_inheritable(False)
    held = int(sys.argv[2]) - 1
    # Close descriptors that the daemon inherited without O_CLOEXEC (from systemd or a shell).
    os.closerange(SOCKET_FD + 1 + held, 1 << 20)
    if held:
        os.set_inheritable(HOLD_FD, False)
    wake_fd, writer = os.pipe()
    for fd in (wake_fd, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, keeper.ignore_signal)
    # Keep the garbage collector from touching existing objects, so that the keepers share their pages.
    gc.freeze()
    _serve(server, wake_fd, writer)


def _serve(server: socket.socket, wake_fd: int, writer: int) -> None:
    # Whether each was stopped before.
    keepers: dict[int, bool] = {}
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(wake_fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wake_fd:
                os.read(wake_fd, 4096)
                _reap(keepers)
            else:
                message, fds, _, _ = socket.recv_fds(server, 16, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    return
                pid = _fork(server, (wake_fd, writer), fds)
                if pid:
                    keepers[pid] = False
                for one in fds:
                    os.close(one)


def _fork(server: socket.socket, others: tuple[int, ...], fds: list[int]) -> int:
    """The keeper's pid; 0 if the fork failed, which the daemon notices by the end of the control stream."""
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        server.close()
        for fd in others:
            os.close(fd)
        keeper.keep(socket.socket(fileno=fds[0]), fds[1:])
        status = 0
    finally:
        os._exit(status)


def _reap(keepers: dict[int, bool]) -> None:
    """Reap the keepers that have ended, and kill the orphans of any that was killed."""
    has_orphans = False
    with contextlib.suppress(ChildProcessError):
        while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            pid, status = changed
            if os.WIFSTOPPED(status) and pid in keepers:
                os.kill(pid, signal.SIGKILL if keepers[pid] else signal.SIGCONT)
                keepers[pid] = True
                continue
            has_orphans = has_orphans or status != 0 or pid not in keepers
            keepers.pop(pid, None)
    if has_orphans:
        keeper.kill_children(os.getpid(), tuple(keepers))
