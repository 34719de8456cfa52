"""Say in a sentence what is wrong with params: which field, what is expected there, and what the caller sent.

Parses msgspec's error messages and knows the types of fields; knows no method. Never fails: an unknown message of
msgspec still gives a sentence.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from sessiond.errors import InvalidParams, quote, shorten
from sessiond.model.lax import decode_any
from sessiond.rpc.bounds import extra_of, layers_of

_WORDS = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING_OR_UNKNOWN = re.compile(r"^Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`$", re.DOTALL)
_GOT = re.compile(r"^Expected `[^`]*`, got `(?P<kind>\w+)`$")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<place>\d+|\.\.\.)\]")
_IN_WORDS = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
# Longer params are not decoded a second time only to quote what was sent, so that a refusal stays cheap.
_LONG_BYTES = 64 * 1024
_NOTHING: Any = object()
_TOO_LONG = ", not one of so many digits"


def refusal_of(error: msgspec.ValidationError, params: type, text: bytes | memoryview) -> InvalidParams:
    """The error for the params `text`, which do not match the type `params`."""
    found = _WORDS.match(str(error))
    words, path = (found["what"], found["path"] or "$") if found else (str(error), "$")
    if named := _MISSING_OR_UNKNOWN.match(words):
        path = shorten(f"{path}.{named['name']}")
        what = "it is missing" if named["how"].startswith("missing") else "there is no such parameter"
        return InvalidParams(f"`{path}`: {what}.", field=path)
    kind = _kind_at(params, path)
    expected = describe(kind) if kind is not None else "another value"
    received = _describe_value(_value_at(text, path), words, kind)
    path = shorten(path)
    return InvalidParams(f"`{path}`: {expected} is expected{received}.", field=path)


def describe(kind: inspect.Type) -> str:
    """What a type accepts, such as "a whole number from 1 to 5"; null is not mentioned."""
    if declared := extra_of(kind).get("expected"):
        return str(declared)
    accepted = [one for one in layers_of(kind) if not isinstance(one, inspect.Metadata | inspect.UnionType)]
    return " or ".join(dict.fromkeys(_describe_one(one) for one in accepted)) or "null"


def _describe_one(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_words_for(kind.ge, kind.le)}"
        case inspect.FloatType():
            return f"a number{_words_for(kind.ge, kind.le)}"
        case inspect.StrType():
            length = _words_for(kind.min_length, kind.max_length, first=" of ")
            return f"text{length} characters" if length else "text"
        case inspect.LiteralType():
            words = ", ".join(json.dumps(value) for value in kind.values)
            return f"one of {words}" if len(kind.values) > 1 else words
        case inspect.ListType() | inspect.VarTupleType():
            length = _words_for(kind.min_length, kind.max_length, first=" of ")
            return f"an array{length} item{'' if length.endswith(' 1') else 's'}" if length else "an array"
        case inspect.StructType() | inspect.DictType():
            return "an object"
        case _:
            return "another value"


def _words_for(least: float | None, most: float | None, *, first: str = " from ") -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f" of at least {_plain(least)}"
    return f" of at most {_plain(most)}" if least is None else f"{first}{_plain(least)} to {_plain(most)}"


def _plain(number: float | None) -> str:
    return str(int(number)) if number is not None and number == int(number) else str(number)


def _kind_at(params: type, path: str) -> inspect.Type | None:
    """The type of the field at a path; None where there is no such field."""
    kind: inspect.Type | None = _type_info(params)
    for step in _STEP.finditer(path):
        kind = _member_of(kind, step["name"]) if kind is not None else None
    return kind


# Cached, because it takes longer than the rest of a refusal and a client may repeat a mistake a thousand times.
_type_info = cache(inspect.type_info)


def _member_of(kind: inspect.Type, name: str | None) -> inspect.Type | None:
    for one in layers_of(kind):
        match one:
            case inspect.StructType() if name is not None:
                return next((field.type for field in one.fields if field.encode_name == name), None)
            case inspect.ListType() | inspect.VarTupleType() if name is None:
                return one.item_type
            case inspect.DictType() if name is None:
                return one.value_type
    return None


def _value_at(text: bytes | memoryview, path: str) -> Any:
    if len(text) > _LONG_BYTES:
        return _NOTHING
    try:
        value = decode_any(text)
        for step in _STEP.finditer(path):
            value = value[step["name"] if step["name"] is not None else int(step["place"])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, ValueError):
        return _NOTHING
    return value


def _describe_value(value: Any, words: str, kind: inspect.Type | None) -> str:
    """What was sent, as `, not 9`; empty if it cannot be said in a word."""
    match value:
        case bool() | None:
            return f", not {json.dumps(value)}"
        case int() | float():
            text = str(value)
            return f", not {text}" if len(text) <= 40 else _TOO_LONG
        case str() if kind is not None and any(isinstance(one, inspect.LiteralType) for one in layers_of(kind)):
            return f", not {quote(value[:40])}"
        case str() if kind is not None and any(isinstance(one, inspect.StrType) for one in layers_of(kind)):
            if "matching regex" in words:
                return f", not {quote(value[:40])}"
            return f", not {len(value)}" if "of length" in words else ""
        case list() if "of length" in words:
            return f", not {len(value)}"
    if "out of range" in words:
        return _TOO_LONG
    found = _GOT.match(words)
    return f", not {_IN_WORDS.get(found['kind'], found['kind'])}" if found else ""
