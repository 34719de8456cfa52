"""Requests from the daemon to a client (`run.start`, `channel.deliver`): ids, waiting, answers.

Knows messages; knows neither connections nor methods.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import trio
from msgspec import Raw

from sessiond.errors import SessiondError, reason_of_reader
from sessiond.model.lax import decoder_of
from sessiond.rpc.codecs import CodecName
from sessiond.rpc.messages import ABSENT, Envelope, MessageError, encode_call, parse
from sessiond.rpc.salvage import salvage
from sessiond.rpc.sending import PeerGone
from sessiond.tasks import run_off_loop


class PeerNotReached(PeerGone):
    """The connection ended before the other side read the request, so that nothing was done about it."""


class RemoteError(Exception):
    """The other side answered a request of the daemon with an error, or with an unreadable answer (code 0)."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class _ErrorMember(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class _AwaitedAnswer:
    __slots__ = ("answer", "done", "end", "unread", "unreadable")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Envelope | None = None
        self.unreadable = ""
        self.end = 0
        self.unread = False


def _always(_end: int) -> bool:
    return True


class OutgoingRequests:
    """The requests of one connection that wait for an answer.

    `send` queues JSON text without waiting and returns the position of its end in the stream of sent bytes; `is_broken`
    says afterwards whether the connection was found broken.
    """

    def __init__(self, send: Callable[[bytes], int], is_broken: Callable[[], bool]) -> None:
        self._send, self._is_broken = send, is_broken
        self._awaited: dict[int, _AwaitedAnswer] = {}
        self._ids = count(1)
        self._ended = False

    async def ask(
        self,
        method: str,
        params: Any,
        timeout: float | None,
        result_type: Any,
        withdraws: Callable[[], bool] | None = None,
    ) -> Any:
        """See `Peer.request`."""
        if self._ended or self._is_broken():
            raise PeerNotReached("The connection is gone.")
        request_id = next(self._ids)
        awaited = self._awaited[request_id] = _AwaitedAnswer()
        awaited.end = self._send(encode_call(method, params, request_id))
        try:
            if self._is_broken():
                raise PeerNotReached("The connection is gone.")
            with trio.fail_after(float("inf") if timeout is None else timeout):
                await awaited.done.wait()
        finally:
            del self._awaited[request_id]
            if not awaited.done.is_set() and (withdraws is None or withdraws()):
                self._send(encode_call("$/cancelRequest", {"id": request_id}))
        if awaited.unreadable:
            raise RemoteError(0, f"The answer cannot be read: {awaited.unreadable}")
        if awaited.answer is None and awaited.unread:
            raise PeerNotReached("The connection closed before the request was read.")
        if awaited.answer is None:
            raise PeerGone("The connection closed before the answer came.")
        answer = awaited.answer
        size = len(memoryview(answer.result if answer.error is ABSENT else answer.error))
        return await run_off_loop(size, _result_of, answer, result_type)

    @property
    def has_waiting(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._awaited)

    def fail(self, request_id: int, reason: str) -> None:
        """End the wait of a request whose answer cannot be read."""
        awaited = self._awaited.get(request_id)
        if awaited is not None and not awaited.done.is_set():
            awaited.unreadable = reason
            awaited.done.set()

    def settle(self, answer: Envelope) -> None:
        """Hand an answer to its request; one for which nobody waits is ignored."""
        awaited = self._awaited.get(answer.id) if isinstance(answer.id, int) else None
        if awaited is not None and not awaited.done.is_set():
            awaited.answer = answer
            awaited.done.set()

    def salvage(self, frame: bytes, error: SessiondError, codec: CodecName, max_nesting: int) -> bool:
        """Whether a frame that was refused with `error` holds an answer that could be repaired and was handed over.

        An answer that could not be repaired ends the wait of its request.
        """
        if not self.has_waiting:
            return False
        mended = False
        for answer in salvage(frame, codec):
            try:
                if answer.text is not None:
                    self.settle(parse(answer.text, max_nesting))
                    mended = True
                    continue
            except MessageError as bad:
                error = bad.error
            self.fail(answer.request_id, error.message)
        return mended

    def end(self, may_have_read: Callable[[int], bool] = _always) -> None:
        """End every wait: no answer will come. `may_have_read(end)`: whether the request that ends there was read."""
        self._ended = True
        for awaited in self._awaited.values():
            awaited.unread = awaited.unread or not may_have_read(awaited.end)
            awaited.done.set()


def _result_of(answer: Envelope, result_type: Any) -> Any:
    try:
        if answer.error is not ABSENT:
            error = decoder_of(_ErrorMember).decode(answer.error)
            raise RemoteError(error.code, error.message, error.data)
        if result_type is Raw:
            return answer.result.copy()
        return decoder_of(result_type).decode(answer.result)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(0, f"The answer is not what was asked for: {reason_of_reader(error)}.") from None
