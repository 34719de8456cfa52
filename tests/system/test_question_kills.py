"""The daemon is killed at every step between a question and what follows its answer.

What is left is an answer that was given, or a question that is visibly withdrawn; the agent hears of one end at most.
"""

from __future__ import annotations

import sys

import msgspec
import pytest
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.kill_sweep import kill_at_every_call
from support.sampling import whole_only

pytestmark = pytest.mark.system

# It asks with the token of its run, and notes outside of the store what it heard.
AGENT = """
import os, sys
from sessiond.client import Client, ClientError

heard = sys.stdin.read().strip()
options = [{"id": "yes", "label": "Yes", "kind": "allow_once"}, {"id": "no", "label": "No", "kind": "reject_once"}]
with Client() as client:
    try:
        said = client.call("agents.ask", runId=os.environ["SESSIOND_RUN_ID"], title="May I?", options=options)
    except ClientError as error:
        said = {"outcome": type(error).__name__}
with open(heard, "a") as file:
    file.write(f"{said['outcome']} {said.get('optionId')}\\n")
print(said["outcome"])
"""
CONFIG = f"""
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "exec", command = {msgspec.json.encode([sys.executable, "-c", AGENT]).decode()} }}
"""


def ask_and_answer(daemon: FaultyDaemon) -> None:
    """One run that asks, its answer by the owner, and its end; until the daemon is killed."""
    process = daemon.process
    sent = daemon.call("chat.send", sessionKey="main", message=str(daemon.extra_files / "heard"))
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
        answered = daemon.call("questions.answer", id=found[0], optionId="yes", note="go on")
        (daemon.extra_files / "acknowledged").write_text(answered["id"])
        daemon.call("agent.wait", runId=sent["runId"])


def check_one_end(daemon: FaultyDaemon, where: str) -> None:
    """Each question has ended, as everybody was told; nothing waits."""
    questions = {one["id"]: one for one in daemon.call("questions.list")["questions"]}
    assert {one["status"] for one in questions.values()} <= {"answered", "withdrawn"}, where
    assert daemon.call("questions.list", open=True) == {"questions": []}, where
    rows = {row["key"]: row for row in daemon.rows()}
    assert rows["main"]["state"] in ("done", "error"), where
    note = daemon.extra_files / "acknowledged"
    if note.exists():
        assert questions[note.read_text()]["answer"]["optionId"] == "yes", where
    for one in questions.values():
        error = daemon.failure("questions.answer", id=one["id"], optionId="no")
        assert (error["code"], error["data"]["answer"]) == (-32004, one["answer"]), where
    heard = daemon.extra_files / "heard"
    lines = heard.read_text().splitlines() if heard.exists() else []
    # One line of the run before the sweep, and what this one heard: the answer, which is on record, or nothing.
    granted = [one for one in questions.values() if one["status"] == "answered"]
    assert len(lines) <= 2, where
    assert lines.count("answered yes") <= len(granted), where
    records = daemon.records("main")
    ends = [record["data"]["questionId"] for record in records if record.get("customType") == "sessiond/answer"]
    assert len(ends) == len(set(ends)) == len(questions), where


@whole_only("test_after_any_cut_each_question_is_answered_as_its_record_says_or_withdrawn")
def test_kill_9_at_any_step_between_question_and_answer_grants_nothing_twice(daemons: FaultyDaemons) -> None:
    counts = kill_at_every_call(daemons, CONFIG, ask_and_answer, check_one_end, 2)
    # The request and its start, the question, the answer, the reply with the end of the run: four commits as a rule. A
    # question can be answered while the commit before it is under way, and is then written together with its answer.
    assert counts["write"] >= 3 and counts["sync"] >= 3
