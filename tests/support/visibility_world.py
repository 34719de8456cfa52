"""Worlds of agents, sessions and callers for tests of visibility: drawn by Hypothesis, built in the real parts.

`sees` is the reference: who sees what, in ten lines, from security.md, "Visibility", and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.errors import SessiondError
from sessiond.methods.table import METHODS
from sessiond.model.caller import OWNER, Caller
from sessiond.transports.exchange import EventStreamAnswer, HttpRequest, HttpResponse, error_response
from sessiond.transports.routes import Router

AGENTS = ("main", "other", "third")
LEVELS = ("self", "tree", "agent", "all")
PATTERNS = ("*", "main", "OTHER", "ot*", "*ir*", " third ")
WORD = "everybody"
NOT_FOUND, FORBIDDEN = -32002, -32003
NAMES = frozenset(name for method in METHODS for name in (method.name, *method.aliases))


@dataclass(frozen=True)
class WorldCaller:
    """A caller. `place` is the number of its session, or None; `agent` is for tokens that name an agent only."""

    owner: bool = False
    place: int | None = None
    agent: str | None = None
    sandboxed: bool = False
    admin: bool = False

    @property
    def unlimited(self) -> bool:
        return self.owner or (self.admin and not self.sandboxed and self.place is None and self.agent is None)


@dataclass(frozen=True)
class World:
    """Sessions and callers. A session is its agent and the number of the session that spawned it."""

    sessions: tuple[tuple[str, int | None], ...]
    callers: tuple[WorldCaller, ...]
    visibility: str
    send_visibility: str | None
    agent_to_agent: bool
    allow: tuple[str, ...]
    clamp: bool
    redact: bool = True

    @property
    def keys(self) -> list[str]:
        """The first session is the main one of `main`."""
        return [f"agent:{agent}:{'main' if place == 0 else f's{place}'}" for place, (agent, _) in self._placed()]

    def _placed(self) -> list[tuple[int, tuple[str, int | None]]]:
        return list(enumerate(self.sessions))

    def line(self, place: int) -> list[int]:
        """The session and those that spawned it, up to the first."""
        parent = self.sessions[place][1]
        return [place] if parent is None else [place, *self.line(parent)]

    def level(self, who: WorldCaller, action: str) -> str:
        if who.unlimited:
            return "all"
        level = self.send_visibility or self.visibility if action == "send" else self.visibility
        return "tree" if who.sandboxed and self.clamp and level in ("agent", "all") else level

    def own_key(self, who: WorldCaller) -> str | None:
        if who.place is not None:
            return self.keys[who.place]
        return None if who.agent is None else f"agent:{who.agent}:main"

    def sees(self, who: WorldCaller, place: int, action: Literal["read", "send"] = "read") -> bool:
        """The reference."""
        if who.unlimited:
            return True
        level, own, target = self.level(who, action), self.own_key(who), self.keys[place]
        mine, its = (own or "::").split(":")[1], self.sessions[place][0]
        in_tree = own in [self.keys[above] for above in self.line(place)]
        crosses = self.agent_to_agent and self._matches(mine) and self._matches(its)
        if target == own or (level != "self" and in_tree):
            return True
        return (level in ("agent", "all") and mine == its) or (level == "all" and crosses)

    def _matches(self, agent: str) -> bool:
        patterns = [pattern.strip().lower() for pattern in self.allow]
        return any(fnmatchcase(agent, pattern) for pattern in patterns if pattern)

    def config(self) -> str:
        send = f'sendVisibility = "{self.send_visibility}"' if self.send_visibility else ""
        agents = "".join(f'[[agents.list]]\nid = "{agent}"\nruntime = {{ type = "echo" }}\n' for agent in AGENTS)
        return f"""
[store]
durability = "os"
[session]
agentToAgent = {{ maxPingPongTurns = 0 }}
[tools.sessions]
visibility = "{self.visibility}"
redact = {str(self.redact).lower()}
{send}
[tools.agentToAgent]
enabled = {str(self.agent_to_agent).lower()}
allow = {list(self.allow)!r}
[agents.defaults.sandbox]
sessionToolsVisibility = "{"spawned" if self.clamp else "all"}"
{agents}
"""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Trees of up to seven sessions under three agents, and up to four callers."""
    count = draw(st.integers(1, 7))
    spawners = [draw(st.one_of(st.none(), st.integers(0, place - 1))) for place in range(1, count)]
    sessions = [("main", None), *((draw(st.sampled_from(AGENTS)), spawner) for spawner in spawners)]
    who = st.one_of(
        st.just(WorldCaller(owner=True)),
        st.builds(WorldCaller, place=st.integers(0, count - 1), sandboxed=st.booleans(), admin=st.booleans()),
        st.builds(WorldCaller, agent=st.sampled_from(AGENTS), sandboxed=st.booleans(), admin=st.booleans()),
        st.builds(WorldCaller, sandboxed=st.booleans(), admin=st.booleans()),
    )
    return World(
        sessions=tuple(sessions),
        callers=tuple(draw(st.lists(who, min_size=1, max_size=4))),
        visibility=draw(st.sampled_from(LEVELS)),
        send_visibility=draw(st.one_of(st.none(), st.sampled_from(LEVELS))),
        agent_to_agent=draw(st.booleans()),
        allow=tuple(draw(st.lists(st.sampled_from(PATTERNS), max_size=3))),
        clamp=draw(st.booleans()),
    )


class BuiltWorld:
    """A world with a running daemon. `run_ids` and `session_ids` are by the number of the session."""

    def __init__(self, world: World, parts: InProcessDaemon, owner: Connection) -> None:
        self.world, self.parts, self.owner = world, parts, owner
        self.run_ids: list[str] = []
        self.session_ids: list[str] = []
        self._router = Router()
        add_session_routes(self._router, parts.services)

    async def fill(self) -> None:
        """Create the sessions, each with the message WORD and its reply."""
        for place, key in enumerate(self.world.keys):
            parent = self.world.sessions[place][1]
            below = {} if parent is None else {"parentSessionKey": self.world.keys[parent]}
            made = await self.owner.call("sessions.create", key=key, label=f"label {place}", **below)
            self.session_ids.append(made["sessionId"])
            sent = await self.owner.call("chat.send", sessionKey=key, message=f"{WORD} says {place}")
            await self.owner.call("agent.wait", runId=sent["runId"])
            self.run_ids.append(sent["runId"])

    async def caller(self, who: WorldCaller) -> Caller:
        """The caller, by a real token unless it is the owner."""
        if who.owner:
            return OWNER
        named: dict[str, Any] = {"sessionKey": self.world.own_key(who)} if who.place is not None else {}
        named |= {"agentId": who.agent} if who.agent is not None else {}
        scopes = ["admin"] if who.admin else ["list", "read", "send", "spawn"]
        minted = await self.owner.call("tokens.mint", scopes=scopes, sandboxed=who.sandboxed, **named)
        found: Caller = self.parts.services.tokens.caller(minted["token"])
        return found

    async def http(
        self, caller: Caller, method: str, path: str, query: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """The answer of an HTTP route; for a stream that may begin, status 200 and no body."""
        route, params = self._router.find(method, path)
        request = HttpRequest(
            method=method, path=path, params=params, query=query or {}, headers={}, body=b"", caller=caller
        )
        try:
            answer = await route.handler(request)
        except SessiondError as error:
            return error_response(error)
        finally:
            for share in request.unsent:  # as if the answer had been sent
                share.release()
        return HttpResponse(200) if isinstance(answer, EventStreamAnswer) else answer


@asynccontextmanager
async def built_world(world: World) -> AsyncIterator[BuiltWorld]:
    """The world in a store of its own."""
    with TemporaryDirectory(prefix="trust-") as folder:
        async with in_process_daemon(Path(folder), world.config()) as parts, parts.connect() as owner:
            built = BuiltWorld(world, parts, owner)
            await built.fill()
            yield built


async def outcome(connection: Connection, method: str, **params: Any) -> int:
    """0 for a result, otherwise the error code."""
    answer = await connection.answer(await connection.send(method, **params))
    code: int = answer["error"]["code"] if "error" in answer else 0
    return code


def canonical(key: str, who_agent: str | None) -> str:
    """A row's key in full."""
    return f"agent:{who_agent or 'main'}:main" if key == "main" else key


def encode_json(value: Any) -> bytes:
    return msgspec.json.encode(value)
