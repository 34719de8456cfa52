"""Conversations after a run: reply-back turns and the announce step after a sessions_send, or just a delivery.

Carries out what `policy/replyback.py` decides, and continues after a restart. Knows the supervisor and the outbox.
Source: runs.md, "A conversation".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.conversations import open_conversation as records
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.open_conversation import ClosingRecord, OpenConversation, OpeningRecord
from sessiond.conversations.provenance import provenance_of
from sessiond.errors import NotFound, SessiondError, Stopping, StorageError
from sessiond.model.entry import ConversationRef
from sessiond.model.keys import agent_of
from sessiond.model.message import user_message
from sessiond.policy import replyback
from sessiond.policy.replyback import ConversationDone, NextStep, StepEnd
from sessiond.runs.copied_runs import find_copied_runs
from sessiond.runs.follow_up import ConversationStep, ConversationTopic, FollowUp
from sessiond.runs.persistence import TranscriptGone
from sessiond.runs.run import Run, RunRequest, RunView, SettledDelivery
from sessiond.runs.supervisor import RunSupervisor, Work
from sessiond.sessions.lifecycle import current_session
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")


class ReplyBack:
    """All open conversations. `on_closed(session)` is called for each session of a conversation that was closed."""

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        announcing: AnnounceStep,
        config: Callable[[], Config],
        clock: Clock,
        *,
        on_closed: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._store, self._supervisor, self._announcing = store, supervisor, announcing
        self._config, self._clock, self.on_closed = config, clock, on_closed
        # The open conversations by id, from the write that opens them; and those that an earlier process left open.
        self._open: dict[str, OpenConversation] = {}
        self._unresumed: list[OpenConversation] = []
        # Those in copies of the transcripts in which they were opened.
        self._copied: list[tuple[Session, str]] = []
        # The states of conversations in a step. The write that ends an announce step also closes the conversation.
        self._states: dict[str, replyback.State] = {}

    def has_open_conversation(self, key: str) -> bool:
        """Whether this session takes part in an open conversation."""
        return any(key in conversation.keys for conversation in self._open.values())

    def at_end(self, run: Run) -> Sequence[Part]:
        """The records to write together with the end of the run: they open or close a conversation."""
        step = run.request.follow.step
        if step is not None:
            return self._closing_parts(run, step.talk_id) if run.request.step == "announce" else ()
        run.delivery = None  # the end may be composed a second time, as another one
        opened = self._opening_record_of(run)
        if opened is None:
            self._open.pop(run.run_id, None)
            return ()
        status = self._status_if_over(opened, run)
        if status is not None:
            self._open.pop(run.run_id, None)
            run.delivery = status
            return (records.closing_record(ClosingRecord(talk_id=run.run_id, delivery=status)),)
        self._open[run.run_id] = OpenConversation(opened, run.session, resumed=False)
        return (records.opening_record(opened),)

    def after_end(self, run: Run) -> Work | None:
        """Carry out the conversation that `at_end` opened."""
        conversation = self._open.get(run.run_id)
        if conversation is None or conversation.resumed:
            return None
        return partial(self._carry_out, conversation, run.reply)

    async def read_open(self) -> None:
        """Find the conversations that an earlier process left open, also in archived transcripts."""
        left: list[tuple[ConversationRef, Session]] = []
        for home in [one for one in self._store.catalog.unsettled_sessions() if one.entry.talks]:
            # A conversation has the id of the run that opened it, and goes on where that did.
            copied = await find_copied_runs(self._store, home, {one.talk_id: one.offset for one in home.entry.talks})
            self._copied += [(home, talk_id) for talk_id in copied]
            left += [(one, home) for one in home.entry.talks if one.talk_id not in copied]
        for one, home in {one.talk_id: (one, home) for one, home in left}.values():
            self._unresumed.append(
                OpenConversation(
                    await self._read_opening_record(one, home) or OpeningRecord(talk_id=one.talk_id), home, resumed=True
                )
            )

    def register_open(self) -> None:
        """Register the conversations, and hold their deliveries until their closing records are written."""
        for conversation in self._unresumed:
            self._open[conversation.talk_id] = conversation
            self._announcing.hold(records.delivery_id(conversation.talk_id))

    def resume_open(self) -> None:
        """Resume the conversations."""
        left, self._unresumed = self._unresumed, []
        for conversation in left:
            self._supervisor.start_follow_up(self._resume, conversation)
        copied, self._copied = self._copied, []
        for home, talk_id in copied:
            self._supervisor.start_follow_up(self._close_copied, home, talk_id)

    async def _close_copied(self, home: Session, talk_id: str) -> None:
        """Close a conversation in a copy of the transcript in which it was opened: it goes on in the original only."""
        record = records.closing_record(ClosingRecord(talk_id=talk_id, delivery="skipped"))
        with suppress(Stopping, TranscriptGone):
            await self._supervisor.persistence.append(
                home, lambda: [record], "the end of a copied conversation", talk_id=talk_id
            )

    async def _read_opening_record(self, one: ConversationRef, home: Session) -> OpeningRecord | None:
        try:
            opened: OpeningRecord | None = await self._store.read(
                home, records.read_opening_record, one, self._store.record_limit, home.dialect
            )
        except StorageError as error:
            log.warning("the record of a conversation cannot be read", talk_id=one.talk_id, reason=error.message)
            return None
        return opened

    def _opening_record_of(self, run: Run) -> OpeningRecord | None:
        if run.status != "ok":
            return None
        topic = run.request.follow.talk
        if topic is not None:
            conversation = replace(topic.conversation, request=run.request.text)
            return OpeningRecord(talk_id=run.run_id, topic=replace(topic, conversation=conversation))
        wanted = run.request.follow.deliver
        if wanted and self._announcing.has_to_leave(run.session, run.reply):
            return OpeningRecord(talk_id=run.run_id)
        return None

    def _status_if_over(self, opened: OpeningRecord, run: Run) -> SettledDelivery | None:
        """The delivery status if the conversation ends with its first run; None if a step or a delivery follows."""
        if opened.topic is None:
            return None
        state, move = replyback.begin(opened.topic.conversation, run.reply)
        if not isinstance(move, NextStep) or move.kind != "announce":
            return None
        unasked = self._step_end_without_asking(run.session)
        if unasked is None:
            return None
        _, done = replyback.advance(state, unasked, None)
        assert isinstance(done, ConversationDone)
        return self._announcing.status_without_delivery(run.session, done.announcement)

    def _step_end_without_asking(self, home: Session) -> StepEnd | None:
        """The end of an announce step that is skipped; None if the agent has to be asked.

        It is skipped if the announcement would be delivered nowhere, and for a program that cannot tell it from a
        message: then the latest reply is announced.
        """
        if not self._announcing.has_target(home):
            return "aborted"
        return None if self._supervisor.understands_steps(home.key) else "error"

    async def _resume(self, conversation: OpenConversation) -> None:
        log.info("conversation resumed", talk_id=conversation.talk_id, session_key=conversation.home.key)
        try:
            first = await self._find_run(conversation.talk_id)
        except Stopping:
            return  # the next daemon resumes it
        await self._carry_out(conversation, first.reply if first is not None else None)

    async def _carry_out(self, conversation: OpenConversation, reply: str | None) -> None:
        try:
            done = (
                await self._converse(conversation, conversation.topic, reply)
                if conversation.topic is not None
                else ConversationDone(reply)
            )
            if not conversation.closed:
                await self._announce(conversation, done.announcement)
        except Stopping:
            await trio.sleep_forever()  # stays registered until the daemon ends; the next one resumes it
        finally:
            # Contradictory records can list it twice: as an open conversation and with its run still open.
            if self._open.get(conversation.talk_id) is conversation:
                del self._open[conversation.talk_id]
            self._states.pop(conversation.talk_id, None)
        for key in conversation.keys:
            session = self._store.catalog.by_key.get(key)
            if session is not None:
                await self.on_closed(session)

    async def _announce(self, conversation: OpenConversation, text: str | None) -> None:
        """Close the conversation with this announcement; without one if its session was deleted."""
        words = text if conversation.home.key in self._store.catalog.by_key else None

        async def write() -> None:
            await self._announcing.announce(conversation, words)

        persistence = self._supervisor.persistence
        try:
            await persistence.retry_until_stored(
                persistence.raise_when_gone(conversation.home, write),
                "the end of a conversation",
                talk_id=conversation.talk_id,
            )
        except TranscriptGone:
            log.warning(
                "a conversation ended without its transcript",
                talk_id=conversation.talk_id,
                session_key=conversation.home.key,
            )

    async def _converse(
        self, conversation: OpenConversation, topic: ConversationTopic, reply: str | None
    ) -> ConversationDone:
        state, move = replyback.begin(topic.conversation, reply)
        number = 0
        while isinstance(move, NextStep):
            number += 1
            self._states[conversation.talk_id] = state
            ending, text = await self._take_step(conversation, topic, number, move)
            state, move = replyback.advance(state, ending, text)
        return move

    def _closing_parts(self, run: Run, talk_id: str) -> Sequence[Part]:
        """The closing record, to be written with the end of the announce step, if nothing has to leave the daemon."""
        conversation, state = self._open.get(talk_id), self._states.get(talk_id)
        if conversation is None or state is None or state.turn or run.session is not conversation.home:
            return ()  # not registered yet, and resumed later; or to be closed in another transcript
        _, done = replyback.advance(state, records.step_end_of(run), run.reply)
        assert isinstance(done, ConversationDone)
        status = self._announcing.status_without_delivery(conversation.home, done.announcement)
        conversation.closed = status is not None
        if status is None:
            return ()
        return (records.closing_record(ClosingRecord(talk_id=talk_id, delivery=status)),)

    async def _take_step(
        self, conversation: OpenConversation, topic: ConversationTopic, number: int, step: NextStep
    ) -> tuple[StepEnd, str | None]:
        """The end and reply of one step: of its run in an earlier process, or of a new run."""
        run = await self._find_run_of_step(conversation, number, step) if conversation.resumed else None
        if isinstance(run, RunView):
            return records.step_end_of(run), run.reply
        if run is None and step.kind == "announce":
            unasked = self._step_end_without_asking(conversation.home)
            if unasked is not None:
                return unasked, None
        if run is None:
            request = self._request(conversation, topic, number, step)
            try:
                run = await self._supervisor.persistence.retry_until_stored(
                    partial(self._accept, conversation, topic, number, step, request),
                    "a step of a conversation",
                    talk_id=conversation.talk_id,
                )
            except Stopping:
                raise
            except SessiondError as error:
                # A turn that cannot be taken is followed by the announce step, an announce step by silence.
                log.warning("step not taken", talk_id=conversation.talk_id, step=step.kind, reason=error.message)
                return ("aborted" if isinstance(error, NotFound) and step.kind == "announce" else "error"), None
        # Wait until the end is on disk: only what is on disk decides the next step.
        await run.done.wait()
        return records.step_end_of(run), run.reply

    async def _accept(
        self, conversation: OpenConversation, topic: ConversationTopic, number: int, step: NextStep, request: RunRequest
    ) -> Run:
        """The accepted run of a step, in the session that now has its key. NotFound if there is none."""
        session = self._session_for(conversation, topic, step)
        # The run id contains the id of the session, so determine the session first.
        session = await current_session(self._store.catalog, session) if session is not None else None
        if session is None:
            raise no_such_session(step.session_key)
        run_id = records.step_run_id(conversation.talk_id, number, step.kind, session.session_id)
        return await self._supervisor.accept(session, request, run_id=run_id)

    async def _find_run_of_step(
        self, conversation: OpenConversation, number: int, step: NextStep
    ) -> Run | RunView | None:
        """The newest run of a step in any transcript of its key, started by an earlier process."""
        catalog, registry = self._store.catalog, self._supervisor.registry
        live = catalog.by_key.get(step.session_key)
        sessions = [*catalog.older(step.session_key), *([live] if live is not None else [])]
        for session in reversed(sessions):
            run_id = records.step_run_id(conversation.talk_id, number, step.kind, session.session_id)
            run = registry.get(run_id)
            if run is not None:
                return run
            known = await self._find_run(run_id)
            if known is not None and known.ended_at is not None:
                return known
        return None

    async def _find_run(self, run_id: str) -> RunView | None:
        """The recorded state of a run, retrying while the disk refuses; None if its transcript is gone."""
        registry = self._supervisor.registry

        async def look() -> RunView | None:
            try:
                return await registry.find(run_id)
            except StorageError:
                session = registry.session_of(run_id)
                if session is None or not self._store.catalog.has(session):
                    return None
                raise

        return await self._supervisor.persistence.retry_until_stored(look, "the records of a run", run_id=run_id)

    def _session_for(self, conversation: OpenConversation, topic: ConversationTopic, step: NextStep) -> Session | None:
        """The session that a step belongs to. It may have been reset since: `current_session` gives the newest."""
        if step.kind == "reply" and step.session_key != topic.conversation.target_key:
            catalog = self._store.catalog
            return catalog.by_id.get(topic.requester_session_id or "") or catalog.by_key.get(step.session_key)
        return conversation.home

    def _limit_s(self, step: NextStep) -> float | None:
        config = self._config()
        elsewhere = config.machine(agent_of(step.session_key)) is not None
        return None if elsewhere else config.agents.defaults.run_timeout_seconds or None

    def _request(
        self, conversation: OpenConversation, topic: ConversationTopic, number: int, step: NextStep
    ) -> RunRequest:
        # `topic.hops` counts the first message; each step adds one.
        provenance = provenance_of(
            topic.trace_id, topic.hops + number, step.source_key, self._announcing.channel_of(step.source_key)
        )
        return RunRequest(
            text=step.message,
            message=user_message(step.message, self._clock.wall_ms(), provenance),
            step=step.kind,
            context=step.context,
            turn=step.turn,
            max_turns=step.max_turns,
            timeout_s=self._limit_s(step),
            follow=FollowUp(step=ConversationStep(conversation.talk_id, number)),
        )
