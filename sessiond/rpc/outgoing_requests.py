"""Requests that the daemon makes of a client (`run.start`, `channel.deliver`): ids, waiting, answers.

Knows messages; knows neither connections nor what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import trio
from msgspec import Raw

from sessiond.errors import SessiondError, reason_of_reader
from sessiond.rpc.codecs import CodecName
from sessiond.rpc.messages import ABSENT, Envelope, MessageError, encode_call, parse
from sessiond.rpc.salvage import salvage
from sessiond.rpc.sending import PeerGone


class PeerNotReached(PeerGone):
    """The connection ended before the other side read the request: it knows nothing of it."""


class RemoteError(Exception):
    """The other side answered a request of ours with an error, or with something that is no answer (code 0)."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class _ErrorMember(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class _Asked:
    __slots__ = ("answer", "done", "end", "unread", "unreadable")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Envelope | None = None
        self.unreadable = ""
        self.end = 0
        self.unread = False


def _surely(_end: int) -> bool:
    return True


class OutgoingRequests:
    """The requests of one connection that wait for an answer. `send` takes JSON text, never waits, and gives where it
    ends among all that was sent; `is_broken` says afterwards whether the connection was found broken by it.
    """

    def __init__(self, send: Callable[[bytes], int], is_broken: Callable[[], bool]) -> None:
        self._send, self._is_broken = send, is_broken
        self._asked: dict[int, _Asked] = {}
        self._ids = count(1)
        self._ended = False

    async def ask(self, method: str, params: Any, timeout: float | None, result_type: Any) -> Any:
        """See `Peer.request`."""
        if self._ended or self._is_broken():
            raise PeerNotReached("The connection is gone.")
        request_id = next(self._ids)
        asked = self._asked[request_id] = _Asked()
        asked.end = self._send(encode_call(method, params, request_id))
        try:
            if self._is_broken():
                raise PeerNotReached("The connection is gone.")
            with trio.fail_after(float("inf") if timeout is None else timeout):
                await asked.done.wait()
        finally:
            del self._asked[request_id]
            if not asked.done.is_set():
                self._send(encode_call("$/cancelRequest", {"id": request_id}))
        if asked.unreadable:
            raise RemoteError(0, f"The answer cannot be read: {asked.unreadable}")
        if asked.answer is None and asked.unread:
            raise PeerNotReached("The connection closed before the request was read.")
        if asked.answer is None:
            raise PeerGone("The connection closed before the answer came.")
        return _result_of(asked.answer, result_type)

    @property
    def waits(self) -> bool:
        """Whether an answer is due."""
        return bool(self._asked)

    def refuse(self, request_id: int, reason: str) -> None:
        """An answer has come that cannot be read."""
        asked = self._asked.get(request_id)
        if asked is not None and not asked.done.is_set():
            asked.unreadable = reason
            asked.done.set()

    def settle(self, answer: Envelope) -> None:
        """An answer has come in. One that nobody waits for any more is no news."""
        asked = self._asked.get(answer.id) if isinstance(answer.id, int) else None
        if asked is not None and not asked.done.is_set():
            asked.answer = answer
            asked.done.set()

    def salvage(self, frame: bytes, error: SessiondError, codec: CodecName, max_nesting: int) -> bool:
        """Whether a frame that was refused with `error` is an answer to a request of ours and could be mended.

        One that could not be mended ends the wait for it.
        """
        if not self.waits:
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
            self.refuse(answer.request_id, error.message)
        return mended

    def end(self, may_have_read: Callable[[int], bool] = _surely) -> None:
        """No answer will come any more. `may_have_read` says of what ends there whether the other side read it."""
        self._ended = True
        for asked in self._asked.values():
            asked.unread = asked.unread or not may_have_read(asked.end)
            asked.done.set()


def _result_of(answer: Envelope, result_type: Any) -> Any:
    try:
        if answer.error is not ABSENT:
            error = msgspec.json.decode(answer.error, type=_ErrorMember)
            raise RemoteError(error.code, error.message, error.data)
        if result_type is Raw:
            return answer.result.copy()
        return msgspec.json.decode(answer.result, type=result_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(0, f"The answer is not what was asked for: {reason_of_reader(error)}.") from None
