from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.opencode_database import lines_of_session, make_database, session_titled
from support.rows import check_each
from support.sampling import amount
from support.source_files import GOLDEN

from sessiond.model.case import fold_case
from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.message import text_of
from sessiond.model.message_list import messages_in
from sessiond.store import dirfd, transcript
from sessiond.store.joining import ForwardJoiner
from sessiond.trigrams.marks import SPACING_BYTES, MarkWriter, NumberedLine, find_mark
from sessiond.trigrams.text_blocks import BLOCK_BYTES, BlockCutter, FileShorter, TextBlock

LIMIT = 200_000
FILES = [
    ("claude", "claude/2.1.330/tools.jsonl"),
    ("codex", "codex/0.169.0/tools.jsonl"),
    ("gemini", "gemini/resumed.jsonl"),
    ("gemini", "gemini/tool.jsonl"),
    ("pi", "pi/session.jsonl"),
]

MESSAGE = b'{"type":"message","id":"a","timestamp":"2026-01-02T03:04:05Z","message":{"role":"user","content":%b}}'


def cut(
    fd: int, dialect: TranscriptDialect, span: tuple[int, int], messages: int, chars: int
) -> tuple[list[TextBlock], int]:
    """The blocks between two offsets, and how many messages stand before the second."""
    begin, stop = span
    cutter = BlockCutter(fd, dialect, LIMIT, begin=begin, stop=stop, messages=messages, block_chars=chars)
    blocks = []
    for block in cutter.steps():
        if block is not None:
            assert block.end <= cutter.place <= stop
            blocks.append(block)
    assert cutter.place == stop
    return blocks, cutter.messages


def check_file(fd: int, dialect: TranscriptDialect, parts: int, chars: int) -> None:
    """Cut a file in two goes: the blocks have all text in their lines, their times and counts are right."""
    stop = os.fstat(fd).st_size
    lines = list(transcript.read_lines(fd, 0, LIMIT, dialect=dialect, stop=stop))
    middle = lines[len(lines) * parts // 10].offset if lines else 0
    blocks, messages = cut(fd, dialect, (0, middle), 0, chars)
    more, _ = cut(fd, dialect, (middle, stop), messages, chars)
    blocks += more
    joiner = ForwardJoiner(fd, LIMIT, dialect, place=0, count=0, is_known=True)
    counts: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for line in lines:
        counts[line.offset], part_of = joiner.count, 0
        if dialect.joins:
            part_of = joiner.join(line)[1]
        elif line.record is not None and line.record.message is not None:
            joiner.count += 1
        numbers[line.offset] = part_of or joiner.count
        shown = [one for one in messages_in(line.record) if one.message is not None] if line.record is not None else []
        text = "\n".join(text_of(one.message or b"", "\n") for one in shown)
        within = [block for block in blocks if block.begin <= line.offset and line.end <= block.end]
        assert len(within) == 1 or not text
        if text:
            (block,) = within
            check_mark(block, line.offset, counts, numbers)
            assert fold_case(text) in block.text
            for one in shown:
                times = block.oldest_ms, one.timestamp_ms, block.newest_ms
                assert None in times or sorted(times) == list(times)  # type: ignore[type-var]
                assert one.timestamp_ms is not None or block.newest_ms is None
    assert all(first.end <= second.begin for first, second in pairwise(blocks))
    for block in blocks:
        assert block.messages_before == (None if dialect.lists else counts[block.begin])


def check_mark(block: TextBlock, offset: int, counts: dict[int, int], numbers: dict[int, int]) -> None:
    """What is known of a line is known right, and from not far before it."""
    if block.messages_before is None:
        assert block.marks == ""
        return
    begin = NumberedLine(block.begin, block.messages_before)
    mark = find_mark(block.marks, begin, offset)
    assert mark == NumberedLine(mark.offset, counts[mark.offset], numbers[mark.offset])
    assert offset - mark.offset < SPACING_BYTES
    assert find_mark(block.marks[: len(block.marks) // 2] + "!", begin, offset).offset <= mark.offset


@check_each(("name", "path"), FILES)
def test_blocks_have_the_text_of_every_program(name: str, path: str) -> None:
    with dirfd.closing(os.open(GOLDEN / path, os.O_RDONLY)) as fd:
        for parts, chars in ((0, 1), (3, 100), (5, 1), (9, 10_000)):
            check_file(fd, DIALECTS[name], parts, chars)


def test_blocks_have_the_text_of_a_session_in_a_database(tmp_path: Path) -> None:
    connection = make_database()
    (titles,) = [[title for (title,) in connection.execute("select title from session")]]
    for title in titles:
        lines = lines_of_session(connection, session_titled(connection, title))
        (tmp_path / "lines").write_bytes(b"".join(line + b"\n" for line in lines))
        with dirfd.closing(os.open(tmp_path / "lines", os.O_RDONLY)) as fd:
            check_file(fd, DIALECTS["opencode"], 4, 50)


@settings(max_examples=amount(300, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
        | st.text(max_size=20).map(
            lambda text: (
                b'{"type":"message","id":"a","timestamp":"2026-01-02T03:04:05.000Z","message":{"role":"user",'
                b'"content":' + __import__("json").dumps(text).encode() + b"}}"
            )
        ),
        max_size=8,
    ),
    parts=st.integers(0, 9),
)
def test_any_bytes_are_cut(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], parts: int) -> None:
    path = tmp_path_factory.mktemp("file") / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with dirfd.closing(os.open(path, os.O_RDONLY)) as fd:
        check_file(fd, DIALECTS["v3"], parts, 10)


def test_a_long_message_and_lines_over_the_limit(tmp_path: Path) -> None:
    line = b'{"type":"message","message":{"role":"user","content":"%b"}}\n'
    notes = b'{"type":"note","text":"%b"}\n' % (b"n" * 150_000)
    texts = [b"\xc4\xb0 " + b"x" * 100_000, b"y" * (LIMIT + 1), b"last", *[b"word"] * 3]
    (tmp_path / "lines").write_bytes(notes.join(line % text for text in texts))
    with dirfd.closing(os.open(tmp_path / "lines", os.O_RDONLY)) as fd:
        check_file(fd, DIALECTS["v3"], 0, 16 * 1024)
        blocks, messages = cut(fd, DIALECTS["v3"], (0, os.fstat(fd).st_size), 0, 16 * 1024)
        assert all(block.end - block.begin <= BLOCK_BYTES for block in blocks[1:])
        assert (messages, len(blocks)) == (5, 3)
        os.truncate(tmp_path / "lines", 5000)
        with pytest.raises(FileShorter):
            cut(fd, DIALECTS["v3"], (0, 9000), 0, 100)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 5), st.integers(0, 9)), max_size=30), st.text(max_size=20)
)
def test_the_last_mark_before_a_line_is_found_whatever_marks_say(steps: list[tuple[int, int, int]], text: str) -> None:
    begin = NumberedLine(1000, 50)
    writer, at, before = MarkWriter(begin), begin.offset, begin.messages_before
    marked: list[NumberedLine] = []
    for distance, more, behind in steps:
        at, before = at + distance, before + more
        line = NumberedLine(at, before, before + 1 - behind)
        if not marked or at - marked[-1].offset >= SPACING_BYTES:
            marked.append(line)
        writer.add(line)
    for line in marked:
        assert find_mark(writer.text, begin, line.offset) == line
        assert find_mark(writer.text, begin, line.offset + SPACING_BYTES - 1) == line
    assert not marked or find_mark(writer.text, begin, marked[0].offset - 1) == begin
    assert isinstance(find_mark(text, begin, 10), NumberedLine)
