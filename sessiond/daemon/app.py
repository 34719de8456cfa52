"""The composition root: builds every part and puts them together. Knows everything, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

import sessiond
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config import Config
from sessiond.daemon.credentials import RunCredentials
from sessiond.daemon.host import DaemonHost
from sessiond.daemon.saver import IndexSaver
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import open_watcher
from sessiond.methods.services import Services
from sessiond.methods.table import METHODS
from sessiond.model.keys import KeyRules, agent_of
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.openrpc import openrpc_document
from sessiond.runs.attached import AttachedAgents
from sessiond.runs.inbox import is_inbox
from sessiond.runs.recover import recover
from sessiond.runs.spawn import Spawner
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions.lifecycle import Births
from sessiond.sessions.tokens import Tokens
from sessiond.store.scan import Progress
from sessiond.store.store import open_store

log = structlog.get_logger("sessiond")


@dataclass(slots=True, kw_only=True)
class App:
    """The parts that outlive a connection."""

    services: Services
    dispatcher: Dispatcher[Services]
    saver: IndexSaver
    background: trio.Nursery


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
async def built(
    store_path: Path, config: Config, sockets: Path, *, progress: Progress, watching: Callable[[str], None]
) -> AsyncIterator[App]:
    """Everything but the listeners: recovered, and at work. `sockets` is the folder of agent.sock."""
    clock, ids = Clock(), Ids()
    async with open_store(
        store_path,
        durable=config.store.durability == "sync",
        record_limit=config.limits.max_record_bytes,
        rules=key_rules(config),
        clock=clock,
        ids=ids,
        progress=progress,
    ) as store:
        bus = EventBus()
        feed = TranscriptFeed(store, bus)
        attached = AttachedAgents()
        tokens = Tokens(store, clock, lambda run_id: run_id in supervisor.registry.live)
        credentials = RunCredentials(tokens, sockets / "runs", lambda key: services.run_scopes(key))  # noqa: PLW0108
        credentials.clear()
        host = DaemonHost(lambda: services.config, store, attached, credentials, sockets / "agent.sock")
        supervisor = RunSupervisor(store, bus, host, clock, ids)
        attached.on_change = supervisor.agents_changed
        supervisor.keeps = lambda key: is_inbox(key) and attached.runtime(agent_of(key)) is None
        saver = IndexSaver(store, feed, clock)
        spawner = Spawner(
            store,
            supervisor,
            AttachmentService(ids=ids),
            lambda: services.config,
            clock=clock,
            ids=ids,
            workspace=host.workspace,
            sandboxed=host.sandboxed,
        )
        services = Services(
            store=store,
            bus=bus,
            feed=feed,
            supervisor=supervisor,
            attached=attached,
            births=Births(store),
            tokens=tokens,
            spawner=spawner,
            config=config,
            clock=clock,
            ids=ids,
            version=sessiond.__version__,
            started_ms=clock.wall_ms(),
            last_save=lambda: saver.last_save_ms,
        )
        dispatcher = Dispatcher(METHODS, services, limits=limits_of(config), on_fault=_log_fault, now_ms=clock.wall_ms)
        services.discover = lambda: openrpc_document(METHODS, title="sessiond", version=sessiond.__version__)
        async with open_watcher(config.store.watcher) as watcher, trio.open_nursery() as background:
            watching(watcher.backend)
            background.start_soon(feed.run, watcher)
            background.start_soon(saver.run)
            await background.start(supervisor.run)
            await spawner.recover()
            await recover(store, supervisor)
            yield App(services=services, dispatcher=dispatcher, saver=saver, background=background)
            background.cancel_scope.cancel()
        await saver.save()


def _log_fault(what: str, error: BaseException) -> None:
    log.error("internal error", what=what, exc_info=error)
