import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.errors import LimitExceeded
from sessiond.rpc.limits import MAX_VALUES
from sessiond.rpc.value_count import check_value_count

# Long enough to be looked at, whatever else is in it.
PADDING = '"' + "x" * MAX_VALUES + '"'


def refused(text: str) -> bool:
    try:
        check_value_count(text.encode())
    except LimitExceeded:
        return True
    return False


@pytest.mark.parametrize("value", ["1", "{}", "[]", '"\\\\\\""', '"a,b"', "null"])
def test_as_many_values_as_there_may_be_and_one_more(value: str) -> None:
    width = 1 + value.count("{") + value.count("[")
    # The outer bracket counts, the first value has no comma, and the padding has one.
    room = (MAX_VALUES - 1) // width
    assert not refused("[" + ",".join([PADDING, *[value] * room]) + "]")
    assert refused("[" + ",".join([PADDING, *[value] * (room + width)]) + "]")


@pytest.mark.parametrize("text", [",", "[", "{", '\\"', "\\\\", '\\",\\\\', "\\u002c,"])
def test_what_stands_in_strings_counts_for_nothing(text: str) -> None:
    assert not refused('{"a":"' + text * (3 * MAX_VALUES // len(text)) + '"}')


def test_the_border_between_two_looks_is_no_place_to_hide() -> None:
    for shift in range(8):
        quoted = "[" + '"' + "\\" * 2 * (MAX_VALUES // 2 - shift) + "\\n" * shift + '"'
        assert not refused(quoted + "]" + " " * MAX_VALUES)
        assert refused(quoted + ",1" * (MAX_VALUES + 1) + "]")


@given(st.recursive(st.text(st.sampled_from('\\",[{x\n')) | st.integers(), st.lists, max_leaves=30))
def test_the_count_is_that_of_the_decoded_value(value: object) -> None:
    def parts(one: object) -> int:
        return 1 + sum(map(parts, one)) + max(0, len(one) - 1) if isinstance(one, list) else 0

    text = json.dumps(value, separators=(",", ":"))
    fill = MAX_VALUES - parts(value) - 1
    assert not refused("[" + text + ",1" * fill + " " * MAX_VALUES + "]")
    assert refused("[" + text + ",1" * (fill + 1) + " " * MAX_VALUES + "]")


def test_it_takes_its_time_in_small_pieces() -> None:
    for text in (b'"' + b"x" * 2**24 + b'"', b"," * 2**24, b'"\\\\' * 2**22, b"\\" * 2**24):
        began = time.thread_time()
        with suppress(LimitExceeded):
            check_value_count(text)
        assert time.thread_time() - began < 2
