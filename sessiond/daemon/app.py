"""The composition root: builds every part and puts them together. Knows everything, decides nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import structlog
import trio

import sessiond
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep, make_policy_check
from sessiond.conversations.continuing import Continuations
from sessiond.conversations.provenance import ProvenanceStamp
from sessiond.conversations.reply_back import ReplyBack
from sessiond.conversations.send import MessageSender
from sessiond.daemon.credentials import RunCredentials
from sessiond.daemon.host import DaemonHost
from sessiond.daemon.logs import FaultLog
from sessiond.daemon.saver import IndexSaver
from sessiond.delivery.channels import Channels
from sessiond.delivery.outbox import Outbox, open_outbox
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import Kind, Watcher, open_watcher
from sessiond.methods.services import Services
from sessiond.methods.table import METHODS
from sessiond.model.caller import Caller
from sessiond.model.keys import KeyRules
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.openrpc import openrpc_document
from sessiond.runs.recovery import recover
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes import launcher
from sessiond.runtimes.attached import AttachedAgents
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.sessions.tokens import Tokens
from sessiond.sources.sources import Sources
from sessiond.store import dirfd, layout
from sessiond.store.loading import load_sessions
from sessiond.store.scan import Progress
from sessiond.store.store import SessionStore, open_store
from sessiond.subagents.announce import Announcer
from sessiond.subagents.archive import ArchiveSweep
from sessiond.subagents.spawn import Spawner
from sessiond.transports.active_connections import ActiveConnections
from sessiond.trigrams.index import TrigramIndex

log = structlog.get_logger("sessiond")


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
        async with open_watcher(_backend(config)) as watcher, trio.open_nursery() as background:
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
    parts: _Parts, watcher: Watcher, background: trio.Nursery, progress: Progress, scope: trio.CancelScope
) -> None:
    with scope:
        await _load_and_recover(parts, watcher, background, progress)


async def _load_and_recover(parts: _Parts, watcher: Watcher, background: trio.Nursery, progress: Progress) -> None:
    """Read the store, continue what a crash interrupted, and set `loaded`: everything is at work then."""
    parts.feed.watch_early(watcher)
    await load_sessions(parts.store, progress)
    for problem in parts.store.problems:
        log.warning("passed over", path=problem.path, reason=problem.reason)
    background.start_soon(parts.feed.run, watcher)
    background.start_soon(parts.saver.run)
    await background.start(parts.host.acp_agents.run)
    await background.start(parts.supervisor.run)
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
) -> AsyncIterator[_Parts]:
    """All parts, none of them running yet."""
    # Channels and outbox read the current configuration from the parts, which are built after them.
    channels = Channels(
        lambda: parts.config().channels,
        environ=os.environ,
        cwd=Path("/"),
        on_attach=lambda channel: outbox.make_due(channel),  # noqa: PLW0108 - made below
    )
    async with open_outbox(
        store,
        channels,
        clock,
        durable=config.store.durability == "sync",
        settings=lambda: parts.config().delivery,
        allowed=make_policy_check(store, lambda: parts.config()),  # noqa: PLW0108 - made below
    ) as outbox:
        parts = _Parts(store, channels, outbox, config=config, sockets=sockets, clock=clock, ids=ids, environ=environ)
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


def _backend(config: Config) -> Kind:
    # `store.watcher` is its older name.
    return config.watch.backend if config.watch.backend != "auto" else config.store.watcher


class _Parts:
    """The parts of one daemon, built in the order of their dependencies.

    Where two of them depend on each other, the first gets a function that looks up the second when it is called.
    """

    services: Services

    def __init__(
        self,
        store: SessionStore,
        channels: Channels,
        outbox: Outbox,
        *,
        config: Config,
        sockets: Path,
        clock: Clock,
        ids: Ids,
        environ: Mapping[str, str],
    ) -> None:
        self.store, self.channels, self.outbox = store, channels, outbox
        self.clock, self.ids = clock, ids
        self.bus, self.active_connections, self.attachments = (
            EventBus(),
            ActiveConnections(),
            AttachmentService(ids=ids),
        )
        self.tokens = Tokens(store, clock, alive=self._is_live, on_dead=self._close_connections)
        self.attached = AttachedAgents(lambda: self.supervisor.agents_changed())  # noqa: PLW0108
        self.host = self._build_host(sockets)
        self.supervisor = RunSupervisor(store, self.bus, self.host, clock, ids, follow_ups=self.follow_ups)
        self.feed = TranscriptFeed(
            store,
            self.bus,
            on_lost=self.supervisor.handle_missing_transcript,
            on_found=self.supervisor.handle_restored_transcript,
        )
        self.saver = IndexSaver(store, self.feed, clock)
        self.sources = Sources(store, self.feed, lambda: self.config().sources, environ=environ, kind=_backend(config))
        self.search_index = TrigramIndex(store, lambda: self.config().search, is_settled=self._knows_all_sessions)
        self.session_changes = SessionChanges(store, lambda session: self.archive.put_away(session))  # noqa: PLW0108
        self.continuations = Continuations(
            self.session_changes, self.config, complete=self.sources.complete, environ=environ
        )
        self.announcing = AnnounceStep(store, channels, outbox, self.config, clock)
        self.provenance = ProvenanceStamp(self.announcing, self.config, clock, ids)
        self.spawner = self._build_spawner()
        self.conversations = ReplyBack(
            store,
            self.supervisor,
            self.announcing,
            self.config,
            clock,
            on_closed=lambda child: self.archive.conversation_over(child),  # noqa: PLW0108
        )
        self.archive = self._build_archive()
        self.announcer = Announcer(
            store,
            self.supervisor,
            self.config,
            clock,
            outgoing=self.announcing,
            ended=self.archive.run_ended,
            announced=self.archive.child_announced,
        )
        self.services = self._build_services(config)

    def config(self) -> Config:
        """The current configuration; a reload replaces it."""
        return self.services.config

    def follow_ups(self) -> tuple[Announcer, ReplyBack]:
        """The parts that continue after the end of a run and after a restart. Each ignores runs of others."""
        return self.announcer, self.conversations

    def _knows_all_sessions(self) -> bool:
        return self.sources.listed.is_set() and not self.sources.partial_count

    def _is_live(self, run_id: str) -> bool:
        return run_id in self.supervisor.registry.live

    def _close_connections(self, has_invalid_token: Callable[[Caller], bool]) -> None:
        """Close the connections whose token has become invalid."""
        self.services.budgets.closed["token_over"] += self.active_connections.close_where(has_invalid_token)

    def _run_scopes(self, key: str) -> frozenset[str]:
        return self.services.run_scopes(key)

    def _build_host(self, sockets: Path) -> DaemonHost:
        credentials = RunCredentials(self.tokens, sockets / "runs", self._run_scopes)
        credentials.clear()
        return DaemonHost(self.config, self.store, self.attached, credentials, sockets / "agent.sock", clock=self.clock)

    def _build_spawner(self) -> Spawner:
        return Spawner(
            self.store,
            self.supervisor,
            self.attachments,
            self.channels,
            self.config,
            clock=self.clock,
            ids=self.ids,
            workspace=self.host.workspace,
            sandboxed=self.host.is_sandboxed,
            check_native=self.host.check_native,
        )

    def _build_archive(self) -> ArchiveSweep:
        return ArchiveSweep(
            self.store,
            self.feed,
            self.session_changes,
            self.supervisor,
            self.attachments,
            journal=self.spawner.journal,
            config=self.config,
            clock=self.clock,
            workspace=self.host.workspace,
            has_open_conversation=self.conversations.has_open_conversation,
        )

    def _build_sender(self) -> MessageSender:
        return MessageSender(
            self.store,
            self.supervisor,
            self.provenance,
            self.config,
            self.clock,
            session_changes=self.session_changes,
            feed=self.feed,
            attached=self.attached,
            attachments=self.attachments,
            journal=self.spawner.journal,
            workspace=self.host.workspace,
        )

    def _build_services(self, config: Config) -> Services:
        return Services(
            store=self.store,
            bus=self.bus,
            feed=self.feed,
            supervisor=self.supervisor,
            attached=self.attached,
            acp_agents=self.host.acp_agents,
            session_changes=self.session_changes,
            tokens=self.tokens,
            spawner=self.spawner,
            attachments=self.attachments,
            sends=self._build_sender(),
            continuations=self.continuations,
            provenance=self.provenance,
            announcing=self.announcing,
            channels=self.channels,
            outbox=self.outbox,
            config=config,
            clock=self.clock,
            ids=self.ids,
            version=sessiond.__version__,
            started_ms=self.clock.wall_ms(),
            last_save=lambda: self.saver.last_save_ms,
            discover=_openrpc,
            sources=self.sources,
            search_index=self.search_index,
        )

    async def recover(self) -> None:
        """Continue what a crash interrupted: runs, spawns, announcements, conversations."""
        await recover(self.store, self.supervisor, self.follow_ups(), remove_files=self.spawner.recover)


@cache
def _openrpc() -> msgspec.Raw:
    """The OpenRPC document. Cached, because building it takes 25 ms and any caller may ask for it."""
    return msgspec.Raw(msgspec.json.encode(openrpc_document(METHODS, title="sessiond", version=sessiond.__version__)))
