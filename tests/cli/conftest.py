from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.fake_daemon import FakeDaemon, Refusal

from sessiond import cli


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A stand-in for the daemon: `fake.answers[method] = lambda params, connection: result`."""
    daemon = FakeDaemon(tmp_path / "d.sock")
    yield daemon
    if daemon.path.exists():
        daemon.stop()


@pytest.fixture
def refusal() -> Any:
    return Refusal


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def sessiond(fake: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`sessiond("list", "--json")` against the stand-in: exit status and both outputs."""

    def run(name: str, *words: str) -> Done:
        # The option goes before the caller's words, so that a `--` among them keeps its meaning.
        at = 1 if name in ("token", "import") and words else 0
        status = cli.run([name, *words[:at], "--socket", str(fake.path), *words[at:]])
        return Done(status, *capsys.readouterr())

    return run
