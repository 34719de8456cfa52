"""The daemon with a stopwatch at its event loop: `python loop_stopwatch.py REPORT serve ...` is `sessiond serve ...`.

How long each step of a task has the processor, counted by the clock of the loop's own thread, which stands while others
have it. Beside other work the same step still takes up to three times as long (caches, the other half of the core): so
right after a long one a piece of work of known length is done, and counts for how quick the machine was just then.
SIGUSR2 writes what was counted since the last one to REPORT.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

import trio

# Where a step of so long stands is looked up, with STOPWATCH_STACKS set.
_SLOW_S = 0.006
# After a step of so long the machine's pace is taken.
_LONG_S = 0.005
_SAMPLE = json.dumps([{"text": "x" * 200, "values": list(range(20))}] * 40).encode()
_BUCKETS_MS = (1, 2, 4, 6, 8, 10, 15, 20, 50, 100, 1000, 1_000_000)


def _work() -> float:
    """What a piece of work that is always the same takes: bytes looked at, values made, text copied."""
    began = time.thread_time()
    for _ in range(4):
        json.dumps(json.loads(_SAMPLE)).encode().replace(b"x", b"yy").count(b"y")
    return time.thread_time() - began


class Stopwatch(trio.abc.Instrument):
    """Steps of tasks, and turns of the loop, which are all the steps between two looks at the sockets."""

    def __init__(self) -> None:
        self._began = self._turn_began = self._collecting = 0.0
        self.stepping: tuple[str, float] | None = None
        self.stacks: Counter[str] = Counter()
        self.over = threading.Event()
        self._quickest = min(_work() for _ in range(20))
        self.reset()

    def _pace(self) -> float:
        """How many times as long as on a machine that has nothing else to do everything takes now."""
        took = min(_work() for _ in range(2))
        self._quickest = min(self._quickest, took)
        return took / self._quickest

    def reset(self) -> None:
        self.steps: Counter[int] = Counter()
        self.turns: Counter[int] = Counter()
        self.slowest: dict[str, float] = {}
        self.slowest_turn = self.slowest_collection = self.slowest_pace = 0.0
        self.longest_wall: dict[str, float] = {}
        self.stacks.clear()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.stepping = task.name, time.perf_counter()
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        assert self.stepping is not None
        wall = time.perf_counter() - self.stepping[1]
        self.stepping = None
        if took > _LONG_S:
            pace = self._pace()
            self.slowest_pace = max(self.slowest_pace, pace)
            took /= pace
        if took > 0.001:
            self.steps[_bucket(took)] += 1
            self.slowest[task.name] = max(self.slowest.get(task.name, 0.0), took)
        if wall > 0.01:
            self.longest_wall[task.name] = max(self.longest_wall.get(task.name, 0.0), wall)

    def before_io_wait(self, timeout: float) -> None:
        took = time.thread_time() - self._turn_began
        self.turns[_bucket(took)] += 1
        self.slowest_turn = max(self.slowest_turn, took)

    def after_io_wait(self, timeout: float) -> None:
        self._turn_began = time.thread_time()

    def collect(self, phase: str, _facts: dict[str, int]) -> None:
        """The interpreter looks for what can be freed, in whatever step it is."""
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self.slowest_collection = max(self.slowest_collection, time.thread_time() - self._collecting)

    def report(self) -> dict[str, object]:
        """In milliseconds of the processor, but for `wall`; `pace` is how slow the machine was at the worst."""
        return {
            "slowest_ms": 1000 * max(self.slowest.values(), default=0.0),
            "pace": round(self.slowest_pace, 2),
            "slowest_turn_ms": 1000 * self.slowest_turn,
            "slowest_collection_ms": 1000 * self.slowest_collection,
            "by_task_ms": {name: round(1000 * took, 1) for name, took in _largest(self.slowest)},
            "wall_ms": {name: round(1000 * took, 1) for name, took in _largest(self.longest_wall)},
            "steps_up_to_ms": dict(sorted(self.steps.items())),
            "turns_up_to_ms": dict(sorted(self.turns.items())),
            "stacks": self.stacks.most_common(12),
        }


def _bucket(took: float) -> int:
    return next(most for most in _BUCKETS_MS if took * 1000 <= most)


def _largest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])[:8]


def _look(watch: Stopwatch, loop: int) -> None:
    while not watch.over.wait(0.002):
        step = watch.stepping
        if step is not None and time.perf_counter() - step[1] > _SLOW_S:
            frame = sys._current_frames().get(loop)
            if frame is not None:
                calls = traceback.extract_stack(frame)[-7:]
                watch.stacks[" > ".join(f"{Path(c.filename).name}:{c.lineno} {c.name}" for c in calls)] += 1


def main() -> None:
    report, *arguments = sys.argv[1:]
    watch = Stopwatch()

    def write(*_: object) -> None:
        made = Path(report + ".new")
        made.write_text(json.dumps(watch.report()))
        watch.reset()
        made.rename(report)

    signal.signal(signal.SIGUSR2, write)
    if "STOPWATCH_STACKS" in os.environ:
        threading.Thread(target=_look, args=(watch, threading.get_ident()), daemon=True).start()
    gc.callbacks.append(watch.collect)
    trio.run = partial(trio.run, instruments=[watch])
    sys.argv = ["sessiond", *arguments]
    runpy.run_module("sessiond", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
