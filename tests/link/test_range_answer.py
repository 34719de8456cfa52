"""The ranges of an answer: all of them in order, some at once, and none after an error."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.link_stand_ins import run_until

from sessiond.link.failures import BusError
from sessiond.link.range_answer import READ_AT_ONCE, SENT_AT_ONCE, RangeAnswer
from sessiond.link.ranges import OVERLAP_BYTES, RANGE_BYTES
from sessiond.link.transcript_bytes import FoundBytes, OtherContent


class Original:
    """A transcript of `size` bytes, of which ranges are read and sent when the test lets them."""

    def __init__(self, size: int, *, read_at_once: int = READ_AT_ONCE, longest: int = RANGE_BYTES) -> None:
        self.size, self.longest = size, longest
        self.sent: list[tuple[int, int]] = []
        self.reads = self.reading = self.sending = self.most_reading = self.most_sending = 0
        self.has_begun: asyncio.Event | None = None
        self.is_stuck = False
        self.withheld_from = size + 1
        self.failing_from = size + 1
        self.answer = RangeAnswer(self._read, self._send, overlap_bytes=OVERLAP_BYTES, read_at_once=read_at_once)

    async def _read(self, at: int) -> FoundBytes | None:
        self.reads += 1
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        try:
            await asyncio.sleep(0)
        finally:
            self.reading -= 1
        begin = min(at, self.size)
        end = min(self.size, begin + self.longest)
        return None if end >= self.withheld_from else FoundBytes(begin, self.size, "", bytes(end - begin))

    async def _send(self, found: FoundBytes) -> None:
        self.sending += 1
        if self.has_begun is not None:
            self.has_begun.set()
        self.most_sending = max(self.most_sending, self.sending)
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            if self.is_stuck:
                await asyncio.Event().wait()
        finally:
            self.sending -= 1
        if found.to >= self.failing_from:
            raise BusError("timeout", "the server is away")
        self.sent.append((found.begin, found.to))

    def send_between(self, at: int, end: int) -> None:
        run_until(lambda: self.answer.send_between(at, end))


def covers(parts: list[tuple[int, int]], begin: int, end: int) -> bool:
    """Whether each part goes on before the end of the one before it, from `begin` to `end`."""
    at = begin
    for first, to in parts:
        if first > at or to < at:
            return False
        at = to
    return at >= end


@given(
    size=st.integers(0, 5 * RANGE_BYTES),
    at=st.integers(0, 5 * RANGE_BYTES),
    more=st.integers(1, 6 * RANGE_BYTES),
    once=st.integers(1, 3),
)
def test_all_that_there_is_is_sent_in_order(size: int, at: int, more: int, once: int) -> None:
    original = Original(size, read_at_once=once)
    if at > size:
        with pytest.raises(OtherContent):
            original.send_between(at, at + more)
        assert original.sent == []
        return
    original.send_between(at, at + more)
    assert covers(original.sent, at, min(size, at + more))
    assert original.most_reading <= once
    assert original.most_sending <= SENT_AT_ONCE


def test_ranges_that_are_shorter_than_they_might_be_leave_no_gap() -> None:
    original = Original(2 * RANGE_BYTES, longest=RANGE_BYTES // 3)
    original.send_between(0, 2 * RANGE_BYTES)
    assert covers(original.sent, 0, 2 * RANGE_BYTES)


def test_ranges_are_read_ahead_while_others_are_on_their_way() -> None:
    original = Original(12 * RANGE_BYTES)
    original.send_between(0, 12 * RANGE_BYTES)
    assert (original.most_reading, original.most_sending) == (READ_AT_ONCE, SENT_AT_ONCE)


@pytest.mark.parametrize(("size", "reads"), [(0, 1), (1000, 1), (RANGE_BYTES, 1), (RANGE_BYTES + 1, 2)])
def test_nothing_is_read_behind_the_end(size: int, reads: int) -> None:
    original = Original(size)
    original.send_between(0, 8 * RANGE_BYTES)
    assert original.reads == reads


def test_what_is_withheld_ends_it_and_what_was_read_before_is_sent() -> None:
    original = Original(9 * RANGE_BYTES)
    original.withheld_from = 3 * RANGE_BYTES
    original.send_between(0, 9 * RANGE_BYTES)
    assert covers(original.sent, 0, 2 * RANGE_BYTES)
    assert original.sent[-1][1] < 3 * RANGE_BYTES
    assert (original.reading, original.sending) == (0, 0)


def test_an_error_of_the_server_ends_all_of_it() -> None:
    original = Original(9 * RANGE_BYTES)
    original.failing_from = RANGE_BYTES + 1
    with pytest.raises(BusError):
        original.send_between(0, 9 * RANGE_BYTES)
    assert original.sent == [(0, RANGE_BYTES)]
    assert (original.reading, original.sending) == (0, 0)


def test_who_is_cancelled_leaves_nothing_behind() -> None:
    original = Original(9 * RANGE_BYTES)

    async def cancel() -> None:
        original.has_begun, original.is_stuck = asyncio.Event(), True
        task = asyncio.create_task(original.answer.send_between(0, 9 * RANGE_BYTES))
        await original.has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_until(cancel)
    assert (original.reading, original.sending, original.sent) == (0, 0, [])
