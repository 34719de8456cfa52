"""Who sees which session: a ten-line reference, and every method, event and route agrees with it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from support.in_process import Connection
from support.lasting_connections import (
    LASTING_CONNECTIONS,
    LISTENERS_AND_TRANSPORTS,
    Call,
    LastingConnection,
    free_port,
)
from support.real_daemon import Daemon
from support.sampling import amount, spread
from support.visibility_world import (
    AGENTS,
    FORBIDDEN,
    NAMES,
    NOT_FOUND,
    WORD,
    BuiltWorld,
    World,
    WorldCaller,
    built_world,
    canonical,
    outcome,
    worlds,
)

from sessiond.model.caller import Caller

# The methods that take the key of one session, by what a caller needs to see it for: to read it or to send to it.
READING: dict[str, dict[str, Any]] = {
    "sessions_history": {"sessionKey": "KEY"},
    "chat.history": {"sessionKey": "KEY"},
    "sessions.resolve": {"key": "KEY"},
    "sessions.messages.subscribe": {"key": "KEY"},
    "sessions.messages.unsubscribe": {"key": "KEY"},
    "sessions_search": {"query": WORD, "sessionKey": "KEY"},
}
SENDING: dict[str, dict[str, Any]] = {
    "chat.abort": {"sessionKey": "KEY"},
    "sessions.abort": {"sessionKey": "KEY"},
    "chat.send": {"sessionKey": "KEY", "message": "hello"},
    "sessions.send": {"sessionKey": "KEY", "message": "hello"},
    "agent": {"sessionKey": "KEY", "message": "hello"},
    "sessions.steer": {"key": "KEY", "message": "hello"},
    "sessions_send": {"sessionKey": "KEY", "message": "hello", "timeoutSeconds": 0},
}
ADMINISTERING: dict[str, dict[str, Any]] = {
    "sessions.patch": {"key": "KEY", "displayName": "a name"},
    "sessions.kill": {"key": "KEY"},
    "chat.inject": {"sessionKey": "KEY", "messages": [{"role": "user", "content": "injected"}]},
    "sessions.append": {"sessionKey": "KEY", "messages": [{"role": "user", "content": "injected"}]},
    "sessions.create": {"key": "KEY"},
    "sessions.reset": {"key": "KEY"},
}


def with_key(params: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: key if value == "KEY" else value for name, value in params.items()}


async def check_reading(built: BuiltWorld, who: WorldCaller, caller: Caller, connection: Connection) -> None:
    world = built.world
    seen = {key for place, key in enumerate(world.keys) if world.sees(who, place)}
    got: dict[str, set[str]] = {}
    listed = await connection.call("sessions_list", limit=200)
    assert listed["visibility"] == world.level(who, "read")
    got["sessions_list"] = {canonical(row["key"], caller.agent_id) for row in listed["sessions"]}
    children = {child for row in listed["sessions"] for child in row.get("childSessions", [])}
    assert children <= seen
    got["sessions_list, by pages"] = {canonical(key, caller.agent_id) for key in await pages(connection)}
    named = await connection.call("sessions.list", search="agent:", includeArchived=True, limit=200, messageLimit=1)
    got["sessions.list"] = {canonical(row["key"], caller.agent_id) for row in named["sessions"]}
    if "sessions_search" in NAMES:
        found = await connection.call("sessions_search", query=WORD, limit=200)
        got["sessions_search"] = {match["sessionKey"] for match in found["matches"]}
    if "sessions.preview" in NAMES:
        previews = (await connection.call("sessions.preview", keys=world.keys))["previews"]
        got["sessions.preview"] = {
            key for key, one in zip(world.keys, previews, strict=True) if one["status"] != "missing"
        }
    if "sessions.usage" in NAMES:
        usage = await connection.call("sessions.usage")
        assert {row["key"] for row in usage["bySession"]} <= seen
    for name, params in READING.items():
        if name in NAMES:
            got[name] = await allowed(world, connection, name, params)
    for place, key in enumerate(world.keys):
        for name, params in by_other_names(built, place).items():
            if await outcome(connection, name.partition(" ")[0], **params) == 0:
                got.setdefault(name, set()).add(key)
        for way, query in (("GET", {}), ("GET", {"follow": "1"})):
            answer = await built.http(caller, way, f"/sessions/{key}/history", query)
            if answer.status == 200:
                got.setdefault(f"HTTP {query}", set()).add(key)
    assert {name: keys for name, keys in got.items() if keys != seen} == {}, (who, seen)


def by_other_names(built: BuiltWorld, place: int) -> dict[str, dict[str, Any]]:
    """The same session by its id, its label, its run."""
    session_id = built.session_ids[place]
    return {
        "agent.wait": {"runId": built.run_ids[place]},
        "sessions.resolve id": {"sessionId": session_id},
        "sessions.resolve label": {"label": f"label {place}"},
        "sessions_history id": {"sessionKey": session_id.upper()},
    }


async def pages(connection: Connection) -> list[str]:
    keys: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await connection.call("sessions_list", limit=1, **cursor)
        keys += [row["key"] for row in page["sessions"]]
        if not page["hasMore"]:
            return keys
        cursor = {"cursor": page["nextCursor"]}


async def allowed(world: World, connection: Connection, name: str, params: dict[str, Any]) -> set[str]:
    """The keys for which the method does not answer that there is no such session."""
    codes = {key: await outcome(connection, name, **with_key(params, key)) for key in world.keys}
    assert set(codes.values()) <= {0, NOT_FOUND, FORBIDDEN}, (name, codes)
    return {key for key, code in codes.items() if code != NOT_FOUND}


async def check_sending(built: BuiltWorld, who: WorldCaller, caller: Caller, connection: Connection) -> None:
    world = built.world
    seen = {key for place, key in enumerate(world.keys) if world.sees(who, place, "send")}
    names = SENDING | (ADMINISTERING if caller.has("admin") else {})
    got = {name: await allowed(world, connection, name, params) for name, params in names.items() if name in NAMES}
    if caller.has("admin"):
        answers = [(key, await built.http(caller, "POST", f"/sessions/{key}/kill")) for key in world.keys]
        got["HTTP kill"] = {key for key, answer in answers if answer.status == 200}
    assert {name: keys for name, keys in got.items() if keys != seen} == {}, (who, seen)
    await check_names(built, who, connection)
    if caller.has("admin"):
        await check_attaching(built, who, connection)
        both = {key for place, key in enumerate(world.keys) if world.sees(who, place)} & seen
        minted = {
            key
            for key in world.keys
            if await outcome(
                connection, "tokens.mint", sessionKey=key, scopes=["list"], sandboxed=who.sandboxed, ttlSeconds=60
            )
            == 0
        }
        assert minted == both


async def check_names(built: BuiltWorld, who: WorldCaller, connection: Connection) -> None:
    """A message names its sender, unless the owner sends it or the session itself."""
    world = built.world
    for place, key in enumerate(world.keys):
        answer = await connection.answer(await connection.send("chat.send", sessionKey=key, message="whose?"))
        if "result" not in answer:
            continue
        run = built.parts.services.supervisor.registry.get(answer["result"]["runId"])
        provenance = run.request.message.get("provenance")
        if who.unlimited or world.own_key(who) == key:
            assert provenance is None, (who, key)
        else:
            assert provenance is not None, (who, key)
            assert provenance.get("sourceSessionKey") == world.own_key(who), (who, key, place)


async def check_attaching(built: BuiltWorld, who: WorldCaller, connection: Connection) -> None:
    """An admin attaches for an agent only where it may read and write every session of it."""
    world = built.world
    for agent in AGENTS:
        if await outcome(connection, "agents.attach", agentId=agent) != 0:
            continue
        own = world.own_key(who)
        for place, key in enumerate(world.keys):
            if world.sessions[place][0] == agent and own != f"agent:{agent}:main":
                assert world.sees(who, place) and world.sees(who, place, "send"), (who, agent, key)
        # Detach again, so that the runs of later calls use the configured runtime.
        for held in list(built.parts.services.connections.values()):
            built.parts.services.attached.detach(held)


async def check_events(built: BuiltWorld, everyone: list[tuple[WorldCaller, Caller, Connection]]) -> None:
    """A message is written into every session; each caller gets the events of those that it sees."""
    world = built.world
    for _, _, connection in everyone:
        connection.events.clear()
        await connection.call("sessions.subscribe")
    for key in world.keys:
        await built.owner.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": "heard"}])
    for who, _, connection in everyone:
        # Events and answers are sent in order: all events published before this call arrive before its answer.
        await connection.call("ping")
        seen = {key for place, key in enumerate(world.keys) if world.sees(who, place)}
        for method in ("session.message", "sessions.changed"):
            heard = {event["params"]["sessionKey"] for event in connection.events if event["method"] == method}
            assert heard == seen, (who, method)


async def check(world: World) -> None:
    async with built_world(world) as built:
        callers = [(who, await built.caller(who)) for who in world.callers]
        for who, caller in callers:
            async with built.parts.connect(caller) as connection:
                await check_reading(built, who, caller, connection)
        async with trio.open_nursery() as nursery:
            everyone = []
            for who, caller in callers:
                opened = built.parts.connect(caller)
                everyone.append((who, caller, await opened.__aenter__()))
                nursery.start_soon(close_at_the_end, opened)
            await check_events(built, everyone)
            nursery.cancel_scope.cancel()
        for who, caller in callers:
            async with built.parts.connect(caller) as connection:
                await check_sending(built, who, caller, connection)


async def close_at_the_end(opened: Any) -> None:
    try:
        await trio.sleep_forever()
    finally:
        await opened.__aexit__(None, None, None)


SESSIONS = (("main", None), ("main", 0), ("other", 1), ("third", 2), ("main", None), ("other", None))


@settings(max_examples=amount(50, 1), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds())
@example(
    # The tree contains children of other agents, and their children; the sandbox limits `all` to the tree.
    world=World(
        SESSIONS,
        (WorldCaller(place=0, sandboxed=True), WorldCaller(place=1, admin=True)),
        "all",
        "self",
        True,
        ("*",),
        True,
    )
)
@example(
    world=World(
        SESSIONS,
        (WorldCaller(agent="other"), WorldCaller(place=4), WorldCaller(admin=True)),
        "agent",
        None,
        False,
        (),
        False,
    )
)
@example(world=World(SESSIONS, (WorldCaller(), WorldCaller(agent="main")), "all", None, True, ("*",), True))
def test_every_method_event_and_route_agrees_with_the_reference(world: World) -> None:
    trio.run(check, world)


# One world for the real daemon, over every transport of every listener: only the connection differs there.
REAL = World(
    SESSIONS,
    (WorldCaller(place=1), WorldCaller(place=1, sandboxed=True), WorldCaller(agent="other")),
    "tree",
    None,
    False,
    (),
    True,
)


@pytest.mark.system
def test_every_transport_shows_the_same_sessions(daemon: Daemon) -> None:
    daemon.port = free_port()
    daemon.start(REAL.config() + f'[http]\nlisten = "127.0.0.1:{daemon.port}"\n')
    for place, key in enumerate(REAL.keys):
        parent = REAL.sessions[place][1]
        below = {} if parent is None else {"parentSessionKey": REAL.keys[parent]}
        daemon.call("sessions.create", key=key, **below)
        daemon.reply(key, f"{WORD} says {place}")
    for who in REAL.callers:
        claims = {"agentId": who.agent} if who.place is None else {"sessionKey": REAL.own_key(who)}
        minted = daemon.call("tokens.mint", scopes=["list", "read", "send"], sandboxed=who.sandboxed, **claims)
        seen = {key for place, key in enumerate(REAL.keys) if REAL.sees(who, place)}
        for listener, transport in spread(LISTENERS_AND_TRANSPORTS, 3):
            got = seen_by(LASTING_CONNECTIONS[transport](daemon, listener, minted["token"]), who)
            assert {name: keys for name, keys in got.items() if keys != seen} == {}, (listener, transport, who)


def seen_by(connection: LastingConnection, who: WorldCaller) -> dict[str, set[str]]:
    """The sessions that the caller of a connection sees, by method."""
    histories: list[Call] = [("sessions_history", {"sessionKey": key}) for key in REAL.keys]
    sends: list[Call] = [("chat.abort", {"sessionKey": key}) for key in REAL.keys]
    try:
        listed, found, *each = connection.ask(
            [("sessions_list", {}), ("sessions_search", {"query": WORD, "limit": 200}), *histories, *sends]
        )
    finally:
        connection.close()
    allowed = [key for key, answer in zip(REAL.keys * 2, each, strict=True) if "result" in answer]
    agent = who.agent or "main"
    return {
        "list": {canonical(row["key"], agent) for row in listed["result"]["sessions"]},
        "search": {match["sessionKey"] for match in found["result"]["matches"]},
        "history": set(allowed[: len(allowed) // 2]),
        "abort": set(allowed[len(allowed) // 2 :]),
    }
