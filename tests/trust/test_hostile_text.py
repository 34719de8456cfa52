"""Whatever a client writes into any parameter of any method: no file outside of the store, and no internal error.

The parameters are derived from the methods' own types, so a new parameter is tested without being named here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import structlog
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect as kinds
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.errors import SessiondError
from sessiond.methods.table import METHODS
from sessiond.model.caller import Caller
from sessiond.rpc.method import Method
from sessiond.transports.exchange import HttpRequest, HttpResponse, error_response
from sessiond.transports.routes import Router

# Each stripe has every so many calls of each value, shifted so that every place gets some of the values: of the strings
# two, of the JSON values five. By default one stripe is tested; with SESSIOND_TESTS=whole all are.
ALL_STRIPES = 27
STRIPES = range(amount(ALL_STRIPES, 1))
ALL_JSON_STRIPES = 4
JSON_STRIPES = range(amount(ALL_JSON_STRIPES, 1))

CONFIG = """
[store]
durability = "os"
[session]
agentToAgent = { maxPingPongTurns = 0 }
[agents.defaults.subagents]
maxChildrenPerAgent = 1024
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
"""
OWN = "agent:main:own"

HOSTILE: tuple[str, ...] = (
    "",
    " ",
    ".",
    "..",
    "../../../escaped",
    "..\\..\\escaped",
    "/escaped/absolute",
    "agent:main:../../../../escaped",
    "agent:../../escaped:main",
    "agent:main:/escaped",
    "agent::",
    "agent:main:",
    ":" * 40,
    "a\0b",
    "agent:main:a\0b",
    "a\nb",
    "agent:main:a\r\nb",
    "\x1b[31mred",
    "\u2024\u2024/\uff0e\uff0e/\u2025/escaped",
    "agent:main:\uff0e\uff0e\uff0fescaped",
    "\u202egpj.exe",
    "\ufeffagent:main:own",
    "\U0010ffff",
    "\u0130" * 300,
    "e\u0301",
    "%2e%2e%2fescaped",
    "~/escaped",
    "$HOME/escaped",
    "-rf",
    "--help",
    "con.jsonl",
    "sessions.json",
    "manifest.json",
    "x" * 255,
    "x" * 256,
    "\u00e9" * 300,
    "x" * 5120,
    "agent:main:" + "x" * 5120,
    "0" * 36,
    "00000000-0000-0000-0000-000000000000/../../escaped",
    "{}",
    "[",
    '"',
    "null",
    "__proto__",
    "{sessionKey}{0}%s",
    "0-0-000000000000",
    "99999999999999999-1-000000000000",
    "-1:x",
    "1" * 18 + ":x",
    "(a+)+$",
    "\\",
    "*",
)
# JSON text as it is sent: values that Python's own types cannot all express.
HOSTILE_JSON = (
    "-1",
    "0",
    "0.5",
    "-0.0",
    "1e308",
    "-1e308",
    "1e999",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "1" + "0" * 400,
    "true",
    "null",
    "[]",
    "{}",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '[["x"]]',
    '{"a":{"b":[1e308]}}',
)
# Valid values for required parameters.
GOOD: dict[str, Any] = {
    "protocol": 1,
    "client": {"name": "hostile", "version": "1"},
    "session_key": OWN,
    "key": OWN,
    "keys": [OWN],
    "message": "hello",
    "messages": [{"role": "user", "content": "hello"}],
    "query": "hello",
    "task": "nothing",
    "run_id": "none",
    "agent_id": "main",
    "scopes": ["list"],
    "type": "delta",
    "channel": "hostile",
}
# Parameters that let a call wait. Such a call is cancelled after it was sent.
WAITS = frozenset({"timeout_ms", "wait", "timeout_seconds"})


def shapes(kind: kinds.Type, hostile: Any) -> Iterator[Any]:
    """Values of this type with `hostile` in every place that one can have."""
    match kind:
        case kinds.UnionType(types=types):
            for one in types:
                yield from shapes(one, hostile)
        case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item):
            for inner in shapes(item, hostile):
                yield [inner]
        case kinds.StructType(fields=fields):
            for one in fields:
                for inner in shapes(one.type, hostile):
                    yield {**required(fields), one.encode_name: inner}
        case kinds.DictType():
            for name in ("name", "content", "mimeType", "encoding", "type"):
                yield {"name": "a.txt", "content": "x", name: hostile}
            yield {"hostile": hostile}
        case kinds.RawType() | kinds.AnyType():
            yield hostile
            for name in ("role", "content", "timestamp", "usage", "provenance", "toolCallId", "sessionKey", "cursor"):
                yield {"role": "user", "content": "x", name: hostile}
            yield {"role": "user", "content": [{"type": "text", "text": hostile}, hostile]}
            yield {"role": "assistant", "content": [], "usage": {"input": hostile, "cost": {"total": hostile}}}
            yield {"role": "toolResult", "toolCallId": hostile, "toolName": hostile, "content": hostile}
        case kinds.NoneType():
            pass
        case _:
            yield hostile


@functools.cache
def type_of(method: Method) -> kinds.StructType:
    """The type of its params."""
    info = kinds.type_info(method.params)
    assert isinstance(info, kinds.StructType)
    return info


def required(fields: Iterable[kinds.Field]) -> dict[str, Any]:
    return {one.encode_name: GOOD.get(one.name, "x") for one in fields if one.required}


def calls(hostile: Any, only: Method | None = None) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every call with `hostile` in one place; and whether that place lets the call wait."""
    for method in METHODS if only is None else [only]:
        info = type_of(method)
        for one in info.fields:
            for value in shapes(one.type, hostile):
                yield method.name, {**required(info.fields), one.encode_name: value}, one.name in WAITS


class WalledDaemon:
    """A daemon whose store lies deep in an otherwise empty folder: `files_outside` shows what was written beside it."""

    def __init__(self, parts: InProcessDaemon, enclosure: Path) -> None:
        self.parts, self.enclosure = parts, enclosure
        self.router = Router()
        add_session_routes(self.router, parts.services)

    def files_outside(self) -> set[str]:
        store = self.enclosure / "a/b/c/store"
        return {
            str(path.relative_to(self.enclosure))
            for path in self.enclosure.rglob("*")
            if not path.is_relative_to(store)
        }

    def files_inside(self) -> set[str]:
        store = self.enclosure / "a/b/c/store"
        return {str(path.relative_to(store)) for path in store.rglob("*") if not path.is_dir()}

    async def http(self, caller: Caller, verb: str, path: str, **query: str) -> HttpResponse:
        route, params = self.router.find(verb, path)
        headers = {"last-event-id": query.pop("last", "")}
        request = HttpRequest(
            method=verb, path=path, params=params, query=query, headers=headers, body=b"", caller=caller
        )
        # Any other exception is a defect and fails the test.
        try:
            answer = await route.handler(request)
        except SessiondError as error:
            return error_response(error)
        finally:
            # As a connection does once the answer is sent. Memory that stays reserved would make the next call wait.
            for share in request.unsent:
                share.release()
        return answer if isinstance(answer, HttpResponse) else HttpResponse(200)


@asynccontextmanager
async def open_walled_daemon(enclosure: Path) -> Any:
    folder = enclosure / "a/b/c"
    folder.mkdir(parents=True, exist_ok=True)
    (enclosure / "escaped").write_text("untouched")
    async with in_process_daemon(folder, CONFIG) as parts, parts.connect() as owner:
        await owner.say(OWN, "hello")
        yield WalledDaemon(parts, enclosure)


async def call_method(connection: Connection, method: str, params: dict[str, Any], *, waits: bool) -> dict[str, Any]:
    """The answer to one call, encoded by Python's own json, which accepts any string."""
    number = connection._next = connection._next + 1
    text = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    await connection._stream.send_all(text.encode() + b"\n")
    if waits:
        await connection.send("$/cancelRequest", id=number)
    answer = await connection.answer(number)
    connection.events.clear()
    return answer


# The files of a store, with the temporary ones: the index may be saved at any time.
LAYOUT = re.compile(
    r"store\.json|store\.lock|\.gitignore|tokens\.jsonl|keys/signing\.key"
    r"|agents/[a-z0-9][a-z0-9_-]{0,63}/(sessions/(archive/)?([a-z0-9][a-z0-9._-]{0,127}\.jsonl|sessions\.json|\.tmp-[0-9a-f]+)"
    r"|workspace/\.openclaw/attachments/[0-9a-f-]{36}/[^/]{1,255})"
    r"|cache/search\.sqlite(-wal|-shm)?"
    r"|outbox/[a-z0-9._-]+\.json|spawning/[^/]+",
    re.DOTALL,
)


async def check(
    made: WalledDaemon, log_entries: list[Any], before: set[str], answers: list[tuple[str, Any, Any]]
) -> None:
    assert [one for one in answers if one[2] == -32603] == []
    # Wait for the runs that were started: an internal error in one of them shows in the log only.
    with trio.fail_after(PATIENCE_S):
        while made.parts.services.supervisor.registry.live:
            await next(iter(made.parts.services.supervisor.registry.live.values())).done.wait()
    assert [entry for entry in log_entries if entry["log_level"] in ("error", "critical", "exception")] == []
    assert made.files_outside() == before
    assert (made.enclosure / "escaped").read_text() == "untouched"
    assert [path for path in made.files_inside() if not LAYOUT.fullmatch(path)] == []


@pytest.mark.parametrize("stripe", STRIPES)
@pytest.mark.parametrize("scopes", spread([("list", "read", "send", "spawn"), None], 1))
async def test_hostile_strings_in_every_parameter_are_refused_or_taken_as_text(
    tmp_path: Path, scopes: tuple[str, ...] | None, stripe: int
) -> None:
    answers = []
    with structlog.testing.capture_logs() as logs:
        async with open_walled_daemon(tmp_path) as made:
            before = made.files_outside()
            async with made.parts.connect() as owner:
                token = await owner.call("tokens.mint", sessionKey=OWN, scopes=scopes or ["admin"])
            caller = made.parts.services.tokens.caller(token["token"])
            for number, hostile in enumerate(HOSTILE):
                async with connect_as(made, caller if scopes else None) as connection:
                    begin = (number + stripe) % ALL_STRIPES
                    for method, params, waits in islice(calls(hostile), begin, None, ALL_STRIPES):
                        if method == "initialize":
                            continue
                        answer = await call_method(connection, method, params, waits=waits)
                        answers.append((method, params, answer.get("error", {}).get("code")))
                statuses = [answer.status for answer in await call_http(made, caller, hostile)]
                answers += [("HTTP", hostile, -32603 if status >= 500 else status) for status in statuses]
            await check(made, logs, before, answers)
    assert len(answers) > 5000 / ALL_STRIPES


def connect_as(made: WalledDaemon, caller: Caller | None) -> Any:
    return made.parts.connect() if caller is None else made.parts.connect(caller)


async def call_http(made: WalledDaemon, caller: Caller, hostile: str) -> list[HttpResponse]:
    if not hostile:
        return []
    key = quote(hostile, safe="")
    return [
        await made.http(caller, "GET", f"/sessions/{key}/history"),
        await made.http(caller, "GET", f"/sessions/{key}/history", follow="1", last=hostile),
        await made.http(caller, "GET", f"/sessions/{OWN}/history", cursor=hostile),
        await made.http(caller, "GET", f"/sessions/{OWN}/history", limit=hostile),
        await made.http(caller, "GET", f"/sessions/{OWN}/history", follow="1", last=hostile),
        await made.http(caller, "POST", f"/sessions/{key}/kill"),
    ]


@pytest.mark.parametrize("stripe", JSON_STRIPES)
async def test_hostile_json_values_in_every_place_cause_no_internal_error(tmp_path: Path, stripe: int) -> None:
    answers = []
    mark = "HOSTILE-VALUE"
    with structlog.testing.capture_logs() as logs:
        async with open_walled_daemon(tmp_path) as made:
            before = made.files_outside()
            for number, hostile in enumerate(HOSTILE_JSON):
                async with made.parts.connect() as connection:
                    begin = (number + stripe) % ALL_JSON_STRIPES
                    for method, params, waits in islice(calls(mark), begin, None, ALL_JSON_STRIPES):
                        text = json.dumps(params).replace(f'"{mark}"', hostile)
                        if method == "initialize" and '"token"' in text:
                            continue
                        answer = await call_method_with_text(connection, method, text, waits=waits)
                        answers.append((method, text, answer.get("error", {}).get("code")))
            for limit in (*HOSTILE_JSON, "9" * 400, "9" * 5000, "-1", "1.5", "\u0663"):
                answer = await made.http(OWNER_OF_ALL, "GET", f"/sessions/{OWN}/history", limit=limit)
                assert answer.status in (200, 400)
            await check(made, logs, before, answers)
    assert len(answers) > 2000 / ALL_JSON_STRIPES


OWNER_OF_ALL = Caller(kind="owner", scopes=frozenset({"admin"}))


async def call_method_with_text(connection: Connection, method: str, params: str, *, waits: bool) -> dict[str, Any]:
    """The answer to one call whose params are given as JSON text."""
    number = connection._next = connection._next + 1
    text = f'{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}'
    await connection._stream.send_all(text.encode() + b"\n")
    if waits:
        await connection.send("$/cancelRequest", id=number)
    answer = await connection.receive()
    # The answer to text that is not JSON has the id null.
    while "method" in answer or answer["id"] not in (number, None):
        answer = await connection.receive()
    return answer


@check_each("request_id", ["1e999", "1" + "0" * 400, "18446744073709551616", '"\\ud800"', "1.5", "-1", '""'])
async def test_a_hostile_request_id_is_answered_and_the_connection_goes_on(tmp_path: Path, request_id: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_walled_daemon(tmp_path) as made, made.parts.connect() as connection:
            for method in ("ping", "sessions_list", "sessions_history", "no.such"):
                text = f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}"}}\n'
                await connection._stream.send_all(text.encode())
                answer = await connection.receive()
                assert answer.get("error", {}).get("code") != -32603
            assert await connection.call("ping") == {}
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


ANY_TEXT = st.text(st.characters(codec=None), max_size=40) | st.text(
    st.sampled_from("./\\:agentmi%\0\n *-"), max_size=30
)


@settings(max_examples=amount(25, 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=3))
def test_any_text_in_every_parameter_is_refused_or_taken_as_text(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    async def run() -> None:
        answers = []
        with structlog.testing.capture_logs() as logs:
            async with (
                open_walled_daemon(tmp_path_factory.mktemp("enclosure")) as made,
                made.parts.connect() as connection,
            ):
                before = made.files_outside()
                for hostile in texts:
                    for method, params, waits in calls(hostile):
                        if method == "initialize":
                            continue
                        answer = await call_method(connection, method, params, waits=waits)
                        answers.append((method, params, answer.get("error", {}).get("code")))
                await check(made, logs, before, answers)

    trio.run(run)


def test_every_parameter_of_every_method_gets_hostile_values() -> None:
    """Otherwise the tests above would silently skip a parameter whose type `shapes` does not know."""
    for method in METHODS:
        fields = {one.encode_name for one in msgspec.structs.fields(method.params)}
        assert {name for _, params, _ in calls("x", method) for name in params} >= fields, method.name
