"""JSON Schemas of tools, made from the types that the daemon's methods check with. Knows JSON Schema; knows no tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = dict[str, Any]
_REF = "#/$defs/"


def input_schema(params: type[msgspec.Struct], descriptions: Mapping[str, str]) -> Schema:
    """What a tool takes. An optional parameter is left out, never null: models put null where they are allowed to.

    `descriptions` has the sentence for each parameter. KeyError where one has none.
    """
    schema = _inlined(params)
    properties = {
        name: {**_without_null(found), "description": descriptions[name]}
        for name, found in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}


def output_schema(result: Any) -> Schema:
    """What a tool gives."""
    return _inlined(result)


def _inlined(kind: Any) -> Schema:
    """The schema of `kind` in one piece: not every client resolves references."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=_REF + "{name}")
    inlined: Schema = _tidy(schema, components)
    return inlined


def _tidy(schema: Any, components: Mapping[str, Schema]) -> Any:
    """Without references, and without the names and docstrings of our types, which say nothing to a model."""
    if isinstance(schema, list):
        return [_tidy(one, components) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _tidy(components[schema["$ref"].removeprefix(_REF)], components)
    tidied = {name: _tidy(value, components) for name, value in schema.items() if name not in ("title", "description")}
    # Names of fields, not keywords: a field may well be called `title`.
    if isinstance(schema.get("properties"), dict):
        tidied["properties"] = {name: _tidy(value, components) for name, value in schema["properties"].items()}
    return tidied


def _without_null(schema: Schema) -> Schema:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    kept = {name: value for name, value in schema.items() if name != "default" or value is not None}
    if len(kinds) == 1 and len(kinds) < len(schema["anyOf"]):
        return {**{name: value for name, value in kept.items() if name != "anyOf"}, **kinds[0]}
    return kept
