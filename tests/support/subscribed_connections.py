"""Subscriptions over every transport, each with a third-party client if there is one.

NDJSON with jsonrpcclient, CBOR with cbor2, WebSocket text and binary with websockets. `call` returns the result, and
`event` the next notification; those that come before an answer are kept. Server-Sent Events have curl.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import cbor2
import jsonrpcclient
from support.real_daemon import PATIENCE_S, Daemon
from websockets.sync.client import unix_connect

Event = tuple[str, dict[str, Any]]


class Refused(Exception):
    """A JSON-RPC error; `error` is the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


class SubscribedConnection(ABC):
    """One connection; with a token it is introduced first, and comes to agent.sock."""

    def __init__(self, daemon: Daemon, token: str | None = None) -> None:
        self.path = str(daemon.agent_socket if token is not None else daemon.socket)
        self.events: list[Event] = []
        self._ids = itertools.count(1)
        self.open(token)
        if token is not None:
            self.call("initialize", protocol=1, client={"name": "hearing", "version": "1"}, token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def open(self, token: str | None) -> None: ...
    @abstractmethod
    def close(self) -> None: ...
    @abstractmethod
    def send(self, message: dict[str, Any]) -> None: ...
    @abstractmethod
    def receive(self) -> dict[str, Any]: ...

    def call(self, method: str, /, **params: Any) -> Any:
        """The result of one request; Refused where it is an error."""
        number = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            message = self.receive()
            if message.get("id") == number:
                if "error" in message:
                    raise Refused(message["error"])
                return message["result"]
            self.events.append((message["method"], message["params"]))

    def event(self) -> Event:
        """The next notification."""
        if self.events:
            return self.events.pop(0)
        message = self.receive()
        return message["method"], message["params"]

    def next_texts(self, count: int) -> list[str]:
        """The texts of the next messages, without other events."""
        texts: list[str] = []
        while len(texts) < count:
            method, params = self.event()
            if method == "session.message":
                texts.append(params["message"]["content"])
        return texts


class _Socket(SubscribedConnection):
    def open(self, token: str | None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(self.path)
        self.file = self.socket.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class Ndjson(_Socket):
    """Requests and answers by jsonrpcclient."""

    def call(self, method: str, /, **params: Any) -> Any:
        request = jsonrpcclient.request_json(method, params=params)
        self.socket.sendall(request.encode() + b"\n")
        number = json.loads(request)["id"]
        while True:
            message = self.receive()
            if "method" in message:
                self.events.append((message["method"], message["params"]))
                continue
            match jsonrpcclient.parse(message):
                case jsonrpcclient.Ok(result, of) if of == number:
                    return result
                case jsonrpcclient.Error(code, text, data, _):
                    raise Refused({"code": code, "message": text, "data": data})

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self.file.readline()
        if not line:
            raise ConnectionError("the daemon closed the connection")
        message: dict[str, Any] = json.loads(line)
        return message


class Cbor(_Socket):
    def open(self, token: str | None) -> None:
        super().open(token)
        self.decoder = cbor2.CBORDecoder(self.file)

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(cbor2.dumps(message))

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = self.decoder.decode()
        return message


class _WebSocket(SubscribedConnection):
    def open(self, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._stack = ExitStack()
        self.socket = self._stack.enter_context(
            unix_connect(self.path, "ws://daemon/ws", additional_headers=headers, open_timeout=PATIENCE_S)
        )

    def close(self) -> None:
        self._stack.close()


class WsText(_WebSocket):
    def send(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message))

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(PATIENCE_S))
        return message


class WsBinary(_WebSocket):
    def send(self, message: dict[str, Any]) -> None:
        self.socket.send(cbor2.dumps(message))

    def receive(self) -> dict[str, Any]:
        frame = self.socket.recv(PATIENCE_S)
        assert isinstance(frame, bytes)
        message: dict[str, Any] = cbor2.loads(frame)
        return message


SUBSCRIBED_CONNECTIONS: dict[str, type[SubscribedConnection]] = {
    "ndjson": Ndjson,
    "cbor": Cbor,
    "ws-text": WsText,
    "ws-binary": WsBinary,
}


class Curl:
    """`curl -N` on an event stream: `next` gives its name, id and data."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def next(self) -> tuple[str, str | None, dict[str, Any]]:
        """The next event; comments are skipped."""
        assert self._process.stdout is not None
        fields: dict[str, str] = {}
        for line in self._process.stdout:
            if line == "\n" and fields:
                return fields["event"], fields.get("id"), json.loads(fields["data"])
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
        raise ConnectionError(f"the stream ended with {fields}")


@contextmanager
def curl(daemon: Daemon, path: str, *headers: str, token: str | None = None) -> Iterator[Curl]:
    """An event stream, read by curl."""
    given = [*headers, *([f"Authorization: Bearer {token}"] if token is not None else [])]
    listener = daemon.agent_socket if token is not None else daemon.socket
    command = ["curl", "-sN", "--unix-socket", str(listener), *(part for header in given for part in ("-H", header))]
    process = subprocess.Popen([*command, f"http://daemon{path}"], stdout=subprocess.PIPE, text=True)
    try:
        yield Curl(process)
    finally:
        process.kill()
        process.communicate()
