"""The garbage collector while the store is read and afterwards, and the allocator."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from sessiond.daemon import memory


class Cycle:
    """Only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def _usual_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    # What is frozen stays so: it is all that was collected, which nobody is to go over any more.
    gc.set_threshold(*thresholds)


_FAULTS = """
import resource
from sessiond.daemon import memory
memory.{settings}()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    held = [b"x" * {size} for _ in range({count})]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
@pytest.mark.parametrize(
    ("settings", "size", "count", "most"),
    [
        # All of it has 100,000 pages, the first eight messages 2,000.
        ("reuse_freed_memory", 1 << 20, 8, 10_000),
        # As much as is held for a page of history: all of it has 7,500 pages, the first time 150.
        ("return_freed_memory", 120 * 1024, 5, 1000),
    ],
)
def test_what_is_freed_and_used_again_is_not_asked_of_the_system_each_time(
    settings: str, size: int, count: int, most: int
) -> None:
    program = _FAULTS.format(settings=settings, size=size, count=count)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most


@pytest.mark.usefixtures("_usual_collector")
def test_garbage_is_freed_while_the_store_is_read() -> None:
    gc.collect()
    memory.collect_rarely()
    garbage = weakref.ref(Cycle())
    kept: list[list[int]] = []
    while garbage() is not None and len(kept) < 1_000_000:
        kept.append([])
    assert garbage() is None
    assert len(kept) > 10_000  # so seldom that reading is not slowed down


@pytest.mark.usefixtures("_usual_collector")
def test_what_was_imported_before_is_not_gone_over_at_the_end_of_the_start() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    memory.collect_rarely()
    gc.callbacks.append(note)
    try:
        memory.freeze_gc()
    finally:
        gc.callbacks.remove(note)
    assert generations and max(generations) < 2


@pytest.mark.usefixtures("_usual_collector")
def test_no_garbage_is_kept_for_ever() -> None:
    thresholds = gc.get_threshold()
    memory.collect_rarely()
    garbage = weakref.ref(Cycle())
    memory.freeze_gc()
    assert garbage() is None
    assert gc.isenabled() and gc.get_threshold() == (5_000, *thresholds[1:]) and gc.get_freeze_count()
