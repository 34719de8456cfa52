"""How far the numbers in a call may go: defaults and limits of parameters that are clamped, never refused.

Knows numbers. Does not know which method asks. Source: protocol.md, "Parameters".
"""

from __future__ import annotations

import math

import msgspec

from sessiond.errors import InvalidParams


class Clamp(msgspec.Struct, frozen=True):
    """A parameter's default and its range, both ends included."""

    default: int
    maximum: int
    minimum: int = 1

    def apply(self, value: float | None, field: str = "$.limit") -> int:
        """`value` floored and brought into the range; the default for None. InvalidParams naming `field` for NaN."""
        if value is None:
            return self.default
        if math.isnan(value):
            raise InvalidParams(f"{field} is not a number", field=field)
        if math.isinf(value):
            return self.maximum if value > 0 else self.minimum
        return min(max(math.floor(value), self.minimum), self.maximum)


LIST_LIMIT = Clamp(default=50, maximum=200)
LIST_MESSAGES = Clamp(default=0, maximum=20, minimum=0)
HISTORY_LIMIT = Clamp(default=50, maximum=1000)
# 8 MiB is the largest record, and together with its envelope still fits the largest frame.
HISTORY_BYTES = Clamp(default=2**20, maximum=8 * 2**20)
SEARCH_LIMIT = Clamp(default=50, maximum=200)
# A day: nobody waits longer on one call, and the number still fits a timer.
WAIT_MS = Clamp(default=30_000, maximum=86_400_000, minimum=0)
SEND_WAIT_SECONDS = Clamp(default=30, maximum=86_400, minimum=0)
TOKEN_SECONDS = Clamp(default=3600, maximum=366 * 86_400)
