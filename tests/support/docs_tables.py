"""The tables of `docs/` that say what the code says: parameters, configuration, commands.

`python tests/support/docs_tables.py` writes them into the pages; `test_project.py` holds the pages to them. They stand
between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`; everything else is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from sessiond.cli.frame import registry
from sessiond.cli.frame.command import Command, Option
from sessiond.config.settings import Config
from sessiond.methods.table import METHODS
from sessiond.rpc.openrpc import openrpc_document

DOCS: Final = Path(__file__).parents[2] / "docs"
UPDATE: Final = "run: python tests/support/docs_tables.py (with the project's environment), and read what changed"

_INHERITED: Final = {
    "agents.list[].sandbox": "`agents.defaults.sandbox`",
    "agents.list[].subagents": "`agents.defaults.subagents`, without `maxConcurrent`",
}


def parameters() -> str:
    """Every parameter of every method: its type, what holds where it is left out, what it may be, what it means."""
    document = json.loads(msgspec.json.encode(openrpc_document(METHODS, title="sessiond", version="")))
    schemas = document["components"]["schemas"]
    rows = [_row("method", "parameter", "type", "default", "range", "meaning"), _row(*["---"] * 6)]
    for method in document["methods"]:
        for param in method["params"]:
            own, schema = param["schema"], _plain(param["schema"], schemas)
            default = _value(own.get("default")) or own.get("x-default", "")
            rows.append(
                _row(
                    f"`{method['name']}`",
                    f"`{param['name']}`",
                    _kind(schema, schemas),
                    "required" if param["required"] else default,
                    _range({**schema, **own}),
                    param["description"],
                )
            )
    return "\n".join(rows)


def configuration() -> str:
    """Every key of the configuration: what it may be, and what holds where the file does not say it."""
    rows = [_row("key", "may be", "default"), _row("---", "---", "---")]
    rows += [_row(f"`{key}`", kind, default) for key, kind, default in _keys(inspect.type_info(Config), "")]
    return "\n".join(rows)


def commands() -> str:
    """Every command of the command line with its options, but for those that all of them have."""
    rows = [_row("command", "", "options"), _row("---", "---", "---")]
    for name in registry.COMMANDS:
        command = registry.find(name)
        assert command is not None
        rows += [_command(command, command.name)] if command.run is not None else []
        rows += [_command(sub, f"{name} {word}") for word, sub in command.subcommands.items()]
    return "\n".join(rows)


def _command(command: Command, name: str) -> str:
    usage = " ".join([name, *(argument.shown for argument in command.arguments)])
    own = [option for option in command.options if option.name not in ("json", "socket")]
    return _row(f"`{usage}`", command.summary, ", ".join(f"`{_option(option)}`" for option in own))


def _option(option: Option) -> str:
    value = option.metavar or ("|".join(option.choices) if option.choices else option.kind.upper())
    flag = option.flags[0] if option.kind == "flag" else f"{option.flags[0]} {value}"
    return " ".join([*option.flags[1:2], flag])


TABLES: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "commands": ("cli.md", commands),
    "parameters": ("protocol.md", parameters),
    "configuration": ("cli.md", configuration),
}


def with_table(page: str, name: str, table: str) -> str:
    """The page with the table in its place. ValueError where it has no place for it."""
    begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no place for the table {name}: {begin.strip()} ... {end.strip()}")
    return f"{head}{begin}\n{table}\n\n{end}{tail}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _plain(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema without its null and its reference: absent is what a client writes for null."""
    if "$ref" in schema:
        return {**schemas[schema["$ref"].rpartition("/")[2]], "title": schema["$ref"].rpartition("/")[2]}
    members = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return _plain(members[0], schemas) if len(members) == 1 else schema


def _kind(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(json.dumps(word) for word in schema["enum"])
    if schema.get("type") == "array":
        item = _plain(schema.get("items", {}), schemas)
        return f"array of {_kind(item, schemas)}"
    if "anyOf" in schema:
        return " or ".join(_kind(_plain(one, schemas), schemas) for one in schema["anyOf"])
    return schema.get("title") or schema.get("type") or "any"


def _value(value: Any) -> str:
    return "" if value is None or value == [] else json.dumps(value)


def _range(schema: dict[str, Any]) -> str:
    """What it may be, and whether a number outside is taken as the nearest inside, or refused."""
    clamped = {True: "clamped", "most": "more is clamped"}.get(schema.get("x-clamped", False))
    return ", ".join(filter(None, [_bounds(schema), clamped, schema.get("x-takes")]))


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    short, long = schema.get("minLength"), schema.get("maxLength")
    few, many = schema.get("minItems"), schema.get("maxItems")
    said = [_between(low, high, ""), _between(short, long, " characters"), _between(few, many, " items")]
    return ", ".join(filter(None, said))


def _between(low: float | None, high: float | None, what: str) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {low:g}{what}" if low is not None and low < 1e6 else f"at least {low}{what}"
    return f"at most {high}{what}" if low is None else f"{low} to {high}{what}"


def _keys(kind: inspect.Type, prefix: str) -> Iterator[tuple[str, str, str]]:
    kind = _bare(kind)[0]
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        key = prefix + field.encode_name
        inner = _bare(field.type)[0]
        match inner:
            case inspect.StructType() if key in _INHERITED:
                yield f"{key}.*", f"as {_INHERITED[key]}", "key by key from there"
            case inspect.StructType():
                yield from _keys(inner, f"{key}.")
            case inspect.VarTupleType(item_type=item) if isinstance(_bare(item)[0], inspect.StructType):
                yield from _keys(item, f"{key}[].")
            case inspect.DictType(value_type=item) if isinstance(_bare(item)[0], inspect.StructType):
                yield from _keys(item, f"{key}.<name>.")
            case _:
                yield key, _may_be(field.type), "required" if field.required else _default(field)


def _default(field: inspect.Field) -> str:
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if not value and not isinstance(value, int | float):
        return ""
    return f"`{json.dumps(value)}`"


def _bare(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """A type without its annotations and its null, and how its author describes it."""
    said = ""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            said = said or (kind.extra_json_schema or {}).get("description", "")
            kind = kind.type
        else:
            (kind,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind, said


def _may_be(kind: inspect.Type) -> str:
    kind, said = _bare(kind)
    match kind:
        case _ if said:
            return said
        case inspect.BoolType():
            return "true, false"
        case inspect.LiteralType():
            return ", ".join(f'"{word}"' for word in kind.values)
        case inspect.IntType() | inspect.FloatType():
            noun = "whole number" if isinstance(kind, inspect.IntType) else "number"
            if kind.le is not None:
                return f"{noun}, {kind.ge} to {kind.le}"
            return f"{noun}, above {kind.gt}" if kind.ge is None else f"{noun}, at least {kind.ge}"
        case inspect.VarTupleType():
            least = "not empty, " if kind.min_length else ""
            return f"array ({least}each: {_may_be(kind.item_type)})"
        case inspect.DictType():
            names = _bare(kind.key_type)[0]
            by = f" by {_may_be(names)}" if isinstance(names, inspect.LiteralType) else ""
            return f"table of {_may_be(kind.value_type)}{by}"
        case inspect.CustomType():
            return "path: absolute, or beginning with `~/`"
        case _:
            return "text, not empty" if getattr(kind, "min_length", None) else "text"


def update() -> list[str]:
    """Write the tables into their pages; the names of the pages that changed."""
    changed = []
    for name, (page, table) in TABLES.items():
        path = DOCS / page
        before = path.read_text(encoding="utf-8")
        after = with_table(before, name, table())
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


if __name__ == "__main__":
    print("\n".join(f"wrote docs/{page}" for page in update()) or "nothing changed")
