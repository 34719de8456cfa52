"""Every call by which the daemon changes a file, in every operation: killed there, failed there, the power cut there.

By default a sample of the points, and more of them with SESSIOND_TESTS=whole. Each single one, which takes an hour:
SESSIOND_FAULTS=whole. Another sample: SESSIOND_FAULTS=NUMBER. Skipped where there is no gcc, or where a library cannot
be put in front of libc.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from typing import TypeVar

import pytest
from faults.faulty_daemons import FaultyDaemons, open_faulty_daemons
from faults.operations import OPERATIONS, Operation
from faults.sweep import sweep
from support.sampling import amount

pytestmark = pytest.mark.system

ASKED = os.environ.get("SESSIOND_FAULTS", "1")
POINTS, CUTS = amount(10, 2), amount(4, 1)
# What is known not to hold yet.
KNOWN: tuple[str, ...] = ()


T = TypeVar("T")


def some(chosen: random.Random, places: list[T], most: int) -> list[T]:
    return chosen.sample(places, min(most, len(places)))


@pytest.fixture(scope="module")
def daemons() -> Iterator[FaultyDaemons]:
    with open_faulty_daemons() as made:
        if made is None:
            pytest.skip("no gcc here that makes a library to put in front of libc")
        yield made


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_promise_holds_after_any_disk_fault_kill_or_power_cut(
    daemons: FaultyDaemons, operation: Operation
) -> None:
    chosen = random.Random(f"{ASKED} {operation.name}")
    with sweep(daemons, operation) as one:
        failures: list[object] = list(one.count())
        assert not failures, f"without a fault: {failures}"
        assert not one.unsynced, f"over, and a power cut may undo it: {one.unsynced}"
        points, cuts = one.points(), one.cuts
        if ASKED != "whole":
            points, cuts = some(chosen, points, POINTS), some(chosen, cuts, CUTS)
        for point in points:
            failures += one.meet(point)
        for cut in cuts:
            failures += one.cut(cut)
    new = [str(one) for one in failures if not any(re.search(known, str(one)) for known in KNOWN)]
    assert not new, "\n".join(new)
