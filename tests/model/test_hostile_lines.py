"""Lines of Gemini CLI, opencode and pi, damaged in any way: each is used or refused, and none takes long."""

from __future__ import annotations

import functools
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.opencode_database import lines_of_session, make_database
from support.source_files import GOLDEN

from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.message_list import messages_in
from sessiond.model.record import BadLine, Record
from sessiond.model.source_facts import SourceFacts

NAMES = ("gemini", "opencode", "pi")
# What no parser likes: numbers out of range, lone surrogates, wrong types, deep nesting, torn ends.
POISONS = st.sampled_from(
    [
        b"1e999",
        b"-1",
        b"123456789012345678901234567890",
        b"null",
        b"[]",
        b"{}",
        b'"\\ud83d"',
        b'"\\u0000"',
        b"\xff",
        b"\x00",
        b"[" * 300 + b"]" * 300,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'"',
        b"",
    ]
)


@functools.cache
def golden_lines_of(name: str) -> list[bytes]:
    if name != "opencode":
        return [line for path in sorted((GOLDEN / name).glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    connection = make_database()
    ids = [one for (one,) in connection.execute("select id from session")]
    lines = [line for one in ids for line in lines_of_session(connection, one)]
    connection.close()
    return lines


@st.composite
def damaged_lines(draw: st.DrawFn, name: str) -> bytes:
    """A line of the program with some stretches of it replaced by what no parser likes."""
    line = draw(st.sampled_from(golden_lines_of(name)))
    for _ in range(draw(st.integers(0, 3))):
        # Values begin behind a colon: there the damage is not noticed at once.
        colons = [place + 1 for place, byte in enumerate(line) if byte in b":,["] or [0]
        begin = draw(st.sampled_from(colons))
        end = min(len(line), begin + draw(st.integers(0, 40)))
        line = line[:begin] + draw(POISONS) + line[end:]
    return line


def parse_or_none(dialect: TranscriptDialect, line: bytes) -> Record | None:
    try:
        return dialect.parse(line)
    except BadLine:
        return None


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_damaged_line_is_used_or_refused(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    entry = begin_foreign(SourceFacts(name=name), "native")
    for line in data.draw(st.lists(damaged_lines(name), max_size=4)):
        record = parse_or_none(dialect, line)
        dialect.text_in(line)
        if record is None:
            continue
        for message in messages_in(record):
            body = msgspec.json.decode(message.message or b"")
            assert body["role"] == message.role
            assert b"\n" not in (message.message or b"")
        entry = dialect.fold(entry, record, 0, 1)
    msgspec.json.decode(msgspec.json.encode(entry))


def long_lines(name: str, count: int) -> bytes:
    if name == "gemini":
        messages = [{"id": f"m{number}", "type": "user", "content": [{"text": "x"}]} for number in range(count)]
        return json.dumps({"$set": {"messages": messages}}).encode()
    if name == "opencode":
        part = {"id": "p", "messageID": "m", "type": "text", "text": "x" * 40 * count}
        return json.dumps({"seq": 1, "type": "message.part.updated.1", "role": "user", "data": {"part": part}}).encode()
    content = [{"type": "text", "text": "x"}] * count
    return json.dumps({"type": "message", "id": "a", "message": {"role": "user", "content": content}}).encode()


@pytest.mark.parametrize("name", NAMES)
def test_a_long_line_takes_time_in_proportion_to_its_length(name: str) -> None:
    dialect = DIALECTS[name]

    def seconds(count: int) -> float:
        line = long_lines(name, count)
        begin = time.process_time()
        record = dialect.parse(line)
        dialect.fold(begin_foreign(SourceFacts(name=name), "native"), record, 0, 1)
        return time.process_time() - begin

    seconds(100)
    # Sixteen times the length; a hundred times the time would be the square.
    assert seconds(16_000) < 100 * max(seconds(1_000), 0.005)
