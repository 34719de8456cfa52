"""`sessiond link run`: the link as a program. Its lock, signals, reloads and exit code; the rest is in `running.py`.

One link runs on a store. Without the server, the daemon or room on the disk it says so and goes on; it ends for a
configuration that cannot be used (78), for a store that another link holds (69), and when it is told to.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from sessiond.client.retry import Backoff
from sessiond.config import settings as configuration
from sessiond.config.settings import Config
from sessiond.daemon import logs, memory, notify
from sessiond.errors import ConfigError, StorageError, StoreInUse, reason_of
from sessiond.link.connecting import options_of, settings_of
from sessiond.link.failures import LinkError
from sessiond.link.identity import no_store
from sessiond.link.running import RunningLink, make_envelopes
from sessiond.link.status import LOCK
from sessiond.store import dirfd, layout, opening

log = structlog.get_logger("sessiond.link")

# How long the end waits for what cannot be reached.
_LEAVE_S = 2.0
_CANCEL_AGAIN_S = 1.0
# How soon, and how rarely at last, files are tried again that cannot be opened.
_OPEN_AGAIN_S, _MAX_OPEN_AGAIN_S = 0.5, 15.0
EXIT_OK, EXIT_IN_USE, EXIT_CONFIG = 0, 69, 78


def run(
    store: Path,
    config_path: Path | None = None,
    socket: str | None = None,
    *,
    log_level: str = "info",
    json_log: bool = False,
) -> int:
    """Run the link until it is told to stop; the exit code."""
    logs.configure(log_level, as_json=json_log)
    os.umask(0o077)
    memory.reuse_freed_memory()
    try:
        with hold_store(store):
            asyncio.run(LinkProgram(store, config_path, socket).run())
    except StoreInUse as error:
        return _fail(str(error), EXIT_IN_USE)
    except (ConfigError, LinkError) as error:
        return _fail(str(error), EXIT_CONFIG)
    return EXIT_OK


def _fail(sentence: str, code: int) -> int:
    print(f"sessiond link: {sentence}", file=sys.stderr)  # noqa: T201
    return code


@contextmanager
def hold_store(store: Path) -> Iterator[None]:
    """Keep other links off the store. StoreInUse where one runs on it, ConfigError where there is no store."""
    try:
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            if not (store / layout.KEYS).is_dir():
                raise ConfigError(no_store(store))
            folder_fd = opening.open_folder(root_fd, (layout.LINK,))
        with dirfd.closing(folder_fd):
            lock_fd = dirfd.open_file(folder_fd, LOCK, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        raise ConfigError(no_store(store)) from None
    except OSError as error:
        raise ConfigError(f"the store {store} cannot be used: {reason_of(error)}") from None
    with dirfd.closing(lock_fd):
        deadline = time.monotonic() + opening.LOCK_PATIENCE_S
        while not _take_lock(lock_fd):
            if time.monotonic() >= deadline:
                raise StoreInUse(
                    f"another link runs on the store {store}: {opening.holder(lock_fd)}; stop that one first"
                )
            time.sleep(0.02)  # noqa: TID251 - before it serves; flock has no timeout
        with suppress(OSError):  # a full disk must not prevent the start
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        yield


def _take_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class NothingToLink(ConfigError):
    """A configuration that is good, and names no other machine."""


def load_config(path: Path | None) -> Config:
    """The configuration, which has to name this machine and others: else NothingToLink. ConfigError where it is bad."""
    config = configuration.load(path)
    if config.link.name is None or config.link.server is None or not config.link.peers:
        raise NothingToLink(
            f"{path or configuration.default_path()} names no other machine: a [link] table with name and server, and a"
            ' [[link.peers]] for each; see docs/machines.md, and "sessiond link peer"'
        )
    return config


class LinkProgram:
    """The process: one `RunningLink` after another, each with the configuration as it was at its start."""

    def __init__(self, store: Path, config_path: Path | None, socket: str | None) -> None:
        self._store, self._config_path, self._socket = store, config_path, socket
        self._config = load_config(config_path)
        self._manager = notify.from_environment()
        self._stop, self._reload = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until the configuration names no other machine any more: NothingToLink."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        watchdog = asyncio.create_task(self._keep_watchdog_quiet())
        try:
            while not self._stop.is_set():
                await self._serve()
        finally:
            watchdog.cancel()
        log.info("stopped")

    async def _serve(self) -> None:
        """One link, until the end or a reload of the configuration."""
        link = await self._open()
        if link is None:
            return
        serving = asyncio.create_task(link.run())
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, self._reload)]
        try:
            self._manager.ready(f"linking {self._config.link.name}")
            while True:
                await asyncio.wait([serving, *waits], return_when=asyncio.FIRST_COMPLETED)
                if serving.done() or self._stop.is_set():
                    break
                # Before it is read: it may be changed again while this link ends.
                self._reload.clear()
                if self._take_new_config():
                    break
                waits[1] = asyncio.create_task(self._reload.wait())
            if self._stop.is_set():
                self._manager.notify_stopping("handing over what is under way")
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await link.leave()
            for wait in waits:
                wait.cancel()
            await end_task(serving)

    async def _open(self) -> RunningLink | None:
        """A link, as soon as its files can be opened; None where the end comes first.

        The disk that is full now has room again when nobody looks, and a service manager that has started this program
        often enough starts it no more.
        """
        backoff, told = Backoff(_OPEN_AGAIN_S, _MAX_OPEN_AGAIN_S), ""
        while not self._stop.is_set():
            try:
                return RunningLink(self._store, self._config, self._socket, say_status=self._manager.status)
            except StorageError as error:
                if error.message != told:
                    told = error.message
                    log.error("the link waits until it can use its files", reason=error.message)
                    self._manager.ready(f"waiting: {error.message}")
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._stop.wait()
        return None

    def _take_new_config(self) -> bool:
        """Load the configuration again; False where it cannot be used, and the old one stays.

        NothingToLink is raised: whoever takes the last machine out wants nothing sent to it any more.
        """
        self._manager.notify_reloading()
        try:
            config = load_config(self._config_path)
            # What it names, too: the keys of the others, certificates, the seed.
            make_envelopes(self._store, config)
            options_of(settings_of(config.link))
        except NothingToLink:
            raise
        except (ConfigError, LinkError) as error:
            log.error("configuration not reloaded; the old one stays", reason=str(error))
            self._manager.ready(f"linking {self._config.link.name}")
            return False
        self._config = config
        log.info("configuration reloaded")
        return True

    async def _keep_watchdog_quiet(self) -> None:
        interval_s = notify.watchdog_seconds()
        while interval_s is not None:
            self._manager.alive()
            await asyncio.sleep(interval_s)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel the task until it has ended; what ended it before is raised, of a group with one error in it that error.

    A cancellation may get lost: where a task group has an error at the same moment, asyncio raises only that.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_S)
    try:
        await task
    except asyncio.CancelledError:
        pass
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
