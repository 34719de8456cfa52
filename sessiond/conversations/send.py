"""Accept a message, for every method that sends one: `chat.send`, `sessions_send`, `sessions.steer` and the inbox.

In this order: find a repeated message by its idempotency key, check its files and the loop guards, reset a stale
session, add the provenance, write the files, accept the run. The caller has checked permissions before, and waits for
the run if it has to. Source: runs.md, "sessions_send", "Inbox", "Session freshness".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from sessiond.attachments.decode import Attachment, PreparedFiles
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.conversations.handing_over import Handover
from sessiond.conversations.provenance import ProvenanceStamp, Sender
from sessiond.errors import StorageError, Unsupported
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import agent_of, is_foreign
from sessiond.model.message import user_message
from sessiond.runs.follow_up import NOTHING_FOLLOWS, FollowUp
from sessiond.runs.message_files import accept_with_files
from sessiond.runs.run import RunRequest, payload_hash
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runs.steer import steer
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes.attached import AttachedAgents
from sessiond.sessions import lifecycle
from sessiond.sessions.freshness import is_stale
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send, whose fields were checked.

    `tool` is the method that sends it. `source` is None if the owner, or the session's own client, writes into the
    session: then it gets no provenance. `timeout_s` None: the configured one; 0: no limit. `payload` is what has to be
    equal when the same `idempotency_key` is used again. `steers`: pass it to the agent during its run.
    """

    text: str
    tool: str
    source: Sender | None
    idempotency_key: str | None = None
    payload: Mapping[str, Any] = {}
    timeout_s: float | None = None
    thinking: str | None = None
    model: str | None = None
    deliver: bool = False
    files: Sequence[Attachment] = ()
    steers: bool = False


class SentMessage(msgspec.Struct, frozen=True):
    """The run with the message, and its session, which is another one than the target if that was reset.

    `kept`: the message is in the session's inbox and starts no run. `interrupted`: the runs that a steer has stopped.
    """

    run_id: str
    session: Session
    kept: bool = False
    interrupted: Sequence[str] = ()


class MessageSender:
    """Accepts messages to sessions. `workspace(agent_id)` is the folder in which an agent works."""

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        provenance: ProvenanceStamp,
        config: Callable[[], Config],
        clock: Clock,
        *,
        session_changes: SessionChanges,
        feed: TranscriptFeed,
        attached: AttachedAgents,
        attachments: AttachmentService,
        journal: SpawnJournal,
        handover: Handover,
        workspace: Callable[[str], Path],
    ) -> None:
        self._store, self._supervisor, self._provenance = store, supervisor, provenance
        self._config, self._clock = config, clock
        self._session_changes, self._feed, self._attached = session_changes, feed, attached
        self._attachments, self._journal, self._workspace = attachments, journal, workspace
        self._handover = handover

    async def send(self, target: Session, message: NewMessage, *, on_queued: Callable[[], None]) -> SentMessage:
        """Accept the message: it is on disk and queued when this returns. `on_queued` is called once it has its place.

        Conflict if its idempotency key was used with another payload; Overloaded if a loop guard refuses it. After an
        error nothing was accepted.
        """
        request, source = self._request(target, message), message.source
        kept = self._supervisor.keeps_messages(target.key)
        if request.idempotency_key is not None:
            known = await self._supervisor.find_accepted(target, request, on_queued)
            if known is not None:
                return SentMessage(known, target, kept=kept)
        if message.files and is_foreign(target.key):
            raise Unsupported(
                f"{target.key} is live in a terminal, in a folder of its own: files cannot be sent there; say in the"
                " message where they are",
                code="attachments_unsupported",
            )
        if message.files and target.entry.target is not None:
            raise Unsupported(
                "files go to another machine with sessions_spawn only; leave them out, or say in the message where they"
                " are",
                code="attachments_unsupported",
            )
        prepared = self._attachments.check(message.files, self._config().tools.sessions_spawn.attachments)
        if source is not None:
            self._provenance.check(source, target)  # before the reset: a refused message must not reset the session
        continues = target.entry.continues
        if not kept:  # Messages kept for an inbox must not trigger the idle reset: their reader has not seen them yet.
            target = await self._replace_if_stale(target)
        if source is not None:
            request = self._provenance.stamp(source, target, request, message.tool)
        if continues is None:
            return await self._accept(target, message, request, prepared, on_queued)
        left = await self._handover.begin_left(continues)
        if left is None:
            return await self._accept(target, message, request, prepared, on_queued)
        request = msgspec.structs.replace(request, context="\n\n".join(filter(None, (left.context, request.context))))
        try:
            sent = await self._accept(target, message, request, prepared, on_queued)
        except BaseException:
            self._handover.give_back(left.receipt)
            raise
        # The message is accepted: where this cannot be noted, the others come again, which is better than never.
        with suppress(StorageError), trio.CancelScope(shield=True):
            await self._handover.confirm(left.receipt)
        return sent

    async def _accept(
        self,
        target: Session,
        message: NewMessage,
        request: RunRequest,
        prepared: PreparedFiles,
        on_queued: Callable[[], None],
    ) -> SentMessage:
        kept = self._supervisor.keeps_messages(target.key)
        if message.steers:
            return await self._steer(target, request, on_queued)
        if prepared.files:
            run_id = await self._accept_with_files(target, request, prepared, on_queued)
        else:
            run_id = await self._supervisor.accept_once(target, request, on_queued=on_queued)
        return SentMessage(run_id, self._supervisor.registry.session_of(run_id) or target, kept=kept)

    def _request(self, target: Session, message: NewMessage) -> RunRequest:
        key, source, payload = message.idempotency_key, message.source, None
        if key is not None:
            payload = payload_hash({**message.payload, "source": source.key} if source is not None else message.payload)
        limit_s = message.timeout_s
        # A machine that is asleep gets the message when it wakes: only a limit of the sender's own ends that.
        if limit_s is None and self._config().machine(agent_of(target.key)) is None:
            limit_s = self._config().agents.defaults.run_timeout_seconds
        return RunRequest(
            text=message.text,
            message=user_message(message.text, self._clock.wall_ms()),
            thinking=message.thinking,
            model=message.model,
            timeout_s=limit_s or None,
            idempotency_key=key,
            payload=payload,
            follow=FollowUp(deliver=True) if message.deliver else NOTHING_FOLLOWS,
        )

    async def _replace_if_stale(self, session: Session) -> Session:
        """The session for the message: a new one if the configuration says that the session is stale."""

        def due(live: Session) -> bool:
            if not is_stale(live.entry, self._config().session.reset, self._clock.wall_ms()):
                return False
            # `is_stale` cannot see a run whose records are not written yet.
            return self._supervisor.current(live.key) is None

        if not due(session):
            return session
        new, _ = await lifecycle.reset(
            self._session_changes, self._feed, session, self._supervisor.stop_for_reset, due=due
        )
        return new

    async def _steer(self, session: Session, request: RunRequest, on_queued: Callable[[], None]) -> SentMessage:
        steered = await steer(
            self._store,
            self._supervisor,
            self._attached,
            self._clock,
            session=session,
            request=request,
            on_queued=on_queued,
        )
        return SentMessage(steered.run_id, session, interrupted=steered.interrupted)

    async def _accept_with_files(
        self, session: Session, request: RunRequest, prepared: PreparedFiles, on_queued: Callable[[], None]
    ) -> str:
        return await accept_with_files(
            self._supervisor,
            self._attachments,
            self._journal,
            session=session,
            request=request,
            prepared=prepared,
            workspace=self._workspace(agent_of(session.key)),
            on_queued=on_queued,
        )
