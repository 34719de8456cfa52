"""The usage of an assistant message: tokens and cost, read leniently, since any program may have written it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model import lax
from sessiond.model.lax import MAX_WHOLE, amount


class Usage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Tokens of one turn; `cost` is an object with a `total` in USD, or the total."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total_tokens: float = 0
    cost: Any = None


def read_usage(raw: msgspec.Raw | bytes) -> Usage | None:
    """The usage object of an assistant message, None where there is none or it is not one."""
    return usage_in(lax.decode(bytes(raw)))


def usage_in(value: object) -> Usage | None:
    """As `read_usage`, for a decoded value."""
    if type(value) is not dict:
        return None
    get = value.get
    counts = (get("input", 0), get("output", 0), get("cacheRead", 0), get("cacheWrite", 0), get("totalTokens", 0))
    for count in counts:
        if (type(count) is not int and type(count) is not float) or not 0 <= count <= MAX_WHOLE:
            return None
    return Usage(*counts, get("cost")) if any(counts) else None


def usage_id_of(message: dict[str, Any], record_id: str | None, timestamp_ms: int | None) -> str | None:
    """The id under which the usage of a message of pi's form counts once, in whichever file it stands."""
    response_id = message.get("responseId")
    if type(response_id) is str and response_id:
        return response_id
    # A fork copies lines with their ids, which are too short to be unique by themselves.
    return f"{record_id}@{timestamp_ms}" if record_id is not None else None


def cost_of(usage: Usage) -> float | None:
    """The cost in USD, None where it is not known: pi writes 0 for an unknown price."""
    return amount(usage.cost.get("total") if isinstance(usage.cost, dict) else usage.cost) or None
