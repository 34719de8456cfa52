"""What follows a run: reply-back turns and the announce step after a sessions_send, the delivery of a reply.

Carries out what `policy/replyback.py` decides, and goes on after a restart where it was cut off. Knows the supervisor
and the outbox; not who asked for the first run. Source: runs.md, "sessions_send"; shapes.md, "Interrupted follow-ups".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
import trio
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.config import Config
from sessiond.errors import SessiondError, Stopping, StorageError
from sessiond.model.message import user_message
from sessiond.policy import replyback
from sessiond.policy.replyback import Done, Ending, Step
from sessiond.runs import talk as talks
from sessiond.runs.announcing import Announcing
from sessiond.runs.life import RETRY_S
from sessiond.runs.run import Request, Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runs.talk import Closing, Opened, Talk, Topic
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")


class Conversations:
    """Every talk that goes on. `at_end` and `after_end` are hung into the supervisor."""

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        announcing: Announcing,
        config: Callable[[], Config],
        clock: Clock,
    ) -> None:
        self._store, self._supervisor, self._announcing = store, supervisor, announcing
        self._config, self._clock = config, clock
        self._opened: dict[str, Opened] = {}
        self._open: dict[str, Talk] = {}
        # The announce steps whose talk is closed by the write that ends them.
        self._states: dict[str, replyback.State] = {}

    def at_end(self, run: Run) -> Sequence[Part]:
        """The records that belong into the write of a run's end: a talk is opened or closed with it."""
        step = talks.step_of(run)
        if step is not None:
            return self._closed_with(run, step.talk_id) if run.request.step == "announce" else ()
        opened = self._opened_by(run)
        if opened is None:
            self._opened.pop(run.run_id, None)
            return ()
        self._opened[run.run_id] = opened
        return (talks.opening(opened),)

    async def after_end(self, run: Run) -> None:
        """Go on with what `at_end` opened, to its end."""
        if (opened := self._opened.pop(run.run_id, None)) is not None:
            await self._go_on(Talk(opened, run.session, resumed=False), run.reply)

    async def recover(self) -> int:
        """Go on with what an earlier life left open; how much that was. After the runs, before the outbox sends."""
        found = [(one, session) for session in self._store.catalog.newest() for one in session.entry.talks]
        for one, home in found:
            opened = await self._store.read(home, talks.opened_at, one, self._store.record_limit)
            # What is in the outbox already was decided; it goes out once the talk's record says so too.
            self._announcing.hold(talks.delivery_id(one.talk_id))
            known = opened or Opened(talk_id=one.talk_id)
            self._supervisor.follow(self._resume, Talk(known, home, resumed=True))
        return len(found)

    def _opened_by(self, run: Run) -> Opened | None:
        if run.status != "ok":
            return None
        topic = talks.topic_of(run)
        if topic is not None:
            conversation = replace(topic.conversation, request=run.request.text)
            return Opened(talk_id=run.run_id, topic=replace(topic, conversation=conversation))
        wanted = (run.request.follow or {}).get("deliver") is True
        if wanted and self._announcing.leaves(run.session, run.reply):
            return Opened(talk_id=run.run_id)
        return None

    async def _resume(self, talk: Talk) -> None:
        first = await self._supervisor.registry.find(talk.talk_id)
        log.info("talk resumed", talk_id=talk.talk_id, session_key=talk.home.key)
        await self._go_on(talk, first.reply if first is not None else None)

    async def _go_on(self, talk: Talk, reply: str | None) -> None:
        self._open[talk.talk_id] = talk
        try:
            done = await self._converse(talk, talk.topic, reply) if talk.topic is not None else Done(reply)
            if not talk.closed and not talk.home.archived:
                await self._persistently(lambda: self._announcing.announce(talk, done.announcement))
        finally:
            del self._open[talk.talk_id]
            self._states.pop(talk.talk_id, None)

    async def _converse(self, talk: Talk, topic: Topic, reply: str | None) -> Done:
        state, move = replyback.begin(topic.conversation, reply)
        number = 0
        while isinstance(move, Step):
            number += 1
            self._states[talk.talk_id] = state
            ending, text = await self._take(talk, topic, number, move)
            state, move = replyback.advance(state, ending, text)
        return move

    def _closed_with(self, run: Run, talk_id: str) -> Sequence[Part]:
        """What closes a talk in the write that ends its announce step, where nothing has to leave the daemon."""
        talk, state = self._open.get(talk_id), self._states.get(talk_id)
        if talk is None or state is None or state.turn:
            return ()  # it is resumed later, and looks at how the step ended
        _, done = replyback.advance(state, talks.ending_of(run), run.reply)
        assert isinstance(done, Done)
        status = self._announcing.silent(talk.home, done.announcement)
        talk.closed = status is not None
        if status is None:
            return ()
        return (talks.closing(Closing(talk_id=talk_id, delivery=status)),)

    async def _take(self, talk: Talk, topic: Topic, number: int, step: Step) -> tuple[Ending, str | None]:
        """The end of one step: of the run that an earlier life made of it, or of a new one."""
        session = self._session_for(talk, topic, step)
        if session is None:
            # Nothing is left to turn to: the announce step follows a turn, and silence an announce step.
            return ("error" if step.kind == "reply" else "aborted"), None
        registry = self._supervisor.registry
        run_id = talks.step_run_id(talk.talk_id, number, step.kind, session.session_id)
        run = registry.get(run_id)
        if run is None and talk.resumed:
            known = await registry.find(run_id)
            if known is not None and known.ended_at is not None:
                return talks.ending_of(known), known.reply
        if run is None:
            request = self._request(talk, topic, number, step)
            try:
                run = await self._persistently(lambda: self._supervisor.accept(session, request, run_id=run_id))
            except SessiondError as error:
                log.warning("step not taken", talk_id=talk.talk_id, step=step.kind, reason=error.message)
                return "error", None
        # Also where it has ended in memory: only what is on disk decides what comes next.
        await run.done.wait()
        return talks.ending_of(run), run.reply

    def _session_for(self, talk: Talk, topic: Topic, step: Step) -> Session | None:
        """The transcript a step belongs to; None where it was put away, or is being put away."""
        session: Session | None = talk.home
        if step.kind == "reply" and step.session_key != topic.conversation.target_key:
            session = self._store.catalog.by_id.get(topic.requester_session_id or "")
        return None if session is None or session.archived or session.leaving is not None else session

    def _request(self, talk: Talk, topic: Topic, number: int, step: Step) -> Request:
        # The first message was a hop itself.
        provenance = provenance_of(
            topic.trace_id, topic.hops + number, step.source_key, self._announcing.channel_of(step.source_key)
        )
        step_of = talks.StepOf(talk.talk_id, number)
        return Request(
            text=step.message,
            message=user_message(step.message, self._clock.wall_ms(), provenance),
            step=step.kind,
            context=step.context,
            turn=step.turn,
            max_turns=step.max_turns,
            timeout_s=self._config().agents.defaults.run_timeout_seconds or None,
            follow={"step": msgspec.to_builtins(step_of)},
        )

    async def _persistently(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, tried again while the disk refuses: what was decided is not given up for that."""
        for attempt in range(1_000_000):
            try:
                return await work()
            except Stopping:
                await trio.sleep_forever()  # until the daemon's end, which is near; the next life goes on
            except StorageError as error:
                log.warning("a talk waits for the disk", reason=error.message)
            await trio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
        raise AssertionError


def provenance_of(
    trace_id: str, hops: int, source_key: str | None, source_channel: str | None, tool: str = "sessions_send"
) -> dict[str, Any]:
    """The provenance of a message from another session, and by which `tool` it came.

    Source: runs.md; shapes.md, "The owner has no session".

    `hops` counts the messages that led to this one, itself included; `traceId` is the same in all of them.
    """
    provenance: dict[str, Any] = {"kind": "inter_session"}
    if source_key is not None:
        provenance["sourceSessionKey"] = source_key
        if source_channel is not None:
            provenance["sourceChannel"] = source_channel
    return {**provenance, "sourceTool": tool, "hops": hops, "traceId": trace_id}
