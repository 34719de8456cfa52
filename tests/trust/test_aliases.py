"""A hidden session cannot be found by any of its names: the answers are, byte for byte, those for a missing session.

The same calls go to two stores: in one the sessions exist and are hidden from the caller, in the other there are none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S
from support.sampling import spread

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.errors import SessiondError
from sessiond.methods.table import METHODS
from sessiond.model.caller import Caller
from sessiond.transports.exchange import HttpRequest, HttpResponse, error_response
from sessiond.transports.routes import Router

CONFIG = """
[store]
durability = "os"
[session]
agentToAgent = { maxPingPongTurns = 0 }
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
[[agents.list]]
id = "other"
runtime = { type = "echo" }
"""

OWN = "agent:other:own"
HIDDEN = ("agent:main:main", "agent:other:main", "agent:main:hidden", "agent:main:gone", "agent:other:telegram:group:7")

# Every parameter that names a session, with the other parameters that the method needs. `ALIAS` stands for the name.
CALLS: dict[str, list[dict[str, Any]]] = {
    "sessions_list": [{"spawnedBy": "ALIAS"}, {"label": "ALIAS"}],
    "sessions.list": [{"spawnedBy": "ALIAS", "includeArchived": True}],
    "sessions_history": [{"sessionKey": "ALIAS"}],
    "chat.history": [{"sessionKey": "ALIAS"}],
    "sessions_search": [{"query": "hello", "sessionKey": "ALIAS"}],
    "sessions_inbox": [{"sessionKey": "ALIAS"}],
    "sessions_send": [
        {"sessionKey": "ALIAS", "message": "x", "timeoutSeconds": 0},
        {"label": "ALIAS", "message": "x", "timeoutSeconds": 0},
        {"label": "ALIAS", "agentId": "main", "message": "x", "timeoutSeconds": 0},
    ],
    "sessions.resolve": [{"key": "ALIAS"}, {"sessionId": "ALIAS"}, {"label": "ALIAS"}],
    "sessions.preview": [{"keys": ["ALIAS"]}],
    "questions.list": [{"sessionKey": "ALIAS"}],
    "hooks.report": [{"event": "Stop", "sessionId": "ALIAS", "transcriptPath": "/x"}],
    "hooks.ask": [
        {
            "event": "PermissionRequest",
            "sessionId": "ALIAS",
            "transcriptPath": "/x",
            "title": "x",
            "options": [{"id": "a", "label": "A", "kind": "allow_once"}],
        }
    ],
    "sessions.usage": [{"key": "ALIAS"}],
    "sessions.bytes": [{"sessionId": "ALIAS"}],
    "sessions.heads": [{"sessions": [{"sessionId": "ALIAS"}]}],
    "chat.send": [{"sessionKey": "ALIAS", "message": "x"}],
    "chat.inject": [{"sessionKey": "ALIAS", "messages": [{"role": "user", "content": "x"}]}],
    "chat.abort": [{"sessionKey": "ALIAS"}],
    "sessions.steer": [{"key": "ALIAS", "message": "x"}],
    "sessions.kill": [{"key": "ALIAS"}],
    "sessions.create": [{"key": "ALIAS", "message": "x"}, {"parentSessionKey": "ALIAS"}],
    "sessions.patch": [{"key": "ALIAS", "label": "taken"}],
    "sessions.reset": [{"key": "ALIAS"}],
    "sessions.delete": [{"key": "ALIAS"}],
    "sessions.messages.subscribe": [{"key": "ALIAS"}],
    "sessions.messages.unsubscribe": [{"key": "ALIAS"}],
    "tokens.mint": [{"sessionKey": "ALIAS", "scopes": ["list"], "sandboxed": True}],
}
NAMING = frozenset({"key", "keys", "session_key", "parent_session_key", "spawned_by", "session_id"})
RUNS: dict[str, dict[str, Any]] = {
    "agent.wait": {"runId": "ALIAS", "timeoutMs": 0},
    "chat.abort": {"sessionKey": OWN, "runId": "ALIAS"},
}


def test_every_method_with_a_session_name_is_called_here() -> None:
    naming = {method.name for method in METHODS if NAMING & {one.name for one in msgspec.structs.fields(method.params)}}
    assert naming <= set(CALLS)


@dataclass
class Store:
    """One of the two stores, and the names, run ids and cursors of its hidden sessions."""

    parts: InProcessDaemon
    router: Router
    names: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)

    async def token(self, *scopes: str, sandboxed: bool) -> Caller:
        async with self.parts.connect() as owner:
            made = await owner.call("tokens.mint", scopes=scopes, sessionKey=OWN, sandboxed=sandboxed)
        caller: Caller = self.parts.services.tokens.caller(made["token"])
        return caller


@asynccontextmanager
async def store() -> AsyncIterator[Store]:
    """A store with the caller's own session."""
    with TemporaryDirectory(prefix="trust-") as folder:
        async with in_process_daemon(Path(folder), CONFIG) as parts:
            router = Router()
            add_session_routes(router, parts.services)
            async with parts.connect() as owner:
                await owner.call("sessions.create", key=OWN)
            yield Store(parts, router)


async def hide(made: Store) -> None:
    """Create sessions that the caller does not see: live, reset, deleted, and an older transcript of the same key."""
    async with made.parts.connect() as owner:
        for place, key in enumerate(HIDDEN):
            sent = await owner.call("chat.send", sessionKey=key, message="hello hidden")
            await owner.call("agent.wait", runId=sent["runId"])
            made.run_ids += [sent["runId"], sent["runId"][:-1] + "x"]
            page = await owner.call("sessions_history", sessionKey=key)
            made.cursors.append(page["cursor"])
            label = f"the hidden label {place}"
            await owner.call("sessions.patch", key=key, label=label)
            made.names += [key, label, page["sessionId"]]
        child = await owner.call("sessions.create", parentSessionKey=HIDDEN[2])
        made.names += [child["key"], child["sessionId"]]
        await owner.call("sessions.reset", key="agent:main:hidden")
        await owner.call("sessions.delete", key="agent:main:gone")
        superseded = await write_older_transcript(made, "agent:main:hidden")
    made.names.append(superseded)
    made.names += ["main", "global", "hidden", "telegram:group:7", "cron:job", "unknown", "hook:1"]


async def write_older_transcript(made: Store, key: str) -> str:
    """Write an older transcript of the key beside the newer one, as another program might; returns its session id."""
    session_id = "0f0e0d0c-0b0a-4908-8706-050403020100"
    header = {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": "2001-01-01T00:00:00.000Z",
        "cwd": "/",
        "sessionKey": key,
        "agentId": "main",
    }
    catalog = made.parts.services.store.catalog
    folder = Path(made.parts.services.store.path) / "agents/main/sessions"
    (folder / f"{session_id}.jsonl").write_text(json.dumps(header) + "\n")
    with trio.fail_after(PATIENCE_S):
        while session_id not in catalog.by_id:  # noqa: ASYNC110 - the file watcher finds it
            await trio.sleep(0.005)
    assert catalog.by_id[session_id].superseded
    return session_id


def spellings(names: list[str]) -> Iterator[str]:
    """Each name as it is, in other cases, and with white space around it."""
    for name in dict.fromkeys(names):
        yield from dict.fromkeys((name, name.upper(), f" \t{name}  ", f"{name.capitalize()}\u3000"))


def with_alias(value: Any, alias: str) -> Any:
    match value:
        case "ALIAS":
            return alias
        case list():
            return [with_alias(item, alias) for item in value]
        case _:
            return value


async def answers(made: Store, caller: Caller, names: list[str], run_ids: list[str], cursors: list[str]) -> list[bytes]:
    """The answers of this store to every call with every name, run id and cursor, as bytes."""
    table = {name for method in METHODS for name in (method.name, *method.aliases)}
    found: list[bytes] = []
    async with made.parts.connect(caller) as connection:
        # By default each name in one or two of its spellings, and the next one in others.
        for alias in spread(list(spellings(names)), 34):
            for method, shapes in CALLS.items():
                if method not in table:
                    continue
                for shape in shapes:
                    params = {name: with_alias(value, alias) for name, value in shape.items()}
                    found.append(await call_for_bytes(connection, method, alias, params))
            for verb, path in (("GET", "history"), ("POST", "kill")):
                answer = await call_http(made, caller, verb, f"/sessions/{quote(alias, safe='')}/{path}")
                found.append(f"{path} {alias!r} {answer.status} ".encode() + answer.body)
        for run_id in run_ids:
            for method, shape in RUNS.items():
                params = {name: with_alias(value, run_id) for name, value in shape.items()}
                found.append(await call_for_bytes(connection, method, run_id, params))
        pages = [{"sessionKey": OWN, "cursor": cursor} for cursor in cursors]
        found += [await call_for_bytes(connection, "sessions_history", params["cursor"], params) for params in pages]
    return found


async def call_for_bytes(connection: Connection, method: str, alias: str, params: dict[str, Any]) -> bytes:
    answer = await connection.answer(await connection.send(method, **params))
    return f"{method} {alias!r} ".encode() + msgspec.json.encode({**answer, "id": 0})


async def call_http(made: Store, caller: Caller, verb: str, path: str) -> HttpResponse:
    route, params = made.router.find(verb, path)
    request = HttpRequest(method=verb, path=path, params=params, query={}, headers={}, body=b"", caller=caller)
    try:
        answer = await route.handler(request)
    except SessiondError as error:
        return error_response(error)
    assert isinstance(answer, HttpResponse)
    return answer


async def compare(scopes: tuple[str, ...], *, sandboxed: bool) -> None:
    async with store() as full, store() as empty:
        await hide(full)
        tried = full.names, full.run_ids, full.cursors
        hidden = await answers(full, await full.token(*scopes, sandboxed=sandboxed), *tried)
        missing = await answers(empty, await empty.token(*scopes, sandboxed=sandboxed), *tried)
        assert hidden == missing
        assert len(hidden) > 500
        # The calls changed nothing in the hidden sessions: one message each and its reply, no setting but the label.
        async with full.parts.connect() as owner:
            rows = (await owner.call("sessions_list", limit=200))["sessions"]
            assert all("displayName" not in row and row.get("label") != "taken" for row in rows)
            assert {row["key"]: row["messageCount"] for row in rows if row["key"] in HIDDEN} == {
                "agent:other:main": 2,
                "agent:main:hidden": 0,
                "agent:other:telegram:group:7": 2,
            }


@pytest.mark.parametrize(
    ("scopes", "sandboxed"), spread(list(product([("list", "read", "send", "spawn"), ("admin",)], [False, True])), 1)
)
def test_a_hidden_and_a_missing_session_give_the_same_answers_byte_for_byte(
    scopes: tuple[str, ...], *, sandboxed: bool
) -> None:
    trio.run(lambda: compare(scopes, sandboxed=sandboxed))


async def test_every_spelling_of_the_callers_own_session_finds_it() -> None:
    async with store() as made:
        async with made.parts.connect() as owner:
            await owner.say(OWN, "before the reset")
            old = (await owner.call("sessions.resolve", key=OWN))["sessionId"]
            await owner.call("sessions.reset", key=OWN)
            new = (await owner.call("sessions.resolve", key=OWN))["sessionId"]
        async with made.parts.connect(await made.token("list", "read", sandboxed=True)) as connection:
            for name in ("current", OWN, new):
                for alias in spellings([name]):
                    got = await connection.call("sessions_history", sessionKey=alias)
                    assert (got["sessionKey"], got["sessionId"], len(got["messages"])) == (OWN, new, 0)
            archived = await connection.call("sessions_history", sessionKey=old.upper())
            assert (archived["sessionKey"], len(archived["messages"])) == (OWN, 2)
