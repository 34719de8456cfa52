"""What the processes of `-n` compile in a fresh clone: each its share, not each all of it.

The first one makes Hypothesis' tables of characters meanwhile, which take two seconds and are kept in `.hypothesis`.

They collect the same files in the same order at the same time, and without this most files would be compiled by each
of them: six seconds of a processor every time.
"""

from __future__ import annotations

import compileall
import os
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from hypothesis.internal import charmap

TESTS = Path(__file__).parents[1]


def compile_share(config: pytest.Config) -> None:
    """Compile what falls to this process, which takes the others as long. A process without others does nothing.

    What cannot be compiled is left to its import, which says why.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    place, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if place == 0:
        charmap.intervals_from_codec("utf-8")
        if count > 1:
            return
    place, count = max(0, place - 1), max(1, count - 1)
    for path in sorted([*TESTS.parent.glob("sessiond/**/*.py"), *TESTS.glob("support/*.py")])[place::count]:
        compileall.compile_file(path, quiet=2)
    for path in sorted(TESTS.rglob("test_*.py"))[place::count]:
        with suppress(SyntaxError):
            _rewrite_asserts(path, config)


def _rewrite_asserts(path: Path, config: pytest.Config) -> None:
    """As pytest does it before it imports the file, unless that was done before."""
    compiled = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(compiled.parent):
        source, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, compiled)
