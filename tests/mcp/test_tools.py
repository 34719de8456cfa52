"""The listed tools: their descriptions are short, and their parameters match those of the methods."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import msgspec
from support.rows import check_each

from sessiond.mcp import tools
from sessiond.mcp.calls import build_call
from sessiond.methods.table import METHODS
from sessiond.rpc.bounds import wire_type
from sessiond.rpc.openrpc import openrpc_document

METHOD_OF = {
    "sessions_wait": "agent.wait",
    "questions_list": "questions.list",
    "questions_answer": "questions.answer",
}
ALL = [*tools.LISTED, *tools.ANSWERING]
# Parameters that the server translates to others of the method.
OWN = {"sessions_wait": {"timeoutSeconds"}}
KINDS = {"string": str, "integer": float, "number": float, "boolean": bool}


@check_each("tool", ALL, ids=[tool["name"] for tool in ALL])
def test_the_parameters_of_a_tool_are_those_of_its_method(tool: dict[str, Any]) -> None:
    name = tool["name"]
    method = next(method for method in METHODS if method.name == METHOD_OF.get(name, name))
    fields = {field.encode_name: field for field in msgspec.structs.fields(method.params)}
    wire_types = {field.encode_name: field.type for field in msgspec.structs.fields(wire_type(method.params))}
    schema = tool["inputSchema"]
    assert set(schema["properties"]) - OWN.get(name, set()) <= set(fields)
    needed = {field.encode_name for field in fields.values() if field.required}
    assert needed <= set(schema.get("required", ()))
    for wire_name, given in schema["properties"].items():
        if wire_name in fields and "type" in given and given["type"] != "array":
            example = {"string": "x", "integer": 1, "number": 1.5, "boolean": True}[given["type"]]
            msgspec.convert(example, wire_types[wire_name])
        for value in given.get("enum", ()):
            msgspec.convert(value, wire_types[wire_name])


@functools.cache
def documented_methods() -> dict[str, Any]:
    document = openrpc_document(METHODS, title="", version="")
    return {method["name"]: method for method in document["methods"]}


@check_each("tool", tools.LISTED, ids=tools.NAMES)
def test_the_range_and_the_default_of_a_number_are_those_of_the_method(tool: dict[str, Any]) -> None:
    name = tool["name"]
    params = {param["name"]: param["schema"] for param in documented_methods()[METHOD_OF.get(name, name)]["params"]}
    for wire_name, offered in tool["inputSchema"]["properties"].items():
        if wire_name in OWN.get(name, set()) or offered.get("type") not in ("integer", "number"):
            continue
        own = params[wire_name]
        number = own if "type" in own else own["anyOf"][0]
        # For models the minimum may be 1 where zero returns nothing, and the maximum a year.
        assert offered["minimum"] in (number["minimum"], 1), wire_name
        assert offered.get("maximum") in (number.get("maximum"), None, 525_600), wire_name
        told = re.match(r"(\d+) unless given", offered["description"])
        assert told is None or int(told[1]) == own["default"], wire_name


def test_the_tool_list_takes_a_model_less_than_2000_tokens() -> None:
    # Text of this kind has 3.5 characters a token or more, with the tokenizers of all the programs.
    read = json.dumps(tools.LISTED, separators=(",", ":")) + tools.INSTRUCTIONS
    assert len(read) <= 7_000


def test_empty_arguments_of_a_model_are_omitted() -> None:
    call = build_call("sessions_list", {"limit": 3, "search": None})
    assert (call.method, call.params_of(0)) == ("sessions_list", {"limit": 3})
