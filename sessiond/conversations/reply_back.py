"""What follows a run: reply-back turns and the announce step after a sessions_send, the delivery of a reply.

Carries out what `policy/replyback.py` decides, and goes on after a restart where it was cut off. Knows the supervisor
and the outbox; not who asked for the first run. Source: runs.md, "A conversation".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog
import trio
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.conversations import open_conversation as talks
from sessiond.conversations.announce_step import AnnounceStep
from sessiond.conversations.open_conversation import ClosingRecord, OpenConversation, OpeningRecord
from sessiond.conversations.provenance import provenance_of
from sessiond.delivery.outbox import DeliveryStatus
from sessiond.errors import NotFound, SessiondError, Stopping, StorageError
from sessiond.model.entry import OpenTalk
from sessiond.model.message import user_message
from sessiond.policy import replyback
from sessiond.policy.replyback import ConversationDone, NextStep, StepEnd
from sessiond.runs.follow_up import ConversationStep, ConversationTopic, FollowUp
from sessiond.runs.persistence import TranscriptGone
from sessiond.runs.run import Run, RunRequest, RunView
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions.lifecycle import current_session
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")


class ReplyBack:
    """Every talk that goes on. `on_closed(session)` is told when one is over that the session was in."""

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
        # Every talk that goes on, from the write that opens it; and those that an earlier life left open.
        self._open: dict[str, OpenConversation] = {}
        self._left: list[OpenConversation] = []
        # The announce steps whose talk is closed by the write that ends them.
        self._states: dict[str, replyback.State] = {}

    def engages(self, key: str) -> bool:
        """Whether a talk goes on in which this session has, or may still have, its say."""
        return any(key in talk.keys for talk in self._open.values())

    def at_end(self, run: Run) -> Sequence[Part]:
        """The records that belong into the write of a run's end: a talk is opened or closed with it."""
        step = run.request.follow.step
        if step is not None:
            return self._closing_parts(run, step.talk_id) if run.request.step == "announce" else ()
        opened = self._opening_record_of(run)
        if opened is None:
            self._open.pop(run.run_id, None)
            return ()
        status = self._over_at_once(opened, run)
        if status is not None:
            self._open.pop(run.run_id, None)
            return (talks.closing_record(ClosingRecord(talk_id=run.run_id, delivery=status)),)
        self._open[run.run_id] = OpenConversation(opened, run.session, resumed=False)
        return (talks.opening_record(opened),)

    async def after_end(self, run: Run) -> None:
        """Go on with what `at_end` opened, to its end."""
        talk = self._open.get(run.run_id)
        if talk is not None and not talk.resumed:
            await self._go_on(talk, run.reply)

    async def read_open(self) -> None:
        """Find what an earlier life left open, also in transcripts that were reset meanwhile."""
        catalog = self._store.catalog
        sessions = {*catalog.by_id.values(), *catalog.by_key.values()}
        left = [(one, home) for home in sessions for one in home.entry.talks]
        # A copy of a transcript under another key has the same talk open: it is one.
        for one, home in {one.talk_id: (one, home) for one, home in left}.values():
            self._left.append(
                OpenConversation(await self._read(one, home) or OpeningRecord(talk_id=one.talk_id), home, resumed=True)
            )

    def list_open(self) -> None:
        """What is in the outbox already was decided; it goes out once the talk's record says so too."""
        for talk in self._left:
            self._open[talk.talk_id] = talk
            self._announcing.hold(talks.delivery_id(talk.talk_id))

    def go_on(self) -> None:
        """Go on with what was left open, after the runs and before the outbox sends."""
        left, self._left = self._left, []
        for talk in left:
            self._supervisor.follow(self._resume, talk)

    async def _read(self, one: OpenTalk, home: Session) -> OpeningRecord | None:
        try:
            opened: OpeningRecord | None = await self._store.read(
                home, talks.read_opening_record, one, self._store.record_limit
            )
        except StorageError as error:
            log.warning("the record of a talk cannot be read", talk_id=one.talk_id, reason=error.message)
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
        if wanted and self._announcing.leaves(run.session, run.reply):
            return OpeningRecord(talk_id=run.run_id)
        return None

    def _over_at_once(self, opened: OpeningRecord, run: Run) -> DeliveryStatus | None:
        """How the delivery of a talk stands that ends with its first run: nobody is to have a turn or to be asked."""
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
        return self._announcing.silent(run.session, done.announcement)

    def _step_end_without_asking(self, home: Session) -> StepEnd | None:
        """What counts as the end of an announce step that nobody is asked for; None where the agent is asked.

        Words that would go nowhere are not worth a run. A program that would take the question for a message is not
        asked either: its latest reply stands.
        """
        if not self._announcing.has_target(home):
            return "aborted"
        return None if self._supervisor.hears_steps(home.key) else "error"

    async def _resume(self, talk: OpenConversation) -> None:
        log.info("talk resumed", talk_id=talk.talk_id, session_key=talk.home.key)
        try:
            first = await self._find(talk.talk_id)
        except Stopping:
            return  # the next life resumes it
        await self._go_on(talk, first.reply if first is not None else None)

    async def _go_on(self, talk: OpenConversation, reply: str | None) -> None:
        try:
            done = await self._converse(talk, talk.topic, reply) if talk.topic is not None else ConversationDone(reply)
            if not talk.closed:
                await self._announce(talk, done.announcement)
        except Stopping:
            await trio.sleep_forever()  # until the daemon's end, which is near; the next life goes on
        finally:
            # Records that contradict each other can have it end twice: as a run that goes on, and as a talk left open.
            if self._open.get(talk.talk_id) is talk:
                del self._open[talk.talk_id]
            self._states.pop(talk.talk_id, None)
        for key in talk.keys:
            session = self._store.catalog.by_key.get(key)
            if session is not None:
                await self.on_closed(session)

    async def _announce(self, talk: OpenConversation, text: str | None) -> None:
        """Close the talk with these words; in silence where its session was deleted."""
        words = text if talk.home.key in self._store.catalog.by_key else None

        async def write() -> None:
            await self._announcing.announce(talk, words)

        persistence = self._supervisor.persistence
        try:
            await persistence.retry_until_stored(
                persistence.tell_when_gone(talk.home, write), "the end of a talk", talk_id=talk.talk_id
            )
        except TranscriptGone:
            log.warning("a talk ended without its transcript", talk_id=talk.talk_id, session_key=talk.home.key)

    async def _converse(self, talk: OpenConversation, topic: ConversationTopic, reply: str | None) -> ConversationDone:
        state, move = replyback.begin(topic.conversation, reply)
        number = 0
        while isinstance(move, NextStep):
            number += 1
            self._states[talk.talk_id] = state
            ending, text = await self._take(talk, topic, number, move)
            state, move = replyback.advance(state, ending, text)
        return move

    def _closing_parts(self, run: Run, talk_id: str) -> Sequence[Part]:
        """What closes a talk in the write that ends its announce step, where nothing has to leave the daemon."""
        talk, state = self._open.get(talk_id), self._states.get(talk_id)
        if talk is None or state is None or state.turn or run.session is not talk.home:
            return ()  # it is resumed later, and looks at how the step ended; or it is closed in another transcript
        _, done = replyback.advance(state, talks.step_end_of(run), run.reply)
        assert isinstance(done, ConversationDone)
        status = self._announcing.silent(talk.home, done.announcement)
        talk.closed = status is not None
        if status is None:
            return ()
        return (talks.closing_record(ClosingRecord(talk_id=talk_id, delivery=status)),)

    async def _take(
        self, talk: OpenConversation, topic: ConversationTopic, number: int, step: NextStep
    ) -> tuple[StepEnd, str | None]:
        """The end of one step: of the run that an earlier life made of it, or of a new one."""
        run = await self._find_run_of_step(talk, number, step) if talk.resumed else None
        if isinstance(run, RunView):
            return talks.step_end_of(run), run.reply
        if run is None and step.kind == "announce":
            unasked = self._step_end_without_asking(talk.home)
            if unasked is not None:
                return unasked, None
        if run is None:
            request = self._request(talk, topic, number, step)
            try:
                run = await self._supervisor.persistence.retry_until_stored(
                    partial(self._accept, talk, topic, number, step, request), "a step of a talk", talk_id=talk.talk_id
                )
            except Stopping:
                raise
            except SessiondError as error:
                # Nothing is left to turn to: the announce step follows a turn, and silence an announce step.
                log.warning("step not taken", talk_id=talk.talk_id, step=step.kind, reason=error.message)
                return ("aborted" if isinstance(error, NotFound) and step.kind == "announce" else "error"), None
        # Also where it has ended in memory: only what is on disk decides what comes next.
        await run.done.wait()
        return talks.step_end_of(run), run.reply

    async def _accept(
        self, talk: OpenConversation, topic: ConversationTopic, number: int, step: NextStep, request: RunRequest
    ) -> Run:
        """The run of a step, in the session that stands for its key now. NotFound where none does."""
        session = self._session_for(talk, topic, step)
        # A reset puts another session there, with another id: the run goes where its id says.
        session = await current_session(self._store.catalog, session) if session is not None else None
        if session is None:
            raise no_such_session(step.session_key)
        run_id = talks.step_run_id(talk.talk_id, number, step.kind, session.session_id)
        return await self._supervisor.accept(session, request, run_id=run_id)

    async def _find_run_of_step(self, talk: OpenConversation, number: int, step: NextStep) -> Run | RunView | None:
        """The run that an earlier life made of a step, in whichever transcript of its session; the newest of them."""
        catalog, registry = self._store.catalog, self._supervisor.registry
        live = catalog.by_key.get(step.session_key)
        sessions = [*catalog.older(step.session_key), *([live] if live is not None else [])]
        for session in reversed(sessions):
            run_id = talks.step_run_id(talk.talk_id, number, step.kind, session.session_id)
            run = registry.get(run_id)
            if run is not None:
                return run
            known = await self._find(run_id)
            if known is not None and known.ended_at is not None:
                return known
        return None

    async def _find(self, run_id: str) -> RunView | None:
        """What the records say of a run, read again while the disk refuses; None where there are none any more."""
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

    def _session_for(self, talk: OpenConversation, topic: ConversationTopic, step: NextStep) -> Session | None:
        """The session a step belongs to, in whichever of its transcripts: `settled` knows the newest."""
        if step.kind == "reply" and step.session_key != topic.conversation.target_key:
            catalog = self._store.catalog
            return catalog.by_id.get(topic.requester_session_id or "") or catalog.by_key.get(step.session_key)
        return talk.home

    def _request(self, talk: OpenConversation, topic: ConversationTopic, number: int, step: NextStep) -> RunRequest:
        # The first message was a hop itself.
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
            timeout_s=self._config().agents.defaults.run_timeout_seconds or None,
            follow=FollowUp(step=ConversationStep(talk.talk_id, number)),
        )
