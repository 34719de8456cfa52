"""Who is told by `[[notify]]` in tests: an HTTP server that keeps what it gets, and agents that ask."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from support.patience import PATIENCE_S
from support.real_daemon import Daemon, RpcFailure, Wire

OPTIONS = [
    {"id": "yes", "label": "Yes, once", "kind": "allow_once"},
    {"id": "no", "label": "No", "kind": "reject_once"},
]


class Arrival(NamedTuple):
    """One POST. `at` is when it was read, by `time.perf_counter`."""

    at: float
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


class NotifiedServer:
    """A server on loopback that acknowledges every POST with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.arrivals: list[Arrival] = []
        self._changed = threading.Condition()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def note(self, arrival: Arrival) -> None:
        with self._changed:
            self.arrivals.append(arrival)
            self._changed.notify_all()

    def wait_for(self, count: int, patience_s: float = PATIENCE_S) -> list[Arrival]:
        """The arrivals, as soon as there are so many; fewer if they do not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.arrivals) >= count, patience_s)
            return list(self.arrivals)


class _Handler(BaseHTTPRequestHandler):
    owner: NotifiedServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.owner.note(Arrival(time.perf_counter(), self.path, dict(self.headers), content))
        self.send_response(self.owner.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class AskingAgent:
    """An attached agent, which asks when the test says so. `start(key)` starts a run of it."""

    def __init__(self, daemon: Daemon, agent_id: str) -> None:
        self._daemon, self._agent_id = daemon, agent_id
        self.wire: Wire = daemon.connect()
        self._next = 1000
        try:
            self.wire.call("agents.attach", agentId=agent_id)
        except BaseException:
            self.wire.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def start(self, key: str, message: str = "x") -> dict[str, Any]:
        """The `run.start` of a run of this session."""
        self._daemon.call("chat.send", sessionKey=key, message=message)
        return self.receive("run.start")

    def receive(self, method: str) -> dict[str, Any]:
        """The next request of this method."""
        while True:
            request: dict[str, Any] = self.wire.events.pop(0) if self.wire.events else self.wire.receive()
            if request.get("method") == method:
                return request

    def ask(self, run: dict[str, Any], **more: Any) -> int:
        """Ask in a run, without waiting for the answer; the id of the call."""
        self._next += 1
        params = {"runId": run["params"]["runId"], "title": "May I?", "options": OPTIONS, **more}
        self.wire.send({"jsonrpc": "2.0", "id": self._next, "method": "agents.ask", "params": params})
        return self._next

    def wait_for_answer(self, call: int) -> dict[str, Any]:
        """The answer to a call of `ask`."""
        while True:
            message = self.wire.receive()
            if message.get("id") == call and "error" in message:
                raise RpcFailure(message["error"])
            if message.get("id") == call and "method" not in message:
                result: dict[str, Any] = message["result"]
                return result
            self.wire.events.append(message)

    def end(self, run: dict[str, Any], **outcome: Any) -> None:
        """End a run."""
        self.wire.send({"jsonrpc": "2.0", "id": run["id"], "result": {"reply": "done", **outcome}})
