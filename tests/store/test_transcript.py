"""One transcript file: reading forward, reading backwards, appending."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.dialects import V3
from sessiond.store import transcript
from sessiond.store.tail import Tail

LIMIT = 60


def message(number: int, role: str = "user", padding: int = 0) -> bytes:
    return b'{"type":"message","message":{"role":"%b","n":%d%b}}' % (role.encode(), number, b" " * padding)


@contextmanager
def file_with_content(content: bytes, flags: int = os.O_RDWR | os.O_APPEND) -> Iterator[int]:
    """A descriptor of a temporary file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        fd = os.open(file.name, flags)
        try:
            yield fd
        finally:
            os.close(fd)


def read_all(fd: int) -> bytes:
    return os.pread(fd, 1 << 20, 0)


pieces = st.sampled_from(
    [
        b"\n",
        b"   ",
        b'{"type":"x"}',
        b'{"type":"message","message":{"role":"user"}}',
        b'{"torn',
        b"\0\0",
        b"x" * 59,
        b"y" * 60,
        b"z" * 61,
        b"long" * 50,
        "é".encode(),
    ]
)
contents = st.lists(st.tuples(pieces, st.sampled_from([b"\n", b"\n", b"\n", b""])).map(b"".join), max_size=14).map(
    b"".join
)


@given(contents, st.integers(1, 300), st.integers(1, 300))
@example(b"", 1, 1)
@example(b"\n\n\n", 2, 2)
@example(b"z" * 200 + b"\n", 7, 3)
def test_reading_backwards_gives_the_same_lines_as_reading_forward(content, block, back_block):
    with file_with_content(content) as fd:
        forward = list(transcript.read_lines(fd, 0, LIMIT, block=block, dialect=V3))
        end = content.rfind(b"\n") + 1
        assert list(transcript.read_backwards(fd, end, LIMIT, block=back_block, dialect=V3)) == forward[::-1]
    for line in forward:
        text = content[line.offset : line.end]
        assert text.endswith(b"\n") and b"\n" not in text[:-1]
        assert line.bad == "over the size limit" if len(text) > LIMIT + 1 else line.bad != "over the size limit"
        assert line.record is None or line.record.raw == text[:-1]


@given(contents, st.data())
def test_reading_from_any_line_start_gives_the_rest(content, data):
    with file_with_content(content) as fd:
        lines = list(transcript.read_lines(fd, 0, LIMIT, dialect=V3))
        cut = data.draw(st.integers(0, len(lines)))
        start = lines[cut - 1].end if cut else 0
        assert list(transcript.read_lines(fd, start, LIMIT, dialect=V3)) == lines[cut:]
        assert list(transcript.read_backwards(fd, start, LIMIT, dialect=V3)) == lines[:cut][::-1]


def test_reading_stops_at_the_given_end_and_leaves_out_a_half_line():
    first, second = message(1) + b"\n", message(2) + b"\n"
    with file_with_content(first + second) as fd:
        assert [line.end for line in transcript.read_lines(fd, 0, LIMIT, stop=len(first) + 5, dialect=V3)] == [
            len(first)
        ]
        tail = Tail(0, LIMIT)
        assert len(list(transcript.read_tail(fd, tail, stop=len(first) + 5, dialect=V3))) == 1
        assert [line.offset for line in transcript.read_tail(fd, tail, dialect=V3)] == [len(first)]


def test_bad_lines_have_a_reason():
    content = b'{"torn\n\0\0\n[]\n\xff{\n' + b"x" * 61 + b"\n"
    with file_with_content(content) as fd:
        assert [line.bad for line in transcript.read_lines(fd, 0, LIMIT, dialect=V3)] == [
            "torn or not JSON",
            "NUL bytes",
            "not an object",
            "not an object",
            "over the size limit",
        ]


def test_reading_ends_where_the_file_shrank_during_the_read():
    with file_with_content(message(1) + b"\n") as fd:
        assert list(transcript.read_backwards(fd, 500, LIMIT, dialect=V3)) == []


def test_an_append_returns_the_offset_where_it_was_written():
    with file_with_content(b"") as fd:
        assert transcript.append(fd, b"one\n") == 0
        assert transcript.append(fd, b"two\nthree\n") == 4
        assert read_all(fd) == b"one\ntwo\nthree\n"


def test_an_append_after_a_torn_line_begins_with_a_newline():
    with file_with_content(b'one\n{"torn') as fd:
        offset = transcript.append(fd, b"two\n")
        assert read_all(fd) == b'one\n{"torn\ntwo\n'
        assert read_all(fd)[offset:] == b"two\n"


# RLIMIT_FSIZE gives a short write, then EFBIG, on any file system. The limit holds for a whole process.
_SHORT = """
import os, resource, signal, sys
from sessiond.store import transcript
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    transcript.append(fd, b"0123456789\\n")
except OSError as error:
    print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
transcript.append(fd, b"after\\n")
"""


@check_each(
    ("before", "room", "error", "after"),
    [
        (b"one\n", 4, errno.EFBIG, b"one\nafter\n"),
        (b"one\n", 9, errno.ENOSPC, b"one\n    \nafter\n"),
        (b"one\n", 14, errno.ENOSPC, b"one\n         \nafter\n"),
        (b'{"torn', 10, errno.ENOSPC, b'{"torn\n  \nafter\n'),
    ],
)
def test_a_half_written_append_is_blanked_out_and_the_next_one_works(tmp_path, before, room, error, after):
    file = tmp_path / "t.jsonl"
    file.write_bytes(before)
    done = subprocess.run([sys.executable, "-c", _SHORT, str(file), str(room)], capture_output=True, check=True)
    assert int(done.stdout) == error
    assert file.read_bytes() == after


def test_blanking_out_leaves_a_strangers_later_append_alone():
    with file_with_content(b"one\nours\nstranger\n") as fd:
        transcript.blank_out(fd, 4, 5)
        assert read_all(fd) == b"one\n    \nstranger\n"
        transcript.blank_out(fd, 4, 0)
        assert read_all(fd) == b"one\n    \nstranger\n"


def test_blank_lines_are_neither_records_nor_damage():
    with file_with_content(b"\n   \n\t\r\n" + message(1) + b"\n") as fd:
        assert [line.offset for line in transcript.read_lines(fd, 0, LIMIT, dialect=V3)] == [8]


def test_a_line_begins_at_the_start_of_the_file_or_after_a_newline():
    with file_with_content(b"ab\ncd\n") as fd:
        assert [offset for offset in range(8) if transcript.is_line_start(fd, offset)] == [0, 3, 6]


def test_the_checksum_differs_for_different_beginnings():
    one, other = b"a" * 500 + b"1\n", b"a" * 500 + b"2\n"
    with file_with_content(one) as fd, file_with_content(other) as other_fd:
        end = len(one)
        assert transcript.checksum(fd, end) != transcript.checksum(other_fd, end)
        assert transcript.checksum(fd, end - 2) == transcript.checksum(other_fd, end - 2)
        assert transcript.checksum(fd, 0) == 0


_PADDINGS = st.integers(0, 2 * transcript.CHECKED) | st.integers(60, 90)


@given(st.lists(st.tuples(_PADDINGS, st.sampled_from([b"\n", b"\r\n", b"\n \n", b"\n!\n"])), max_size=4))
def test_the_checksum_behind_a_line_that_was_read_is_that_of_the_file(lines):
    content = b"".join(message(number, padding=padding) + end for number, (padding, end) in enumerate(lines))
    with file_with_content(content + b"torn") as fd:
        for line in (
            *transcript.read_lines(fd, 0, 1000, dialect=V3),
            *transcript.read_backwards(fd, len(content), 1000, dialect=V3),
        ):
            assert transcript.checksum_behind(fd, line) == transcript.checksum(fd, line.end)


def test_the_checksum_behind_a_line_needs_no_read_where_the_line_is_long_enough():
    content = message(1, padding=transcript.CHECKED) + b"\n"
    with file_with_content(content) as fd:
        (line,) = transcript.read_lines(fd, 0, 1000, dialect=V3)
        check = transcript.checksum(fd, line.end)
    assert transcript.checksum_behind(-1, line) == check


def test_lines_parsed_ahead_are_used_and_those_after_them_are_read():
    with file_with_content(b"".join(one + b"\n" for one in (message(1), message(2, padding=8), message(3)))) as fd:
        lines = list(transcript.read_lines(fd, 0, LIMIT, dialect=V3))
        long = lines[1].end - lines[1].offset - 1
        ahead, to = transcript.find_long_line(fd, 0, LIMIT, within=200, long=long, dialect=V3)
        assert ahead == lines[1] and ahead is not None and to == ahead.end
        got = transcript.read_tail(fd, Tail(ahead.offset, LIMIT), parsed={ahead.offset: ahead}, dialect=V3)
        assert list(islice(got, 5)) == lines[1:]


@given(content=contents, start=st.integers(0, 10), within=st.integers(1, 200), changed=st.booleans())
def test_lines_parsed_ahead_are_used_only_while_the_file_still_contains_them(content, start, within, changed):
    with file_with_content(content) as fd:
        lines = list(transcript.read_lines(fd, 0, LIMIT, dialect=V3))
        offset = lines[min(start, len(lines) - 1)].offset if lines else 0
        ahead, to = transcript.find_long_line(fd, offset, LIMIT, within=within, long=20, dialect=V3)
        reach = [
            line for line in lines if offset <= line.offset < offset + within and line.bad != "over the size limit"
        ]
        long = [line for line in reach if line.end - line.offset - 1 >= 20]
        assert ahead == (long[0] if long else None)
        # Nothing that begins before it is long, or may become so.
        assert all(line.end - line.offset - 1 < 20 or line.bad for line in lines if offset <= line.offset < to) or long
        assert to <= max((line.end for line in lines), default=0) or content[:to].endswith(b"\n")
        if ahead is None:
            return
        if changed:
            os.pwrite(fd, b'{"other":1}', ahead.offset)
        parsed = {ahead.offset: ahead}
        for begin in (offset, ahead.offset):
            fresh = list(transcript.read_tail(fd, Tail(begin, LIMIT), dialect=V3))
            got = list(transcript.read_tail(fd, Tail(begin, LIMIT), parsed=parsed, dialect=V3))
            assert got == fresh
        taken = any(line is ahead for line in got)
        assert taken == (ahead.record is not None and fresh[0].record == ahead.record)
