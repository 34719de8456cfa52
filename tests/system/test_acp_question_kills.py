"""The daemon is killed at every step between a question of an agent that speaks ACP and what follows its answer.

What is left is an answer that was given, or a question that is visibly withdrawn. The agent hears of one end at most,
and what it was granted is on record; the next time it asks anew.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import pytest
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.kill_sweep import kill_at_every_call
from support import acp_agent_path
from support.sampling import WHOLE

pytestmark = pytest.mark.system

CONFIG = f"""
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "acp", command = ["{sys.executable}", "-S", "{acp_agent_path.PATH}", "load"] }}
"""


def ask_and_answer(daemon: FaultyDaemon) -> None:
    """One run that asks, its answer by the owner, and its end; until the daemon is killed."""
    process = daemon.process
    sent = daemon.call("chat.send", sessionKey="main", message="ask")
    found: list[str] = []

    def is_asked() -> bool:
        if process.poll() is not None:
            return True
        try:
            found[:] = [one["id"] for one in daemon.call("questions.list", open=True)["questions"]]
        except OSError:
            return False
        return bool(found)

    daemon.wait_for(is_asked, "neither asked nor killed")
    if found:
        daemon.call("questions.answer", id=found[0], optionId="yes", note="go on")
        (daemon.extra_files / "acknowledged").write_text(found[0])
        daemon.call("agent.wait", runId=sent["runId"])


def answers_told(daemon: FaultyDaemon) -> list[Counter[str]]:
    """What each process of the agent was answered, by option or outcome."""
    told: list[Counter[str]] = []
    for path in daemon.store.glob("agents/main/workspace/frames.jsonl"):
        for line in path.read_text().splitlines():
            frame: dict[str, Any] = json.loads(line)
            if frame.get("method") == "initialize":
                told.append(Counter())
            elif "method" not in frame:
                outcome = frame["result"]["outcome"]
                told[-1][f"{frame['id']} {outcome.get('optionId', outcome['outcome'])}"] += 1
    return told


def check_one_end(daemon: FaultyDaemon, where: str) -> None:
    questions = {one["id"]: one for one in daemon.call("questions.list")["questions"]}
    assert {one["status"] for one in questions.values()} <= {"answered", "withdrawn"}, where
    note = daemon.extra_files / "acknowledged"
    if note.exists():
        assert questions[note.read_text()]["answer"]["optionId"] == "yes", where
    told = answers_told(daemon)
    # Each process asked once.
    assert all(sum(one.values()) <= 1 for one in told), (where, told)
    granted = [one for one in questions.values() if one["status"] == "answered"]
    assert sum(one["0 yes"] for one in told) <= len(granted), (where, told)
    ends = [one["data"]["questionId"] for one in daemon.records("main") if one.get("customType") == "sessiond/answer"]
    assert len(ends) == len(set(ends)) == len(questions), where
    # Nothing that is on disk grants anything: the same message asks anew.
    sent = daemon.call("chat.send", sessionKey="main", message="ask")
    daemon.wait_for(lambda: daemon.call("questions.list", open=True)["questions"], "it does not ask again")
    (question,) = daemon.call("questions.list", open=True)["questions"]
    assert question["id"] not in questions, where
    daemon.call("questions.answer", id=question["id"], optionId="no")
    ended = daemon.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)
    assert (ended["status"], ended["reply"]) == ("ok", "no (answered by owner)"), where


@pytest.mark.skipif(not WHOLE, reason="other questions at each step, with an agent behind: SESSIOND_TESTS=whole")
def test_kill_9_at_any_step_between_question_and_answer_tells_the_agent_once(daemons: FaultyDaemons) -> None:
    counts = kill_at_every_call(daemons, CONFIG, ask_and_answer, check_one_end, 3)
    # On a busy machine question and answer may be one commit.
    assert counts["write"] >= 3 and counts["sync"] >= 3
