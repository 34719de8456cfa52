"""The base of every method's params and results: camelCase on the wire, unknown params refused by name."""

from __future__ import annotations

import msgspec


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Params by name."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A result; what is not there is left out."""


class NoParams(Params, frozen=True, kw_only=True):
    """A method that takes none."""


class Empty(Result, frozen=True, kw_only=True):
    """`{}`."""
