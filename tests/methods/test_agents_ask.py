"""`agents.ask`: an attached agent asks a person in the name of its run, and hears the answer once."""

from __future__ import annotations

from pathlib import Path

from support.in_process import in_process_daemon
from support.in_process_agents import agent, attached_agents_config
from support.patience import PATIENCE_S
from support.questions import ASKED, ask_once, wait_for_question

KEY = "agent:alice:main"


async def test_a_question_is_listed_announced_and_answered_once(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", ask_once),
        there.connect() as owner,
        there.connect() as follower,
    ):
        await owner.call("sessions.create", key=KEY)
        await follower.call("sessions.subscribe")
        sent = await owner.call("chat.send", sessionKey=KEY, message="go")
        event = await follower.event("question.asked")
        question = await wait_for_question(owner)
        assert event == {"sessionKey": KEY, "question": question}
        assert question == {
            "id": question["id"],
            "sessionKey": KEY,
            "agentId": "alice",
            "runId": sent["runId"],
            **ASKED,
            "status": "open",
            "askedAt": question["askedAt"],
        }
        [row] = (await owner.call("sessions_list", search=KEY))["sessions"]
        assert row["state"] == "waiting"
        assert row["waiting"] == {"since": question["askedAt"], "questions": 1, "title": ASKED["title"]}

        done = await owner.call("questions.answer", id=question["id"], optionId="yes", note="but only once")
        assert done == {"id": question["id"], "optionId": "yes", "status": "answered"}
        ended = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        assert ended["reply"] == "answered yes but only once owner"
        closed = await follower.event("question.answered")
        answer = closed["answer"]
        assert closed == {"sessionKey": KEY, "id": question["id"], "answer": answer}
        assert answer == {
            "outcome": "answered",
            "optionId": "yes",
            "note": "but only once",
            "by": "owner",
            "at": answer["at"],
            "road": "socket",
        }
        again = await owner.failure("questions.answer", id=question["id"], optionId="no")
        assert (again["code"], again["data"]["answer"]) == (-32004, answer)
        listed = (await owner.call("questions.list", sessionKey=KEY))["questions"]
        assert listed == [{**question, "status": "answered", "answer": answer}]
        [row] = (await owner.call("sessions_list", search=KEY))["sessions"]
        assert row["state"] == "done"
        assert "waiting" not in row
