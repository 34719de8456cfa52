"""Every transport of the daemon: one call over NDJSON, CBOR, HTTP in both codecs, and WebSocket in both kinds of frame.

Each is spoken with a client nobody here wrote, where there is one. `call(...)` gives the whole JSON-RPC answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import cbor2
import httpx
from support.real_daemon import PATIENCE_S, Daemon, Wire
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect, unix_connect

CLIENT = {"name": "roads", "version": "1"}


class SingleCall(Protocol):
    """One way to ask. `token` None asks as the listener lets a stranger ask."""

    def __call__(
        self, daemon: Daemon, listener: str, token: str | None, method: str, params: Any
    ) -> dict[str, Any]: ...


def _path(daemon: Daemon, listener: str) -> Path:
    return daemon.socket if listener == "sessiond" else daemon.agent_socket


def _request(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _with_initialize(token: str | None, method: str, params: Any) -> list[dict[str, Any]]:
    """The messages of a connection that shows its token first."""
    first = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocol": 1, "client": CLIENT, "token": token},
    }
    return ([first] if token is not None else []) + [_request(method, params)]


def _pick(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer to the request; where the token was refused, that refusal."""
    refused = [answer for answer in answers if answer.get("id") == 0 and "error" in answer]
    return refused[0] if refused else next(answer for answer in answers if answer.get("id") == 1)


def ndjson(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    with Wire(_path(daemon, listener)) as wire:
        messages = _with_initialize(token, method, params)
        for message in messages:
            wire.send(message)
        answers: list[dict[str, Any]] = []
        while len(answers) < len(messages):
            answer = wire.receive()
            if "id" in answer:
                answers.append(answer)
        return _pick(answers)


def cbor(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(_path(daemon, listener)))
        messages = _with_initialize(token, method, params)
        sock.sendall(b"".join(cbor2.dumps(message) for message in messages))
        answers: list[dict[str, Any]] = []
        with sock.makefile("rb") as file:
            decoder = cbor2.CBORDecoder(file)
            while len(answers) < len(messages):
                answer = decoder.decode()
                if "id" in answer:
                    answers.append(answer)
        return _pick(answers)


def _http(daemon: Daemon, listener: str) -> tuple[httpx.Client, str]:
    # There is no TLS, and to read the certificates for it takes 50 ms of each client; nor is there a proxy.
    if listener == "tcp":
        client = httpx.Client(timeout=PATIENCE_S, verify=False, trust_env=False)
        return client, f"http://127.0.0.1:{daemon.port}"
    transport = httpx.HTTPTransport(uds=str(_path(daemon, listener)), verify=False)
    return httpx.Client(transport=transport, timeout=PATIENCE_S), "http://d"


def http_json(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    client, base = _http(daemon, listener)
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    with client:
        got = client.post(f"{base}/rpc", json=_request(method, params), headers=headers)
    return _answer_from_http(got.status_code, got.json())


def http_cbor(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    client, base = _http(daemon, listener)
    headers = {"Content-Type": "application/cbor"} | ({"Authorization": f"Bearer {token}"} if token is not None else {})
    with client:
        got = client.post(f"{base}/rpc", content=cbor2.dumps(_request(method, params)), headers=headers)
    is_cbor = got.headers["content-type"] == "application/cbor"
    return _answer_from_http(got.status_code, cbor2.loads(got.content) if is_cbor else got.json())


def _answer_from_http(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """A refusal before the call (401) has HTTP's own body; here it gets the shape of the others."""
    if "ok" in body:
        code = {401: -32001, 403: -32003}[status]
        return {"id": 1, "error": {"code": code, "message": body["error"]["message"], "data": body["error"]}}
    return body


def _websocket(daemon: Daemon, listener: str, token: str | None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    options: dict[str, Any] = {"additional_headers": headers, "open_timeout": PATIENCE_S, "compression": None}
    if listener == "tcp":
        return connect(f"ws://127.0.0.1:{daemon.port}/ws", **options)
    return unix_connect(str(_path(daemon, listener)), "ws://d/ws", **options)


def _over_websocket(
    daemon: Daemon, listener: str, token: str | None, frame: str | bytes, read: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    try:
        with _websocket(daemon, listener, token) as ws:
            ws.send(frame)
            while True:
                answer = read(ws.recv(PATIENCE_S))
                if "id" in answer:
                    return answer
    except InvalidStatus as refused:
        return _answer_from_http(refused.response.status_code, json.loads(refused.response.body or b"{}"))


def ws_text(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    return _over_websocket(daemon, listener, token, json.dumps(_request(method, params)), json.loads)


def ws_binary(daemon: Daemon, listener: str, token: str | None, method: str, params: Any) -> dict[str, Any]:
    return _over_websocket(daemon, listener, token, cbor2.dumps(_request(method, params)), cbor2.loads)


SINGLE_CALLS: dict[str, SingleCall] = {
    "ndjson": ndjson,
    "cbor": cbor,
    "http-json": http_json,
    "http-cbor": http_cbor,
    "ws-text": ws_text,
    "ws-binary": ws_binary,
}
