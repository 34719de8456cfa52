import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

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
def test_what_comes_is_cut_into_pieces_of_few_frames_wherever_it_arrived_cut(frames, arrivals):
    """A mark behind each frame's head would do; here the frames are counted by where they begin."""
    wire, starts = b"", []
    for size, masked in frames:
        starts.append(len(wire))
        wire += frame(size, masked=masked)
    cutter, at, turn = FrameCutter(), 0, 0
    while at < len(wire):
        came = wire[at : at + arrivals[turn % len(arrivals)] * (1 + turn)]
        turn += 1
        done = 0
        while done < len(came):
            stop = cutter.cut(came, done)
            assert done < stop <= len(came)
            assert sum(at + done <= start < at + stop for start in starts) <= PIECES_AT_ONCE + 1
            assert stop == len(came) or at + stop in starts, "a piece ends between two frames"
            done = stop
        at += len(came)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_cut_to_the_end(data, step):
    cutter = FrameCutter()
    for start in range(0, len(data), step):
        came, done = data[start : start + step], 0
        while done < len(came):
            done = cutter.cut(came, done)


def cut_all(cutter, data):
    done = 0
    while done < len(data):
        done = cutter.cut(data, done)


def test_a_message_has_so_many_fragments_or_larger_ones():
    first, more, last = frame(1, fin=False), frame(1, opcode=0, fin=False), frame(1, opcode=0)
    cutter = FrameCutter()
    for _ in range(3):  # counted for each message
        cut_all(cutter, first + more * (MAX_PIECES - 2) + last)
    cut_all(cutter, frame(0, opcode=9) * (2 * MAX_PIECES))  # a ping is no message
    with pytest.raises(TooManyPieces, match="at most 4096 fragments"):
        cut_all(cutter, first + more * MAX_PIECES)
    large = frame(MIN_MEAN_BYTES, opcode=0, fin=False)
    cut_all(FrameCutter(), frame(MIN_MEAN_BYTES, fin=False) + large * MAX_PIECES + large)
    assert not has_too_many_pieces(MAX_PIECES, 0) and has_too_many_pieces(MAX_PIECES + 1, MAX_PIECES)
    assert not has_too_many_pieces(MAX_PIECES + 1, (MAX_PIECES + 1) * MIN_MEAN_BYTES)


def test_a_head_has_so_many_lines_whatever_stands_behind_it():
    lines = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (MAX_HEAD_LINES - 1)
    check_head(lines + b"\r\n" + b"\n" * 5000)
    for head in (lines + b"a:\r\n\r\n", lines + b"a:\r\n" * 2, lines + b"a:\n" * 60_000):
        with pytest.raises(HttpError, match="at most 128 lines"):
            check_head(head)


@pytest.mark.parametrize("last", [b"0\r\n", b"\r\n0\r\n", b"\n000;x=y\r\n"])
def test_behind_the_last_chunk_stand_few_lines(last):
    chunks = ChunkCounter()
    chunks.note_incoming(b"5\r\n" + b"\n" * 5000)
    chunks.count(h11.Data(data=b"\n", chunk_start=True, chunk_end=False), 1)
    chunks.note_incoming(last + b"\n" * 5000)  # within a chunk: what it holds
    chunks.count(h11.Data(data=b"\n", chunk_start=False, chunk_end=True), 2)
    chunks.note_incoming(last + b"a:\r\n\r\n")
    with pytest.raises(HttpError, match="at most 128 lines"):
        chunks.note_incoming(b"a:\r\n" * 5000)


class Arrived:
    """A stream on which everything has come already, 64 KiB at a time."""

    def __init__(self, data):
        self.data = data

    async def receive_some(self):
        await trio.lowlevel.checkpoint()
        came, self.data = self.data[:65_536], self.data[65_536:]
        return came


async def read_body(data):
    turns = []

    async def turn():
        turns.append(1)
        await trio.lowlevel.checkpoint()

    async def before_long(_limit):
        raise AssertionError

    wire = HttpWire(Arrived(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data), 10, turn)
    head = await wire.read_head()
    return await wire.read_body(head, 1 << 20, before_long), len(turns)


async def test_a_body_in_chunks_of_a_byte_gives_others_their_turn_and_has_an_end():
    body, turns = await read_body(b"1\r\nx\r\n" * MAX_PIECES + b"0\r\n\r\n")
    assert body == b"x" * MAX_PIECES
    assert turns >= MAX_PIECES // PIECES_AT_ONCE
    with pytest.raises(HttpError, match="at most 4096 chunks") as refused:
        await read_body(b"1\r\nx\r\n" * (MAX_PIECES + 1) + b"0\r\n\r\n")
    assert refused.value.status == 400
