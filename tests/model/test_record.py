"""Parsing and writing one transcript line."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model import lax
from sessiond.model import record as records
from sessiond.model.dialects import v3
from sessiond.model.record import MAX_FACTS, BadLine, Record, parse

WHEN = 1795224660779
ISO = "2026-11-21T01:31:00.779Z"


def test_a_message_line_gives_role_time_and_the_bytes_of_its_message():
    message = b'{ "role" : "user", "content":"h\xc3\xa9", "timestamp":1795224660673 }'
    line = b'{"type":"message","id":"7e42839c","parentId":null,"timestamp":"' + ISO.encode() + b'","message":' + message
    assert parse(line + b"}") == Record(
        type="message", raw=line + b"}", id="7e42839c", timestamp_ms=WHEN, role="user", message=message
    )


def test_a_message_line_without_a_time_uses_the_time_inside_its_message():
    line = b'{"type":"message","message":{"role":"user","timestamp":1795224660673}}'
    assert parse(line).timestamp_ms == 1795224660673


def test_a_custom_line_gives_its_type_and_data():
    line = (
        b'{"type":"custom","customType":"sessiond/run","data":{"runId":"r"},"id":"a","timestamp":"'
        + ISO.encode()
        + b'"}'
    )
    assert parse(line) == Record(
        type="custom", raw=line, id="a", timestamp_ms=WHEN, custom_type="sessiond/run", data=b'{"runId":"r"}'
    )


@check_each(
    ("line", "reason"),
    [
        (b"", "not an object"),
        (b"null", "not an object"),
        (b"[1]", "not an object"),
        (b'"text"', "not an object"),
        (b"hello", "not an object"),
        (b"\xef\xbb\xbf{}", "not an object"),
        (b'{"type":"message","message":{"role":"us', "torn or not JSON"),
        (b'{"type":"message"}{"type":"message"}', "torn or not JSON"),
        (b'{"type":"message","mess{"type":"message"}', "torn or not JSON"),
        (b'{"type":"a","x":01}', "torn or not JSON"),
        (b'{"type":"a","x":"\x01"}', "torn or not JSON"),
        (b'{"type":"a","x":"\\x"}', "torn or not JSON"),
        (b'{"type":"message","message":{"timestamp":1e999}}', "torn or not JSON"),
        (b'{"type":"message","message":{"role":"user","content":[1e999]}}', "torn or not JSON"),
        (b'{"type":"message","message":{"role":"user","content":' + b"9" * 5000 + b"}}", "torn or not JSON"),
        (b'{"type":"a"}\0\0\0', "NUL bytes"),
        (b"\0" * 4096, "NUL bytes"),
        (b'{"type":"a","x":"\xff"}', "not UTF-8"),
        (b'{"type":"message","message":{"role":"user","content":"\xed\xa0\x80"}}', "not UTF-8"),
        (b'{"x":' + b"[" * 100_000, "nested too deeply"),
        (b'{"x":' + b'{"y":' * 1000 + b"1" + b"}" * 1001, "nested too deeply"),
    ],
)
def test_a_line_that_is_not_an_object_is_a_bad_line_with_a_reason(line, reason):
    with pytest.raises(BadLine) as bad:
        parse(line)
    assert bad.value.reason == reason


def test_large_numbers_in_a_message_are_kept_unchanged():
    message = b'{"role":"user","content":[1e300,' + b"9" * 400 + b"]}"
    assert parse(b'{"type":"message","message":' + message + b"}").message == message


@check_each(
    ("line", "record"),
    [
        (b"{}", {"type": ""}),
        (b'{"type":5,"id":[1],"timestamp":{}}', {"type": ""}),
        (b'{"type":"message","message":"text"}', {"type": "message"}),
        (b'{"type":"message","message":[1]}', {"type": "message"}),
        (b'{"type":"message"}', {"type": "message"}),
        (b'{"type":"message","message":{"role":5}}', {"type": "message", "message": b'{"role":5}'}),
        (b'{"type":"message","message":{"timestamp":true}}', {"type": "message", "message": b'{"timestamp":true}'}),
        (b'{"type":"message","message":{"timestamp":-1}}', {"type": "message", "message": b'{"timestamp":-1}'}),
        (b'{"type":"custom","customType":7,"data":1}', {"type": "custom"}),
        (b'{"type":"custom","customType":"x"}', {"type": "custom", "custom_type": "x", "data": b""}),
        (b'{"type":"compaction","message":{"role":"user"}}', {"type": "compaction", "marker": "compaction"}),
        (b'{"type":"branch_summary","summary":""}', {"type": "branch_summary", "marker": "rewind"}),
        (b'{"type":"later","timestamp":"yesterday"}', {"type": "later"}),
    ],
)
def test_a_wrong_type_in_one_field_does_not_spoil_the_line(line, record):
    assert parse(line) == Record(raw=line, **record)


def test_nesting_is_counted_outside_of_strings_and_accepted_up_to_the_limit():
    inner = lax.MAX_NESTING - 1
    deepest = b'{"x":' + b"[" * inner + b"]" * inner + b',"y":"' + b"[{" * 500 + b'\\"[["}'
    assert parse(deepest).type == ""
    with pytest.raises(BadLine, match="nested too deeply"):
        parse(b'{"x":[' + b"[" * inner + b"]" * inner + b"]}")


@check_each(
    "line",
    [
        b'{"type":"custom","customType":"sessiond/entry","data":{"note":[%b]}}',
        b'{"type":"custom","customType":"sessiond/hook","data":{"note":[%b]}}',
        b'{"type":"session","sessionKey":[%b]}',
        b'{"type":"model_change","modelId":[%b]}',
    ],
)
def test_records_of_which_every_field_counts_have_few_values(line):
    others = len((line % b"").translate(None, bytes(set(range(256)) - set(b",[{"))))
    commas = MAX_FACTS - others
    assert parse(line % (b"1," * commas + b"1")).message is None
    assert parse(line % (b'"%b"' % (b",[{" * MAX_FACTS))).message is None, "in a string they are no values"
    with pytest.raises(BadLine, match=f"record of more than {MAX_FACTS} values"):
        parse(line % (b"1," * (commas + 1) + b"1"))


def test_other_records_may_have_many_values():
    many = b"[%b1]" % (b"1," * MAX_FACTS)
    for kind in (b"sessiond/run", b"sessiond/talk", b"another/program"):
        line = b'{"type":"custom","customType":"%b","data":{"note":%b}}' % (kind, many)
        assert parse(line).custom_type == kind.decode()
    assert parse(b'{"type":"compaction","summary":%b}' % many).marker == "compaction"


@given(st.binary(max_size=300))
@example(b'{"type":"message","message":{"role":"user"}}')
def test_any_bytes_parse_to_a_record_or_a_bad_line(line):
    try:
        record = parse(line)
    except BadLine:
        return
    assert record.raw == line
    assert isinstance(json.loads(line), dict)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
lines = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "custom", "session", "model_change"]) | json_values,
        "id": json_values,
        "timestamp": json_values | st.datetimes().map(lambda moment: moment.isoformat()),
        "customType": st.sampled_from([records.ENTRY, records.RUN]) | json_values,
        "data": json_values,
        "message": st.fixed_dictionaries({}, optional={"role": json_values, "timestamp": json_values}) | json_values,
        "more": json_values,
    },
)


@given(lines, st.booleans())
def test_any_object_is_a_record_whose_message_equals_the_decoded_json(value, ascii_only):
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        record = parse(line)
    except BadLine:
        assert "\\ud" in json.dumps(value).lower()
        return
    is_message = value.get("type") == "message" and isinstance(value.get("message"), dict)
    assert record.is_message == is_message
    assert not is_message or json.loads(record.message or b"") == value["message"]
    assert record.body() == msgspec.json.decode(line)


@given(lines, st.data())
def test_a_torn_line_is_a_bad_line(value, data):
    line = json.dumps(value).encode()
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(BadLine):
        parse(line[:cut])


def test_a_message_record_has_the_documented_shape():
    assert records.message_draft("00ff", WHEN, {"role": "user", "content": "hé\n"}).line("00fe") == (
        b'{"type":"message","id":"00ff","parentId":"00fe","timestamp":"'
        + ISO.encode()
        + b'","message":{"role":"user","content":"h\xc3\xa9\\n"}}\n'
    )


def test_a_raw_message_keeps_its_bytes_and_stays_on_one_line():
    raw = msgspec.Raw(b'{ "role": "user",\n  "content": 1.0 }')
    line = records.message_draft("a", WHEN, raw).line(None)
    assert line.count(b"\n") == 1
    assert parse(line[:-1]).message == b'{ "role": "user",   "content": 1.0 }'


def test_a_custom_record_has_the_documented_shape():
    assert records.custom_line("b", None, WHEN, records.RUN, {"runId": "r"}) == (
        b'{"type":"custom","customType":"sessiond/run","data":{"runId":"r"},"id":"b","parentId":null,"timestamp":"'
        + ISO.encode()
        + b'"}\n'
    )


def test_a_header_has_sessiond_fields_only_when_the_key_is_known():
    spawned = records.header_line("s", "agent:main:subagent:1", "main", WHEN, cwd="/w", spawned_by="agent:main:main")
    assert json.loads(spawned) == {
        "type": "session",
        "version": 3,
        "id": "s",
        "timestamp": ISO,
        "cwd": "/w",
        "sessionKey": "agent:main:subagent:1",
        "agentId": "main",
        "spawnedBy": "agent:main:main",
    }
    assert json.loads(records.header_line("s", None, "main", WHEN, cwd="")) == {
        "type": "session",
        "version": 3,
        "id": "s",
        "timestamp": ISO,
        "cwd": "",
    }


def test_a_draft_knows_the_greatest_length_of_its_line():
    draft = records.message_draft("0" * 16, WHEN, {"role": "user", "content": ""})
    assert len(draft.line("f" * 16)) - 1 == draft.max_bytes
    assert len(draft.line(None)) - 1 < draft.max_bytes


@check_each("value", [0, 1795224660779, 1795224660779.5, lax.MAX_MS - 1])
def test_times_within_the_supported_years_are_accepted(value):
    assert lax.whole_ms(value) == int(value)


@check_each("value", [None, True, "5", -1, lax.MAX_MS, 1e300, 10**40])
def test_values_that_are_not_supported_times_give_none(value):
    assert lax.whole_ms(value) is None


def test_a_line_whose_type_is_no_text_has_no_text_and_is_not_decoded_for_it() -> None:
    long = b'{"type":[' + b"[]," * 1_000_000 + b'0],"message":{"content":"x"}}'
    began = time.thread_time()
    assert v3.DIALECT.text_in(long) == "" and time.thread_time() - began < 0.5
    assert v3.DIALECT.text_in(b'{"type":"message","message":{"content":"x"}}') == "x"


@check_each(("size", "is_kept"), [(records.MAX_PARENT_BYTES, True), (records.MAX_PARENT_BYTES + 1, False)])
def test_a_parent_id_is_written_up_to_a_length(size: int, *, is_kept: bool) -> None:
    draft = records.message_draft("0123456789abcdef", 1, {"role": "user", "content": "x"})
    parent = "p" * (size - 2)  # without its quotes
    assert json.loads(draft.line(parent))["parentId"] == (parent if is_kept else None)
