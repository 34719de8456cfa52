"""The composition root: builds every part and puts them together. Knows everything, decides nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
from sessiond.policy.target import target_of
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.openrpc import openrpc_document
from sessiond.runs.announce import Announcer
from sessiond.runs.announcing import Announcing, may_leave
from sessiond.runs.archive import ArchiveSweep
from sessiond.runs.attached import AttachedAgents
from sessiond.runs.channels import Channels
from sessiond.runs.conversation import Conversations
from sessiond.runs.inbox import is_inbox
from sessiond.runs.outbox import open_outbox
from sessiond.runs.recover import recover
from sessiond.runs.run import Run
from sessiond.runs.send import Sends
from sessiond.runs.spawn import Spawner
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions.lifecycle import Births
from sessiond.sessions.tokens import Tokens
from sessiond.store.scan import Progress
from sessiond.store.store import Part, open_store

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
    async with (
        AsyncExitStack() as opened,
        open_store(
            store_path,
            durable=config.store.durability == "sync",
            record_limit=config.limits.max_record_bytes,
            rules=key_rules(config),
            clock=clock,
            ids=ids,
            progress=progress,
        ) as store,
    ):
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
        births = Births(store)
        attachments = AttachmentService(ids=ids)
        spawner = Spawner(
            store,
            supervisor,
            attachments,
            lambda: services.config,
            clock=clock,
            ids=ids,
            workspace=host.workspace,
            sandboxed=host.sandboxed,
        )
        archive = ArchiveSweep(
            store,
            feed,
            births,
            supervisor,
            attachments,
            config=lambda: services.config,
            clock=clock,
            workspace=host.workspace,
        )
        channels = Channels(lambda: services.config.channels, environ=os.environ, cwd=Path("/"))
        outbox = await opened.enter_async_context(
            open_outbox(
                store,
                channels,
                clock,
                durable=config.store.durability == "sync",
                settings=lambda: services.config.delivery,
                allowed=may_leave(store, lambda: services.config),
            )
        )
        announcing = Announcing(store, channels, outbox, lambda: services.config, clock)
        conversations = Conversations(store, supervisor, announcing, lambda: services.config, clock)
        spawner.threads = lambda session: channels.threads(target_of(session.key, session.entry))
        spawner.bind_thread = lambda session, key, label: channels.bind_thread(
            target_of(session.key, session.entry), key, label
        )
        announcer = Announcer(store, supervisor, lambda: services.config, clock)
        announcer.outgoing = announcing
        announcer.ended, announcer.announced = archive.ended, archive.announced
        # Everything that goes on after a run stands in this list; each passes over the runs that are none of its own.
        follow_ups: list[FollowUp] = [announcer, conversations]
        supervisor.at_end = lambda run: [part for one in follow_ups for part in one.at_end(run)]
        supervisor.after_end = lambda run: _after_end(follow_ups, run)
        services = Services(
            store=store,
            bus=bus,
            feed=feed,
            supervisor=supervisor,
            attached=attached,
            births=births,
            tokens=tokens,
            spawner=spawner,
            sends=Sends(supervisor, announcing, lambda: services.config, clock, ids),
            announcing=announcing,
            channels=channels,
            dead_letters=lambda: len(outbox.dead_letters),
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
            await announcer.recover()
            await conversations.recover()
            # Last: what is held back for something above is known by now.
            await background.start(outbox.run)
            background.start_soon(archive.run)
            yield App(services=services, dispatcher=dispatcher, saver=saver, background=background)
            background.cancel_scope.cancel()
        await saver.save()


class FollowUp(Protocol):
    """What goes on after a run: records for the write that ends it, and what is done afterwards."""

    def at_end(self, run: Run) -> Sequence[Part]: ...
    def after_end(self, run: Run) -> Awaitable[None]: ...


async def _after_end(follow_ups: Sequence[FollowUp], run: Run) -> None:
    """All of them beside each other: one that waits for an agent does not hold up the others."""
    async with trio.open_nursery() as nursery:
        for one in follow_ups:
            nursery.start_soon(one.after_end, run)


def _log_fault(what: str, error: BaseException) -> None:
    log.error("internal error", what=what, exc_info=error)
