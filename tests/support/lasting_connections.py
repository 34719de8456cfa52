"""Connections that stay: many calls over one, on every transport. `single_calls.py` makes a new one for each call.

`ask(calls)` sends all of them before it reads, where the transport allows it, and gives the whole JSON-RPC answers in
the order of the calls. A connection that the daemon refuses answers each call with that refusal.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol, Self

import cbor2
import httpx
from support.real_daemon import PATIENCE_S, Daemon
from support.single_calls import CLIENT
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect, unix_connect

Call = tuple[str, dict[str, Any]]
Answer = dict[str, Any]

# What the body of a refused HTTP request comes to, in the codes of JSON-RPC.
CODES = {401: -32001, 403: -32003, 404: -32002, 422: -32006}


class LastingConnection(Protocol):
    """One connection of one caller."""

    def __init__(self, daemon: Daemon, listener: str, token: str | None) -> None: ...
    def ask(self, calls: Sequence[Call]) -> list[Answer]: ...
    def close(self) -> None: ...


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _request(number: int, call: Call) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": call[0], "params": call[1]}


def _in_order(answers: dict[int, Answer], count: int) -> list[Answer]:
    return [answers[number] for number in range(1, count + 1)]


class _Stream:
    """NDJSON and CBOR on a Unix socket: `initialize` with the token first, whatever comes of it."""

    def __init__(self, daemon: Daemon, listener: str, token: str | None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(daemon.socket if listener == "sessiond" else daemon.agent_socket))
        self._file = self.socket.makefile("rb")
        if token is not None:
            self.introduced = self.ask([("initialize", {"protocol": 1, "client": CLIENT, "token": token})])

    def encode(self, message: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def decode(self) -> dict[str, Any]:
        raise NotImplementedError

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        self.socket.sendall(b"".join(self.encode(_request(number, call)) for number, call in enumerate(calls, 1)))
        answers: dict[int, Answer] = {}
        while len(answers) < len(calls):
            message = self.decode()
            if "method" not in message:
                answers[message["id"]] = message
        return _in_order(answers, len(calls))

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ndjson(_Stream):
    def encode(self, message: dict[str, Any]) -> bytes:
        return json.dumps(message).encode() + b"\n"

    def decode(self) -> dict[str, Any]:
        line = self._file.readline()
        assert line, "the daemon closed the connection"
        message: dict[str, Any] = json.loads(line)
        return message


class Cbor(_Stream):
    def encode(self, message: dict[str, Any]) -> bytes:
        return cbor2.dumps(message)

    def decode(self) -> dict[str, Any]:
        message: dict[str, Any] = cbor2.CBORDecoder(self._file, read_size=1).decode()
        return message


class HttpJson:
    """One kept-alive connection; each call is a `POST /rpc`, and its status has to be that of the error table."""

    kind = "application/json"

    def __init__(self, daemon: Daemon, listener: str, token: str | None) -> None:
        headers = {"Content-Type": self.kind}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if listener == "tcp":
            self.client = httpx.Client(
                base_url=f"http://127.0.0.1:{daemon.port}",
                headers=headers,
                timeout=PATIENCE_S,
                verify=False,
                trust_env=False,
            )
        else:
            path = daemon.socket if listener == "sessiond" else daemon.agent_socket
            transport = httpx.HTTPTransport(uds=str(path), verify=False)
            self.client = httpx.Client(
                base_url="http://d", transport=transport, headers=headers, timeout=PATIENCE_S, trust_env=False
            )

    def encode(self, message: dict[str, Any]) -> bytes:
        return json.dumps(message).encode()

    def decode(self, got: httpx.Response) -> Answer:
        answer: Answer = got.json()
        return answer

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        return [self._one(call) for call in calls]

    def _one(self, call: Call) -> Answer:
        got = self.client.post("/rpc", content=self.encode(_request(1, call)))
        answer = self.decode(got)
        if "jsonrpc" not in answer:
            return refusal_answer(got.status_code, answer)
        return {**answer, "status": got.status_code}

    def close(self) -> None:
        self.client.close()


class HttpCbor(HttpJson):
    kind = "application/cbor"

    def encode(self, message: dict[str, Any]) -> bytes:
        return cbor2.dumps(message)

    def decode(self, got: httpx.Response) -> Answer:
        answer: Answer = cbor2.loads(got.content) if got.headers["content-type"] == self.kind else got.json()
        return answer


def refusal_answer(status: int, body: dict[str, Any]) -> Answer:
    """HTTP's own body of a refusal, in the shape of the others."""
    error = {"code": CODES[status], "message": body["error"]["message"], "data": body["error"]}
    return {"id": 1, "error": error, "status": status}


class WsText:
    """A WebSocket; where the handshake is refused, every call has that answer."""

    def __init__(self, daemon: Daemon, listener: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        options: dict[str, Any] = {"additional_headers": headers, "open_timeout": PATIENCE_S, "compression": None}
        self._refusal: Answer | None = None
        self._stack = ExitStack()
        try:
            if listener == "tcp":
                opened = connect(f"ws://127.0.0.1:{daemon.port}/ws", **options)
            else:
                path = daemon.socket if listener == "sessiond" else daemon.agent_socket
                opened = unix_connect(str(path), "ws://d/ws", **options)
            self._ws = self._stack.enter_context(opened)
        except InvalidStatus as error:
            self._refusal = refusal_answer(error.response.status_code, json.loads(error.response.body or b"{}"))

    def encode(self, message: dict[str, Any]) -> str | bytes:
        return json.dumps(message)

    def decode(self, frame: str | bytes) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(frame)
        return message

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        if self._refusal is not None:
            return [self._refusal] * len(calls)
        for number, call in enumerate(calls, 1):
            self._ws.send(self.encode(_request(number, call)))
        answers: dict[int, Answer] = {}
        while len(answers) < len(calls):
            message = self.decode(self._ws.recv(PATIENCE_S))
            if "method" not in message:
                answers[message["id"]] = message
        return _in_order(answers, len(calls))

    def close(self) -> None:
        self._stack.close()


class WsBinary(WsText):
    def encode(self, message: dict[str, Any]) -> str | bytes:
        return cbor2.dumps(message)

    def decode(self, frame: str | bytes) -> dict[str, Any]:
        assert isinstance(frame, bytes)
        message: dict[str, Any] = cbor2.loads(frame)
        return message


LASTING_CONNECTIONS: dict[str, type[LastingConnection]] = {
    "ndjson": Ndjson,
    "cbor": Cbor,
    "http-json": HttpJson,
    "http-cbor": HttpCbor,
    "ws-text": WsText,
    "ws-binary": WsBinary,
}

# On TCP only HTTP and WebSocket are spoken.
LISTENERS_AND_TRANSPORTS = [
    (listener, road)
    for listener in ("sessiond", "agent", "tcp")
    for road in LASTING_CONNECTIONS
    if listener != "tcp" or road not in ("ndjson", "cbor")
]
