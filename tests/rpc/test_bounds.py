"""The decoder clamps, checks or refuses params as their types say."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.methods.sessions_history import SessionsHistoryParams
from sessiond.ranges import HISTORY_LIMIT
from sessiond.rpc.bounds import ParamsDecoder, wire_type
from sessiond.rpc.params import decode_params

CLAMPED = {"clamped": True}


def refuse_x(text: str, field: str) -> None:
    if "x" in text:
        raise InvalidParams(f"`{field}` has an x.", field=field)


class BoundParams(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Numbers of every kind."""

    page_size: Annotated[int, Meta(ge=1, le=200, description="How many.", extra=CLAMPED)] = 50
    minutes: Annotated[Annotated[float, Meta(ge=1, le=10**9, extra=CLAMPED)] | None, Meta(description="When.")] = None
    wait: Annotated[float, Meta(ge=0, le=20, extra={"clamped": "most"})] = 5
    ttl: Annotated[int, Meta(ge=1, le=100, extra={"clamped": True, "null": False})] = 7
    plain: Annotated[int, Meta(ge=1, le=5)] | None = None
    word: Annotated[Annotated[str, Meta(extra={"check": refuse_x})] | UnsetType | None, Meta(description="A.")] = UNSET


DECODER = ParamsDecoder(BoundParams)


def decoded(**params: Any) -> BoundParams:
    found: BoundParams = decode_params(DECODER, msgspec.Raw(json.dumps(params).encode()))
    return found


@check_each(
    ("given_value", "taken"),
    [(None, 50), (0, 1), (-5, 1), (1, 1), (1.9, 1), (2, 2), (199.99, 199), (200, 200), (200.9, 200), (10**300, 200)],
)
def test_a_number_is_floored_and_clamped_to_its_range(given_value: float | None, taken: int) -> None:
    size = decoded(pageSize=given_value).page_size
    assert (size, type(size)) == (taken, int)


def test_an_omitted_param_has_the_default_of_its_type() -> None:
    assert decoded() == wire_type(BoundParams)()
    assert isinstance(decoded(), BoundParams)
    assert [decoded(minutes=value).minutes for value in (None, 0, 2.5, 1e300)] == [None, 1, 2.5, 10**9]


def test_a_number_may_be_clamped_on_one_side_and_refused_on_the_other() -> None:
    assert [decoded(wait=value).wait for value in (0, 0.5, 20, 21, None)] == [0, 0.5, 20, 20, 5]
    with pytest.raises(InvalidParams) as refused:
        decoded(wait=-0.5)
    assert refused.value.message == "`$.wait`: a number of at least 0 is expected, not -0.5."
    assert refused.value.data == {"field": "$.wait"}


def test_null_is_refused_where_the_type_forbids_it() -> None:
    assert decoded(ttl=0).ttl == 1
    with pytest.raises(InvalidParams, match=r"^`\$\.ttl`: a number is expected, not null\.$"):
        decoded(ttl=None)


def test_a_text_is_checked_by_the_function_of_its_type() -> None:
    assert [decoded(word="a").word, decoded(word=None).word, decoded().word] == ["a", None, UNSET]
    with pytest.raises(InvalidParams, match=r"^`\$\.word` has an x\.$"):
        decoded(word="xy")


def test_values_converted_from_python_objects_are_bounded_in_the_same_way() -> None:
    assert DECODER.convert({"pageSize": 1000.0, "minutes": None}).page_size == 200


_NAMES = st.sampled_from(["pageSize", "minutes", "wait", "ttl", "plain", "word", "other"])
_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.none() | st.booleans() | _NUMBERS | st.text() | st.lists(st.integers())


@given(st.dictionaries(_NAMES, _VALUES))
def test_any_value_is_brought_into_range_or_refused_with_a_sentence(params: dict[str, Any]) -> None:
    found, refusal = decoded(), None
    try:
        found = decoded(**params)
    except InvalidParams as error:
        refusal = error
    if refusal is not None:
        assert refusal.data["field"] in {f"$.{name}" for name in params}
        assert refusal.message.startswith(f"`{refusal.data['field']}`") and refusal.message.endswith(".")
    assert isinstance(found.page_size, int) and 1 <= found.page_size <= 200
    assert found.minutes is None or 1 <= found.minutes <= 10**9
    assert 0 <= found.wait <= 20 and 1 <= found.ttl <= 100


def test_the_schema_has_range_default_and_description() -> None:
    schema = msgspec.json.schema(wire_type(BoundParams))["$defs"]["BoundParams"]
    assert schema["description"] == "Numbers of every kind."
    number = {"type": "number", "minimum": 1, "maximum": 200, "x-clamped": True}
    assert schema["properties"]["pageSize"] == {
        "description": "How many.",
        "anyOf": [number, {"type": "null"}],
        "default": 50,
    }
    assert schema["properties"]["ttl"] == {**number, "maximum": 100, "default": 7}


def test_params_without_bounded_fields_are_decoded_as_they_are() -> None:
    class PlainParams(msgspec.Struct):
        name: str = ""

    assert wire_type(PlainParams) is PlainParams


def test_a_number_that_is_named_again_and_again_is_read_once():
    decoder = ParamsDecoder(SessionsHistoryParams)
    params = b'{"sessionKey":"main",%b}' % b",".join([b'"limit":1.7976931348623157e308'] * 20_000)
    began = time.thread_time()
    assert decoder.bind(decoder.decode_wire(params)).limit == HISTORY_LIMIT.most
    assert time.thread_time() - began < 0.1  # reading all of them takes 0.2 s and more
    with pytest.raises(msgspec.DecodeError):
        decoder.decode_wire(b"[%b]" % b",".join([b"1"] * 5000))
