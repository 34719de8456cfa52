"""Steps on a store for the tests that kill the process in between: run as a program under strace, or step by step.

    python store_steps.py SYSCALL WHEN FOLDER

performs the steps once for every call of SYSCALL in them, each time in a new fork on a new store (FOLDER/1, FOLDER/2
and so on), and makes the n-th fork's n-th call the WHEN-th that strace counts: strace counts for each process
separately. It ends with the first fork that was not killed, and prints as JSON what each of them acknowledged.

    python store_steps.py kills ROUNDS STORE

kills so many processes that append to one store, and prints as JSON what they acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from sessiond.clock import Ids
from sessiond.errors import ConfigError, StorageError
from sessiond.model.keys import KeyRules
from sessiond.store import dirfd
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message, SessionStore, open_store

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.commit_tasks import with_commits
from support.store_listeners import SilentListener

LIMIT = 8 * 1024 * 1024
Tell = Callable[..., None]


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    """File work in the one thread that there is, so that its calls come in the same order each time."""
    return function(*args)


def open_inline(store: Path, **more: Any) -> Any:
    """The store, with its file work inline."""
    settings = {"durable": True, "record_limit": LIMIT, "rules": KeyRules(), "run_sync": inline, "ids": _ids()}
    return open_store(store, listener=SilentListener, **with_commits({**settings, **more}))


def _ids() -> Ids:
    # The same in every life, so that one that nothing happened to is known by what it tells. Not the same again when a
    # store is opened a second time: then there are sessions already.
    count = iter(range(10**6))
    salt = os.environ.get("STORE_STEPS_SALT", "0")
    return Ids(uuid=lambda: f"{salt}-{next(count)}", record=lambda: f"{salt}{next(count):015x}")


def user_message(text: str) -> Message:
    return Message({"role": "user", "content": text})


async def run_steps(path: Path, tell: Tell, **settings: Any) -> None:
    """Appends, a saved index, an archived session, another saved index. Each step is told when it is acknowledged."""
    async with open_inline(path, **settings) as store:
        main = await _create(store, "agent:main:main", "m1", tell)
        if main is not None:
            await _append(store, main, "m2", tell)
            await _append(store, main, "m3", tell)
        await _save(store, tell)
        other = await _create(store, "agent:main:cron:x", "o1", tell)
        if other is not None:
            await _append(store, other, "o2", tell)
            try:
                await store.archive(other)
                tell("archived", other.session_id)
            except StorageError:
                tell("failed", "archive")
        if main is not None:
            await _append(store, main, "m4", tell)
            try:
                await store.append(main, [Custom("sessiond/entry", {"label": "last"})])
                tell("labelled", main.session_id)
            except StorageError:
                tell("failed", "label")
        await _save(store, tell)


async def _create(store: SessionStore, key: str, text: str, tell: Tell) -> Session | None:
    try:
        session, _ = await store.create(key, "main", [user_message(text)])
    except StorageError:
        tell("failed", "message", text)
        return None
    tell("message", session.session_id, text)
    return session


async def _append(store: SessionStore, session: Session, text: str, tell: Tell) -> None:
    try:
        await store.append(session, [user_message(text)])
    except StorageError:
        tell("failed", "message", text)
    else:
        tell("message", session.session_id, text)


async def _save(store: SessionStore, tell: Tell) -> None:
    for folder in store.dirty_folders():
        try:
            await store.save(folder)
        except StorageError:
            tell("failed", "save")
        else:
            tell("saved")


_NO_FD = 1 << 20
_CALLS: dict[str, Callable[[], object]] = {
    "write": lambda: os.write(_NO_FD, b""),
    "fdatasync": lambda: os.fdatasync(_NO_FD),
    "fsync": lambda: os.fsync(_NO_FD),
    "close": lambda: os.close(_NO_FD),
    "renameat": lambda: os.rename("x", "y", src_dir_fd=_NO_FD, dst_dir_fd=_NO_FD),
    "renameat2": lambda: dirfd.rename(_NO_FD, "x", _NO_FD, "y", replace=False),
}


def _burn(syscall: str, times: int) -> None:
    """Make so many failing calls."""
    for _ in range(times):
        with suppress(OSError):
            _CALLS[syscall]()


def _fork(syscall: str, burn: int, store: Path) -> dict[str, Any]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:

        def tell(*what: str) -> None:
            theirs.send(json.dumps(what).encode())  # not `write`, because strace counts those

        _burn(syscall, burn)
        ended = 1
        try:
            trio.run(run_steps, store, tell)
            ended = 0
        except ConfigError:
            tell("refused")
            ended = 0
        finally:
            if ended:
                traceback.print_exc()
            os._exit(ended)
    theirs.close()
    told = []
    while data := ours.recv(4096):
        told.append(json.loads(data))
    ours.close()
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a fork ended with an error of its own")
    return {"store": str(store), "killed": os.WIFSIGNALED(status), "told": told}


APPENDERS = 4


async def append_on(path: Path, name: str, told: socket.socket) -> None:
    """Append until killed, with real threads; every acknowledged text is sent to `told`."""
    async with open_inline(path, run_sync=trio.to_thread.run_sync, ids=Ids()) as store:
        session = store.catalog.by_key.get("agent:main:main")
        if session is None:
            session, _ = await store.create("agent:main:main", "main")

        async def append(appender: int) -> None:
            for number in range(10**6):
                text = f"{name}.{appender} {number:06d}"
                await store.append(session, [user_message(text)])
                told.send(text.encode())

        async with trio.open_nursery() as nursery:
            for appender in range(APPENDERS):
                nursery.start_soon(append, appender)


def kill_appenders(rounds: int, store: Path) -> list[str]:
    """Kill so many appending processes at varying moments; the texts that they acknowledged."""
    acknowledged: list[str] = []
    for number in range(rounds):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            trio.run(append_on, store, str(number), theirs)
            os._exit(1)
        theirs.close()
        # The number of acknowledgements before the kill varies its moment.
        acknowledged += [ours.recv(4096).decode() for _ in range(number % 7)]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while data := ours.recv(4096):
            acknowledged.append(data.decode())
        ours.close()
    return acknowledged


def main() -> None:
    syscall, when, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if syscall == "kills":
        print(json.dumps(kill_appenders(when, folder)))
        return
    lives: list[dict[str, Any]] = []
    whole = _fork("none", 0, folder / "0")["told"]
    while not lives or lives[-1]["killed"] or lives[-1]["told"] != whole:
        lives.append(_fork(syscall, when - len(lives) - 1, folder / str(len(lives) + 1)))
    print(json.dumps(lives))


if __name__ == "__main__":
    main()
