"""A daemon for MCP clients to meet."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    """A daemon whose sessions all see each other."""
    return daemon.start('[tools.sessions]\nvisibility = "agent"\n')
