from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon, Refusal


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "d.sock")
    yield daemon
    daemon.stop()


@pytest.fixture
def refusal() -> Any:
    """Raised by an answer of the fake daemon."""
    return Refusal


@pytest.fixture
def no_answer() -> Any:
    return NO_ANSWER
