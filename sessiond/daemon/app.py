"""The composition root: opens the store, builds the parts, puts them to work, and recovers what a crash interrupted."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.daemon.logs import FaultLog
from sessiond.daemon.parts import DaemonParts, watcher_backend
from sessiond.daemon.saver import IndexSaver
from sessiond.delivery.channels import Channels
from sessiond.delivery.notify_targets import NotifyTargets
from sessiond.delivery.outbox import open_outbox
from sessiond.events.watch import Watcher, open_watcher
from sessiond.methods.services import Services
from sessiond.methods.table import METHODS
from sessiond.model.keys import KeyRules
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.runtimes import launcher
from sessiond.store import dirfd, layout
from sessiond.store.loading import load_sessions
from sessiond.store.scan import Progress
from sessiond.store.store import SessionStore, open_store
from sessiond.transports.active_connections import ActiveConnections

log = structlog.get_logger("sessiond")
# What is wrong with the store is logged at the start, so many things of it.
MAX_LOGGED_PROBLEMS = 200


@dataclass(slots=True, kw_only=True)
class App:
    """The parts that outlive a connection. Cancelling `loading` ends the reading and recovery of the store."""

    services: Services
    dispatcher: Dispatcher[Services]
    saver: IndexSaver
    active_connections: ActiveConnections
    background: trio.Nursery
    loading: trio.CancelScope


def key_rules(config: Config) -> KeyRules:
    """What the configuration says about keys."""
    return KeyRules(default_agent=config.default_agent(), main_key=config.session.main_key, scope=config.session.scope)


def limits_of(config: Config) -> Limits:
    """The bounds of a connection."""
    limits = config.limits
    return Limits(
        max_frame_bytes=limits.max_frame_bytes,
        max_pre_auth_frame_bytes=limits.max_pre_auth_frame_bytes,
        max_nesting=limits.max_nesting,
        max_in_flight=limits.max_in_flight,
    )


@asynccontextmanager
async def open_app(
    store_path: Path,
    config: Config,
    sockets: Path,
    *,
    progress: Progress,
    watching: Callable[[str], None],
    on_lock: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[App]:
    """Everything but the listeners. `sockets` is the folder of agent.sock. `on_lock` is called with the store locked.
    `environ` says where the sessions of other programs are.

    Yields before the store is read, so that the daemon answers at once. When `services.loaded` is set, it is recovered
    and at work; until then the dispatcher lets requests wait that need more than the daemon itself.
    """
    clock, ids = clock or Clock(), Ids()
    async with (
        AsyncExitStack() as opened,
        open_store(
            store_path,
            listener=lambda: parts.feed,
            durable=config.store.durability == "sync",
            record_limit=config.limits.max_record_bytes,
            rules=key_rules(config),
            clock=clock,
            ids=ids,
            loads=False,
        ) as store,
    ):
        on_lock()
        await opened.enter_async_context(_programs(store))
        parts = await opened.enter_async_context(_open_parts(store, config, sockets, clock, ids, environ=environ))
        services = parts.services
        dispatcher = _build_dispatcher(services, config, clock)
        async with open_watcher(watcher_backend(config)) as watcher, trio.open_nursery() as background:
            watching(watcher.backend)
            loading = trio.CancelScope()
            background.start_soon(_load, parts, watcher, background, progress, loading)
            yield App(
                services=services,
                dispatcher=dispatcher,
                saver=parts.saver,
                active_connections=parts.active_connections,
                background=background,
                loading=loading,
            )
            background.cancel_scope.cancel()
        # Before, an index would have only the sessions that were found so far.
        if services.loaded.is_set():
            await parts.saver.save_dirty()
            await parts.sources.save()


def _build_dispatcher(services: Services, config: Config, clock: Clock) -> Dispatcher[Services]:
    return Dispatcher(
        METHODS,
        services,
        limits=limits_of(config),
        on_fault=FaultLog(clock.monotonic).note,
        now_ms=clock.wall_ms,
        budgets=services.budgets,
        ready=services.loaded,
    )


async def _load(
    parts: DaemonParts, watcher: Watcher, background: trio.Nursery, progress: Progress, scope: trio.CancelScope
) -> None:
    with scope:
        await _load_and_recover(parts, watcher, background, progress)


async def _load_and_recover(parts: DaemonParts, watcher: Watcher, background: trio.Nursery, progress: Progress) -> None:
    """Read the store, continue what a crash interrupted, and set `loaded`: everything is at work then."""
    parts.feed.watch_early(watcher)
    await load_sessions(parts.store, progress)
    problems = parts.store.problems
    for problem in problems[:MAX_LOGGED_PROBLEMS]:
        log.warning("passed over", path=problem.path, reason=problem.reason)
        await trio.lowlevel.checkpoint()
    if (more := len(problems) - MAX_LOGGED_PROBLEMS) > 0:
        log.warning("passed over", more=more, hint="sessiond doctor lists them")
    background.start_soon(parts.feed.run, watcher)
    background.start_soon(parts.saver.run)
    background.start_soon(parts.questions.run)
    await background.start(parts.attending.run)
    await background.start(parts.host.acp_agents.run)
    await background.start(parts.supervisor.run)
    await parts.tokens.load_long_log()
    parts.notify_targets.reconfigure()
    await parts.recover()
    # Last: recovery has put its deliveries on hold by now.
    await background.start(parts.outbox.run)
    background.start_soon(parts.archive.run)
    background.start_soon(parts.sources.run)
    background.start_soon(parts.search_index.run)
    parts.services.loaded.set()


@asynccontextmanager
async def _open_parts(
    store: SessionStore, config: Config, sockets: Path, clock: Clock, ids: Ids, *, environ: Mapping[str, str]
) -> AsyncIterator[DaemonParts]:
    """All parts, none of them running yet."""
    # Channels and outbox read the current configuration from the parts, which are built after them.
    channels = Channels(
        lambda: parts.config().channels,
        environ=os.environ,
        cwd=Path("/"),
        on_attach=lambda channel: outbox.make_due(channel),  # noqa: PLW0108 - made below
    )
    targets = NotifyTargets(lambda: parts.config().notify, environ=os.environ, cwd=Path("/"))
    async with open_outbox(
        store,
        channels,
        targets,
        clock,
        durable=config.store.durability == "sync",
        settings=lambda: parts.config().delivery,
        allowed=lambda delivery: parts.may_deliver(delivery),  # noqa: PLW0108 - made below
    ) as outbox:
        parts = DaemonParts(
            store, channels, outbox, targets, config=config, sockets=sockets, clock=clock, ids=ids, environ=environ
        )
        yield parts


@asynccontextmanager
async def _programs(store: SessionStore) -> AsyncIterator[None]:
    """A fork server for the programs of this daemon. Waits first until the programs of a killed daemon have ended."""
    # Each keeper of a program holds a lock on this file: the next daemon on this store waits until all have ended.
    with dirfd.closing(dirfd.open_file(store.root_fd, layout.STORE_FILE, os.O_RDONLY)) as hold_fd:
        async with launcher.open_fork_server(hold_fd) as over:
            if not over:
                log.warning("a program of an earlier daemon is still there; it may work beside the next run")
            yield
