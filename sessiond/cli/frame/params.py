"""Parse the params of a method from the command line: one JSON object, or NAME=VALUE words.

The types of values come from the method's description (`rpc.discover`). Does no I/O except standard input.
"""

from __future__ import annotations

import json

from sessiond.cli.frame.failures import USAGE, CommandFailed
from sessiond.cli.frame.input import text_or_stdin
from sessiond.cli.frame.names import nearest_hint
from sessiond.errors import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Schema = dict[str, Any]

_REF = "#/components/schemas/"
_JSON_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
    str: ("string",),
}
_IN_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a JSON array",
    "object": "a JSON object",
    "null": "null",
}


def read_params(words: Sequence[str], method: str, discover: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The params in the words. `discover` returns the daemon's OpenRPC document, which only NAME=VALUE needs."""
    params: dict[str, Any] = {}
    document: dict[str, Any] | None = None
    for word in words:
        name, equals, text = word.partition("=")
        if word == "-" or not equals or not name.isidentifier():
            params.update(_object(word))
            continue
        document = document if document is not None else discover()
        known = schemas_of(document, method)
        if known is None:
            raise CommandFailed(
                f"no method {quote(method)}",
                hint=nearest_hint(method, [one["name"] for one in document["methods"]], "sessiond call rpc.discover"),
                status=USAGE,
            )
        if name not in known:
            hint = nearest_hint(name, list(known), "sessiond call rpc.discover")
            raise CommandFailed(f"{method} takes no {quote(name)}", hint=hint, status=USAGE)
        value = _value(name, text, known[name])
        earlier = params.get(name)
        params[name] = [*earlier, *value] if isinstance(earlier, list) and isinstance(value, list) else value
    return params


def schemas_of(document: dict[str, Any], method: str) -> dict[str, Schema] | None:
    """The schema of each parameter of a method, references resolved; None if there is no such method."""
    found = next((one for one in document["methods"] if method in (one["name"], *one.get("x-aliases", ()))), None)
    if found is None:
        return None
    components = document.get("components", {}).get("schemas", {})
    return {param["name"]: _resolve_reference(param.get("schema", {}), components) for param in found["params"]}


def values_of(schema: Schema) -> list[str]:
    """The values that the shell can complete: those of an enumeration, true and false."""
    offered: list[str] = []
    for one in _alternatives(schema):
        offered += [str(value) for value in one.get("enum", ()) if value is not None]
        if one.get("type") == "boolean":
            offered += ["true", "false"]
    return offered


def _object(word: str) -> dict[str, Any]:
    try:
        params = json.loads(text_or_stdin([word]))
    except (ValueError, RecursionError) as error:
        hint = "write NAME=VALUE, or one JSON object: '{\"limit\": 5}'"
        raise CommandFailed(f"{quote(word)} is neither NAME=VALUE nor JSON: {error}", hint=hint, status=USAGE) from None
    if not isinstance(params, dict):
        raise CommandFailed("the params must be a JSON object: params go by name", status=USAGE)
    return params


def _value(name: str, text: str, schema: Schema) -> Any:
    """The value of `text`: the text itself if the schema is a string, else parsed as JSON."""
    types = {one.get("type", "string") for one in _alternatives(schema)}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    is_text = isinstance(value, str) or ("string" in types and _is_plain(value))
    if not is_text and types & set(_JSON_TYPES[type(value)]):
        return value
    if "string" in types:
        return text
    if "array" in types:
        return [text]
    wanted = " or ".join(_IN_WORDS[one] for one in sorted(types - {"null"}) if one in _IN_WORDS)
    raise CommandFailed(f"{name} is {wanted}, not {quote(text)}", status=USAGE)


def _is_plain(value: object) -> bool:
    """Whether the value may also be meant as text: `label=2026` is a label."""
    return not isinstance(value, list | dict) and value is not None


def _alternatives(schema: Schema) -> list[Schema]:
    return list(schema.get("anyOf") or [schema])


def _resolve_reference(schema: Schema, components: dict[str, Schema]) -> Schema:
    if "$ref" in schema:
        return components.get(str(schema["$ref"]).removeprefix(_REF), {})
    if "anyOf" in schema:
        return {**schema, "anyOf": [_resolve_reference(one, components) for one in schema["anyOf"]]}
    return schema
