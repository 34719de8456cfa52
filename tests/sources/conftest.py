"""A home in which programs write, and sources that follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.foreign_sessions import FollowedSources, followed_sources, pi_file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
async def followed(tmp_path: Path, home: Path) -> AsyncIterator[FollowedSources]:
    """The sources of a home with one session of pi."""
    pi_file(home, 1, "one")
    async with followed_sources(tmp_path, home) as followed:
        yield followed
