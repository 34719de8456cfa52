"""Fixtures and settings for all tests.

By default sweeps, races and Hypothesis' examples are samples; with SESSIOND_TESTS=whole, as in `.ci/run`, all of them
run (`support/sampling.py`). SESSIOND_SOAK_S is the duration of the soak tests.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from support.real_daemon import Daemon
from support.sampling import WHOLE, amount
from support.shared_compiling import compile_share

# This file in the temporary folder of a test run means that the folder is not removed.
KEEP_MARK = "keep"

# No deadline, because a slow example may only mean a busy machine. The examples are the same in each run; to search
# with random ones use `--hypothesis-profile explore`, and add what it finds as an @example.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=1000)
settings.register_profile(
    "sessiond", settings.get_profile("explore"), max_examples=amount(100, 6), derandomize=True, database=None
)
settings.load_profile("sessiond")
# Hypothesis takes constants out of the source of every module that a process has imported: in a fresh clone two seconds
# of each process, and the fifteen examples of a test would depend on which others were collected with it.
if not WHOLE:
    providers.is_local_module_file = lambda path: False


# Each process collects six thousand tests and keeps them, so the garbage collector need not visit them.
gc.disable()


# Last: Hypothesis lets nobody use its tables before it has begun itself.
@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    compile_share(session.config)


# They need the official client of a protocol, or a daemon and editors for their session.
TOGETHER = [Path(__file__).parent / folder for folder in ("acp", "mcp")]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several xdist workers, each begins with its share of the slow files, which start real daemons.

    A worker gets a piece of the list, and one that is done takes tests from the end of another's. Slow tests at the end
    would leave all workers but one idle. What takes a second to import or to start is of one worker alone.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1:
        return
    files: dict[Path, list[pytest.Item]] = {}
    others = []
    for item in items:
        if item.path.parent in TOGETHER:
            files.setdefault(item.path.parent, []).append(item)
        elif item.get_closest_marker("system") or item.path.parent.name == "system":
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
    # Seldom: what most tests leave is gone with its last reference.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Give temporary folders short names: a socket path has 107 bytes, and pytest begins with the user's name."""
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="st-")
        config.add_cleanup(lambda: remove_unless_marked(Path(config.option.basetemp)))


def remove_unless_marked(folder: Path) -> None:
    if not (folder / KEEP_MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a failure keep the temporary folders and print where they are."""
    folder = Path(session.config.option.basetemp)
    if exitstatus and folder.is_dir() and not hasattr(session.config, "workerinput"):
        (folder / KEEP_MARK).touch()
        print(f"\ntemporary folders: {folder}")


# A shell that starts pytest in the background ignores SIGINT, and every program started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: three workers for each processor, because many tests wait for other processes."""
    return min(3 * len(os.sched_getaffinity(0)), 16)


_folder_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own. Pytest's fixture looks through those of all tests before for the next number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_folder_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; it is killed after the test."""
    made = Daemon(tmp_path)
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a path short enough for sockets below it; the kernel's limit is 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sd-", dir="/tmp") as folder:
        yield Path(folder)
