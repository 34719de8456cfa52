"""Every method, on every transport of every listener, as every kind of caller, gives exactly what the table says.

A method without a row fails. Source: protocol.md, "Calls", "JSON-RPC details", "Order of refusals".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from support.lasting_connections import LASTING_CONNECTIONS, LISTENERS_AND_TRANSPORTS, HttpJson
from support.real_daemon import Daemon
from support.sampling import WHOLE

from sessiond.methods.table import METHODS

pytestmark = pytest.mark.system

OWN = "agent:main:matrix"
ABSENT = "agent:main:absent"
BAD = ("expired", "revoked", "forged", "damaged", "of another store", "not a token")
UNAUTHENTICATED, NOT_FOUND, FORBIDDEN, UNSUPPORTED = -32001, -32002, -32003, -32006
RESULT = 0


@dataclass(frozen=True)
class Row:
    """`scopes` are all needed (`admin` implies all but `answer`). `then` is what a caller who has them gets, or a code.

    The params change as little as possible. `lasting` methods are refused on `POST /rpc`, after the scope.
    """

    scopes: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)
    then: int = RESULT
    lasting: bool = False
    # The handler itself checks the scope, because a token for the agent is enough as well.
    checked_by_handler: bool = False
    # What a token with the scope gets if it is narrowed to a session, as all tokens here are.
    narrowed: int | None = None


INITIALIZE = {"protocol": 1, "client": {"name": "matrix", "version": "1"}}
HISTORY = {"sessionKey": OWN, "limit": 1}
SEND = {"sessionKey": OWN, "message": "hello"}
INJECT = {"sessionKey": OWN, "messages": [{"role": "user", "content": "injected"}]}
LIST = {"limit": 1}

ROWS: dict[str, Row] = {
    "initialize": Row((), INITIALIZE),
    "ping": Row(()),
    "rpc.discover": Row(()),
    "daemon.status": Row(("admin",), narrowed=FORBIDDEN),
    "daemon.doctor": Row(("admin",), narrowed=FORBIDDEN),
    "sessions_list": Row(("list",), LIST),
    "sessions.list": Row(("list",), LIST),
    "sessions_history": Row(("read",), HISTORY),
    "chat.history": Row(("read",), HISTORY),
    "sessions_search": Row(("read",), {"query": "hello", "limit": 1}),
    "sessions_send": Row(("send",), {"sessionKey": ABSENT, "message": "hello"}, NOT_FOUND),
    "sessions_spawn": Row(("spawn",), {"task": "nothing", "agentId": "!"}, -32602),
    "sessions_inbox": Row(("read",), {"cursor": "nonsense"}, -32602),
    "agents_list": Row(("list",)),
    "sessions.resolve": Row(("list",), {"key": OWN}),
    "sessions.preview": Row(("list", "read"), {"keys": [OWN]}),
    "sessions.usage": Row(("list",)),
    "sessions.create": Row(("admin",), {"key": OWN}),
    "machines.report": Row(("admin",), {"machine": "mars", "present": True}, lasting=True, narrowed=FORBIDDEN),
    "sessions.bytes": Row(("admin",), {"sessionId": "none"}, NOT_FOUND, narrowed=FORBIDDEN),
    "sessions.heads": Row(("admin",), {"sessions": [{"sessionId": "none"}]}, narrowed=FORBIDDEN),
    "sessions.prune": Row(("admin",), {"olderThanMs": 10**13}),
    "sessions.import": Row(("admin",), {"path": "no absolute path"}, -32602, narrowed=FORBIDDEN),
    "sessions.patch": Row(("admin",), {"key": OWN, "label": None}),
    "sessions.reset": Row(("admin",), {"key": ABSENT}, NOT_FOUND),
    "sessions.delete": Row(("admin",), {"key": ABSENT}, NOT_FOUND),
    "sessions.kill": Row(("admin",), {"key": ABSENT}, NOT_FOUND),
    "sessions.steer": Row(("send",), {"key": ABSENT, "message": "hello"}, NOT_FOUND),
    "chat.send": Row(("send",), SEND),
    "sessions.send": Row(("send",), SEND),
    "agent": Row(("send",), SEND),
    "chat.inject": Row(("send",), INJECT),
    "sessions.append": Row(("send",), INJECT),
    "chat.abort": Row(("send",), {"sessionKey": OWN, "runId": "none"}),
    "sessions.abort": Row(("send",), {"sessionKey": OWN, "runId": "none"}),
    "agent.wait": Row(("read",), {"runId": "none"}, NOT_FOUND),
    "sessions.subscribe": Row(("list",), lasting=True),
    "sessions.unsubscribe": Row(("list",), lasting=True),
    "sessions.messages.subscribe": Row(("read",), {"key": OWN}, lasting=True),
    "sessions.messages.unsubscribe": Row(("read",), {"key": OWN}, lasting=True),
    # Nobody here has a token for the agent `guest`; tests/trust/test_narrowed.py tests such tokens.
    "agents.attach": Row(
        ("admin",), {"agentId": "guest"}, NOT_FOUND, lasting=True, checked_by_handler=True, narrowed=FORBIDDEN
    ),
    "channels.attach": Row(("admin",), {"channel": "matrix"}, lasting=True, narrowed=FORBIDDEN),
    "run.event": Row((), {"runId": "none", "type": "delta", "text": "x"}, NOT_FOUND, lasting=True),
    "agents.ask": Row(
        (), {"runId": "none", "title": "x", "options": [{"id": "a", "label": "", "kind": "allow_once"}]}, NOT_FOUND
    ),
    "questions.list": Row(("list",), {"open": True}),
    "questions.answer": Row(("answer",), {"id": "none", "optionId": "x"}, NOT_FOUND),
    "hooks.report": Row(
        ("admin",), {"event": "Stop", "sessionId": "none", "transcriptPath": "/none"}, narrowed=FORBIDDEN
    ),
    "hooks.ask": Row(
        ("admin",),
        {
            "event": "PermissionRequest",
            "sessionId": "none",
            "transcriptPath": "/none",
            "title": "x",
            "options": [{"id": "a", "label": "", "kind": "allow_once"}],
        },
        -32602,
        narrowed=FORBIDDEN,
    ),
    "hooks.list": Row(("admin",), narrowed=FORBIDDEN),
    "tokens.mint": Row(("admin",), {"scopes": ["list"], "sessionKey": OWN, "ttlSeconds": 1}),
    "tokens.list": Row(("admin",)),
    "tokens.revoke": Row(("admin",), {"id": "nothing"}, -32602),
    "http.open": Row(("admin",), {"scopes": ["list"]}, narrowed=FORBIDDEN),
    "http.close": Row(("admin",), narrowed=FORBIDDEN),
}

NAMES = [name for method in METHODS for name in (method.name, *method.aliases)]


def test_every_method_has_a_row_that_names_its_scope() -> None:
    assert [name for name in NAMES if name not in ROWS] == [], "a new method needs a row in the table above"
    # Dispatch checks one scope; what a handler demands beside it is tested by the matrix below.
    gates = {name: method.scope for method in METHODS for name in (method.name, *method.aliases)}
    assert gates == {
        name: None if ROWS[name].checked_by_handler else next(iter(ROWS[name].scopes), None) for name in NAMES
    }
    assert {method.name for method in METHODS if method.before_auth} == {"initialize"}
    assert {method.name for method in METHODS if method.streams} == {
        name for name in NAMES if ROWS[name].lasting and name in {method.name for method in METHODS}
    }


def scopes_of(listener: str, caller: str) -> frozenset[str] | None:
    """The scopes of a caller; None for one who is not authenticated."""
    if caller in BAD or (caller == "no token" and listener != "sessiond"):
        return None
    return frozenset(["admin", "answer"] if caller == "no token" else caller.split())


def expected(row: Row, scopes: frozenset[str] | None, transport: str, *, owner: bool) -> int:
    """RESULT or the code, by the order of refusals: caller, scope, transport, and then the method's own answer."""
    if scopes is None:
        return UNAUTHENTICATED
    implied = frozenset(row.scopes) - {"answer"} if "admin" in scopes else frozenset()
    refusals = [FORBIDDEN] if not set(row.scopes) <= scopes | implied else []
    refusals += [UNSUPPORTED] if row.lasting and transport.startswith("http") else []
    if refusals:
        return refusals[-1] if row.checked_by_handler else refusals[0]
    return _methods_own_answer(row, owner=owner)


def _methods_own_answer(row: Row, *, owner: bool) -> int:
    return row.then if owner or row.narrowed is None else row.narrowed


STATUS = {RESULT: 200, UNAUTHENTICATED: 401, NOT_FOUND: 404, FORBIDDEN: 403, UNSUPPORTED: 422, -32602: 400}
CALLERS = ("no token", "list", "read", "send", "spawn", "answer", "admin", "list read", *BAD)


def names_for(caller: str, way: int) -> list[str]:
    """The methods that a caller tries on this way in: by default a share of them, and all of them on all ways of the
    listener together. The bad tokens share what one caller tries, so that each method meets one.
    """
    listener = LISTENERS_AND_TRANSPORTS[way][0]
    shares = 1 if WHOLE else sum(name == listener for name, _ in LISTENERS_AND_TRANSPORTS)
    share = NAMES[(CALLERS.index(caller) + way) % shares :: shares]
    return share if WHOLE or caller not in BAD else share[BAD.index(caller) :: len(BAD)]


def test_every_caller_tries_every_method_somewhere_on_each_listener() -> None:
    for listener in {listener for listener, _ in LISTENERS_AND_TRANSPORTS}:
        ways = [way for way, (name, _) in enumerate(LISTENERS_AND_TRANSPORTS) if name == listener]
        for caller in (caller for caller in CALLERS if caller not in BAD):
            assert {name for way in ways for name in names_for(caller, way)} == set(NAMES), (listener, caller)


@pytest.mark.parametrize(("listener", "transport"), LISTENERS_AND_TRANSPORTS)
def test_every_caller_gets_exactly_what_the_table_says(
    listening_daemon: Daemon, callers: dict[str, str], listener: str, transport: str
) -> None:
    got: dict[tuple[str, str], int] = {}
    wanted: dict[tuple[str, str], int] = {}
    for caller in CALLERS:
        scopes = scopes_of(listener, caller)
        connection = LASTING_CONNECTIONS[transport](listening_daemon, listener, callers.get(caller))
        try:
            names = names_for(caller, LISTENERS_AND_TRANSPORTS.index((listener, transport)))
            answers = connection.ask([(name, ROWS[name].params) for name in names])
        finally:
            connection.close()
        for name, answer in zip(names, answers, strict=True):
            got[caller, name] = answer["error"]["code"] if "error" in answer else RESULT
            wanted[caller, name] = expected(ROWS[name], scopes, transport, owner=caller == "no token")
            status = STATUS.get(got[caller, name], 500)
            assert answer.get("status", status) == status, (caller, name)
            assert scopes is not None or "result" not in answer
    assert _differences(got, wanted) == []


def _differences(got: dict[tuple[str, str], int], wanted: dict[tuple[str, str], int]) -> list[str]:
    return [
        f"{caller} calls {name}: {got[caller, name]} instead of {code}"
        for (caller, name), code in wanted.items()
        if got[caller, name] != code
    ]


@dataclass(frozen=True)
class RouteCase:
    """An HTTP route. `scopes` None: needs no token. `status` is what a caller with these scopes gets."""

    method: str
    path: str
    scopes: tuple[str, ...] | None
    status: int = 200


ROUTE_CASES = (
    RouteCase("GET", "/", None),
    RouteCase("GET", "/client.js", None),
    RouteCase("POST", "/client.js", (), 405),
    RouteCase("POST", "/page/token", None, 400),
    RouteCase("GET", "/page/token", (), 405),
    # None of these callers is a page.
    RouteCase("POST", "/page/close", (), 403),
    RouteCase("GET", "/events", ("list",)),
    RouteCase("GET", "/healthz", None),
    RouteCase("HEAD", "/healthz", None),
    RouteCase("GET", "/metrics", ("admin",)),
    RouteCase("GET", f"/sessions/{OWN}/history?limit=1", ("read",)),
    RouteCase("HEAD", f"/sessions/{OWN}/history?limit=1", ("read",)),
    RouteCase("GET", f"/sessions/{OWN}/history?limit=1&follow=1", ("read",)),
    RouteCase("GET", f"/sessions/{ABSENT}/history", ("read",), 404),
    RouteCase("POST", f"/sessions/{OWN}/kill", ("admin",)),
    RouteCase("POST", f"/sessions/{ABSENT}/kill", ("admin",), 404),
    RouteCase("GET", f"/sessions/{OWN}/kill", (), 405),
    RouteCase("GET", "/questions?open=1", ("list",)),
    RouteCase("POST", "/questions/none/answer", ("answer",), 400),
    RouteCase("GET", "/nothing", (), 404),
)


ROUTE_LISTENERS = ("sessiond", "agent", "tcp")
ROUTE_SHARES = 1 if WHOLE else len(ROUTE_LISTENERS)


@pytest.mark.parametrize("listener", ROUTE_LISTENERS)
def test_every_http_route_admits_exactly_the_callers_with_its_scopes(
    listening_daemon: Daemon, callers: dict[str, str], listener: str
) -> None:
    wrong = []
    for caller in CALLERS:
        scopes = scopes_of(listener, caller)
        connection = HttpJson(listening_daemon, listener, callers.get(caller))
        # By default each caller tries each route on one of the listeners.
        share = (CALLERS.index(caller) + ROUTE_LISTENERS.index(listener)) % ROUTE_SHARES
        for route in ROUTE_CASES[share::ROUTE_SHARES]:
            with connection.client.stream(route.method, route.path) as got:
                # A path without a route is no secret: everyone gets the same answer, with a token or without.
                wanted = _expected_status(route, scopes)
                if got.status_code != wanted:
                    wrong.append(f"{caller}: {route.method} {route.path} is {got.status_code} instead of {wanted}")
                if wanted == 401:
                    assert got.headers["www-authenticate"] == "Bearer"
        connection.close()
    assert wrong == []


def _expected_status(route: RouteCase, scopes: frozenset[str] | None) -> int:
    if route.scopes is None or route.status == 405 or route.path == "/nothing":
        return route.status
    if scopes is None:
        return 401
    implied = frozenset(route.scopes) - {"answer"} if "admin" in scopes else frozenset()
    return route.status if set(route.scopes) <= scopes | implied else 403


def test_similar_paths_have_no_route(listening_daemon: Daemon) -> None:
    client = HttpJson(listening_daemon, "sessiond", None).client
    with client:
        assert (
            _find_served(client, ["/rpc/", "/ws/", "/sessions", f"/sessions/{OWN}", "/healthz/", "/%2Fhealthz"]) == []
        )


def _find_served(client: httpx.Client, paths: Iterable[str]) -> list[tuple[str, int]]:
    answers = [(path, client.get(path).status_code) for path in paths]
    return [(path, status) for path, status in answers if status != 404]
