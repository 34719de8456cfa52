"""One connection shared by threads: calls out, the daemon's requests in. Whoever waits for an answer reads, if nobody
else does, so plain calls need no thread of their own. Ends with its connection. Knows nothing of reconnecting.
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
    """`lost` says how the connection ended, None while it stands."""

    def __init__(self, link: ClientLink, handlers: Mapping[str, Handler]) -> None:
        self.link = link
        self.lost: ClientError | None = None
        self._handlers = handlers
        self._sending = threading.Lock()
        self._turn = threading.Condition()  # guards what follows
        self._reading = False
        self._answers: dict[int, wire.CallResponse | None] = {}
        self._cancelled: set[int | str] = set()

    def call(
        self, method: str, params: dict[str, Any], timeout_s: float | None, cancellation: Cancellation | None = None
    ) -> Any:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._catch_up()
        request_id = self._send_request(method, params)
        try:
            if cancellation is not None:
                # The daemon answers a call that was called off; that answer ends the wait.
                cancellation.follow(lambda: self._call_off(request_id))
            answer = self._await(request_id, deadline)
        except CallTimeout:
            self._call_off(request_id)
            raise CallTimeout(f"sessiond did not answer {method} within {timeout_s:g} s") from None
        finally:
            if cancellation is not None:
                cancellation.follow(None)
            del self._answers[request_id]
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _catch_up(self) -> None:
        """Read what came while nobody did: the daemon's end may be among it."""
        with self._turn:
            while self.lost is None and not self._reading and self.link.has_news():
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
                self._lose(error)
                raise
        return request_id

    def _lose(self, error: ClientError) -> None:
        with self._turn:
            self.lost = self.lost or error
            self._turn.notify_all()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send(wire.notification(method, params))

    def read(self) -> None:
        """Answer the daemon's requests; raises ConnectionLost at the end of the connection."""
        self._await(None, None)

    def is_cancelled(self, request_id: int | str) -> bool:
        return request_id in self._cancelled or self.lost is not None

    def _call_off(self, request_id: int) -> None:
        with suppress(ConnectionLost):  # whoever waits for the answer hears of it
            self.notify("$/cancelRequest", {"id": request_id})

    def _send(self, data: bytes) -> None:
        with self._sending:
            self.link.send(data)

    def _await(self, request_id: int | None, deadline: float | None) -> wire.CallResponse:
        with self._turn:
            while True:
                answer = None if request_id is None else self._answers[request_id]
                if answer is not None:
                    return answer
                if self.lost is not None:
                    raise ConnectionLost(str(self.lost))
                if not self._reading:
                    self._read_once(deadline)
                elif deadline is None:
                    self._turn.wait()
                elif not self._turn.wait(deadline - time.monotonic()):
                    raise CallTimeout("no answer")

    def _read_once(self, deadline: float | None) -> None:
        """Called with the turn held; gives it away while it reads."""
        messages: list[wire.Incoming] = []
        lost: ClientError | None = None
        self._reading = True
        self._turn.release()
        try:
            messages = self.link.receive(deadline)
        except CallTimeout:
            raise
        except ClientError as error:
            lost = error
        finally:
            self._turn.acquire()
            self._reading = False
            self._turn.notify_all()
        self.lost = self.lost or lost
        for message in messages:
            self._sort(message)

    def _sort(self, message: wire.Incoming) -> None:
        if isinstance(message, wire.CallResponse):
            if message.id in self._answers:
                self._answers[message.id] = message
            elif message.id is None and message.error is not None:
                # The daemon refuses the connection as a whole (a frame too large, say) and closes it.
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
        except Exception as error:  # noqa: BLE001  # the handler is the library user's: whatever it is, the daemon hears
            data = wire.refusal(request.id, agent.handler_failed(request.method, error))
        finally:
            self._cancelled.discard(request.id)
        with suppress(ConnectionLost):  # whoever reads has seen it too
            self._send(data)
