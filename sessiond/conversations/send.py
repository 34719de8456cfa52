"""The one door for a message, whichever method brings it: `chat.send`, `sessions_send`, `sessions.steer`, an inbox.

What was sent before is known by its idempotency key; an old conversation is put away first; files lie in the workspace
and what another session says is marked as such, before the message is accepted. Knows who sends and who gets it;
whether that is allowed was settled before, and waiting is the caller's business.
Source: runs.md, "sessions_send", "Inbox", "Session freshness".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sessiond.attachments.decode import Attachment, PreparedFiles
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.conversations.provenance import ProvenanceStamp, Sender
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import agent_of
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
    """A message as its caller means it; that each field is well-formed was checked.

    `tool` is the method that brings it. `source` is None where the owner, or the session's own client, speaks into the
    session: nobody has to be told whose it is. `timeout_s` None is the configured one, 0 no limit. `payload` is what
    has to be equal where the same `idempotency_key` comes again. `steers`: the agent gets it now, amid its run.
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
    """The run that has the message, and its session: a reset may have put another one in the place of the one found.

    `kept`: nothing runs; whoever reads the session finds the message in its inbox. `interrupted` are the runs that were
    stopped for a steer.
    """

    run_id: str
    session: Session
    kept: bool = False
    interrupted: Sequence[str] = ()


class MessageSender:
    """Accepts messages to sessions."""

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        provenance: ProvenanceStamp,
        config: Callable[[], Config],
        clock: Clock,
        *,
        births: SessionChanges,
        feed: TranscriptFeed,
        attached: AttachedAgents,
        attachments: AttachmentService,
        intents: SpawnJournal,
        workspace: Callable[[str], Path],
    ) -> None:
        self._store, self._supervisor, self._provenance = store, supervisor, provenance
        self._config, self._clock = config, clock
        self._births, self._feed, self._attached = births, feed, attached
        self._attachments, self._intents, self._workspace = attachments, intents, workspace

    async def send(self, target: Session, message: NewMessage, *, in_line: Callable[[], None]) -> SentMessage:
        """The message, accepted: on disk, and in line for its session. `in_line` is called once it has its place.

        Conflict where its idempotency key was another message's; Overloaded where sessions go on for too long or too
        fast. Nothing was accepted then.
        """
        request, source = self._request(message), message.source
        kept = self._supervisor.keeps(target.key)
        known = await self._supervisor.find_accepted(target, request, in_line)
        if known is not None:
            return SentMessage(known, target, kept=kept)
        prepared = self._attachments.check(message.files, self._config().tools.sessions_spawn.attachments)
        if source is not None:
            self._provenance.check(source, target)  # what is refused resets nothing
        if not kept:  # Messages kept for an inbox must not trigger the idle reset: their reader has not seen them yet.
            target = await self._replace_if_stale(target)
        if source is not None:
            request = self._provenance.stamp(source, target, request, message.tool)
        if message.steers:
            return await self._steer(target, request, in_line)
        run_id = await self._accept(target, request, prepared, in_line)
        return SentMessage(run_id, self._supervisor.registry.session_of(run_id) or target, kept=kept)

    def _request(self, message: NewMessage) -> RunRequest:
        key, source, payload = message.idempotency_key, message.source, None
        if key is not None:
            payload = payload_hash({**message.payload, "source": source.key} if source is not None else message.payload)
        limit_s = message.timeout_s
        if limit_s is None:
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
        """The session for the next message: a new one where the configuration says that the conversation is over."""

        def due(live: Session) -> bool:
            if self._supervisor.current(live.key) is not None:
                return False  # also where its records are still on their way to the disk
            return is_stale(live.entry, self._config().session.reset, self._clock.wall_ms())

        if not due(session):
            return session
        new, _ = await lifecycle.reset(self._births, self._feed, session, self._supervisor.stop_for_reset, due=due)
        return new

    async def _steer(self, session: Session, request: RunRequest, in_line: Callable[[], None]) -> SentMessage:
        steered = await steer(
            self._store,
            self._supervisor,
            self._attached,
            self._clock,
            session=session,
            request=request,
            in_line=in_line,
        )
        return SentMessage(steered.run_id, session, interrupted=steered.interrupted)

    async def _accept(
        self, session: Session, request: RunRequest, prepared: PreparedFiles, in_line: Callable[[], None]
    ) -> str:
        if not prepared.files:
            return await self._supervisor.accept_once(session, request, in_line=in_line)
        return await accept_with_files(
            self._supervisor,
            self._attachments,
            self._intents,
            session=session,
            request=request,
            prepared=prepared,
            workspace=self._workspace(agent_of(session.key)),
            in_line=in_line,
        )
