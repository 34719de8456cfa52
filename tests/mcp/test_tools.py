"""The schemas of the tools, made from the types of the methods."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from sessiond.mcp import tools
from sessiond.mcp.schemas import input_schema, output_schema


class Inner(msgspec.Struct):
    """A docstring of ours."""

    title: str
    description: int = 3


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    word: Literal["a", "b"] | None = None
    many: list[Inner] = []
    flag: bool = False


def test_a_schema_is_in_one_piece_and_says_nothing_of_our_types() -> None:
    inner = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "description": {"type": "integer", "default": 3}},
        "required": ["title"],
    }
    assert output_schema(Outer) == {
        "type": "object",
        "properties": {
            "inner": inner,
            "word": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "default": None},
            "many": {"type": "array", "items": inner, "default": []},
            "flag": {"type": "boolean", "default": False},
        },
        "required": ["inner"],
        "additionalProperties": False,
    }


def test_an_optional_parameter_is_left_out_and_never_null() -> None:
    schema = input_schema(Outer, {"inner": "I", "word": "W", "many": "M", "flag": "F"})
    assert schema["properties"]["word"] == {"enum": ["a", "b"], "description": "W"}
    assert schema["properties"]["flag"] == {"type": "boolean", "default": False, "description": "F"}


def test_a_parameter_without_a_sentence_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        input_schema(Outer, {"inner": "I"})


def test_no_tool_describes_a_parameter_that_it_has_not() -> None:
    for tool in tools.listed():
        described: Any = tools.TOOLS[tool.name].params
        assert list(described) == list(tool.input_schema["properties"]), tool.name
