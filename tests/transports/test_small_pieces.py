import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.transports.exchange import HttpError
from sessiond.transports.http import HttpWire
from sessiond.transports.small_pieces import (
    MAX_HEAD_LINES,
    MAX_PIECES,
    MIN_MEAN_BYTES,
    PIECES_AT_ONCE,
    ChunkCounter,
    FrameCutter,
    TooManyPieces,
    check_head,
    has_too_many_pieces,
)

SIZES = st.sampled_from([0, 1, 5, 125, 126, 300, 65_535, 65_536])


def frame(size, *, opcode=1, fin=True, masked=True):
    head = bytes([opcode | (0x80 if fin else 0)])
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + size.to_bytes(2, "big") if size < 65_536 else b"\x7f" + size.to_bytes(8, "big")
    length = bytes([length[0] | (0x80 if masked else 0)]) + length[1:]
    return head + length + (b"mask" if masked else b"") + b"\x81" * size


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=200), st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_input_is_cut_into_pieces_of_few_frames_however_it_arrives(frames, arrivals):
    """The frames of a piece are counted by the offsets at which they begin."""
    wire, starts = b"", []
    for size, masked in frames:
        starts.append(len(wire))
        wire += frame(size, masked=masked)
    cutter, at, arrival = FrameCutter(), 0, 0
    while at < len(wire):
        came = wire[at : at + arrivals[arrival % len(arrivals)] * (1 + arrival)]
        arrival += 1
        done = 0
        while done < len(came):
            stop = cutter.cut(came, done)
            assert done < stop <= len(came)
            assert sum(at + done <= start < at + stop for start in starts) <= PIECES_AT_ONCE + 1
            assert stop == len(came) or at + stop in starts, "a piece ends between two frames"
            done = stop
        at += len(came)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_can_be_cut_to_the_end(data, step):
    cutter = FrameCutter()
    for start in range(0, len(data), step):
        came, done = data[start : start + step], 0
        while done < len(came):
            done = cutter.cut(came, done)


def cut_all(cutter, data):
    done = 0
    while done < len(data):
        done = cutter.cut(data, done)


def test_a_message_may_have_many_fragments_only_if_they_are_large():
    first, more, last = frame(1, fin=False), frame(1, opcode=0, fin=False), frame(1, opcode=0)
    cutter = FrameCutter()
    for _ in range(3):  # counted for each message
        cut_all(cutter, first + more * (MAX_PIECES - 2) + last)
    cut_all(cutter, frame(0, opcode=9) * (2 * MAX_PIECES))  # a ping does not count as a message
    with pytest.raises(TooManyPieces, match="at most 4096 fragments"):
        cut_all(cutter, first + more * MAX_PIECES)
    large = frame(MIN_MEAN_BYTES, opcode=0, fin=False)
    cut_all(FrameCutter(), frame(MIN_MEAN_BYTES, fin=False) + large * MAX_PIECES + large)
    assert not has_too_many_pieces(MAX_PIECES, 0) and has_too_many_pieces(MAX_PIECES + 1, MAX_PIECES)
    assert not has_too_many_pieces(MAX_PIECES + 1, (MAX_PIECES + 1) * MIN_MEAN_BYTES)


def test_the_lines_of_a_head_are_limited_and_those_of_the_body_are_not_counted():
    lines = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (MAX_HEAD_LINES - 1)
    check_head(lines + b"\r\n" + b"\n" * 5000)
    for head in (lines + b"a:\r\n\r\n", lines + b"a:\r\n" * 2, lines + b"a:\n" * 60_000):
        with pytest.raises(HttpError, match="at most 128 lines"):
            check_head(head)


@check_each("last", [b"0\r\n", b"\r\n0\r\n", b"\n000;x=y\r\n"])
def test_the_lines_of_the_trailer_are_limited(last):
    chunks = ChunkCounter()
    chunks.note_incoming(b"5\r\n" + b"\n" * 5000)
    chunks.count(h11.Data(data=b"\n", chunk_start=True, chunk_end=False), 1)
    chunks.note_incoming(last + b"\n" * 5000)  # inside a chunk this is its content
    chunks.count(h11.Data(data=b"\n", chunk_start=False, chunk_end=True), 2)
    chunks.note_incoming(last + b"a:\r\n\r\n")
    with pytest.raises(HttpError, match="at most 128 lines"):
        chunks.note_incoming(b"a:\r\n" * 5000)


class BufferedStream:
    """A stream whose input has all arrived; it is read in pieces of 64 KiB."""

    def __init__(self, data):
        self.data = data

    async def receive_some(self):
        await trio.lowlevel.checkpoint()
        came, self.data = self.data[:65_536], self.data[65_536:]
        return came


async def read_body(data):
    turns = []

    async def count_turn():
        turns.append(1)
        await trio.lowlevel.checkpoint()

    async def ask_before_long_body(_limit):
        raise AssertionError

    wire = HttpWire(
        BufferedStream(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data), 10, count_turn
    )
    head = await wire.read_head()
    return await wire.read_body(head, 1 << 20, ask_before_long_body), len(turns)


async def test_a_body_in_one_byte_chunks_lets_other_tasks_run_and_is_limited():
    body, turns = await read_body(b"1\r\nx\r\n" * MAX_PIECES + b"0\r\n\r\n")
    assert body == b"x" * MAX_PIECES
    assert turns >= MAX_PIECES // PIECES_AT_ONCE
    with pytest.raises(HttpError, match="at most 4096 chunks") as refused:
        await read_body(b"1\r\nx\r\n" * (MAX_PIECES + 1) + b"0\r\n\r\n")
    assert refused.value.status == 400
