"""The parts of one daemon, built in the order of their dependencies. Knows everything, decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

import sessiond
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep, make_policy_check
from sessiond.conversations.continuing import Continuations
from sessiond.conversations.handing_over import Handover
from sessiond.conversations.provenance import ProvenanceStamp
from sessiond.conversations.reply_back import ReplyBack
from sessiond.conversations.send import MessageSender
from sessiond.daemon.credentials import RunCredentials
from sessiond.daemon.host import DaemonHost
from sessiond.daemon.saver import IndexSaver
from sessiond.delivery.channels import Channels, Delivery
from sessiond.delivery.notifier import RuleNotifier
from sessiond.delivery.notify_targets import NotifyTargets
from sessiond.delivery.outbox import Outbox
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import Kind
from sessiond.methods.services import Services
from sessiond.methods.table import METHODS
from sessiond.model.caller import Caller
from sessiond.questions.attending import Attending
from sessiond.questions.desk import QuestionDesk
from sessiond.questions.recovery import withdraw_left_questions
from sessiond.rpc.openrpc import openrpc_document
from sessiond.runs.recovery import recover
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes.attached import AttachedAgents
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.sessions.tokens import Tokens
from sessiond.sources.sources import Sources
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.subagents.announce import Announcer
from sessiond.subagents.archive import ArchiveSweep
from sessiond.subagents.spawn import Spawner
from sessiond.transports.active_connections import ActiveConnections
from sessiond.trigrams.index import TrigramIndex


def watcher_backend(config: Config) -> Kind:
    # `store.watcher` is its older name.
    return config.watch.backend if config.watch.backend != "auto" else config.store.watcher


class DaemonParts:
    """The parts of one daemon, built in the order of their dependencies.

    Where two of them depend on each other, the first gets a function that looks up the second when it is called.
    """

    services: Services

    def __init__(
        self,
        store: SessionStore,
        channels: Channels,
        outbox: Outbox,
        notify_targets: NotifyTargets,
        *,
        config: Config,
        sockets: Path,
        clock: Clock,
        ids: Ids,
        environ: Mapping[str, str],
    ) -> None:
        self.store, self.channels, self.outbox, self.notify_targets = store, channels, outbox, notify_targets
        self.clock, self.ids = clock, ids
        self.bus, self.active_connections, self.attachments = (
            EventBus(),
            ActiveConnections(),
            AttachmentService(ids=ids),
        )
        self.tokens = Tokens(
            store, clock, alive=self._is_live, on_dead=self._close_connections, is_machine=self._is_machine
        )
        self.attached = AttachedAgents(lambda: self.supervisor.agents_changed(), self._is_machine)  # noqa: PLW0108
        self.host = self._build_host(sockets)
        self.questions, self.supervisor = self._build_runs()
        self.attending = Attending(
            store, self.bus, self.questions, clock, ids, agent_id=lambda: self.config().default_agent()
        )
        self.handover = Handover(store, clock, ids)
        self.notifier = RuleNotifier(store, outbox, self.supervisor, self.config, clock, is_open=self.questions.is_open)
        self.feed = TranscriptFeed(
            store,
            self.bus,
            on_lost=self.supervisor.handle_missing_transcript,
            on_found=self._note_found,
            on_questions=self.questions.note_found,
        )
        self.saver = IndexSaver(store, self.feed, clock)
        self.sources = Sources(
            store, self.feed, lambda: self.config().sources, environ=environ, kind=watcher_backend(config)
        )
        self.search_index = TrigramIndex(store, lambda: self.config().search, is_settled=self._knows_all_sessions)
        self.session_changes = SessionChanges(store, lambda session: self.archive.put_away(session))  # noqa: PLW0108
        self.continuations = Continuations(
            self.session_changes, self.config, complete=self.sources.complete, environ=environ
        )
        self._follows_policy = make_policy_check(store, self.config)
        self.announcing = AnnounceStep(store, channels, outbox, self.config, clock)
        self.provenance = ProvenanceStamp(self.announcing, self.config, clock, ids)
        self.spawner = self._build_spawner()
        self.conversations = self._build_conversations()
        self.archive = self._build_archive()
        self.announcer = self._build_announcer()
        self.services = self._build_services(config)

    def config(self) -> Config:
        """The current configuration; a reload replaces it."""
        return self.services.config

    def _note_found(self, session: Session) -> None:
        self.supervisor.handle_restored_transcript(session)
        self.questions.note_found(session)

    def follow_ups(self) -> tuple[Announcer, ReplyBack, RuleNotifier]:
        """The parts that continue after the end of a run and after a restart. Each ignores runs of others."""
        return self.announcer, self.conversations, self.notifier

    def may_deliver(self, delivery: Delivery) -> bool:
        """Whether a delivery of the outbox is still to be made, which is asked before every attempt."""
        return self.notifier.is_due(delivery) if delivery.notification is not None else self._follows_policy(delivery)

    def _knows_all_sessions(self) -> bool:
        return self.sources.listed.is_set() and not self.sources.partial_count

    def _is_machine(self, agent_id: str) -> bool:
        return self.config().machine(agent_id) is not None

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

    def _build_runs(self) -> tuple[QuestionDesk, RunSupervisor]:
        desk = QuestionDesk(
            self.store,
            self.clock,
            self.ids,
            on_asked=lambda asked: self.notifier.question_asked(asked),  # noqa: PLW0108
        )
        supervisor = RunSupervisor(
            self.store,
            self.bus,
            self.host,
            self.clock,
            self.ids,
            follow_ups=self.follow_ups,
            before_end=lambda run: self.notifier.before_end(run),  # noqa: PLW0108
            desk=desk,
        )
        return desk, supervisor

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

    def _build_conversations(self) -> ReplyBack:
        return ReplyBack(
            self.store,
            self.supervisor,
            self.announcing,
            self.config,
            self.clock,
            on_closed=lambda child: self.archive.conversation_over(child),  # noqa: PLW0108
        )

    def _build_announcer(self) -> Announcer:
        return Announcer(
            self.store,
            self.supervisor,
            self.config,
            self.clock,
            outgoing=self.announcing,
            ended=self.archive.run_ended,
            announced=self.archive.child_announced,
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
            handover=self.handover,
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
            notify_targets=self.notify_targets,
            config=config,
            clock=self.clock,
            ids=self.ids,
            version=sessiond.__version__,
            started_ms=self.clock.wall_ms(),
            last_save=lambda: self.saver.last_save_ms,
            discover=_openrpc,
            sources=self.sources,
            search_index=self.search_index,
            questions=self.questions,
            attending=self.attending,
            handover=self.handover,
        )

    async def recover(self) -> None:
        """Continue what a crash interrupted: questions, runs, spawns, announcements, conversations."""
        await withdraw_left_questions(self.store, self.questions)
        await recover(self.store, self.supervisor, self.follow_ups(), remove_files=self.spawner.recover)


@cache
def _openrpc() -> msgspec.Raw:
    """The OpenRPC document. Cached, because building it takes 25 ms and any caller may ask for it."""
    return msgspec.Raw(msgspec.json.encode(openrpc_document(METHODS, title="sessiond", version=sessiond.__version__)))
