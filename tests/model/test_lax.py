"""Tolerant decoding: whatever others have written is used or left out, and never raises an exception."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model import lax
from sessiond.model.decoding_cost import is_too_deep
from sessiond.model.entry import Spawn

# Whatever JSON can say, and some things that it cannot.
NUMBERS = st.sampled_from([0, -1, 1.5, 2**53, 2**53 + 1, 2**64, -(10**400), 10**400, 1e300, -1e300])
TEXT = st.text(max_size=8) | st.sampled_from(["\ud83d", "a\udc00b", "\ud83d\ud83d\ude00", "\0", "\x1b[31m"])
HOSTILE = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


class Sample(msgspec.Struct, rename="camel"):
    name_of_it: str
    count: lax.Count = 7
    usd: lax.Amount | None = None
    at: lax.Milliseconds | None = None
    more: dict[str, Any] | None = None


@check_each(
    ("text", "mended"),
    [
        (rb'"cut \ud83d"', rb'"cut \ufffd"'),
        (rb'"\uDE00 cut"', rb'"\ufffd cut"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ud83d\n\ude00"', rb'"\ufffd\n\ufffd"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\u00e9"', rb'"\u00e9"'),
        (b'"plain"', b'"plain"'),
    ],
)
def test_lone_surrogates_become_replacement_characters_of_the_same_length(text, mended):
    assert lax.mend_surrogates(text) == mended
    assert len(mended) == len(text)
    assert lax.decode(text) == json.loads(mended)


ESCAPES = st.sampled_from([rb"\ud83d", rb"\ude00", rb"\\", rb"\n", rb"\u00e9", b"x", rb"\""])


@given(st.lists(ESCAPES, max_size=40), st.integers(18, 40))
def test_surrogates_are_mended_wherever_the_pieces_end(escapes: list[bytes], piece: int) -> None:
    text = b'"%b"' % b"".join(escapes)
    whole = lax.mend_surrogates(text)
    assert json.loads(whole) == json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert lax.mend_surrogates(text, piece) == whole


def test_a_pair_with_much_text_behind_it_is_passed_over() -> None:
    for before in range(1000, 1016):
        text = json.dumps("x" * before + "\U0001f600" + "y" * (3 * lax._PIECE_BYTES)).encode()
        assert lax.mend_surrogates(text) == text
        cut = text[:-1] + rb"\ud83d" + b'"'
        assert lax.mend_surrogates(cut) == text[:-1] + rb"\ufffd" + b'"'


@check_each("escape", [rb"\ud800", rb"\ud83d\ude00", rb"\n", rb"\\", rb"\u00e9"])
def test_mending_megabytes_of_escapes_takes_less_than_a_second(escape: bytes) -> None:
    text = b'"' + rb"\ud800" + escape * (8_000_000 // len(escape)) + b'"'
    began = time.thread_time()
    assert len(lax.mend_surrogates(text)) == len(text)
    assert time.thread_time() - began < 2  # a call for each escape took seven


@given(st.text(max_size=20) | TEXT)
def test_any_text_that_javascript_can_write_is_decoded(text):
    written = json.dumps(text).encode()
    assert lax.decode(written) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(st.binary(max_size=60) | HOSTILE.map(json.dumps).map(str.encode))
@example(b"[" * 100_000)
@example(b'{"a":' * 120 + b"1" + b"}" * 120)
@example(b"9" * 5000)
@example(b"NaN")
@example(b"1e999")
@settings(deadline=None)
def test_decoding_any_bytes_never_raises(data):
    lax.decode(data)
    assert isinstance(lax.decode_dict(data), dict)
    lax.decode_fitting(data, Sample)


@given(HOSTILE)
def test_converting_any_value_never_raises_and_its_writable_part_is_valid_json(value):
    lax.convert_fitting(value, Sample)
    lax.keep_fitting(value, Spawn)
    lax.whole_ms(value)
    lax.amount(value)
    msgspec.json.decode(msgspec.json.encode(_encodable(lax.keep_writable(value))))


def _encodable(value: Any) -> Any:
    return lax.decode(json.dumps(value).encode())


def test_a_field_of_a_wrong_type_is_treated_as_missing():
    right = {"nameOfIt": "x", "count": 3, "usd": 1, "at": 5, "more": {"a": 1}}
    assert lax.convert_fitting(right, Sample) == Sample("x", 3, 1.0, 5, {"a": 1})
    wrong = {"nameOfIt": "x", "count": -1, "usd": 10**400, "at": "now", "more": []}
    assert lax.convert_fitting(wrong, Sample) == Sample("x")
    assert lax.convert_fitting({**right, "nameOfIt": ["x"]}, Sample) is None
    assert lax.convert_fitting([], Sample) is None


@check_each("beyond", [2**53 + 1, -(2**53) - 1, 10**400, 1e300])
def test_numbers_beyond_2_to_the_53_are_left_out_at_any_depth(beyond):
    assert lax.keep_writable({"a": beyond, "b": [1, beyond, {"c": beyond}], "d": 2**53}) == {"b": [1, {}], "d": 2**53}
    assert lax.keep_writable(beyond) is None


def test_the_writable_part_of_a_value_fits_into_a_record():
    deep: Any = 1
    for _ in range(lax.MAX_NESTING):
        deep = [deep]
    assert not is_too_deep(msgspec.json.encode({"type": "custom", "data": lax.keep_writable({"a": deep})}))
    assert lax.keep_writable([[1]]) == [[1]]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LITERALS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\Z")


@given(FLOATS.map(repr) | LITERALS)
@example("1.7976931348623157e308")
@example("2.2250738585072011e-308")
@example("1e400")
@example("-0.0")
@example("0." + "0" * 400 + "1")
def test_numbers_are_read_as_msgspec_reads_them(literal: str):
    def read(decode):
        try:
            value = decode(literal)
        except msgspec.DecodeError:
            return None
        return type(value), repr(value)

    assert read(lax.decode_any) == read(msgspec.json.decode)


def test_a_line_full_of_numbers_that_are_slow_to_read_takes_no_longer_than_others():
    def seconds(number: bytes) -> float:
        data = b"[" + b",".join([number] * 5000) + b"]"
        began = time.thread_time()
        lax.decode_any(data)
        return time.thread_time() - began

    # Without its own reading of numbers sixty times as long.
    quick, slow = (min(seconds(number) for _ in range(5)) for number in (b"1.5", b"1.7976931348623157e308"))
    assert slow < 15 * quick
