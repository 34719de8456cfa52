"""How much is tried by what goes over many cases: kills, races, fault points, hostile strings, Hypothesis' examples.

A sample by default, which is always the same one. The whole of it with SESSIOND_TESTS=whole in the environment, as
`.ci/run` has it: `SESSIOND_TESTS=whole pytest tests/system -k kill`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("SESSIOND_TESTS") == "whole"


def amount(whole: int, sampled: int) -> int:
    """How many rounds, examples or records."""
    return whole if WHOLE else sampled


def spread(cases: Sequence[T], most: int) -> list[T]:
    """All the cases; by default so many of them, evenly spread, the first and the last among them."""
    if WHOLE or len(cases) <= most:
        return list(cases)
    return [cases[place * (len(cases) - 1) // (most - 1)] for place in range(most)]
