"""How many cases the long tests try: kills, races, fault points, hostile strings, Hypothesis' examples.

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
    """All cases with SESSIOND_TESTS=whole; otherwise `most` of them, evenly spread, with both ends."""
    if WHOLE or len(cases) <= most:
        return list(cases)
    return [cases[place * (len(cases) - 1) // (most - 1)] for place in range(most)]
