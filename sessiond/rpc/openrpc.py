"""The OpenRPC document of a method table, as `rpc.discover` returns it. Knows JSON Schema, no method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sessiond.rpc.bounds import wire_type
from sessiond.rpc.errors import wire_errors
from sessiond.rpc.method import Method

_OPENRPC = "1.3.2"
_REF = "#/components/schemas/"


def openrpc_document(methods: Iterable[Method], *, title: str, version: str) -> dict[str, Any]:
    """The OpenRPC document (a JSON object) of `methods`, in their order; aliases and scopes are `x-` members."""
    table = list(methods)
    types = [kind for method in table for kind in (wire_type(method.params), method.result)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    pairs = zip(schemas[::2], schemas[1::2], strict=True)
    described = [
        _describe(method, _resolve(params, components), result)
        for method, (params, result) in zip(table, pairs, strict=True)
    ]
    return {
        "openrpc": _OPENRPC,
        "info": {"title": title, "version": version},
        "methods": described,
        "components": {
            "schemas": components,
            "errors": {error["message"]: error for error in wire_errors()},
        },
    }


def _describe(method: Method, params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    required = set(params.get("required", ()))
    # OpenRPC demands that required params come first.
    members = sorted(params.get("properties", {}).items(), key=lambda member: member[0] not in required)
    described: dict[str, Any] = {
        "name": method.name,
        "summary": method.summary,
        "description": _sentences(method),
        "paramStructure": "by-name",
        "params": [_describe_param(name, schema, required=name in required) for name, schema in members],
        "result": {"name": "result", "schema": result},
        # Not as references: client generators resolve references to schemas, but not to errors.
        "errors": wire_errors(),
        "x-scope": method.scope,
    }
    if method.aliases:
        described["x-aliases"] = list(method.aliases)
    if method.streams:
        described["x-lasting-connection"] = True
    return described


def _sentences(method: Method) -> str:
    """What a method does, and what it requires of a caller."""
    sentences = [method.summary]
    if method.scope is not None:
        sentences.append(f"It needs the scope `{method.scope}`.")
    if method.streams:
        sentences.append("It needs a lasting connection.")
    if method.aliases:
        sentences.append(f"It is also called {' and '.join(f'`{alias}`' for alias in method.aliases)}.")
    return " ".join(sentences)


def _describe_param(name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    """A parameter, with its description beside its name and not inside its schema, as OpenRPC has it."""
    text = schema.get("description")
    described = {} if text is None else {"description": text}
    return {"name": name, **described, "required": required, "schema": schema}


def _resolve(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """The schema that a bare `$ref` refers to; any other schema as it is."""
    reference = schema.get("$ref", "")
    found: dict[str, Any] = components.get(reference.removeprefix(_REF), schema) if reference else schema
    return found
