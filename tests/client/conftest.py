from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _fake_daemon() -> Any:
    if "fake_daemon" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_daemon", Path(__file__).parents[1] / "fake_daemon.py")
        assert spec and spec.loader
        sys.modules["fake_daemon"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_daemon"])
    return sys.modules["fake_daemon"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Any]:
    fake = _fake_daemon().FakeDaemon(tmp_path / "d.sock")
    yield fake
    fake.stop()


@pytest.fixture
def refusal() -> Any:
    """Raised by an answer of the fake daemon."""
    return _fake_daemon().Refusal


@pytest.fixture
def no_answer() -> Any:
    return _fake_daemon().NO_ANSWER
