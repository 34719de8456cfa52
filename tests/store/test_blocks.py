from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.dialects import V3
from sessiond.store import blocks
from sessiond.store.blocks import Block, count_messages, read_block_before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def _all(path: Path, limit: int, size: int) -> list[Block]:
    fd = os.open(path, os.O_RDONLY)
    try:
        end = path.stat().st_size
        found = []
        while end > 0:
            block = read_block_before(fd, end, limit, size=size)
            assert block is not None
            assert block.start < end
            found.append(block)
            end = block.start
        return found
    finally:
        os.close(fd)


LINES = st.lists(st.integers(0, 90), max_size=40)


@given(lengths=LINES, size=st.integers(1, 64), limit=st.integers(1, 100))
def test_every_line_within_the_limit_is_read_once_with_its_offset(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    data = b"".join(b"%c" % (97 + n % 26) * length + b"\n" for n, length in enumerate(lengths))
    path.write_bytes(data)
    found = _all(path, limit, size)
    for block in found:
        assert data[block.start : block.start + len(block.data)] == block.data
        assert block.data[-1:] in (b"", b"\n")
    kept = b"".join(block.data for block in reversed(found)).split(b"\n")
    assert [line for line in kept if line and len(line) <= limit] == [
        line for line in data.split(b"\n") if line and len(line) <= limit
    ]
    # The memory taken by a line over the limit is bounded.
    assert all(len(block.data) <= max(size, limit + 2) for block in found)


def test_a_file_that_shrank_gives_no_lines(path: Path) -> None:
    path.write_bytes(b"a\n")
    fd = os.open(path, os.O_RDONLY)
    assert read_block_before(fd, 4, 100) is None
    os.close(fd)


def _line(record: object, separators: tuple[str, str] = (",", ":")) -> bytes:
    return json.dumps(record, separators=separators).encode() + b"\n"


def _lines() -> Iterator[tuple[bytes, bool]]:
    message = {"role": "user", "content": '{"type":"message","message":{}}'}
    own = {"type": "message", "id": "a", "parentId": None, "timestamp": "2026-01-01T00:00:00.000Z", "message": message}
    yield _line(own), True
    yield _line({**own, "parentId": "b"}), True
    yield _line({**own, "message": "no object"}), False
    yield _line({**own, "message": {**message, "role": "system"}}), False
    yield _line({**own, "message": {"content": "", "role": "system"}}), False
    yield _line({**own, "message": {"content": "cut \ud83d", "role": "user"}}), True
    yield _line({"type": "session", "version": 3}), False
    yield _line({"type": "message", "message": "no object"}), False
    yield _line({"id": "b", "type": "message", "message": message}), True
    yield _line({"type": "message", "id": "c", "message": message}, (", ", ": ")), True
    yield _line({"type": "custom", "data": {"type": "message", "message": {"a": 1}}}), False
    yield _line({"type": "custom", "data": [{"message": {"a": 1}}]}), False
    yield b"   \n", False
    yield b"\n", False


BAD = b'{"type":"message","message":{"role":\n'


@given(st.lists(st.sampled_from([*_lines()]), max_size=8))
def test_counting_messages_agrees_with_reading_each_line(lines: list[tuple[bytes, bool]]) -> None:
    data = b"".join(line for line, _ in lines)
    expected = sum(is_message for _, is_message in lines)
    assert count_messages(data, 1000, clean=True, dialect=V3) == expected
    assert count_messages(data, 1000, clean=False, dialect=V3) == expected
    assert count_messages(data + BAD, 1000, clean=False, dialect=V3) == expected


def test_a_line_over_the_limit_is_not_counted_as_a_message() -> None:
    line = _line({"type": "message", "message": {"role": "user", "content": "x" * 50}})
    assert count_messages(line, len(line) - 1, clean=False, dialect=V3) == 1
    assert count_messages(line, len(line) - 2, clean=False, dialect=V3) == 0


def test_blank_and_bad_lines_are_not_counted_as_messages() -> None:
    assert not blocks.is_message(b" ", V3)
    assert not blocks.is_message(b'{"type":"message"', V3)
    assert blocks.is_message(b'{"type":"message","message":{}}', V3)
