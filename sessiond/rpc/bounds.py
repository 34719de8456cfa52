"""Decode the params of a method as its type says: clamp numbers to their range and check texts.

A field declares this in the `extra` of its `Meta`:

- `clamped: True` beside `ge` and `le`: a number outside the range becomes the nearest one inside, a fraction is floored
  if the type is a whole number, and `null` is the default. With `clamped: "most"` numbers below the range are refused;
  with `null: False` null is.
- `check: function(text, field)`: raises InvalidParams for a text that the field does not accept.

The declarations are read once for each method. Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Raw, UnsetType, inspect
from msgspec.structs import FieldInfo, fields, force_setattr

from sessiond.model.lax import decoder_of

Check = Callable[[Any, str], object]
# Params of this length may name a member so often that it takes long.
_LONG_BYTES = 4096
META = "_meta"


class ParamsDecoder:
    """Decodes the params of a method: `decode_wire` reads them from JSON, then `bind` clamps numbers and checks texts.

    Two steps, because every request is decoded here: if `has_bounds` is false, the second one is skipped.
    """

    __slots__ = ("_checks", "_clamps", "_decode", "has_bounds", "wire")

    def __init__(self, params: type[msgspec.Struct]) -> None:
        self.wire = wire_type(params)
        self._clamps = tuple(_clamps_of(params))
        self._checks = tuple(_checks_of(params))
        self.has_bounds = bool(self._clamps or self._checks)
        self._decode = decoder_of(self.wire).decode

    def decode_wire(self, params: Any, *, has_meta: bool = False) -> Any:
        """The params as the wire has them, from JSON. `has_meta`: without `_meta`. The errors of msgspec."""
        # A number that is named 250,000 times would be read as often, some numbers in 10 us each.
        if has_meta or (self._clamps and len(params) > _LONG_BYTES):
            members = _members_decoder(self.wire).decode(params)
            members._meta = UNSET
            params = msgspec.json.encode(members)
        return self._decode(params)

    def convert(self, values: dict[str, Any]) -> Any:
        """The params from a dict by wire name, for callers that have no JSON message."""
        return self.bind(msgspec.convert(values, self.wire))

    def bind(self, params: Any) -> Any:
        """The same params with numbers clamped to their range. InvalidParams for a text that its check refuses."""
        for name, default, least, most, is_whole in self._clamps:
            value = getattr(params, name)
            if value is default:
                continue
            if value is None:
                value = default
            elif value < least:
                value = least
            elif value > most:
                value = most
            elif is_whole:
                value = int(value)
            force_setattr(params, name, value)
        for name, path, check in self._checks:
            value = getattr(params, name)
            if value is not None and value is not UNSET:
                check(value, path)
        return params


def _clamps_of(params: type[msgspec.Struct]) -> Iterator[tuple[str, Any, float, float, bool]]:
    """Name, default, least and most of each clamped number, and whether it is floored."""
    for field, kind in _kinds_of(params):
        if extra_of(kind).get("clamped"):
            number = _number_in(kind)
            assert number.ge is not None and number.le is not None, f"{field.name} has no range"
            yield field.name, field.default, number.ge, number.le, isinstance(number, inspect.IntType)


def _checks_of(params: type[msgspec.Struct]) -> Iterator[tuple[str, str, Check]]:
    """Name, place in the params and function of each text that is checked."""
    for field, kind in _kinds_of(params):
        if check := extra_of(kind).get("check"):
            yield field.name, f"$.{field.encode_name}", check


@cache
def _members_decoder(wire: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    """Decodes the members of params, and `_meta`, to raw JSON, the last one of each name.

    A table of whatever names there are would take a third of a second for 250,000 of them.
    """
    names = [(field.name, field.encode_name) for field in fields(wire)] + [(META, META)]
    members = [(name, Raw | UnsetType, msgspec.field(default=UNSET, name=wire_name)) for name, wire_name in names]
    forbids = wire.__struct_config__.forbid_unknown_fields
    return msgspec.json.Decoder(msgspec.defstruct("Members", members, forbid_unknown_fields=forbids))


@cache
def wire_type(params: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The type that is decoded: `params`, where clamped numbers may be any number, and null.

    It is a subclass, so that a handler is given what its type says. Its schema has the range, and `x-clamped`.
    """
    kinds = _kinds_of(params)
    if not any(extra_of(kind).get("clamped") for _, kind in kinds):
        return params
    members = [
        _member(field, _any_number(kind) if extra_of(kind).get("clamped") else field.type) for field, kind in kinds
    ]
    config = params.__struct_config__
    return msgspec.defstruct(
        params.__name__,
        members,
        bases=(params,),
        namespace={"__doc__": params.__doc__},
        frozen=config.frozen,
        kw_only=True,
        forbid_unknown_fields=config.forbid_unknown_fields,
    )


@cache
def _kinds_of(params: type[msgspec.Struct]) -> list[tuple[FieldInfo, inspect.Type]]:
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    return list(zip(fields(params), (field.type for field in described.fields), strict=True))


def _member(field: FieldInfo, kind: Any) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.name, kind, msgspec.field(default_factory=field.default_factory, name=field.encode_name)
    return field.name, kind, msgspec.field(default=field.default, name=field.encode_name)


def _any_number(kind: inspect.Type) -> Any:
    number, extra = _number_in(kind), extra_of(kind)
    declared = {"minimum": number.ge, "maximum": number.le, "x-clamped": extra["clamped"]}
    least = number.ge if extra["clamped"] == "most" else None
    number_type = Annotated[float, Meta(ge=least, extra_json_schema=declared)]
    about = Meta(extra_json_schema=_schema_of(kind))
    return Annotated[number_type if extra.get("null") is False else number_type | None, about]


def _number_in(kind: inspect.Type) -> inspect.IntType | inspect.FloatType:
    for one in layers_of(kind):
        if isinstance(one, inspect.IntType | inspect.FloatType):
            return one
    raise AssertionError("only a number is clamped")


def layers_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A type and the types inside it, without null: the annotated one, the members of a union."""
    yield kind
    if isinstance(kind, inspect.Metadata):
        yield from layers_of(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            if not isinstance(one, inspect.NoneType):
                yield from layers_of(one)


def extra_of(kind: inspect.Type) -> dict[str, Any]:
    """The `extra` of the `Meta` of a type; of nested ones the outer one counts."""
    found: dict[str, Any] = {}
    for one in layers_of(kind):
        if isinstance(one, inspect.Metadata):
            found = {**(one.extra or {}), **found}
    return found


def _schema_of(kind: inspect.Type) -> dict[str, Any]:
    """What the `Meta` of a type adds to its schema, such as a description; of nested ones the outer one counts."""
    found: dict[str, Any] = {}
    for one in layers_of(kind):
        if isinstance(one, inspect.Metadata):
            found = {**(one.extra_json_schema or {}), **found}
    return found
