"""Fixtures that every test may ask for."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from real_daemon import Daemon

# How long an example takes tells of the machine, and a busy one is no defect.
settings.register_profile("sessiond", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sessiond")


# A shell that starts this in the background has SIGINT ignored, and so would every program that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
