"""How long the end of the daemon may take, and with which exit code it is cut short."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.rows import check_each

from sessiond.daemon.stop_deadline import HURRY_S, STOP_S, end_in_time


@check_each(
    ("second_after_s", "left", "told", "code", "waited_s"),
    [
        (None, {"agent:main:a": 2, "agent:main:b": 1}, True, 74, STOP_S),
        (None, {"agent:main:a": 2, "agent:main:b": 1}, False, 74, STOP_S),
        (None, {}, True, 0, STOP_S),
        (None, {}, False, 1, STOP_S),
        (0, {"agent:main:a": 2}, True, 74, HURRY_S),
        (0, {}, True, 0, HURRY_S),
        (STOP_S - HURRY_S - 0.5, {}, True, 0, STOP_S - 0.5),
        (STOP_S - HURRY_S + 0.5, {}, True, 0, STOP_S),
    ],
)
def test_the_end_has_a_deadline(
    second_after_s: float | None, left: dict[str, int], told: bool, code: int, waited_s: float
) -> None:
    async def measure() -> None:
        stop, hurry, ends = trio.Event(), trio.Event(), list[tuple[int, float]]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                *(end_in_time, stop, hurry, lambda: left, lambda code: ends.append((code, trio.current_time()))),
                lambda: told,
            )
            await trio.sleep(100)  # a daemon at work has none
            assert ends == []
            stop.set()
            began = trio.current_time()
            if second_after_s is not None:
                await trio.sleep(second_after_s)
                hurry.set()
        assert ends == [(code, pytest.approx(began + waited_s))]

    with capture_logs() as logged:
        trio.run(measure, clock=trio.testing.MockClock(autojump_threshold=0))
    (line,) = logged
    assert line["waited_s"] == pytest.approx(waited_s)
    assert line.get("appends") == (sum(left.values()) or None)
    assert line.get("sessions") == ([*left] or None)


def test_an_end_in_time_is_not_cut_short() -> None:
    async def end() -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time, stop, trio.Event(), dict, pytest.fail, bool)
            stop.set()
            await trio.sleep(STOP_S - 0.1)
            nursery.cancel_scope.cancel()

    trio.run(end, clock=trio.testing.MockClock(autojump_threshold=0))
