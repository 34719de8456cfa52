"""Building the index takes its share of a core, and a tenth of that while sessions are written to or copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from support.indexed_store import FILLER, T, message, opened_store, running_index, wait_ready, write_session

from sessiond.config.settings import SearchConfig
from sessiond.trigrams.budget import BuildBudget


def cpu_clock(step_s: float = 1 / 1024) -> Callable[[], float]:
    """A processor on which each look at the clock, that is each step of the work, takes as long as any other."""
    ticks = count()
    return lambda: next(ticks) * step_s


@pytest.mark.parametrize("is_copied", [False, True])
async def test_building_takes_a_tenth_of_a_core_and_a_hundredth_while_sessions_are_written_to_or_copied(
    tmp_path: Path, autojump_clock: None, is_copied: bool
) -> None:
    write_session(tmp_path, "s0", [message(FILLER, T + place) for place in range(200)])
    slices: list[tuple[float, float]] = []
    written = range(2, 5)

    async def run_inline(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        began, result = trio.current_time(), function(*args)
        if function.__name__ == "run_slice":
            if len(slices) in written:
                if is_copied:
                    index.note_copying()
                else:
                    index.entry_changed(session)
            slices.append((began, result[1]))
        return result

    async with opened_store(tmp_path) as store:
        (session,) = store.catalog.by_id.values()
        more = {"run_sync": run_inline, "cpu_s": cpu_clock()}
        async with running_index(store, lambda: SearchConfig(budget=0.1), **more) as index:
            await wait_ready(index)
    whole = [one for one in slices if one[1] == 11 / 1024]  # the first multiple over 10 ms
    assert len(whole) > written.stop and slices[: len(whole)] == whole  # what is left at the end is shorter
    shares = [used_s / (used_s + later - began) for (began, used_s), (later, _) in pairwise(slices)]
    expected = [0.01 if number in written else 0.1 for number in range(len(whole))]
    assert shares[: len(whole)] == pytest.approx(expected)


@given(st.floats(0.001, 1), st.floats(0, 1))
def test_any_share_is_kept(share: float, used_s: float) -> None:
    async def rest() -> float:
        began = trio.current_time()
        await BuildBudget(lambda: share).rest(used_s)
        return trio.current_time() - began

    rested_s = trio.run(rest, clock=trio.testing.MockClock(autojump_threshold=0))
    assert used_s == pytest.approx(share * (used_s + rested_s), abs=1e-9)


def test_a_slice_ends_at_once_when_the_daemon_stops() -> None:
    def work() -> Iterator[None]:
        for number in range(100):
            done.append(number)
            if number == 3:
                budget.stop()
            yield

    done: list[int] = []
    budget = BuildBudget(lambda: 1, cpu_clock(step_s=0))
    assert budget.run_slice(work()) == (True, 0)
    assert done == [0, 1, 2, 3]
