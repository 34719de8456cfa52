"""Pages as history shows them: the same read by the block as line by line, whatever stands in the file."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.model.dialects import V3
from sessiond.model.record import RUN, BadLine, LineEnvelope, Record, message_heads
from sessiond.store import transcript
from sessiond.store.filesystem import is_prompt
from sessiond.store.page_reading import read_cached_page, read_shown_page
from sessiond.store.plain_page import NotPlain, read_plain_page
from sessiond.store.shown_page import PageRequest, ShownPage

LIMIT = 4000


def message(number: int, role: str = "user", padding: int = 0) -> bytes:
    return b'{"type":"message","message":{"role":"%b","n":%d%b}}' % (role.encode(), number, b" " * padding)


def shorten(data: bytes) -> bytes:
    return b'{"bytes":%d}' % len(data)


# All of them are records, so that a file of them is clean.
LINES = [
    message(1),
    message(2, "toolResult"),
    message(3, padding=200),
    message(4, "system"),
    b' {"message" : {"role": "user"} , "type":"message", "id":"a\\u00e9", "timestamp":"2026-01-02T10:00:00.123Z"}\t',
    b'{"type":"message","id":5,"timestamp":"2026-02-30T10:00:00.123Z","message":{"role":["user"],"timestamp":7}}',
    b'{"type":"message","timestamp":"2026-01-02T10:00:00+02:00","message":{"role":"tool","role":"user"}}',
    b'{"type":"message","timestamp":"1969-01-02T10:00:00.000Z","message":{}}',
    b'{"type":"message","id":"\\ud83d","message":{"role":"user","content":"\\ud83d"}}',
    b'{"type":"message","message":[{"role":"user"}]}',
    b'{"type":"message"}',
    b'{"type":["message"],"message":{"role":"user"}}',
    b'{"type":"compaction","id":"c","timestamp":"2026-01-02T10:00:00.000Z"}',
    b'{"type":"custom","customType":"sessiond/run","data":{},"id":"r","timestamp":"2026-01-02T10:00:00.000Z"}',
    b'{"type":"custom","customType":"sessiond\\/run","message":{"role":"user"}}',
    b'{"type":"custom","customType":["sessiond/run"]}',
    b'{"type":"x","customType":"sessiond/run","data":{}}',
    b"{}",
    b"",
    b"   ",
]
files = st.lists(st.sampled_from(LINES), max_size=25)
requests = st.builds(
    PageRequest,
    end=st.just(0),
    end_seq=st.just(0),
    limit=st.integers(1, 6),
    max_bytes=st.integers(1, 150),
    shorten=st.just(shorten),
    without=st.sampled_from([frozenset(), frozenset({"toolResult", "tool"})]),
    noted=st.sampled_from([None, RUN]),
    with_hidden=st.booleans(),
)


@contextmanager
def file_with_content(content: bytes) -> Iterator[int]:
    """A descriptor of a temporary file with this content."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.fileno()


def numbers(page: ShownPage) -> list[int]:
    return [json.loads(bytes(one))["n"] for one in page.messages.data]


def page_of(fd: int, asked: PageRequest, *, clean: bool = True, block: int | None = None) -> ShownPage:
    return read_shown_page(fd, asked, record_limit=LIMIT, dialect=V3, clean=clean, block=block)


@given(files, requests, st.integers(1, 600))
def test_pages_read_by_the_block_are_those_read_line_by_line(lines: list[bytes], asked: PageRequest, block: int):
    content = b"".join(line + b"\n" for line in lines)
    place = (len(content), sum(V3.parse(line).is_message for line in lines if line.strip()))
    with file_with_content(content) as fd:
        while True:
            asked = replace(asked, end=place[0], end_seq=place[1])
            page = page_of(fd, asked, block=block)
            assert page == page_of(fd, asked, clean=False)
            assert page.start_check == transcript.checksum(fd, page.start)
            assert page.messages.checks == [transcript.checksum(fd, end) for end in page.messages.ends]
            if not page.has_more:
                break
            place = (page.start, page.start_seq)
    assert page.start_seq == 0


@given(files.filter(bool), st.data(), st.integers(1, 600))
def test_a_place_within_a_line_is_refused_as_a_cursor_before_a_rewrite(lines: list[bytes], data: st.DataObject, block):
    content = b"".join(line + b"\n" for line in lines)
    inside = [place for place in range(1, len(content)) if content[place - 1] != ord("\n")] or [len(content) + 9]
    asked = PageRequest(end=data.draw(st.sampled_from(inside)), end_seq=9, limit=3, max_bytes=999)
    with file_with_content(content) as fd, pytest.raises(InvalidParams) as refused:
        page_of(fd, asked, block=block)
    assert refused.value.code == "cursor_stale"


def _fail(_line: bytes) -> Record:
    raise AssertionError("parsed")


def test_no_line_of_a_clean_file_is_parsed_on_its_own():
    content = b"".join(message(number, padding=number % 700) + b"\n" for number in range(1, 2000))
    asked = PageRequest(end=len(content), end_seq=1999, limit=150, max_bytes=1 << 20, noted=RUN)
    with file_with_content(content) as fd:
        page = read_shown_page(fd, asked, record_limit=1 << 20, dialect=replace(V3, parse=_fail), clean=True)
    assert page.messages.seqs == list(range(1850, 2000))
    assert numbers(page) == list(range(1850, 2000))


@check_each(
    "spoilt",
    [
        b"{torn",
        b"\0\0\0",
        b'{"type":"message","message":{"role":',
        b'"type":1}',
        b'{"a":1}{"b":2}',
        b"z" * 5000,
        b"[]",
        b" ",
    ],
)
def test_a_file_with_new_bad_lines_gives_the_messages_that_can_be_read(spoilt):
    content = b"".join(line + b"\n" for line in (message(1), spoilt, message(2)))
    asked = PageRequest(end=len(content), end_seq=2, limit=10, max_bytes=1000)
    for block in (7, 40, 1000):
        with file_with_content(content) as fd:
            page = page_of(fd, asked, block=block)
            assert page == page_of(fd, asked, clean=False)
        assert numbers(page) == [1, 2]


def test_a_page_ends_where_a_clean_file_shrank_during_the_read():
    content = message(1) + b"\n" + message(2) + b"\n"
    asked = PageRequest(end=len(content), end_seq=2, limit=5, max_bytes=500)
    with file_with_content(content) as fd:

        def decode_and_shrink(block: bytes | memoryview) -> list[LineEnvelope]:
            os.ftruncate(fd, 10)
            return V3.decode_block(block)

        dialect, block = replace(V3, decode_block=decode_and_shrink), len(message(2)) + 5
        with pytest.raises(InvalidParams) as refused:
            read_shown_page(fd, asked, record_limit=LIMIT, dialect=dialect, clean=True, block=block)
    # The file has no such place any more, as with a cursor from before a rewrite.
    assert refused.value.code == "cursor_stale"


def test_lines_over_many_blocks_are_read_line_by_line():
    content = message(1) + b"\n" + message(2, padding=3000) + b"\n"
    parsed: list[bytes] = []

    def parse(line: bytes) -> Record:
        parsed.append(line)
        return V3.parse(line)

    asked = PageRequest(end=len(content), end_seq=2, limit=5, max_bytes=LIMIT)
    for block, count in ((1000, 0), (500, 2)):
        parsed.clear()
        with file_with_content(content) as fd:
            dialect = replace(V3, parse=parse)
            page = read_shown_page(fd, asked, record_limit=LIMIT, dialect=dialect, clean=True, block=block)
        assert (page.messages.seqs, len(parsed)) == ([1, 2], count)


def test_a_page_keeps_no_more_of_the_file_than_twice_its_messages_and_a_block():
    lines = [
        message(number, role, padding) for number in range(80) for role, padding in (("user", 9), ("tool", 99_999))
    ]
    content = b"".join(line + b"\n" for line in lines)
    asked = PageRequest(end=len(content), end_seq=160, limit=200, max_bytes=1 << 20, without=frozenset({"tool"}))
    with file_with_content(content) as fd:
        tracemalloc.start()
        try:
            page = read_shown_page(fd, asked, record_limit=1 << 20, dialect=replace(V3, parse=_fail), clean=True)
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert page.messages.seqs == list(range(1, 160, 2))
        assert page == page_of(fd, replace(asked), clean=True, block=999_999)
    # A block holds 128 KiB, and up to a line before it.
    assert (kept < 400_000, most < 2_000_000) == (True, True), (kept, most)


@pytest.mark.parametrize("clean", [True, False])
def test_messages_over_the_byte_limit_are_shortened_one_by_one(clean: bool):
    content = b"".join(message(number, padding=99_999) + b"\n" for number in range(80))
    asked = PageRequest(end=len(content), end_seq=80, limit=200, max_bytes=5000, shorten=shorten)
    with file_with_content(content) as fd:
        tracemalloc.start()
        try:
            page = read_shown_page(fd, asked, record_limit=1 << 20, dialect=V3, clean=clean)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [len(one) for one in page.messages.data] == [len(b'{"bytes":100022}')] * 80
    assert page.messages.seqs == list(range(1, 81))
    assert most < 2_000_000


def test_what_is_noted_is_the_same_where_the_limit_of_a_line_was_lowered():
    lines = (message(1, padding=LIMIT), message(2), b'{"type":"custom","customType":"sessiond/run","data":{}}')
    content = b"".join(line + b"\n" for line in lines)
    asked = PageRequest(end=len(content), end_seq=2, limit=5, max_bytes=3 * LIMIT, noted=RUN)
    with file_with_content(content) as fd:
        page = page_of(fd, asked)
        assert page == page_of(fd, asked, clean=False)
        assert (page.messages.seqs, page.skipped, len(page.noted)) == ([2], 1, 1)


def test_the_lines_of_this_table_are_records():
    for line in LINES:
        try:
            assert not line.strip() or V3.parse(line)
        except BadLine as bad:
            raise AssertionError(line) from bad


def read_at_once(content: bytes, asked: PageRequest) -> ShownPage | None:
    def pread(size: int, offset: int) -> bytes:
        return content[offset : offset + size]

    try:
        return read_plain_page(pread, asked, LIMIT, V3, at_once=True)
    except NotPlain:
        return None


@given(files, requests.filter(lambda asked: asked.is_short))
def test_what_is_read_at_once_is_the_same_page(lines: list[bytes], asked: PageRequest):
    content = b"".join(line + b"\n" for line in lines)
    asked = replace(asked, end=len(content), end_seq=sum(V3.parse(line).is_message for line in lines if line.strip()))
    with file_with_content(content) as fd:
        page = page_of(fd, asked, clean=False)
    heads = message_heads(V3.decode_block(content))
    if heads is not None and len(heads) == len(lines) and all(fits(line, asked) for line in lines):
        assert read_at_once(content, asked) == page
    else:
        assert read_at_once(content, asked) in (None, page)


def fits(line: bytes, asked: PageRequest) -> bool:
    return len(V3.parse(line).message or b"") <= asked.max_bytes


def newest(content: bytes, limit: int, **others: object) -> PageRequest:
    return PageRequest(end=len(content), end_seq=5000, limit=limit, max_bytes=1 << 20, **others)  # type: ignore[arg-type]


def test_a_page_of_several_blocks_is_read_at_once():
    content = b"".join(message(number, padding=900) + b"\n" for number in range(2000))
    asked = newest(content, 200)
    with file_with_content(content) as fd:
        page = read_at_once(content, asked)
        assert page == page_of(fd, asked, clean=False)
    assert page is not None
    assert numbers(page) == list(range(1800, 2000))


def test_no_more_than_256_lines_are_read_at_once():
    for count, is_read in ((256, True), (257, False)):
        content = b'{"type":"message","message":{}}\n' * count
        assert (read_at_once(content, newest(content, 1000)) is not None) == is_read, count


def test_a_message_over_the_limit_of_the_page_is_not_shortened_at_once():
    content = message(1, padding=500) + b"\n"
    for max_bytes, is_read in ((len(content), True), (500, False)):
        asked = PageRequest(end=len(content), end_seq=1, limit=5, max_bytes=max_bytes, shorten=shorten)
        assert (read_at_once(content, asked) is not None) == is_read


@check_each("field", [b'"id":%b', b'"timestamp":%b', b'"message":{"role":%b}', b'"message":{"timestamp":%b}'])
def test_values_that_take_long_to_decode_are_not_decoded_at_once(field: bytes):
    for value, is_read in ((b"1", True), (b"[1]", False)):
        content = b'{"type":"message","message":{},' + field % value + b"}\n"
        asked = newest(content, 5)
        assert (read_at_once(content, asked) is not None) == is_read
        with file_with_content(content) as fd:
            assert len(page_of(fd, asked).messages.seqs) == 1


def test_pages_are_short_up_to_192_kib_of_plain_messages_alone():
    asked = PageRequest(end=192 * 1024, end_seq=100, limit=100, max_bytes=1)
    assert asked.is_short
    assert replace(asked, end=2 * asked.end, limit=50).is_short
    assert not replace(asked, end=asked.end + 1).is_short
    assert not replace(asked, end=2 * asked.end, limit=51).is_short
    assert not replace(asked, noted=RUN).is_short
    assert not replace(asked, with_hidden=True).is_short


@pytest.mark.skipif(not is_prompt(tempfile.gettempdir()), reason="the temporary folder is on ext4, XFS or Btrfs not")
def test_a_file_in_memory_is_read_at_once():
    content = b"".join(message(number, padding=500) + b"\n" for number in range(2000))
    with file_with_content(content) as fd:
        page = read_cached_page(fd, newest(content, 200), record_limit=LIMIT, dialect=V3)
        assert page == page_of(fd, newest(content, 200), clean=False)
        joining = replace(V3, joins=True)
        assert read_cached_page(fd, newest(content, 200), record_limit=LIMIT, dialect=joining) is None
