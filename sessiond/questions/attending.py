"""The transcripts of ours that attend sessions of other programs, which work in a terminal: what they did, what they
ask, and the messages that wait for them.

One attends one session, and is made at the first hook that has something to keep. Knows the store. Does not know the
other program's files, nor callers. Source: hooks.md, "What is kept".
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessiond.clock import Clock, Ids
from sessiond.events.bus import EventBus
from sessiond.model.hook import ENDING, EVENTS, STARTING, TURNING, is_live
from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.model.record import HOOK
from sessiond.questions.desk import QuestionDesk
from sessiond.questions.terminal_decisions import ExpectedDecision, TerminalDecisions, ToolUse
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, SessionStore

# The program goes on, so somebody has decided there.
DECIDED_THERE = "it was decided in the terminal"


class Attending:
    """Notes the hooks of other programs' sessions. `agent_id` is the agent in whose folder new transcripts lie."""

    def __init__(
        self,
        store: SessionStore,
        bus: EventBus,
        desk: QuestionDesk,
        clock: Clock,
        ids: Ids,
        *,
        agent_id: Callable[[], str],
    ) -> None:
        self._store, self._desk, self._clock, self._ids = store, desk, clock, ids
        self._agent_id = agent_id
        self._decisions = TerminalDecisions(store, bus)
        self._making = trio.Lock()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow what is decided in terminals, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def find(self, key: str) -> Session | None:
        """The session of ours that attends this one."""
        return self._store.catalog.attending(key)

    def find_live(self, key: str) -> Session | None:
        """The session of ours that attends this one, if it is live in a terminal."""
        session = self.find(key)
        return session if session is not None and is_live(session.entry, self._clock.wall_ms()) else None

    async def note(self, key: str, event: str) -> None:
        """Note that a hook of the session was called. StorageError. Any other event than those known is ignored."""
        if event not in EVENTS:
            return
        # Nobody can have sent anything to a session that has no file, nor can it be seen.
        if event in (STARTING, ENDING) and self.find(key) is None and key not in self._store.catalog.by_key:
            return
        session = await self._ensure(key)
        if event in TURNING:
            # Programs do not tell of what was decided in the terminal, but only of what they do next.
            await self._withdraw_open(session)
        await self._store.append(session, [Custom(HOOK, {"event": event, "at": self._clock.wall_ms()})])

    async def ask(self, key: str, draft: QuestionDraft, timeout_s: float | None, use: ToolUse | None) -> QuestionAnswer:
        """Ask in the name of the session, and wait for the end of the question. `use` is the call for which a
        permission is asked: its result in the program's transcript withdraws the question.
        """
        since_ms, watching = self._clock.wall_ms(), trio.CancelScope()
        session = await self._ensure(key)
        # Before the question is written: Trio does not promise the order in which the writers go on, and questions
        # have one.
        expected = self._decisions.expect(key, use, since_ms) if use is not None else None

        def watch(question_id: str) -> None:
            if expected is not None and self._nursery is not None:
                self._nursery.start_soon(self._withdraw_when_decided, question_id, expected, watching)

        try:
            return await self._desk.ask(session, draft, timeout_s=timeout_s, on_open=watch)
        finally:
            watching.cancel()
            if expected is not None:
                self._decisions.forget(expected)

    async def _withdraw_when_decided(
        self, question_id: str, expected: ExpectedDecision, watching: trio.CancelScope
    ) -> None:
        with watching:
            await self._decisions.wait(expected)
            await self._desk.withdraw(question_id, DECIDED_THERE)

    async def _withdraw_open(self, session: Session) -> None:
        """Withdraw all that the session asks."""
        for asked in self._desk.open_questions():
            if asked.session is session:
                await self._desk.withdraw(asked.question.id, DECIDED_THERE)

    async def _ensure(self, key: str) -> Session:
        async with self._making:
            session = self.find(key)
            if session is not None:
                return session
            await self._store.presence.wait_until_known(key)
            session_id, agent_id = self._ids.uuid(), self._agent_id()
            own_key = f"agent:{agent_id}:attends:{session_id}"
            made, _ = await self._store.create(own_key, agent_id, attends=key, session_id=session_id)
            return made
