"""Any input on standard input, and the output checked against the official schema of the protocol."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.mcp import messages, server, tools
from sessiond.mcp.messages import MalformedMessage, ToolClientNotice, ToolClientRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("jsonrpc", "id", "method", "params", "result", "error"), JSON),
)


class NoDaemon:
    """A connection that makes no calls: the tested messages are answered without the daemon."""

    def __init__(self, *, may_answer: bool = False) -> None:
        self.answers = may_answer
        self.when_connected: Callable[[], object] = lambda: None

    def set_client_name(self, client_name: str, when_connected: Callable[[], object]) -> None:
        assert isinstance(client_name, str)
        self.when_connected = when_connected

    def may_answer(self) -> bool:
        return self.answers


def answers_to(*lines: bytes) -> list[dict[str, Any]]:
    written: list[bytes] = []
    answering = server.McpServer(NoDaemon(), written.append)  # type: ignore[arg-type]
    for line in lines:
        answering.take(line)
    answering.finish()
    return [json.loads(line) for line in written]


def check_schema(name: str, value: dict[str, Any]) -> None:
    """Check that the value matches the schema of that name and has no unknown fields."""
    # Generated from the schema of the specification. Imported here because it takes half a second.
    import mcp_types._v2025_11_25 as official

    shown = getattr(official, name).model_validate(value).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert shown == value


@given(st.binary() | JSON.map(json.dumps).map(str.encode) | FIELDS.map(json.dumps).map(str.encode))
def test_any_line_is_answered_or_refused_as_the_schema_says(line: bytes) -> None:
    try:
        message = messages.parse(line)
    except MalformedMessage as error:
        check_schema("JSONRPCErrorResponse", json.loads(error.answer))
    else:
        assert message is None or isinstance(message, ToolClientRequest | ToolClientNotice)


@given(FIELDS, st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "server/discover", "x"]))
def test_every_request_has_one_answer_that_matches_the_schema(fields: dict[str, Any], method: str) -> None:
    request = {**fields, "jsonrpc": "2.0", "id": 7, "method": method}
    if method == "tools/call" and isinstance(fields.get("params"), dict):
        request["params"] = {**fields["params"], "name": "no_such_tool"}
    (answer,) = answers_to(json.dumps(request).encode())
    check_schema("JSONRPCErrorResponse" if "error" in answer else "JSONRPCResultResponse", answer)
    assert answer["id"] == 7


def test_the_answers_of_the_handshake_match_the_schema() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = [("initialize", hello), ("ping", {}), ("tools/list", {}), ("tools/call", {"name": "guess"})]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        for number, (method, params) in enumerate(asked)
    ]
    lines.insert(1, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    results = [answer["result"] for answer in answers_to(*lines)]
    shapes = ("InitializeResult", "EmptyResult", "ListToolsResult", "CallToolResult")
    for shape, result in zip(shapes, results, strict=True):
        check_schema(shape, result)
    assert results[0]["protocolVersion"] == "2025-11-25"
    assert [tool["name"] for tool in results[2]["tools"]] == list(tools.NAMES)


def test_tools_for_questions_are_listed_for_callers_that_may_answer() -> None:
    connection, written = NoDaemon(), list[bytes]()
    answering = server.McpServer(connection, written.append)  # type: ignore[arg-type]

    def asked(method: str, **params: Any) -> list[dict[str, Any]]:
        written.clear()
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        answering.take(line.encode())
        return [json.loads(line) for line in written]

    (hello,) = asked("initialize", protocolVersion="2025-11-25")
    assert hello["result"]["capabilities"] == {"tools": {"listChanged": True}}
    (listed,) = asked("tools/list")
    assert [tool["name"] for tool in listed["result"]["tools"]] == list(tools.NAMES)
    for name in tools.ANSWERING_NAMES:
        (refused,) = asked("tools/call", name=name, arguments={})
        assert refused["result"]["isError"] and f"there is no tool {name}" in refused["result"]["content"][0]["text"]
    written.clear()
    connection.when_connected()
    assert written == [], "nothing has changed"
    connection.answers = True  # a daemon has been started, and says so
    connection.when_connected()
    (notice,) = map(json.loads, written)
    check_schema("ToolListChangedNotification", notice)
    (listed,) = asked("tools/list")
    assert [tool["name"] for tool in listed["result"]["tools"]] == [*tools.NAMES, *tools.ANSWERING_NAMES]
    check_schema("ListToolsResult", listed["result"])
    written.clear()
    connection.when_connected()
    assert written == []


def test_progress_and_errors_match_the_schema() -> None:
    params = {"progressToken": "p", "progress": 1.0, "total": 30.0, "message": "waiting"}
    check_schema("ProgressNotification", json.loads(messages.notification("notifications/progress", params)))
    check_schema("JSONRPCErrorResponse", json.loads(messages.error(None, -32700, "no")))


@check_each(
    ("asked", "offered"),
    [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("2030-01-01", "2025-11-25"), (None, "2025-11-25")],
)
def test_the_clients_protocol_version_is_used_if_it_is_known(asked: str | None, offered: str) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": asked}})
    (answer,) = answers_to(line.encode())
    assert answer["result"]["protocolVersion"] == offered


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read() -> None:
    longest = server.MAX_LINE_BYTES
    refused: list[bytes] = []
    stream = io.BytesIO(b"x" * (longest + 5) + b"\n" + b"y" * (longest - 1) + b"\n\n  \nlast")
    lines = list(server.read_lines(stream, refused.append))
    assert [len(line) for line in lines] == [longest, 4]
    assert [json.loads(line)["error"]["code"] for line in refused] == [messages.INVALID_REQUEST]


def test_text_that_utf8_cannot_encode_is_written_as_escapes() -> None:
    assert json.loads(messages.result(1, {"text": "\ud83d"}))["result"] == {"text": "\ud83d"}
