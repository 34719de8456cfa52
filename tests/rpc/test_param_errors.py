"""The error for wrong params: a sentence that names the field, what is expected there, and what was given."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.params import decode_params


class Inner(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    the_name: Annotated[str, Meta(min_length=1, max_length=3)]
    sizes: dict[str, int] = {}


class ManyParams(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    level: Annotated[int, Meta(ge=1, le=5)] | None = None
    share: Annotated[float, Meta(ge=0)] | None = None
    most: Annotated[int, Meta(le=9)] = 1
    mode: Literal["run", "session"] = "run"
    is_on: bool = False
    inner: list[Inner] = []
    some: Annotated[list[int], Meta(min_length=1, max_length=2)] = msgspec.field(default_factory=list)
    agent: Annotated[str, Meta(pattern="^a", extra={"expected": "an id that begins with a"})] = "a"
    free: msgspec.Raw = msgspec.Raw(b"null")
    either: int | str | None = None
    must: str = ""


DECODER = ParamsDecoder(ManyParams)


def refusal(params: Any) -> tuple[str, str]:
    with pytest.raises(InvalidParams) as refused:
        decode_params(DECODER, msgspec.Raw(params if isinstance(params, bytes) else json.dumps(params).encode()))
    return refused.value.data["field"], refused.value.message


@check_each(
    ("params", "field", "sentence"),
    [
        ({"level": "x"}, "$.level", "a whole number from 1 to 5 is expected, not text."),
        ({"level": 0}, "$.level", "a whole number from 1 to 5 is expected, not 0."),
        ({"level": 6}, "$.level", "a whole number from 1 to 5 is expected, not 6."),
        ({"level": 1.5}, "$.level", "a whole number from 1 to 5 is expected, not 1.5."),
        ({"level": True}, "$.level", "a whole number from 1 to 5 is expected, not true."),
        ({"level": 10**300}, "$.level", "a whole number from 1 to 5 is expected, not one of so many digits."),
        (b'{"share": 1e999}', "$.share", "a number of at least 0 is expected, not one of so many digits."),
        ({"share": -1}, "$.share", "a number of at least 0 is expected, not -1."),
        ({"most": 10}, "$.most", "a whole number of at most 9 is expected, not 10."),
        ({"mode": "jog"}, "$.mode", """one of "run", "session" is expected, not 'jog'."""),
        ({"mode": 1}, "$.mode", 'one of "run", "session" is expected, not 1.'),
        ({"isOn": None}, "$.isOn", "true or false is expected, not null."),
        ({"isOn": "yes"}, "$.isOn", "true or false is expected, not text."),
        ({"inner": {}}, "$.inner", "an array is expected, not an object."),
        ({"inner": [7]}, "$.inner[0]", "an object is expected, not 7."),
        ({"inner": [{"theName": ""}]}, "$.inner[0].theName", "text of 1 to 3 characters is expected, not 0."),
        ({"inner": [{"theName": "a"}, {}]}, "$.inner[1].theName", "it is missing."),
        ({"inner": [{"theName": "a", "b": 1}]}, "$.inner[0].b", "there is no such parameter."),
        (
            {"inner": [{"theName": "a", "sizes": {"k": ""}}]},
            "$.inner[0].sizes[...]",
            "a whole number is expected, not text.",
        ),
        ({"some": []}, "$.some", "an array of 1 to 2 items is expected, not 0."),
        ({"some": [1, 2, 3]}, "$.some", "an array of 1 to 2 items is expected, not 3."),
        ({"agent": "b"}, "$.agent", "an id that begins with a is expected, not 'b'."),
        ({"either": []}, "$.either", "a whole number or text is expected, not an array."),
        ({"must": {"a": 1}}, "$.must", "text is expected, not an object."),
        ({"nope": 1}, "$.nope", "there is no such parameter."),
        ({"no\u202epe\n": 1}, "$.no\\u202epe\\u000a", "there is no such parameter."),
    ],
)
def test_the_sentence_names_the_field_the_expected_type_and_the_value(params: Any, field: str, sentence: str) -> None:
    assert refusal(params) == (field, f"`{field}`: {sentence}")


def test_long_params_are_not_parsed_again_for_the_sentence() -> None:
    field, sentence = refusal({"must": "x" * 100_000, "level": 9})
    assert (field, sentence) == ("$.level", "`$.level`: a whole number from 1 to 5 is expected.")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_FIELDS = st.sampled_from(
    [*(field.encode_name for field in msgspec.structs.fields(ManyParams)), "theName", "`", "a.b[0]"]
)


@given(st.dictionaries(_FIELDS, _JSON | st.lists(st.dictionaries(_FIELDS, _JSON, max_size=3), max_size=2), max_size=4))
def test_any_wrong_params_get_a_sentence_and_a_field(params: dict[str, Any]) -> None:
    refusal = None
    try:
        decode_params(DECODER, msgspec.Raw(json.dumps(params).encode()))
    except InvalidParams as error:
        refusal = error
    if refusal is None:
        return
    field = refusal.data["field"]
    assert field.startswith("$") and refusal.message.startswith(f"`{field}`: ") and refusal.message.endswith(".")
    assert refusal.message.isprintable() and len(refusal.message) < 500
    told = refusal.message.removeprefix(f"`{field}`: ")
    assert not any(word in told for word in ("`str`", "`int`", "`float`", "`array`", "`object`", "regex", "null |"))
