"""What several files of system tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.faulty_daemons import FaultyDaemons, open_faulty_daemons


@pytest.fixture(scope="module")
def daemons() -> Iterator[FaultyDaemons]:
    """Daemons with the fault shim."""
    with open_faulty_daemons() as opened:
        if opened is None:
            pytest.skip("no gcc that can compile the shim")
        yield opened
