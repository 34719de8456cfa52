"""The answers of a batch request (JSON-RPC 2.0, section 6), collected until the last one is there.

Knows sizes and a budget share. Does not know methods or connections.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessiond.errors import LimitExceeded
from sessiond.rpc.answer_pieces import Answer, AnswerText, json_length
from sessiond.rpc.budget import Share
from sessiond.rpc.messages import RequestId, encode_failure

Reply = Callable[[bytes | AnswerText], object]
# The size of an error answer. Answers of this size are sent even beyond the limit, or the client would wait for ever.
_ALWAYS_FITS_BYTES = 1024


class Batch:
    """Collects the answers of a batch, in any order, and sends them as one message when the last is there.

    Together they have at most `max_bytes`: an answer that does not fit is replaced by an error, and `is_full` is set.
    Members with large answers hold `large_answer_lock`, one at a time. `share` is the budget share of all of them.
    """

    def __init__(self, size: int, send: Callable[[Answer, Share | None], object], max_bytes: int) -> None:
        self.large_answer_lock = trio.Lock()
        self.share: Share | None = None
        self.is_full = False
        self._size = self._missing = size
        self._answers: list[bytes | AnswerText] = []
        self._send = send
        self._max_bytes = max_bytes
        self._bytes = 0

    def reply_to(self, request_id: RequestId) -> Reply:
        """The function that takes the answer to the member with this id."""

        def reply(text: bytes | AnswerText) -> None:
            size = json_length(text)
            if self._bytes + size > self._max_bytes and size > _ALWAYS_FITS_BYTES:
                self.is_full = True
                text = encode_failure(request_id, self.too_large_error())
            self._bytes += json_length(text)
            self._answers.append(text)
            self.skip_answer()

        return reply

    def max_answer_bytes(self, answer_bytes: int) -> int:
        """An upper bound for all answers together, where each has at most `answer_bytes`."""
        return min(answer_bytes * self._size, self._max_bytes)

    def too_large_error(self) -> LimitExceeded:
        """The error for a member whose answer does not fit any more."""
        return LimitExceeded(
            f"The answers of a batch have at most {self._max_bytes} bytes together; ask for this one alone.",
            limit="batchAnswers",
            value=self._max_bytes,
        )

    def abandon(self) -> None:
        """The connection ended before every member was accepted: drop the answers and free their budget share."""
        if self.share is not None:
            self.share.release()

    def skip_answer(self) -> None:
        """One member needs no answer (a notification, or an answer of the client's); the last one sends the batch."""
        self._missing -= 1
        if not self._missing:
            self._send(self._answers, self.share)
