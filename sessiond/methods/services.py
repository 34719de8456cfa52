"""What the methods work with: the parts that `daemon/app.py` built, and who may see what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.provenance import ProvenanceStamp, Sender
from sessiond.conversations.send import MessageSender
from sessiond.delivery.channels import Channels
from sessiond.delivery.outbox import Outbox
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.subscription import Subscription
from sessiond.methods.wire import Encoder, describe_event
from sessiond.model.caller import SCOPES, Caller
from sessiond.model.event import Event, approximate_bytes
from sessiond.model.keys import KeyRules, is_subagent
from sessiond.policy import visibility
from sessiond.policy.redact import Patterns, mask_message
from sessiond.policy.secrets import compile_patterns, mask_secrets
from sessiond.policy.spawn import child_scopes
from sessiond.policy.visibility import Sight
from sessiond.rpc.budget import Budgets
from sessiond.rpc.method import Context as RpcContext
from sessiond.runs.run import Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes.attached import AttachedAgents, Connection
from sessiond.sessions import resolve
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.sessions.tokens import Tokens
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer
from sessiond.store.workspace import default_workspace
from sessiond.subagents.spawn import Spawner

if TYPE_CHECKING:
    from sessiond.auth.tokenlog import TokenRow
    from sessiond.rpc.peer import Peer

# Looking through so much for secrets takes some milliseconds at most; what is longer is done in a worker thread.
QUICK_BYTES = 16 * 1024


@dataclass(slots=True, kw_only=True)
class Services:
    """One of these a daemon. `config` is replaced when it is loaded again."""

    store: SessionStore
    bus: EventBus
    feed: TranscriptFeed
    supervisor: RunSupervisor
    session_changes: SessionChanges
    config: Config
    clock: Clock
    ids: Ids
    version: str
    started_ms: int
    attached: AttachedAgents
    tokens: Tokens
    spawner: Spawner
    attachments: AttachmentService
    sends: MessageSender
    provenance: ProvenanceStamp
    announcing: AnnounceStep
    channels: Channels
    last_save: Callable[[], int | None]
    outbox: Outbox
    discover: Callable[[], msgspec.Raw]
    document: msgspec.Raw | None = None  # what it made
    time_slicer: TimeSlicer = field(default_factory=TimeSlicer)
    # Apart from searches, so that neither waits for the other.
    masking: TimeSlicer = field(default_factory=TimeSlicer)
    # Two threads at work are as quick as twenty, and leave the loop its turns.
    reading: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(2))
    budgets: Budgets = field(default_factory=Budgets)
    reload_problem: str | None = None
    reloaded_ms: int | None = None
    connections: dict[Peer, Connection] = field(default_factory=dict)
    subscriptions: dict[Peer, Subscription] = field(default_factory=dict)

    encoder: Encoder = field(init=False)

    def __post_init__(self) -> None:
        self.encoder = Encoder(self.store, self.patterns)

    def run_scopes(self, key: str) -> frozenset[str]:
        """What a run in this session may do: a sub-agent only what the configuration opens, others all but `admin`."""
        if is_subagent(key):
            return child_scopes(self.config.tools.subagents.tools.allow)
        return frozenset(scope for scope in SCOPES if scope != "admin")

    def patterns(self) -> Patterns:
        """The owner's own patterns of secrets."""
        return compile_patterns(self.config.tools.sessions.redact_patterns)

    @property
    def rules(self) -> KeyRules:
        return self.store.rules

    def sight_of(self, caller: Caller, action: visibility.Action = "read") -> Sight:
        """What the caller may reach. Everything that names a session asks here."""
        return visibility.sight(caller, visibility.rules_from(self.config), action)

    def sees(self, caller: Caller) -> Callable[[str], bool]:
        """Whether the caller may see the session of a key, be it to read it or to write to it."""
        catalog, sights = self.store.catalog, [self.sight_of(caller, action) for action in visibility.ACTIONS]
        return lambda key: any(resolve.reaches(catalog, sight, key) for sight in sights)

    def sees_token_of(self, caller: Caller, row: TokenRow) -> bool:
        """Whether a token is of a session that the caller may see."""
        rules = visibility.rules_from(self.config)
        key = visibility.acts_as(row.session_key, row.agent_id, rules)
        sight = visibility.sight(caller, rules)
        return sight.unlimited or (key is not None and resolve.reaches(self.store.catalog, sight, key))

    def masker_for(self, caller: Caller) -> Callable[[str], str]:
        """How a text is shown to this caller. It comes before the text is cut: half a secret is not known as one."""
        if not self.masks(caller):
            return lambda text: text
        patterns = self.patterns()
        return lambda text: mask_secrets(text, patterns)[0]

    def masks(self, caller: Caller) -> bool:
        """Whether secrets are masked for this caller: for tokens, unless the configuration turns it off."""
        return caller.kind != "owner" and self.config.tools.sessions.redact

    @asynccontextmanager
    async def reads(self, caller: Caller) -> AsyncIterator[None]:
        """While transcripts are read for this caller: few at a time for all who are not the owner."""
        if caller.kind == "owner":
            yield
        else:
            async with self.reading:
                yield

    async def mask_messages(self, caller: Caller, messages: list[msgspec.Raw]) -> tuple[list[msgspec.Raw], bool]:
        """The messages as this caller may read them, and whether anything was masked.

        Source: security.md, "Redaction".
        """
        if not self.masks(caller):
            return messages, False
        patterns, shown, found = self.patterns(), list(messages), False

        def mask_each() -> Iterator[None]:
            nonlocal found
            for place, message in enumerate(messages):
                masked, changed = mask_message(bytes(message), patterns)
                if changed:
                    shown[place], found = msgspec.Raw(masked), True
                yield

        if sum(len(memoryview(message)) for message in messages) < QUICK_BYTES:
            for _ in mask_each():
                pass
        else:
            await self.masking.run(mask_each())
        return shown, found

    async def describe_event(
        self, event: Event, agent: str | None, masks: Patterns | None
    ) -> tuple[str, dict[str, Any]]:
        """As `wire.described`; others get their turn while a long event is looked through for secrets."""
        if masks is None or approximate_bytes(event) < QUICK_BYTES:
            return describe_event(self.store, event, agent, masks)
        found: list[tuple[str, dict[str, Any]]] = []

        def describe() -> Iterator[None]:
            found.append(describe_event(self.store, event, agent, masks))
            yield

        await self.masking.run(describe())
        return found[0]

    def masked_text(self, caller: Caller, text: str | None) -> str | None:
        """One text as this caller may read it."""
        if text is None or not self.masks(caller):
            return text
        return mask_secrets(text, self.patterns())[0]

    def workspace(self, agent_id: str) -> Path:
        """Where an agent works; `<store>/agents/<id>/workspace` where the configuration names no folder."""
        agent = self.config.agent(agent_id)
        if agent is not None and agent.workspace is not None:
            return agent.workspace
        return default_workspace(self.store.path, agent_id)

    def own_run(self, caller: Caller) -> Run | None:
        """The run that the caller acts in: the one of its token, else what its session is living just now."""
        if caller.run_id is not None:
            return self.supervisor.registry.live.get(caller.run_id)
        return self.supervisor.current(caller.session_key) if caller.session_key is not None else None

    def source(self, caller: Caller) -> Sender:
        """Who sends, by the caller's identity alone. Nothing in the params or the text counts for it."""
        rules = visibility.rules_from(self.config)
        if visibility.sight(caller, rules).unlimited:
            return Sender()
        key = visibility.acts_as(caller.session_key, caller.agent_id, rules)
        session = self.store.catalog.by_key.get(key) if key is not None else None
        return Sender(key, session, self.own_run(caller), key or f"token {caller.token_id}", self.acting_run(caller))

    def stranger(self, caller: Caller, target_key: str) -> Sender | None:
        """Who writes into a session that is not their own; None where it is the owner, or the session's own client.

        A run that writes into its own session counts among the strangers: nobody but a program speaks there, too.
        """
        source = self.source(caller)
        own = source.counted_as is None or (source.key == target_key and caller.run_id is None)
        return None if own else source

    def acting_run(self, caller: Caller) -> Run | None:
        """The run whose own token this is. Who has only a token for its session is somebody else, and may wait as
        long as he likes without holding anything up.
        """
        return self.supervisor.registry.live.get(caller.run_id) if caller.run_id is not None else None

    @contextmanager
    def park_run(self, ctx: Context, run_id: str) -> Iterator[None]:
        """While the run that asks waits for another, it leaves its place to others."""
        own = self.acting_run(ctx.caller)
        if own is None or own.ended:
            yield
            return
        self.supervisor.park(own, run_id)
        try:
            yield
        finally:
            self.supervisor.unpark(own, run_id)

    def find(
        self, caller: Caller, text: str, *, field: str = "$.sessionKey", action: visibility.Action = "read"
    ) -> Session:
        """The session a caller means; NotFound where there is none for this caller."""
        return resolve.find(self.store.catalog, self.sight_of(caller, action), caller, self.rules, text, field=field)

    def find_live(self, caller: Caller, text: str, *, field: str = "$.key") -> Session:
        """The session whose settings or existence a caller means to change; an archived one is none of these."""
        session = self.find(caller, text, field=field, action="send")
        if session.archived:
            raise resolve.no_such_session(text)
        return session


Context = RpcContext[Services]
