"""The lines of a transcript with their numbers: whatever is in the file, pages join without gap or repetition."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.record import BadLine
from sessiond.store.raw_lines import RawLine, parse_any, raw_page_backwards

WRITABLE = st.one_of(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=30), max_size=3).map(
        lambda value: json.dumps(value).encode()
    ),
    st.sampled_from([b"", b"   ", b"torn {", b"[1]", b"7", b"\0\0", b'{"a":"\xff"}', b'{"a":"\\ud83d"}', b"{" * 2000]),
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], int]:
    path: Path = tmp_path_factory.mktemp("raw") / "lines"

    def write(data: bytes) -> int:
        path.write_bytes(data)
        return os.open(path, os.O_RDONLY)

    return write


def expected(lines: list[bytes]) -> list[tuple[int, bytes]]:
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append((number, parse_any(line).raw))
        except BadLine:
            continue
    return found


@given(st.lists(WRITABLE, max_size=12), st.integers(1, 5), st.sampled_from([1, 40, 10_000]), st.booleans())
def test_pages_have_every_object_once_with_its_number(
    file: Callable[[bytes], int], lines: list[bytes], limit: int, max_bytes: int, counts: bool
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    fd = file(data)
    try:
        end, number, skipped = len(data), None if counts else len(lines), 0
        found: list[RawLine] = []
        while True:
            page = raw_page_backwards(fd, end, number, limit=limit, max_bytes=max_bytes, record_limit=1000)
            assert len(page.lines) <= limit
            assert page.bytes <= max_bytes
            found = [*page.lines, *found]
            skipped += page.skipped
            if not page.has_more:
                break
            end, number = page.start, None if counts else page.start_number
    finally:
        os.close(fd)
    assert [(line.number, line.data) for line in found] == expected(lines)
    blank = sum(not line.strip() for line in lines)
    assert skipped == len(lines) - blank - len(found)
    assert all(data[: line.end].count(b"\n") == line.number for line in found)


def test_a_line_over_the_limit_is_skipped_and_counted_in_the_numbers(file: Callable[[bytes], int]) -> None:
    long = b'{"a":"' + b"x" * 5000 + b'"}'
    data = b"\n".join([b'{"n":1}', long, b'{"n":3}', b""])
    fd = file(data)
    try:
        page = raw_page_backwards(fd, len(data), None, limit=10, max_bytes=10_000, record_limit=1000)
    finally:
        os.close(fd)
    assert ([line.number for line in page.lines], page.skipped) == ([1, 3], 1)


def test_lines_over_the_byte_limit_of_a_page_are_shortened_one_by_one(file: Callable[[bytes], int]) -> None:
    data = b"".join(b'{"id":"%d","a":"%b"}\n' % (number, b"x" * 100_000) for number in range(10, 90))
    fd = file(data)
    tracemalloc.start()
    try:
        page = raw_page_backwards(
            fd,
            len(data),
            80,
            limit=200,
            max_bytes=5000,
            record_limit=1 << 20,
            shorten=lambda line: line[:10],
            describe=lambda line: (str(len(line)), "now"),
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(fd)
    assert [(line.number, line.data) for line in page.lines] == [(n + 1, b'{"id":"%d"' % (n + 10)) for n in range(80)]
    assert {(line.id, line.stamp) for line in page.lines} == {("100018", "now")}
    assert most < 2_000_000
