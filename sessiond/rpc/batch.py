"""The answers of a batch request (JSON-RPC 2.0, section 6), collected until the last one is there.

Knows sizes and a budget share. Does not know methods or connections.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessiond.errors import LimitExceeded
from sessiond.rpc.answer_pieces import Answer, Text, length
from sessiond.rpc.budget import Share
from sessiond.rpc.messages import RequestId, encode_failure

Reply = Callable[[bytes | Text], object]
# The size of an error answer. Answers of this size are sent even beyond the limit, or the client would wait for ever.
_ALWAYS_FITS_BYTES = 1024


class Batch:
    """Collects the answers of a batch, in any order, and sends them as one when the last is there.

    They have at most `max_bytes` together: what does not fit is answered with an error, and `is_full` is set. `turn` is
    for members whose answers are large: one at a time. `share` is what they have of the budget.
    """

    def __init__(self, size: int, send: Callable[[Answer, Share | None], object], max_bytes: int) -> None:
        self.turn = trio.Lock()
        self.share: Share | None = None
        self.is_full = False
        self._size = self._missing = size
        self._answers: list[bytes | Text] = []
        self._send = send
        self._max_bytes = max_bytes
        self._bytes = 0

    def reply_to(self, request_id: RequestId) -> Reply:
        """How the member with this id is answered."""

        def reply(text: bytes | Text) -> None:
            size = length(text)
            if self._bytes + size > self._max_bytes and size > _ALWAYS_FITS_BYTES:
                self.is_full = True
                text = encode_failure(request_id, self.too_large())
            self._bytes += length(text)
            self._answers.append(text)
            self.item_without_answer()

        return reply

    def most_bytes(self, answer_bytes: int) -> int:
        """How much the answers can be together, where one has so many bytes."""
        return min(answer_bytes * self._size, self._max_bytes)

    def too_large(self) -> LimitExceeded:
        """The error for what does not fit any more."""
        return LimitExceeded(
            f"The answers of a batch have at most {self._max_bytes} bytes together; ask for this one alone.",
            limit="batchAnswers",
            value=self._max_bytes,
        )

    def item_without_answer(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._send(self._answers, self.share)
