"""How many cases the long tests try: kills, races, fault points, hostile strings, Hypothesis' examples.

A sample by default, which is always the same one. The whole of it with SESSIOND_TESTS=whole in the environment, as
`.ci/run` has it: `SESSIOND_TESTS=whole pytest tests/system -k kill`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

WHOLE = os.environ.get("SESSIOND_TESTS") == "whole"


def amount(whole: int, sampled: int) -> int:
    """How many rounds, examples or records."""
    return whole if WHOLE else sampled


def spread(cases: Sequence[T], most: int) -> list[T]:
    """All cases with SESSIOND_TESTS=whole; otherwise `most` of them, evenly spread, with both ends."""
    if WHOLE or len(cases) <= most:
        return list(cases)
    return [cases[place * (len(cases) - 1) // max(1, most - 1)] for place in range(most)]


def pick(cases: Sequence[T], name: str) -> list[T]:
    """All cases with SESSIOND_TESTS=whole; otherwise the one that falls to a test of this name, always the same.

    For a repetition whose cases go through the same code below: of many tests each case gets its share.
    """
    return list(cases) if WHOLE else [cases[crc32(name.encode()) % len(cases)]]


def share_out(metafunc: pytest.Metafunc, fixture: str, cases: Sequence[T]) -> None:
    """Parametrize a fixture for `pytest_generate_tests`: each test that uses it gets the case that falls to it.

    A test that has parametrized it itself keeps its own cases.
    """
    marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if fixture in metafunc.fixturenames and fixture not in marked:
        metafunc.parametrize(fixture, pick(cases, metafunc.function.__qualname__), indirect=True)


def whole_only(otherwise: str) -> pytest.MarkDecorator:
    """The test is skipped unless SESSIOND_TESTS=whole. `otherwise`: the cheaper test that holds its promise by default.

    The skip line shows it; a test of the project checks that there is a test of that name.
    """
    return pytest.mark.skipif(not WHOLE, reason=f"only with SESSIOND_TESTS=whole; otherwise {otherwise}")
