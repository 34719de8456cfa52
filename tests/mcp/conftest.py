"""A running daemon for the tests of MCP clients."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    """A daemon in which all sessions are visible to each other."""
    return daemon.start('[tools.sessions]\nvisibility = "agent"\n')
