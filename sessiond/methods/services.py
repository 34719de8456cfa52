"""What the handlers of methods use: the parts built by `daemon/app.py`, visibility checks and masking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.continuing import Continuations
from sessiond.conversations.handing_over import Handover
from sessiond.conversations.provenance import ProvenanceStamp, Sender
from sessiond.conversations.send import MessageSender
from sessiond.delivery.channels import Channels
from sessiond.delivery.notify_targets import NotifyTargets
from sessiond.delivery.outbox import Outbox
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.subscription import Subscription
from sessiond.methods.question_view import reads_questions
from sessiond.methods.wire import Encoder, describe_event, hidden_links_in, readable_row
from sessiond.model.caller import RUN_SCOPES, Caller
from sessiond.model.entry import Entry
from sessiond.model.event import Event, approximate_bytes
from sessiond.model.keys import KeyRules, is_subagent
from sessiond.model.machine_sender import machine_sender
from sessiond.model.row import Row, title_of
from sessiond.policy import visibility
from sessiond.policy.redact import Patterns, mask_message
from sessiond.policy.secrets import compile_patterns, mask_secrets, mask_title
from sessiond.policy.spawn import child_scopes
from sessiond.policy.visibility import Sight, VisibilityRules
from sessiond.questions.attending import Attending
from sessiond.questions.desk import QuestionDesk
from sessiond.rpc.budget import Budgets
from sessiond.rpc.method import Context as RpcContext
from sessiond.runs.run import Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes.acp.agents import AcpAgents
from sessiond.runtimes.attached import AttachedAgents, Connection
from sessiond.sessions import listing, resolve
from sessiond.sessions.elsewhere import address_of, is_shown, session_for
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.sessions.page_access import PageAccess
from sessiond.sessions.tokens import Tokens
from sessiond.sources.sources import Sources
from sessiond.store.catalog import Session
from sessiond.store.refusals import require_own
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer
from sessiond.store.workspace import default_workspace
from sessiond.subagents.spawn import Spawner
from sessiond.trigrams.index import TrigramIndex

if TYPE_CHECKING:
    from sessiond.auth.tokenlog import TokenRow
    from sessiond.rpc.peer import Peer

# Masking this much takes a few milliseconds at most; longer texts are masked in a worker thread.
QUICK_BYTES = 16 * 1024


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of the daemon; there is one. `config` is replaced by a reload.

    `loaded` is set when every session is known and what a crash interrupted goes on; methods are called after that,
    except those with `before_ready`.
    """

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
    acp_agents: AcpAgents
    tokens: Tokens
    spawner: Spawner
    attachments: AttachmentService
    sends: MessageSender
    continuations: Continuations
    provenance: ProvenanceStamp
    announcing: AnnounceStep
    channels: Channels
    last_save: Callable[[], int | None]
    outbox: Outbox
    notify_targets: NotifyTargets
    discover: Callable[[], msgspec.Raw]
    sources: Sources
    search_index: TrigramIndex
    questions: QuestionDesk
    attending: Attending
    handover: Handover
    document: msgspec.Raw | None = None  # the result of `discover`, cached
    time_slicer: TimeSlicer = field(default_factory=TimeSlicer)
    # A slicer of its own, so that masking and searches do not wait for each other.
    masking: TimeSlicer = field(default_factory=TimeSlicer)
    # More than two threads of Python code would not be faster, and would delay the event loop.
    reading: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(2))
    budgets: Budgets = field(default_factory=Budgets)
    reload_problem: str | None = None
    reloaded_ms: int | None = None
    loaded: trio.Event = field(default_factory=trio.Event)
    connections: dict[Peer, Connection] = field(default_factory=dict)
    subscriptions: dict[Peer, Subscription] = field(default_factory=dict)
    # The connections that report which machines are reached.
    linking: set[object] = field(default_factory=set)

    encoder: Encoder = field(init=False)
    page: PageAccess = field(init=False)
    _rules_of: tuple[Config, VisibilityRules] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.encoder = Encoder(self.store, self.patterns)
        self.page = PageAccess(self.tokens, self.clock)

    def run_scopes(self, key: str) -> frozenset[str]:
        """The scopes of a run in this session: a sub-agent has those of the configuration, others RUN_SCOPES."""
        if is_subagent(key):
            return child_scopes(self.config.tools.subagents.tools.allow)
        return RUN_SCOPES

    def patterns(self) -> Patterns:
        """The patterns of secrets in the configuration."""
        return compile_patterns(self.config.tools.sessions.redact_patterns)

    @property
    def rules(self) -> KeyRules:
        return self.store.rules

    @property
    def visibility_rules(self) -> VisibilityRules:
        """The rules of the configuration; made once for each."""
        if self._rules_of is None or self._rules_of[0] is not self.config:
            self._rules_of = self.config, visibility.rules_from(self.config)
        return self._rules_of[1]

    def sight_of(self, caller: Caller, action: visibility.Action = "read") -> Sight:
        """What the caller may reach. Every method that names a session checks it here."""
        return visibility.sight(caller, self.visibility_rules, action)

    def sees(self, caller: Caller) -> Callable[[str], bool]:
        """A function that tells whether the caller may read or write to the session of a key."""
        catalog, sights = self.store.catalog, [self.sight_of(caller, action) for action in visibility.ACTIONS]
        return lambda key: any(resolve.reaches(catalog, sight, key) for sight in sights)

    def sees_token_of(self, caller: Caller, row: TokenRow) -> bool:
        """Whether a token is for a session that the caller may see."""
        rules = self.visibility_rules
        key = visibility.acts_as(row.session_key, row.agent_id, rules)
        sight = visibility.sight(caller, rules)
        return sight.unlimited or (key is not None and resolve.reaches(self.store.catalog, sight, key))

    def masker_for(self, caller: Caller) -> Callable[[str], str]:
        """A function that masks secrets as needed for this caller. Mask before cutting: half a secret is not found."""
        if not self.masks(caller):
            return lambda text: text
        patterns = self.patterns()
        return lambda text: mask_secrets(text, patterns)[0]

    def titles_for(self, caller: Caller) -> Callable[[Entry], str | None]:
        """A function that gives the title of a session as this caller may read it. It is made of messages, so it needs
        the scope `read`.
        """
        if not caller.has("read"):
            return lambda _: None
        if not self.masks(caller):
            return title_of
        patterns = self.patterns()
        return lambda entry: mask_title(title_of(entry), patterns)

    def rows(self, caller: Caller, sessions: Sequence[Session]) -> list[Row]:
        """The rows of sessions as this caller may read them."""
        sight, masks, titled = self.sight_of(caller), self.masks_for(caller), caller.has("read")
        rows = (listing.row(self.store, session, caller.agent_id, sight) for session in sessions)
        return [readable_row(row, masks, titled=titled) for row in rows]

    def kept_rows(self, caller: Caller, sessions: Sequence[Session]) -> Sequence[Row | msgspec.Raw]:
        """As `rows`, but as JSON where that is kept: for a caller to whom all texts are shown as they are."""
        if self.titles_for(caller) is not title_of:
            return self.rows(caller, sessions)
        sight, agent_id = self.sight_of(caller), caller.agent_id
        return [listing.encoded_row(self.store, session, agent_id, sight) for session in sessions]

    def masks_for(self, caller: Caller) -> Patterns | None:
        """The patterns of what is masked for this caller besides the known secrets; None where nothing is."""
        return self.patterns() if self.masks(caller) else None

    def masks(self, caller: Caller) -> bool:
        """Whether secrets are masked for this caller: for tokens, unless the configuration turns it off."""
        return caller.kind != "owner" and self.config.tools.sessions.redact

    @asynccontextmanager
    async def reads(self, caller: Caller) -> AsyncIterator[None]:
        """Limit how many reads of transcripts run at once for callers other than the owner."""
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
        self, event: Event, agent: str | None, masks: Patterns | None, caller: Caller
    ) -> tuple[str, dict[str, Any]]:
        """As `wire.describe_event`, for this caller; a long event is masked in a worker thread."""
        titled, with_questions = caller.has("read"), reads_questions(caller)
        hidden = hidden_links_in(self.store, event, self.sight_of(caller))
        work = partial(
            describe_event,
            self.store,
            event,
            agent,
            masks,
            titled=titled,
            with_questions=with_questions,
            hidden=hidden,
        )
        if masks is None or approximate_bytes(event) < QUICK_BYTES:
            return work()
        found: list[tuple[str, dict[str, Any]]] = []

        def describe() -> Iterator[None]:
            found.append(work())
            yield

        await self.masking.run(describe())
        return found[0]

    def masked_text(self, caller: Caller, text: str | None) -> str | None:
        """One text as this caller may read it."""
        if text is None or not self.masks(caller):
            return text
        return mask_secrets(text, self.patterns())[0]

    def workspace(self, agent_id: str) -> Path:
        """The workspace of an agent: the configured folder, else `<store>/agents/<id>/workspace`."""
        agent = self.config.agent(agent_id)
        if agent is not None and agent.workspace is not None:
            return agent.workspace
        return default_workspace(self.store.path, agent_id)

    def own_run(self, caller: Caller) -> Run | None:
        """The run that the caller is part of: that of its token, else the current run of its session."""
        if caller.run_id is not None:
            return self.supervisor.registry.live.get(caller.run_id)
        return self.supervisor.current(caller.session_key) if caller.session_key is not None else None

    def source(self, caller: Caller, meta: Mapping[str, Any] | None = None) -> Sender:
        """The sender of a message, by the identity of the caller alone, never by params or text.

        Who it was on another machine stands in the `_meta` of that machine's call.
        """
        rules = self.visibility_rules
        if visibility.sight(caller, rules).unlimited:
            return Sender()
        key = visibility.acts_as(caller.session_key, caller.agent_id, rules)
        session = self.store.catalog.by_key.get(key) if key is not None else None
        machine = machine_sender(caller.agent_id or "", meta) if visibility.is_machine(caller, rules) else None
        counted_as = key or f"token {caller.token_id}"
        return Sender(key, session, self.own_run(caller), counted_as, self.acting_run(caller), machine)

    def stranger(self, caller: Caller, target_key: str, meta: Mapping[str, Any] | None = None) -> Sender | None:
        """The sender if a message needs a provenance; None for the owner, and for the session's own client.

        A run that writes into its own session gets one too, because its words are not those of a person.
        """
        source = self.source(caller, meta)
        own = source.counted_as is None or (source.key == target_key and caller.run_id is None)
        return None if own else source

    def acting_run(self, caller: Caller) -> Run | None:
        """The run whose own token this is. A program with a token for the session only is not part of the run: if it
        waits, the run does not.
        """
        return self.supervisor.registry.live.get(caller.run_id) if caller.run_id is not None else None

    @contextmanager
    def park_run(self, ctx: Context, run_id: str) -> Iterator[None]:
        """Free the slot of the caller's run while it waits for the run with the id `run_id`."""
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
        """The session that a caller named; NotFound if there is none that the caller may see. With the action `send`
        Forbidden (`read_only`) for a session of another program. What is named by its address on another machine is our
        session with it, where that machine's own is not shown here.
        """
        text = self._name_here(caller, text, field, action)
        found = resolve.find(self.store.catalog, self.sight_of(caller, action), caller, self.rules, text, field=field)
        if action == "send":
            require_own(found)
        return found

    def _name_here(self, caller: Caller, text: str, field: str, action: visibility.Action) -> str:
        """The key of our session with the address on another machine that `text` is; else `text`."""
        catalog, address = self.store.catalog, address_of(text, field)
        if address is None or (action != "send" and is_shown(catalog, address)):
            return text
        key, ours = session_for(catalog, address, field)
        # Asked for a missing one too: one that is hidden has to be answered in the same words and the same time.
        may_name = resolve.may_name(catalog, self.sight_of(caller, action), ours, key)
        return key if ours is not None and may_name else text

    async def find_whole(self, caller: Caller, text: str, *, field: str = "$.sessionKey") -> Session:
        """As `find`, for reading; one of another program is read whole first, if only its ends were, and put together
        if it is no file of lines.
        """
        session = self.find(caller, text, field=field)
        if session.is_partial or session.folder.makes(session.file_name):
            await self.sources.complete(session)
            session = self.find(caller, text, field=field)
        return session

    def find_addressee(
        self, caller: Caller, text: str, *, field: str = "$.sessionKey", action: visibility.Action = "address"
    ) -> Session:
        """The session to which a caller sends a message, which may be another program's (`send_target`). NotFound."""
        sight = self.sight_of(caller, action)
        return resolve.find(self.store.catalog, sight, caller, self.rules, text, field=field)

    def find_live(self, caller: Caller, text: str, *, field: str = "$.key") -> Session:
        """The session that a caller wants to change. NotFound also for an archived one, which cannot be changed."""
        session = self.find(caller, text, field=field, action="send")
        if session.archived:
            raise resolve.no_such_session(text)
        return session


Context = RpcContext[Services]
