"""Ranges and allowed words of parameters have one definition, which methods, config and CLI share."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect
from support.rows import check_each

from sessiond import ranges
from sessiond.cli import token
from sessiond.config.agents import Thinking
from sessiond.errors import InvalidParams
from sessiond.methods.sessions_list import SessionsListParams
from sessiond.methods.table import METHODS
from sessiond.model.caller import SCOPES, Scope
from sessiond.model.keys import MACHINE, SOURCES, Kind
from sessiond.ranges import SOURCE_WORDS, Range
from sessiond.rpc.bounds import ParamsDecoder, extra_of, layers_of

RANGES = {name: value for name, value in vars(ranges).items() if isinstance(value, Range)}
DECODERS = {method.name: ParamsDecoder(method.params) for method in METHODS}


def clamped_fields() -> dict[tuple[str, str], tuple[inspect.Field, inspect.IntType | inspect.FloatType]]:
    """Every clamped parameter, by method and name."""
    found = {}
    for method in METHODS:
        described = inspect.type_info(method.params)
        assert isinstance(described, inspect.StructType)
        for field in described.fields:
            if extra_of(field.type).get("clamped"):
                numbers = (one for one in layers_of(field.type) if isinstance(one, inspect.IntType | inspect.FloatType))
                found[method.name, field.encode_name] = field, next(numbers)
    return found


CLAMPED = clamped_fields()


def params_with(method: str, name: str, value: Any) -> Any:
    """The value of the parameter that the handler gets."""
    decoder = DECODERS[method]
    described = inspect.type_info(decoder.wire)
    assert isinstance(described, inspect.StructType)
    needed = {field.encode_name: "main" for field in described.fields if field.required}
    if method == "sessions.preview":
        needed["keys"] = ["main"]  # type: ignore[assignment]
    if method == "sessions.heads":
        needed["sessions"] = [{"sessionId": "main"}]  # type: ignore[assignment]
    if method in ("tokens.mint", "http.open"):
        needed["scopes"] = ["read"]  # type: ignore[assignment]
    given = decoder.convert({**needed, name: value})
    return next(getattr(given, field.name) for field in described.fields if field.encode_name == name)


@check_each("place", CLAMPED, ids="-".join)
def test_every_clamped_parameter_accepts_both_ends_of_its_range_and_has_its_default(place: tuple[str, str]) -> None:
    field, number = CLAMPED[place]
    least, most = number.ge, number.le
    assert least is not None and most is not None and not field.required
    assert [params_with(*place, value) for value in (least, most, most + 1, 1e300)] == [least, most, most, most]
    if extra_of(field.type)["clamped"] == "most":
        with pytest.raises(msgspec.ValidationError, match="Expected `float` >= 0"):
            params_with(*place, least - 1)
    else:
        assert params_with(*place, least - 1) == least
    if extra_of(field.type).get("null") is not False:
        assert params_with(*place, None) == field.default
    assert field.default is None or least <= field.default <= most


def test_exactly_these_parameters_are_clamped() -> None:
    assert {f"{method} {name}" for method, name in CLAMPED} == {
        *(f"{method} {name}" for method in ("sessions_list", "sessions.list") for name in ("limit", "messageLimit")),
        *(f"{method} activeMinutes" for method in ("sessions_list", "sessions.list")),
        *(f"{method} {name}" for method in ("sessions_history", "chat.history") for name in ("limit", "maxBytes")),
        *(
            "sessions_search limit",
            "sessions_search since",
            "sessions_search until",
            "sessions_search withinMs",
            "sessions.usage since",
            "sessions.usage until",
        ),
        *("sessions.preview limit", "sessions.preview maxChars", "agent.wait timeoutMs"),
        *("sessions.bytes maxBytes", "sessions.heads maxBytes"),
        *("sessions_send timeoutSeconds", "sessions_inbox wait", "tokens.mint ttlSeconds", "http.open ttlSeconds"),
    }


@check_each("name", RANGES)
def test_the_default_of_a_range_lies_within_it(name: str) -> None:
    one = RANGES[name]
    assert one.least <= one.default <= one.most


def test_types_and_constants_list_the_same_words() -> None:
    assert get_args(Thinking) == ranges.THINKING_LEVELS
    assert get_args(Kind) == ranges.SESSION_KINDS
    assert get_args(Scope) == SCOPES == token.SCOPES


@check_each("text", ["", " \n\t", "a\0b"])
@check_each(
    ("method", "name"),
    [
        ("chat.send", "message"),
        ("sessions_send", "message"),
        ("sessions.steer", "message"),
        ("sessions.create", "message"),
    ],
)
def test_a_message_that_is_blank_or_has_a_nul_is_refused(method: str, name: str, text: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        params_with(method, name, text)
    assert refused.value.data == {"field": "$.message"}


def test_the_names_of_sources_are_the_same_everywhere() -> None:
    schema = msgspec.json.schema(SessionsListParams)["$defs"]["SessionsListParams"]["properties"]["sources"]
    words = next(one["items"]["enum"] for one in schema["anyOf"] if "items" in one)
    assert ("sessiond", *SOURCES, MACHINE) == SOURCE_WORDS
    assert sorted(words) == sorted(SOURCE_WORDS)
