"""A transcript on a disk that does not answer keeps nobody waiting but those who write to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.shim import Mode, Point

pytestmark = pytest.mark.system

SLOW, OTHERS = "agent:main:slow", [f"agent:main:{number}" for number in range(20)]


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def texts(daemon: FaultyDaemon, key: str) -> list[str]:
    found: dict[str, Any] = daemon.call("sessions_history", sessionKey=key, limit=200)
    return [one["content"] for one in found["messages"]]


def test_a_write_or_sync_that_does_not_end_holds_up_only_its_own_session(daemons: FaultyDaemons) -> None:
    with daemons.create() as daemon:
        daemon.start()
        for key in (SLOW, *OTHERS):
            daemon.call("sessions.create", key=key)
        path = Path(next(row["transcriptPath"] for row in daemon.rows() if row["key"] == SLOW))
        daemon.control.count_below(path.resolve())
        for name, number in (("write", 1), ("sync", 2)):
            daemon.control.arm(Point(Mode.STALL, number))
            with daemon.connect() as stuck, daemon.connect() as other:
                stuck.send({"jsonrpc": "2.0", "id": 1, "method": "chat.inject",
                            "params": {"sessionKey": SLOW, "messages": message(name)}})  # fmt: skip
                daemon.wait_for(lambda: daemon.control.hit, "nothing is held up")
                # Alone, and all at once.
                for key in OTHERS[:3]:
                    other.call("chat.inject", sessionKey=key, messages=message(f"alone, {name}"))
                for id_, key in enumerate(OTHERS):
                    params = {"sessionKey": key, "messages": message(f"at once, {name}")}
                    other.send({"jsonrpc": "2.0", "id": id_, "method": "chat.inject", "params": params})
                answers = [other.receive() for _ in OTHERS]
                assert all("result" in answer for answer in answers)
                other.call("sessions.create", key=f"agent:main:new-{name}")
                assert texts(daemon, SLOW) == ([] if name == "write" else ["write"])
                daemon.control.disarm()
                assert "result" in stuck.receive()
        assert texts(daemon, SLOW) == ["write", "sync"]
        assert texts(daemon, OTHERS[0]) == ["alone, write", "at once, write", "alone, sync", "at once, sync"]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["type"] for line in lines] == ["session", "message", "message"]
