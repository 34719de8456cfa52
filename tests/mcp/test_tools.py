"""The tools as they are listed: short, and in step with the methods that they stand for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sessiond.mcp import tools
from sessiond.mcp.calls import call_of
from sessiond.methods.table import METHODS

METHOD_OF = {"sessions_wait": "agent.wait"}
# What the server itself turns into what the method takes.
OWN = {"sessions_wait": {"timeoutSeconds"}}
KINDS = {"string": str, "integer": float, "number": float, "boolean": bool}


@pytest.mark.parametrize("tool", tools.LISTED, ids=tools.NAMES)
def test_a_tool_takes_what_its_method_takes(tool: dict[str, Any]) -> None:
    name = tool["name"]
    method = next(method for method in METHODS if method.name == METHOD_OF.get(name, name))
    fields = {field.encode_name: field for field in msgspec.structs.fields(method.params)}
    schema = tool["inputSchema"]
    assert set(schema["properties"]) - OWN.get(name, set()) <= set(fields)
    needed = {field.encode_name for field in fields.values() if field.required}
    assert needed <= set(schema.get("required", ()))
    for wire_name, given in schema["properties"].items():
        if wire_name in fields and "type" in given and given["type"] != "array":
            example = {"string": "x", "integer": 1, "number": 1.5, "boolean": True}[given["type"]]
            msgspec.convert(example, fields[wire_name].type)
        for value in given.get("enum", ()):
            msgspec.convert(value, fields[wire_name].type)


def test_all_that_a_model_reads_of_them_is_under_2000_tokens() -> None:
    # Text of this kind has 3.5 characters a token or more, with the tokenizers of all the programs.
    read = json.dumps(tools.LISTED, separators=(",", ":")) + tools.INSTRUCTIONS
    assert len(read) <= 7_000


def test_what_a_model_leaves_empty_is_left_out() -> None:
    call = call_of("sessions_list", {"limit": 3, "search": None})
    assert (call.method, call.params_of(0)) == ("sessions_list", {"limit": 3})
