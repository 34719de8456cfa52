"""The usage of an assistant message: tokens and cost, read with care, since anyone may have written it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

# What every JSON reader can hold as a whole number; anything beyond is no count of anything here.
MAX_WHOLE = 2**53


class Usage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Tokens of one turn; `cost` is an object with a `total` in USD, or the total."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total_tokens: float = 0
    cost: Any = None


_decode = msgspec.json.Decoder(Usage, strict=False).decode


def read_usage(raw: msgspec.Raw | bytes) -> Usage | None:
    """The usage object of an assistant message, None where there is none or it is not one."""
    try:
        usage = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Lax decoding takes "12" for a number, and so "nan".
    if (
        0 <= usage.input <= MAX_WHOLE
        and 0 <= usage.output <= MAX_WHOLE
        and 0 <= usage.cache_read <= MAX_WHOLE
        and 0 <= usage.cache_write <= MAX_WHOLE
        and 0 <= usage.total_tokens <= MAX_WHOLE
        and (usage.input or usage.output or usage.cache_read or usage.cache_write or usage.total_tokens)
    ):
        return usage
    return None


def cost_of(usage: Usage) -> float | None:
    """USD, where the usage says so."""
    return amount(usage.cost.get("total") if isinstance(usage.cost, dict) else usage.cost)


def amount(value: object) -> float | None:
    """`value` as an amount of USD, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MAX_WHOLE else None
