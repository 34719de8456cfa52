from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessiond import cli


def _fake_daemon() -> Any:
    if "fake_daemon" not in sys.modules:
        spec = importlib.util.spec_from_file_location("fake_daemon", Path(__file__).parents[1] / "fake_daemon.py")
        assert spec and spec.loader
        sys.modules["fake_daemon"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fake_daemon"])
    return sys.modules["fake_daemon"]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Any]:
    """A stand-in for the daemon: `fake.answers[method] = lambda params, connection: result`."""
    daemon = _fake_daemon().FakeDaemon(tmp_path / "d.sock")
    yield daemon
    if daemon.path.exists():
        daemon.stop()


@pytest.fixture
def refusal() -> Any:
    return _fake_daemon().Refusal


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def sessiond(fake: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`sessiond("list", "--json")` against the stand-in: exit status and both outputs."""

    def run(name: str, *words: str) -> Done:
        # Before the words of the user, so that a `--` among them stays theirs.
        at = 1 if name in ("token", "import") and words else 0
        status = cli.run([name, *words[:at], "--socket", str(fake.path), *words[at:]])
        return Done(status, *capsys.readouterr())

    return run
