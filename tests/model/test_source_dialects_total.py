"""Any bytes at all are a record or ignored by the dialects of other programs, in a time that grows with them."""

from __future__ import annotations

import json
import time
from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.opencode_database import lines_of_session, make_database
from support.sampling import spread
from support.source_files import GOLDEN

from sessiond.model.decoding_cost import is_too_deep
from sessiond.model.dialects import DIALECTS
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.record import BadLine, Record
from sessiond.model.source_facts import SourceFacts

PROGRAMS = ("claude", "codex", "gemini", "opencode", "pi")
# What pi writes is shown as it is.
COPIED = frozenset({"pi"})
ROLES = {"user", "assistant", "toolResult"}
BLOCKS = {"text", "thinking", "toolCall", "image"}
BIG = 300_000


@cache
def real_lines(program: str) -> list[bytes]:
    files = sorted((GOLDEN / program).rglob("*.jsonl"))
    lines = {line for path in files for line in path.read_bytes().splitlines()}
    if program == "opencode":
        database = make_database()
        ids = [one for (one,) in database.execute("select id from session")]
        lines = {line for session_id in ids for line in lines_of_session(database, session_id)}
    return sorted(line for line in lines if len(line) < 4000)


def check_record(record: Record) -> None:
    """What every reader of a record relies on."""
    if record.message is None:
        assert record.role is None and not record.is_typed
        return
    assert b"\n" not in record.message and not is_too_deep(record.message)
    message = msgspec.json.decode(record.message)
    assert message["role"] == record.role in ROLES
    assert record.role == "user" or not record.is_typed
    # What is added to a message may be its usage alone.
    may_be_empty = record.role == "toolResult" or record.is_addition
    assert isinstance(message["content"], list | str) and (message["content"] or may_be_empty)
    if isinstance(message["content"], list):
        assert {block["type"] for block in message["content"]} <= BLOCKS
    assert message.get("timestamp") == record.timestamp_ms


def read_all(program: str, lines: list[bytes]) -> None:
    dialect = DIALECTS[program]
    entry = begin_foreign(SourceFacts(name=program), "native")
    reasons: list[str] = []
    for offset, line in enumerate(lines):
        dialect.text_in(line)
        try:
            record = dialect.parse(line)
        except BadLine as error:
            reasons.append(error.reason)
            continue
        assert record.raw == line
        for one in (record, *record.more) if program not in COPIED else ():
            check_record(one)
        entry = dialect.fold(entry, record, offset, 1)
    msgspec.json.encode(entry)
    assert all(reasons)
    assert entry.source is not None and len(entry.source.unknown) <= 20


@st.composite
def broken_lines(draw: st.DrawFn, program: str) -> bytes:
    """A real line: whole, torn, spliced with another one, with other bytes in it, or with another value somewhere."""
    line = draw(st.sampled_from(real_lines(program)))
    place = draw(st.integers(0, len(line)))
    match draw(st.integers(0, 5)):
        case 0:
            return line
        case 1:
            return line[:place]
        case 2:
            return line[:place] + draw(st.sampled_from(real_lines(program)))
        case 3:
            return line[:place] + draw(st.binary(max_size=6)) + line[place + draw(st.integers(0, 6)) :]
        case _:
            return json.dumps(changed(draw, json.loads(line))).encode("utf-8", "surrogatepass")


ODD_VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("\ud800"), st.just(10**400)),
    st.just([]),
    st.just({}),
    st.builds(
        lambda depth: json.loads('{"type":' * depth + "1" + "}" * depth), st.integers(1, 300) | st.integers(100, 132)
    ),
    st.builds(lambda depth: json.loads("[" * depth + "]" * depth), st.integers(1, 300) | st.integers(100, 132)),
)


def changed(draw: st.DrawFn, value: object) -> object:
    """`value` with something odd in a random place."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: changed(draw, value[name])}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], changed(draw, value[place]), *value[place + 1 :]]
    return draw(ODD_VALUES)


@pytest.mark.parametrize("program", PROGRAMS)
@given(data=st.data())
def test_any_change_of_a_real_line_is_read_or_ignored(program: str, data: st.DataObject) -> None:
    read_all(program, data.draw(st.lists(broken_lines(program), min_size=1, max_size=6)))


@pytest.mark.parametrize("program", PROGRAMS)
@given(lines=st.lists(st.binary(max_size=80), max_size=4))
def test_any_bytes_are_read_or_ignored(program: str, lines: list[bytes]) -> None:
    read_all(program, lines)


def claude_line(content: bytes) -> bytes:
    return b'{"type":"assistant","message":{"id":"m","content":%b}}' % content


def codex_line(content: bytes) -> bytes:
    return b'{"type":"response_item","payload":{"type":"message","role":"assistant","content":%b}}' % content


def long_contents(count: int) -> list[bytes]:
    """Contents of about `count` bytes, of the kinds that have made readers slow."""
    return [
        b"[" * count,
        b'{"a":' * (count // 5),
        b'"%b"' % (b" " * count),
        b'"%b"' % (b"\\ud83d" * (count // 6)),
        b'"%b"' % (b'\\\\\\"<' * (count // 5)),
        b'"%b"' % (b"<image" * (count // 6)),
        b"[%b]" % b",".join([b'{"type":"text","text":"x"}'] * (count // 27)),
        b'[{"type":"tool_use","input":{"a":[%b]}}]' % b",".join([b"[[]]"] * (count // 5)),
        b"[%b]" % b",".join([b"1"] * (count // 2)),
        b'[{"type":"tool_result","content":"%b"}]' % (b"\\n" * (count // 2)),
    ]


@pytest.mark.parametrize("make", [claude_line, codex_line])
def test_a_line_that_is_ten_times_as_long_takes_no_hundred_times_as_long(make):
    program = "claude" if make is claude_line else "codex"
    for short, long in spread(list(zip(long_contents(BIG // 10), long_contents(BIG), strict=True)), 5):
        quick, slow = took_s(program, make(short)), took_s(program, make(long))
        # 10 for a linear reader, 100 for a quadratic one; a processor's own time, so that others do not matter.
        assert slow < 50 * max(quick, 0.001), (make(short)[:100], quick, slow)


def took_s(program: str, line: bytes) -> float:
    began = time.process_time()
    read_all(program, [line])
    return time.process_time() - began


def test_bookkeeping_is_skipped_many_times_as_quickly_as_it_could_be_decoded():
    filler = {"type": "text", "text": "a line of text\n" * 40, "list": [1, {"x": [True, None]}] * 20}
    line = json.dumps({"type": "api-request-shape", "shape": {"system": [filler] * 60}}).encode()
    for _ in range(5):
        began = time.process_time()
        for _ in range(20):
            DIALECTS["claude"].parse(line)
        skipped = time.process_time() - began
        began = time.process_time()
        for _ in range(20):
            msgspec.json.decode(line)
        if 1.3 * skipped < time.process_time() - began:
            return
    pytest.fail("a line that says nothing takes as long as to decode it whole")
