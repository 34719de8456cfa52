"""What comes in over standard input, whatever it is, and what goes out, by the official schema of the protocol."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    """A connection that nobody asks; what is tested is answered without one."""

    def set_client_name(self, client_name: str) -> None:
        assert isinstance(client_name, str)


def answers(*lines: bytes) -> list[dict[str, Any]]:
    written: list[bytes] = []
    answering = server.McpServer(NoDaemon(), written.append)  # type: ignore[arg-type]
    for line in lines:
        answering.take(line)
    answering.finish()
    return [json.loads(line) for line in written]


def check(name: str, value: dict[str, Any]) -> None:
    """It is what the schema says of that name, and nothing of it is unknown there."""
    # Generated from the schema file of the specification. Half a second to import, which only this process needs.
    import mcp_types._v2025_11_25 as official

    shown = getattr(official, name).model_validate(value).model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert shown == value


@given(st.binary() | JSON.map(json.dumps).map(str.encode) | FIELDS.map(json.dumps).map(str.encode))
def test_any_line_is_a_message_or_is_refused_by_the_schema(line: bytes) -> None:
    try:
        message = messages.parse(line)
    except MalformedMessage as error:
        check("JSONRPCErrorResponse", json.loads(error.answer))
    else:
        assert message is None or isinstance(message, ToolClientRequest | ToolClientNotice)


@given(FIELDS, st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "server/discover", "x"]))
def test_every_request_has_one_answer_by_the_schema(fields: dict[str, Any], method: str) -> None:
    request = {**fields, "jsonrpc": "2.0", "id": 7, "method": method}
    if method == "tools/call" and isinstance(fields.get("params"), dict):
        request["params"] = {**fields["params"], "name": "no_such_tool"}
    (answer,) = answers(json.dumps(request).encode())
    check("JSONRPCErrorResponse" if "error" in answer else "JSONRPCResultResponse", answer)
    assert answer["id"] == 7


def test_the_answers_of_the_handshake_are_by_the_schema() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = [("initialize", hello), ("ping", {}), ("tools/list", {}), ("tools/call", {"name": "guess"})]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        for number, (method, params) in enumerate(asked)
    ]
    lines.insert(1, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    results = [answer["result"] for answer in answers(*lines)]
    shapes = ("InitializeResult", "EmptyResult", "ListToolsResult", "CallToolResult")
    for shape, result in zip(shapes, results, strict=True):
        check(shape, result)
    assert results[0]["protocolVersion"] == "2025-11-25"
    assert [tool["name"] for tool in results[2]["tools"]] == list(tools.NAMES)


def test_progress_and_errors_are_by_the_schema() -> None:
    params = {"progressToken": "p", "progress": 1.0, "total": 30.0, "message": "waiting"}
    check("ProgressNotification", json.loads(messages.notification("notifications/progress", params)))
    check("JSONRPCErrorResponse", json.loads(messages.error(None, -32700, "no")))


@pytest.mark.parametrize(
    ("asked", "offered"),
    [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("2030-01-01", "2025-11-25"), (None, "2025-11-25")],
)
def test_the_protocol_is_the_clients_where_it_is_known(asked: str | None, offered: str) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": asked}})
    (answer,) = answers(line.encode())
    assert answer["result"]["protocolVersion"] == offered


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read() -> None:
    longest = server.MAX_LINE_BYTES
    refused: list[bytes] = []
    stream = io.BytesIO(b"x" * (longest + 5) + b"\n" + b"y" * (longest - 1) + b"\n\n  \nlast")
    lines = list(server.read_lines(stream, refused.append))
    assert [len(line) for line in lines] == [longest, 4]
    assert [json.loads(line)["error"]["code"] for line in refused] == [messages.INVALID_REQUEST]


def test_text_that_utf8_cannot_carry_goes_as_escapes() -> None:
    assert json.loads(messages.result(1, {"text": "\ud83d"}))["result"] == {"text": "\ud83d"}
