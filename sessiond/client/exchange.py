"""One connection shared by threads: calls of the client, and requests of the daemon.

A thread that waits for an answer reads from the connection unless another one does, so that plain calls need no reader
thread. Ends with its connection. Knows nothing of reconnecting.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from sessiond.client import agent, wire
from sessiond.client.errors import CallTimeout, ClientError, ConnectionLost, NotSent, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sessiond.client.cancellation import Cancellation
    from sessiond.client.link import ClientLink

    Handler = Callable[["Exchange", wire.DaemonRequest], object]


class Exchange:
    """The calls of one connection. `lost` is the error with which it ended, None while it is open."""

    def __init__(self, link: ClientLink, handlers: Mapping[str, Handler]) -> None:
        self.link = link
        self.lost: ClientError | None = None
        self._handlers = handlers
        self._sending = threading.Lock()
        self._condition = threading.Condition()  # guards the attributes below
        self._reading = False
        self._answers: dict[int, wire.CallResponse | None] = {}
        self._cancelled: set[int | str] = set()

    def call(
        self, method: str, params: dict[str, Any], timeout_s: float | None, cancellation: Cancellation | None = None
    ) -> Any:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._read_pending()
        request_id = self._send_request(method, params)
        try:
            if cancellation is not None:
                # The daemon answers a cancelled call too; that answer ends the wait.
                cancellation.on_cancel(lambda: self._send_cancel(request_id))
            answer = self._wait_answer(request_id, deadline)
        except CallTimeout:
            self._send_cancel(request_id)
            raise CallTimeout(f"sessiond did not answer {method} within {timeout_s:g} s") from None
        finally:
            if cancellation is not None:
                cancellation.on_cancel(None)
            del self._answers[request_id]
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _read_pending(self) -> None:
        """Read what was received while no thread was reading; the end of the connection may be noticed here."""
        with self._condition:
            while self.lost is None and not self._reading and self.link.has_data():
                self._read_once(None)
            if self.lost is not None:
                raise NotSent(str(self.lost))

    def _send_request(self, method: str, params: dict[str, Any]) -> int:
        with self._sending:
            request_id, data = self.link.wire.request(method, params)
            self._answers[request_id] = None
            try:
                self.link.send(data)
            except NotSent as error:
                del self._answers[request_id]
                self._note_loss(error)
                raise
        return request_id

    def _note_loss(self, error: ClientError) -> None:
        with self._condition:
            self.lost = self.lost or error
            self._condition.notify_all()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send(wire.notification(method, params))

    def read(self) -> None:
        """Answer the daemon's requests; raises ConnectionLost at the end of the connection."""
        self._wait_answer(None, None)

    def is_cancelled(self, request_id: int | str) -> bool:
        return request_id in self._cancelled or self.lost is not None

    def _send_cancel(self, request_id: int) -> None:
        with suppress(ConnectionLost):  # the thread that waits for the answer gets it
            self.notify("$/cancelRequest", {"id": request_id})

    def _send(self, data: bytes) -> None:
        with self._sending:
            self.link.send(data)

    def _wait_answer(self, request_id: int | None, deadline: float | None) -> wire.CallResponse:
        with self._condition:
            while True:
                answer = None if request_id is None else self._answers[request_id]
                if answer is not None:
                    return answer
                if self.lost is not None:
                    raise ConnectionLost(str(self.lost))
                if not self._reading:
                    self._read_once(deadline)
                elif deadline is None:
                    self._condition.wait()
                elif not self._condition.wait(deadline - time.monotonic()):
                    raise CallTimeout("no answer")

    def _read_once(self, deadline: float | None) -> None:
        """Receive and handle messages. Called with the condition held, which is released while receiving."""
        messages: list[wire.Incoming] = []
        lost: ClientError | None = None
        self._reading = True
        self._condition.release()
        try:
            messages = self.link.receive(deadline)
        except CallTimeout:
            raise
        except ClientError as error:
            lost = error
        finally:
            self._condition.acquire()
            self._reading = False
            self._condition.notify_all()
        self.lost = self.lost or lost
        for message in messages:
            self._route(message)

    def _route(self, message: wire.Incoming) -> None:
        if isinstance(message, wire.CallResponse):
            if message.id in self._answers:
                self._answers[message.id] = message
            elif message.id is None and message.error is not None:
                # An error without an id concerns the whole connection (a frame too large, say), which is then closed.
                waiting = [request_id for request_id, answer in self._answers.items() if answer is None]
                if len(waiting) == 1 and message.error.slug == "limit_exceeded":
                    self._answers[waiting[0]] = message  # nothing else can have been too large
                self.lost = ConnectionLost(message.error.message)
        elif isinstance(message, wire.DaemonRequest):
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        elif message.name == "$/cancelRequest":
            self._cancelled.add(message.get("id"))

    def _answer(self, request: wire.DaemonRequest) -> None:
        handler = self._handlers.get(request.method)
        try:
            if handler is None:
                raise wire.no_such_method(request.method)
            result = handler(self, request)
            if request.id in self._cancelled:
                raise agent.call_cancelled_error()
            data = wire.answer(request.id, result)
        except RpcError as error:
            data = wire.refusal(request.id, error)
        except Exception as error:  # noqa: BLE001  # any error of a user's handler is answered
            data = wire.refusal(request.id, agent.handler_failed(request.method, error))
        finally:
            self._cancelled.discard(request.id)
        with suppress(ConnectionLost):  # the reading thread gets it too
            self._send(data)
