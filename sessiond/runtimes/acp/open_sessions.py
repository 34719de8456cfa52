"""The sessions that are open in one process of an agent, and which of ours each belongs to. Source: runs.md, "acp".

Knows how many may be open, and that a session of the agent may belong to one of ours only. Does not know turns.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import trio

from sessiond.config.agents import AgentConfig
from sessiond.errors import quote
from sessiond.runtimes.acp.process import AgentProcess, CannotServe
from sessiond.runtimes.acp.session import (
    OpenSession,
    SessionRules,
    check_session,
    close_session,
    known_native_id,
    open_session,
)
from sessiond.runtimes.acp.tool_server import TokenFolder
from sessiond.runtimes.presets.acp import asking_mode
from sessiond.runtimes.runtime import RunSink, RunSpec

# How long an agent that is at work may take to say whether it has a session.
_BUSY_S = 5.0
# Of so many sessions it is known which lists they have on record.
_MOST_LISTED = 1000


class RecordedLists:
    """Which lists of commands and options a session has on record, as digests by kind. Outlives the agent's processes,
    each of which says them anew; of the sessions that were opened last.
    """

    def __init__(self) -> None:
        self._by_session: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def find(self, session_id: str) -> dict[str, bytes]:
        """Those of a session, to be added to."""
        found = self._by_session.setdefault(session_id, {})
        self._by_session.move_to_end(session_id)
        if len(self._by_session) > _MOST_LISTED:
            self._by_session.popitem(last=False)
        return found


class OpenSessions:
    """The sessions in `process`. Over `maxSessions` the one that has rested longest is closed."""

    def __init__(self, process: AgentProcess, tokens: TokenFolder, agent: AgentConfig, lists: RecordedLists) -> None:
        self._process, self._tokens, self._agent, self._lists = process, tokens, agent, lists
        self._rules = SessionRules(timeout_s=agent.runtime.start_seconds, mode=asking_mode(agent.runtime))
        # By our session id, the one that has rested longest first; and those in which a run goes on.
        self._open: OrderedDict[str, OpenSession] = OrderedDict()
        self._busy: set[str] = set()
        # By our session id, the id in the agent of a session that is being opened.
        self._claims: dict[str, str] = {}
        # By the id in the agent, what is opened, closed or looked for just now.
        self._asked_for: dict[str, trio.Event] = {}

    @property
    def has_runs(self) -> bool:
        """Whether a run goes on in any of them."""
        return bool(self._busy)

    @contextmanager
    def hold(self, spec: RunSpec) -> Iterator[None]:
        """Keep the session of a run open while the context lasts, and give its tool server the token of the run.

        Afterwards it is the one that has rested least.
        """
        self._busy.add(spec.session_id)
        try:
            with self._tokens.hold_token(spec):
                yield
        finally:
            self._busy.discard(spec.session_id)
            if spec.session_id in self._open:
                self._open.move_to_end(spec.session_id)

    async def open(self, spec: RunSpec, sink: RunSink) -> OpenSession:
        """The session of a run that holds it, opened if it is not. CannotServe, AgentGone."""
        session = self._open.get(spec.session_id)
        if session is not None:
            return session
        native_id = known_native_id(spec)
        try:
            async with self._alone_with(native_id):
                if native_id is not None:
                    self._take_over(spec.session_id, native_id)
                session = self._open[spec.session_id] = await self._open_unknown(spec, sink)
        finally:
            self._claims.pop(spec.session_id, None)
        return session

    async def check(self, spec: RunSpec) -> str | None:
        """Why the agent cannot go on with `native_session_id`; None if it can, or if it has other work first.

        CannotServe, AgentGone.
        """
        native_id = known_native_id(spec) or ""
        # An agent that does one thing at a time answers after a turn, which may be the one that asks for this.
        with trio.move_on_after(_BUSY_S if self._busy else math.inf):
            async with self._alone_with(native_id):
                if any(session.native_id == native_id for session in self._open.values()):
                    return None
                return await check_session(self._process, native_id, self._rules, cwd=_folder(spec))
        return None

    async def _open_unknown(self, spec: RunSpec, sink: RunSink) -> OpenSession:
        await self._make_room()
        rules = msgspec.structs.replace(
            self._rules,
            timeout_s=self._opening_timeout_s(spec.session_id),
            claim=lambda native_id: self._claim(spec.session_id, native_id),
        )
        servers = [self._tokens.server(spec)]
        session = await open_session(self._process, spec, sink, rules, cwd=_folder(spec), servers=servers)
        session.known_lists = self._lists.find(spec.session_id)
        return session

    def _opening_timeout_s(self, session_id: str) -> float:
        """How long the agent may take to open a session, if it does one thing at a time: it answers after the turns of
        others, however long they are, and after others that are being opened.
        """
        others = self._busy - {session_id}
        if any(other in self._open for other in others):
            return math.inf
        return self._rules.timeout_s * (1 + len(others))

    async def _make_room(self) -> None:
        """Close the sessions that have rested longest while too many are open. They are resumed when needed."""
        runtime = self._agent.runtime
        while len(self._open.keys() | self._busy) > runtime.max_sessions:
            rested = next(one for one in self._open if one not in self._busy)
            native_id = self._open.pop(rested).native_id
            async with self._alone_with(native_id):
                await close_session(self._process, native_id, runtime.grace_seconds)

    def _take_over(self, own_id: str, native_id: str) -> None:
        """Keep the agent's id for this session of ours, also where another that rests had it. CannotServe if one is at
        work with it.
        """
        for session_id in [one for one, session in self._open.items() if session.native_id == native_id]:
            if session_id in self._busy:
                raise CannotServe(
                    f"the agent's session {quote(native_id)} is at work for another session ({session_id})"
                )
            del self._open[session_id]
        self._claim(own_id, native_id)

    def _claim(self, session_id: str, native_id: str) -> None:
        """Keep the agent's id for this session of ours. CannotServe if another has it: updates name only that id."""
        others = {**{one: session.native_id for one, session in self._open.items()}, **self._claims}
        other = next((one for one, known in others.items() if known == native_id and one != session_id), None)
        if other is not None:
            raise CannotServe(
                f"the agent's session {quote(native_id)} is that of another session already ({other}): it cannot keep"
                f" the two apart. If it has one session only, set maxSessions = 1 in the runtime of {self._agent.id}"
            )
        self._claims[session_id] = native_id

    @asynccontextmanager
    async def _alone_with(self, native_id: str | None) -> AsyncIterator[None]:
        """While the context lasts nobody else opens, closes or looks for this session of the agent. A replay for one
        would be taken for the turn of another, and closing it would end that.
        """
        if native_id is None:
            yield
            return
        while (other := self._asked_for.get(native_id)) is not None:
            await other.wait()
        own = self._asked_for[native_id] = trio.Event()
        try:
            yield
        finally:
            del self._asked_for[native_id]
            own.set()


def _folder(spec: RunSpec) -> str:
    """Where the session works. CannotServe where its sandbox does not show that."""
    cwd = spec.cwd or spec.workspace
    if spec.sandboxed and not cwd.is_relative_to(spec.workspace):
        raise CannotServe(
            f"the session works in {quote(str(cwd))}, which its sandbox does not show: only the workspace is"
        )
    return str(cwd)
