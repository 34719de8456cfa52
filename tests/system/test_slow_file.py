"""A transcript on a disk that does not answer keeps nobody waiting but those who write to it."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.shim import ALL, Kind, Mode, Point
from support.sampling import whole_only

pytestmark = pytest.mark.system

SLOW, OTHERS = "agent:main:slow", [f"agent:main:{number}" for number in range(20)]


ASKING = """
import os
from sessiond.client import Client
options = [{"id": "yes", "label": "Yes", "kind": "allow_once"}]
with Client() as client:
    client.call("agents.ask", runId=os.environ["SESSIOND_RUN_ID"], title="May I?", options=options)
"""


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def texts(daemon: FaultyDaemon, key: str) -> list[str]:
    found: dict[str, Any] = daemon.call("sessions_history", sessionKey=key, limit=200)
    return [one["content"] for one in found["messages"]]


@whole_only("test_whatever_number_of_files_hangs_the_others_go_on")
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


def test_a_second_signal_ends_a_daemon_whose_disk_does_not_answer(daemons: FaultyDaemons) -> None:
    with daemons.create() as daemon:
        daemon.start()
        for key in (SLOW, OTHERS[0]):
            daemon.call("sessions.create", key=key)
        daemon.call("chat.inject", sessionKey=SLOW, messages=message("acknowledged"))
        path = Path(next(row["transcriptPath"] for row in daemon.rows() if row["key"] == SLOW))
        daemon.control.count_below(path.resolve())
        daemon.control.arm(Point(Mode.STALL, 2))
        with daemon.connect() as stuck:
            stuck.send({"jsonrpc": "2.0", "id": 1, "method": "chat.inject",
                        "params": {"sessionKey": SLOW, "messages": message("in between")}})  # fmt: skip
            daemon.wait_for(lambda: daemon.control.hit, "nothing is held up")
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait_for(lambda: "stopping" in daemon.log.read_text(), "it does not stop")
            assert daemon.stop() == 74
            error = stuck.receive()["error"]
            assert (error["code"], error["data"]["begun"]) == (-32008, True)
        assert "stopped without the disk, which does not answer" in daemon.log.read_text()
        assert f"sessions=['{SLOW}']" in daemon.log.read_text() and "appends=1" in daemon.log.read_text()
        daemon.control.disarm()
        daemon.start()
        assert texts(daemon, SLOW)[0] == "acknowledged"
        assert texts(daemon, SLOW)[1:] in ([], ["in between"])
        assert daemon.stop() == 0


@whole_only("test_a_second_signal_ends_a_daemon_whose_disk_does_not_answer")
def test_who_waits_is_answered_at_the_stop_also_where_a_question_cannot_be_withdrawn(
    daemons: FaultyDaemons,
) -> None:
    with daemons.create() as daemon:
        command = json.dumps([sys.executable, "-c", ASKING])
        daemon.start(f'[[agents.list]]\nid = "main"\nruntime = {{ type = "exec", command = {command} }}\n')
        sent = daemon.call("chat.send", sessionKey="main", message="go on")
        daemon.wait_for(lambda: daemon.call("questions.list", open=True)["questions"], "nothing is asked")
        with daemon.connect() as waiting:
            waiting.send({"jsonrpc": "2.0", "id": 1, "method": "agent.wait", "params": {"runId": sent["runId"]}})
            daemon.control.count_below(daemon.transcripts()[0].resolve())
            daemon.control.arm(Point(Mode.STALL, 1))
            daemon.process.send_signal(signal.SIGTERM)
            error = waiting.receive()["error"]
            assert (error["code"], error["data"]["begun"]) == (-32008, True)
        assert daemon.control.hit
        assert daemon.stop() == 74


def test_whatever_number_of_files_hangs_the_others_go_on(daemons: FaultyDaemons) -> None:
    stuck = [f"agent:slow:{number}" for number in range(14)]
    with daemons.create() as daemon:
        agent = '[[agents.list]]\nid = "{}"\nruntime = {{ type = "echo" }}\n'
        daemon.start(agent.format("main") + "default = true\n" + agent.format("slow"))
        for key in (*stuck, *OTHERS):
            daemon.call("sessions.create", key=key)
        daemon.control.count_below((daemon.store / "agents/slow/sessions").resolve())
        # One write, and every sync from then on.
        daemon.control.arm(Point(Mode.STALL, 1, forever=Kind.SYNC))
        with daemon.connect() as waiting:
            for number, key in enumerate(stuck):
                params = {"sessionKey": key, "messages": message("late")}
                waiting.send({"jsonrpc": "2.0", "id": number, "method": "chat.inject", "params": params})
            daemon.wait_for(lambda: daemon.control.hit == len(stuck), "not all are held up")
            with daemon.connect() as other:
                for key in OTHERS[:3]:
                    other.call("chat.inject", sessionKey=key, messages=message("alone"))
                for id_, key in enumerate(OTHERS):
                    params = {"sessionKey": key, "messages": message("at once")}
                    other.send({"jsonrpc": "2.0", "id": id_, "method": "chat.inject", "params": params})
                assert all("result" in other.receive() for _ in OTHERS)
            assert all(texts(daemon, key) == [] for key in stuck)
            daemon.control.disarm()
            assert all("result" in waiting.receive() for _ in stuck)
        assert all(texts(daemon, key) == ["late"] for key in stuck)
        assert daemon.stop() == 0


def test_whatever_number_of_new_sessions_hangs_others_are_created(daemons: FaultyDaemons) -> None:
    stuck, fine = [f"agent:slow:{number}" for number in range(14)], [f"agent:main:{number}" for number in range(6)]
    with daemons.create() as daemon:
        agent = '[[agents.list]]\nid = "{}"\nruntime = {{ type = "echo" }}\n'
        daemon.start(agent.format("main") + "default = true\n" + agent.format("slow"))
        for key in ("agent:main:first", "agent:slow:first"):
            daemon.call("sessions.create", key=key)
        daemon.control.count_below((daemon.store / "agents/slow/sessions").resolve())
        daemon.control.arm(Point(Mode.STALL, 1, forever=ALL))
        with ExitStack() as opened:
            waiting = [opened.enter_context(daemon.connect()) for _ in stuck]
            for connection, key in zip(waiting, stuck, strict=True):
                connection.send({"jsonrpc": "2.0", "id": 1, "method": "sessions.create", "params": {"key": key}})
            daemon.wait_for(lambda: daemon.control.hit == len(stuck), "not all are held up")
            for key in fine:
                daemon.call("sessions.create", key=key)
            daemon.call("sessions.reset", key=fine[0])
            daemon.call("sessions.delete", key=fine[1])
            daemon.control.disarm()
            assert all("result" in connection.receive() for connection in waiting)
        assert {row["key"] for row in daemon.rows()} >= {*stuck, *fine[2:]}
        assert daemon.stop() == 0
