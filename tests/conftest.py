"""Fixtures that every test may ask for.

By default sweeps, races and Hypothesis' examples are samples; SESSIOND_TESTS=whole tries all of them, as `.ci/run` does
(`sampling.py`). Soaks go on for as long as SESSIOND_SOAK_S says.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.real_daemon import Daemon
from support.sampling import amount

# A file in the temporary folder of a run whose folders stay.
KEPT = "kept"

# How long an example takes tells of the machine, and a busy one is no defect. The examples are the same in each run:
# what is found by chance is found by `--hypothesis-profile explore`, and is written down as an @example.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
settings.register_profile(
    "sessiond", settings.get_profile("explore"), max_examples=amount(100, 25), derandomize=True, database=None
)
settings.load_profile("sessiond")


# Six thousand tests are made in each process and stay: nobody looks through them for garbage, neither now nor later.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests, each begins with its part of the files that wait for real daemons.

    A process is given a piece of the list, and who is done takes over from the end of another's: what takes long and
    comes last has everybody wait for one.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1:
        return
    files: dict[Path, list[pytest.Item]] = {}
    others = []
    for item in items:
        if item.get_closest_marker("system") or item.path.parent.name == "system":
            files.setdefault(item.path, []).append(item)
        else:
            others.append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(count)]
    for file in sorted(files.values(), key=len, reverse=True):
        min(shares, key=len).extend(file)
    size = -(-len(items) // count)
    for share in shares:
        missing = max(0, size - len(share))
        share += others[:missing]
        del others[:missing]
    items[:] = [item for share in shares for item in share] + others


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Give temporary folders short names: a socket path has 107 bytes, and pytest begins with the user's name."""
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="st-")
        config.add_cleanup(lambda: remove_unless_kept(Path(config.option.basetemp)))


def remove_unless_kept(folder: Path) -> None:
    if not (folder / KEPT).exists():
        shutil.rmtree(folder, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What failed can be looked at: its folders stay, where `--basetemp` does not say otherwise."""
    folder = Path(session.config.option.basetemp)
    if exitstatus and folder.is_dir() and not hasattr(session.config, "workerinput"):
        (folder / KEPT).touch()
        print(f"\ntemporary folders: {folder}")


# A shell that starts this in the background has SIGINT ignored, and so would every program that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two for each processor, as many tests wait for other processes."""
    return min(2 * len(os.sched_getaffinity(0)), 16)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; ended with the test."""
    made = Daemon(tmp_path)
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is so short that folders with sockets can be made in it: 107 bytes are the kernel's limit."""
    with tempfile.TemporaryDirectory(prefix="sd-", dir="/tmp") as folder:
        yield Path(folder)
