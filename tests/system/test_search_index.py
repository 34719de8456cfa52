"""The search index of the real daemon: killed, ended and robbed of its file while it builds."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.indexed_store import T, message, write_session
from support.real_daemon import Daemon
from support.sampling import whole_only

pytestmark = pytest.mark.system

CONFIG = "[search]\nbudget = {}\n"
SESSIONS = 20


def write_store(store: Path) -> None:
    """Some megabytes of text; one message of every session has the word `platypus`."""
    noise = Random(2)
    for number in range(SESSIONS):
        texts = [" ".join(f"{noise.getrandbits(32):x}" for _ in range(1000)) for _ in range(16)]
        lines = [message(text, T + number * 100 + at) for at, text in enumerate(texts)]
        write_session(store, f"s{number}", [*lines, message("a platypus", T + number * 100 + 50)])


def find_all(daemon: Daemon) -> list[str]:
    """The sessions in which the word is found, newest first."""
    found = daemon.call("sessions_search", query="platypus", limit=200)
    assert not found["hasMore"]
    return [match["sessionKey"] for match in found["matches"]]


def index_of(daemon: Daemon) -> dict[str, Any]:
    status: dict[str, Any] = daemon.call("daemon.status")["search"]
    return status


def is_ready(daemon: Daemon) -> bool:
    return index_of(daemon)["state"] == "ready"


@whole_only("test_every_caller_finds_the_same_in_every_state_of_the_index")
def test_it_is_killed_ended_and_deleted_while_searches_go_on(daemon: Daemon) -> None:
    write_store(daemon.store)
    expected = [f"agent:main:s{number}" for number in reversed(range(SESSIONS))]
    index = daemon.store / "cache" / "search.sqlite"
    daemon.start(CONFIG.format(0.3))
    daemon.wait_for(lambda: index_of(daemon)["indexedBytes"], "nothing is indexed")
    assert find_all(daemon) == expected
    daemon.kill()
    daemon.start()
    assert find_all(daemon) == expected
    assert daemon.stop() == 0
    daemon.start(CONFIG.format(1))
    assert find_all(daemon) == expected
    daemon.wait_for(lambda: is_ready(daemon), "the index is not built")
    assert find_all(daemon) == expected
    assert index_of(daemon)["indexedBytes"] == index_of(daemon)["totalBytes"]
    index.unlink()
    assert find_all(daemon) == expected
    daemon.wait_for(lambda: index.exists() and is_ready(daemon), "the index is not built again")
    assert find_all(daemon) == expected
    assert {path.stat().st_mode & 0o777 for path in index.parent.iterdir()} == {0o600}
    assert index.parent.stat().st_mode & 0o777 == 0o700
    (finding,) = (one for one in daemon.call("daemon.doctor")["findings"] if one["thing"] == "search")
    assert finding["what"] == "all is indexed"
