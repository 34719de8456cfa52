"""Run ends that were missed while disconnected and are asked for afterwards, with a real daemon."""

from __future__ import annotations

from typing import Any

import pytest
from support.real_daemon import Daemon

from sessiond.cli.frame.run_ends import MissedRunEnds
from sessiond.client import Client
from sessiond.client.wire import Event

CONFIG = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'
KEY = "agent:main:main"


@pytest.mark.system
@pytest.mark.parametrize("key", [None, KEY])
def test_a_run_end_that_was_asked_for_is_not_shown_again_for_its_event(daemon: Daemon, key: str | None) -> None:
    daemon.start(CONFIG)
    shown: list[tuple[str, str]] = []
    with Client(daemon.socket) as client:
        missed = MissedRunEnds(client, key, lambda where, end: shown.append((where, end["status"])))
        missed.on_connect()
        missed.take(Event("sessions.changed", {"sessionKey": KEY, "phase": "start"}))
        daemon.reply(KEY, "hello")
        missed.on_connect()
        assert shown == [(KEY, "ok")]
        [row] = client.call("sessions_list")["sessions"]
        late: dict[str, Any] = {"sessionKey": KEY, "phase": "end", "row": row}
        assert not missed.take(Event("sessions.changed", late))
        daemon.reply(KEY, "and another")
        [row] = client.call("sessions_list")["sessions"]
        assert missed.take(Event("sessions.changed", {**late, "row": row}))
    assert daemon.stop() == 0


@pytest.mark.system
def test_a_run_end_is_shown_once_though_its_session_is_awaited_by_two_names(daemon: Daemon) -> None:
    """A list calls the owner's session `main`, an event `agent:main:main`."""
    daemon.start(CONFIG)
    shown: list[tuple[str, str]] = []
    with Client(daemon.socket) as client:
        missed = MissedRunEnds(client, None, lambda where, end: shown.append((where, end["status"])))
        missed.on_connect()
        for name in ("main", KEY):
            missed.take(Event("sessions.changed", {"sessionKey": name, "phase": "start"}))
        daemon.reply(KEY, "hello")
        missed.on_connect()
    assert shown == [(KEY, "ok")]
    assert daemon.stop() == 0
