"""The composition root: builds every part and puts them together. Knows everything, decides nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
import trio

import sessiond
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep, may_leave
from sessiond.conversations.provenance import ProvenanceStamp
from sessiond.conversations.reply_back import ReplyBack
from sessiond.conversations.send import MessageSender
from sessiond.daemon.credentials import RunCredentials
from sessiond.daemon.host import DaemonHost
from sessiond.daemon.saver import IndexSaver
from sessiond.delivery.channels import Channels
from sessiond.delivery.outbox import Outbox, open_outbox
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import Kind, open_watcher
from sessiond.methods.services import Services
from sessiond.methods.table import METHODS
from sessiond.model.keys import KeyRules, agent_of, is_inbox
from sessiond.policy.target import target_of
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.openrpc import openrpc_document
from sessiond.runs.recovery import recover
from sessiond.runs.run import Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes import launcher as starting
from sessiond.runtimes.attached import AttachedAgents
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.sessions.tokens import Tokens
from sessiond.store import dirfd, layout
from sessiond.store.scan import Progress
from sessiond.store.store import Part, SessionStore, open_store
from sessiond.subagents.announce import Announcer
from sessiond.subagents.archive import ArchiveSweep
from sessiond.subagents.spawn import Spawner

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
async def open_app(
    store_path: Path,
    config: Config,
    sockets: Path,
    *,
    progress: Progress,
    watching: Callable[[str], None],
    clock: Clock | None = None,
) -> AsyncIterator[App]:
    """Everything but the listeners: recovered, and at work. `sockets` is the folder of agent.sock."""
    clock, ids = clock or Clock(), Ids()
    durable = config.store.durability == "sync"
    async with (
        AsyncExitStack() as opened,
        open_store(
            store_path,
            durable=durable,
            record_limit=config.limits.max_record_bytes,
            rules=key_rules(config),
            clock=clock,
            ids=ids,
            progress=progress,
        ) as store,
    ):
        await opened.enter_async_context(_programs(store))
        for problem in store.problems:
            log.warning("passed over", path=problem.path, reason=problem.reason)
        parts = _Parts(store, sockets, clock, ids)
        outbox = await opened.enter_async_context(
            open_outbox(
                store,
                parts.channels,
                clock,
                durable=durable,
                settings=lambda: parts.config().delivery,
                allowed=may_leave(store, parts.config),
            )
        )
        services = parts.put_together(config, outbox)
        dispatcher = Dispatcher(
            METHODS,
            services,
            limits=limits_of(config),
            on_fault=_log_fault,
            now_ms=clock.wall_ms,
            budgets=services.budgets,
        )
        async with open_watcher(_backend(config)) as watcher, trio.open_nursery() as background:
            watching(watcher.backend)
            background.start_soon(parts.feed.run, watcher)
            background.start_soon(parts.saver.run)
            await background.start(parts.supervisor.run)
            await parts.recover()
            # Last: what is held back for something recovered is known by now.
            await background.start(outbox.run)
            background.start_soon(parts.archive.run)
            yield App(services=services, dispatcher=dispatcher, saver=parts.saver, background=background)
            background.cancel_scope.cancel()
        await parts.saver.save_dirty()


@asynccontextmanager
async def _programs(store: SessionStore) -> AsyncIterator[None]:
    """What is started inside ends with it, and what a killed daemon had started has ended before."""
    # Held by whatever keeps a program: the next daemon on this store waits until nobody does.
    with dirfd.closing(dirfd.open_file(store.root_fd, layout.STORE_FILE, os.O_RDONLY)) as hold_fd:
        async with starting.open_fork_server(hold_fd) as over:
            if not over:
                log.warning("a program of an earlier daemon is still there; it may work beside the next run")
            yield


def _backend(config: Config) -> Kind:
    # `store.watcher` is its older name.
    return config.watch.backend if config.watch.backend != "auto" else config.store.watcher


class _Parts:
    """The parts of one daemon, made in the order in which they need each other."""

    services: Services

    def __init__(self, store: SessionStore, sockets: Path, clock: Clock, ids: Ids) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self.bus = EventBus()
        self.feed = TranscriptFeed(store, self.bus)
        self.saver = IndexSaver(store, self.feed, clock)
        self.births = SessionChanges(store)
        self.attached = AttachedAgents()
        self.tokens = Tokens(store, clock, lambda run_id: run_id in self.supervisor.registry.live)
        credentials = RunCredentials(self.tokens, sockets / "runs", self._run_scopes)
        credentials.clear()
        host = self.host = DaemonHost(self.config, store, self.attached, credentials, sockets / "agent.sock")
        self.supervisor = RunSupervisor(store, self.bus, host, clock, ids)
        self.attached.on_change = self.supervisor.agents_changed
        self.supervisor.keeps = lambda key: is_inbox(key) and self.attached.runtime(agent_of(key)) is None
        self.channels = Channels(lambda: self.config().channels, environ=os.environ, cwd=Path("/"))
        attachments = self.attachments = AttachmentService(ids=ids)
        places: dict[str, Any] = {"clock": clock, "workspace": host.workspace}
        self.spawner = Spawner(
            store, self.supervisor, attachments, self.config, ids=ids, sandboxed=host.is_sandboxed, **places
        )
        self.spawner.threads = lambda session: self.channels.threads(target_of(session.key, session.entry))
        self.spawner.bind_thread = lambda session, key, label: self.channels.bind_thread(
            target_of(session.key, session.entry), key, label
        )
        self.archive = ArchiveSweep(
            store,
            self.feed,
            self.births,
            self.supervisor,
            attachments,
            intents=self.spawner.intents,
            config=self.config,
            **places,
        )
        self.births.on_put_away = self.archive.put_away

    def config(self) -> Config:
        """The configuration as it is now."""
        return self.services.config

    def _run_scopes(self, key: str) -> frozenset[str]:
        return self.services.run_scopes(key)

    def put_together(self, config: Config, outbox: Outbox) -> Services:
        """What goes on after runs, and everything that the methods work with."""
        announcing = AnnounceStep(self.store, self.channels, outbox, self.config, self.clock)
        provenance = ProvenanceStamp(announcing, self.config, self.clock, self.ids)
        self.conversations = ReplyBack(self.store, self.supervisor, announcing, self.config, self.clock)
        self.announcer = Announcer(self.store, self.supervisor, self.config, self.clock)
        self.announcer.outgoing = announcing
        self.announcer.ended, self.announcer.announced = self.archive.run_ended, self.archive.child_announced
        self.archive.engages, self.conversations.on_closed = self.conversations.engages, self.archive.conversation_over
        self.feed.on_lost = self.supervisor.forsake
        self.feed.on_found = self.supervisor.regain
        # Everything that goes on after a run stands in this list; each passes over the runs that are none of its own.
        follow_ups: list[AfterRuns] = [self.announcer, self.conversations]
        self.supervisor.at_end = lambda run: [part for one in follow_ups for part in one.at_end(run)]
        self.supervisor.after_end = lambda run: _after_end(follow_ups, run)
        self.services = Services(
            store=self.store,
            bus=self.bus,
            feed=self.feed,
            supervisor=self.supervisor,
            attached=self.attached,
            births=self.births,
            tokens=self.tokens,
            spawner=self.spawner,
            attachments=self.attachments,
            sends=self._sender(provenance),
            provenance=provenance,
            announcing=announcing,
            channels=self.channels,
            dead_letters=lambda: len(outbox.dead_letters),
            config=config,
            clock=self.clock,
            ids=self.ids,
            version=sessiond.__version__,
            started_ms=self.clock.wall_ms(),
            last_save=lambda: self.saver.last_save_ms,
            discover=_openrpc,
        )
        return self.services

    def _sender(self, provenance: ProvenanceStamp) -> MessageSender:
        return MessageSender(
            self.store,
            self.supervisor,
            provenance,
            self.config,
            self.clock,
            births=self.births,
            feed=self.feed,
            attached=self.attached,
            attachments=self.attachments,
            intents=self.spawner.intents,
            workspace=self.host.workspace,
        )

    async def recover(self) -> None:
        """Take up what a crash left: half-written spawns, open runs, announcements, conversations."""
        await self.spawner.recover()
        await recover(self.store, self.supervisor, [self.announcer, self.conversations])


class AfterRuns(Protocol):
    """What goes on after a run: records for the write that ends it, and what is done afterwards."""

    def at_end(self, run: Run) -> Sequence[Part]: ...
    def after_end(self, run: Run) -> Awaitable[None]: ...


@cache
def _openrpc() -> msgspec.Raw:
    """The OpenRPC document, built at the first call: that takes 25 ms, and anybody may ask for it a thousand times."""
    return msgspec.Raw(msgspec.json.encode(openrpc_document(METHODS, title="sessiond", version=sessiond.__version__)))


async def _after_end(follow_ups: Sequence[AfterRuns], run: Run) -> None:
    """All of them beside each other: one that waits for an agent does not hold up the others."""
    async with trio.open_nursery() as nursery:
        for one in follow_ups:
            nursery.start_soon(one.after_end, run)


def _log_fault(what: str, error: BaseException) -> None:
    log.error("internal error", what=what, exc_info=error)
