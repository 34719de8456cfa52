"""A stand-in for the daemon, in threads, on a real socket: answers by a table, pushes events, drops connections."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S

Answer = Callable[[dict[str, Any], "Connection"], Any]


class Refusal(Exception):
    """Raised by an answer: goes out as a JSON-RPC error."""

    def __init__(self, code: int, slug: str, message: str, /, **data: Any) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": {"type": slug, **data}}


class Connection:
    def __init__(self, daemon: FakeDaemon, connection: socket.socket) -> None:
        self._daemon = daemon
        self._socket = connection
        self._next_id = 1000
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}

    def send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            self._socket.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def push(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> queue.Queue[dict[str, Any]]:
        """A request to the client; its answer comes out of the queue."""
        self._next_id += 1
        answer = self._waiting[self._next_id] = queue.Queue()
        self.send({"id": self._next_id, "method": method, "params": params})
        return answer

    def call_off(self) -> None:
        self.push("$/cancelRequest", id=self._next_id)

    def drop(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        with self._socket, suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "method" in message:
                    self._answer(message)
                else:
                    self._waiting.pop(message["id"]).put(message)
        self._daemon.when_closed()

    def _answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params", {})
        self._daemon.calls.put((method, params))
        if "id" not in message:
            return
        answer = self._daemon.answers.get(method)
        try:
            if answer is None:
                raise Refusal(-32601, "method_not_found", f"no such method: {method}")
            result = answer(params, self)
        except Refusal as refusal:
            self.send({"id": message["id"], "error": refusal.error})
        else:
            if result is not NO_ANSWER:
                self.send({"id": message["id"], "result": result})


NO_ANSWER = object()


class FakeDaemon:
    """`answers[method] = lambda params, connection: result`; `calls` is a queue of what was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {"initialize": lambda _params, _connection: {"caller": {"scopes": ["admin"]}}}
        self.calls: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.connections: list[Connection] = []
        self.when_closed: Callable[[], object] = lambda: None
        self.start()

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """As a daemon that was killed: no socket, no connections."""
        os.unlink(self.path)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        for connection in self.connections:
            connection.drop()
        self.connections.clear()

    def asked(self, method: str) -> dict[str, Any]:
        """The params of the next call of `method`; other calls before it are passed over."""
        while True:
            name, params = self.calls.get(timeout=PATIENCE_S)
            if name == method:
                return params

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            connection = Connection(self, accepted)
            self.connections.append(connection)
            threading.Thread(target=connection.run, daemon=True).start()
