"""Messages between three machines while everything is killed: each is executed once, and copies stay exact.

The long run: `python tests/support/machine_kills.py 10000`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.machine_kills import NAMES, run_kills
from support.nats_server import NatsServer
from support.sampling import whole_only

pytestmark = pytest.mark.system


@whole_only("test_a_daemon_killed_anywhere_asks_again_and_says_everything_once")
def test_each_message_is_executed_once_and_answered_whatever_dies(
    tmp_path: Path, nats_server: Callable[..., NatsServer]
) -> None:
    server = nats_server("open", *NAMES).start()
    happened = run_kills(tmp_path, server, 300, seed=20, patience_s=180)
    assert set(happened) == {
        "kill_link",
        "kill_daemon",
        "kill_server",
        "cut_network",
        "delete_messages",
        "fill_server",
        "stop_link_gently",
    }
