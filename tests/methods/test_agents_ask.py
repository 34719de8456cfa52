"""`agents.ask`: an attached agent asks a person in the name of its run, and hears the answer once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.patience import PATIENCE_S
from support.questions import ASKED, OPTIONS, answered_outcome, ask_once, wait_for_question
from support.rows import check_each

from sessiond.model.caller import OWNER, Caller

KEY = "agent:alice:main"


@dataclass
class AskingAgent:
    """An agent in the middle of a run, which ends when its gate is opened."""

    there: InProcessDaemon
    owner: Connection
    made: Program
    run_id: str


@pytest.fixture
async def asking_agent(tmp_path: Path) -> AsyncIterator[AskingAgent]:
    async def act(made: Program, params: dict[str, Any]) -> Any:
        await made.gate.wait()
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act) as made,
        there.connect() as owner,
    ):
        sent = await owner.call("chat.send", sessionKey=KEY, message="go")
        await made.got.wait()
        yield AskingAgent(there, owner, made, sent["runId"])


async def reply_at_once(made: Program, params: dict[str, Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return {"reply": "done"}


async def closed(owner: Connection, question_id: str) -> dict[str, Any]:
    """How a question ended, once it has."""
    with trio.fail_after(PATIENCE_S):
        while True:
            listed = (await owner.call("questions.list", open=False))["questions"]
            for one in listed:
                if one["id"] == question_id:
                    answer: dict[str, Any] = one["answer"]
                    return answer
            await trio.sleep(0.005)


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


@check_each(
    ("change", "field"),
    [
        ({}, None),
        ({"title": "x" * 200}, None),
        ({"title": "x" * 201}, "$.title"),
        ({"title": " \u202e\x07 "}, "$.title"),
        ({"title": "   "}, "$.title"),
        ({"detail": "é" * 8192}, None),
        ({"detail": "é" * 8192 + "x"}, "$.detail"),
        ({"options": []}, "$.options"),
        ({"options": [{**OPTIONS[0], "id": str(number)} for number in range(16)]}, None),
        ({"options": [{**OPTIONS[0], "id": str(number)} for number in range(17)]}, "$.options"),
        ({"options": [OPTIONS[0], OPTIONS[0]]}, "$.options[1].id"),
        ({"options": [{**OPTIONS[0], "id": "é" * 100}]}, None),
        ({"options": [{**OPTIONS[0], "id": "é" * 101}]}, "$.options[0].id"),
        ({"options": [{**OPTIONS[0], "id": ""}]}, "$.options[0].id"),
        ({"options": [{**OPTIONS[0], "label": "x" * 200}]}, None),
        ({"options": [{**OPTIONS[0], "label": "x" * 201}]}, "$.options[0].label"),
        ({"options": [{**OPTIONS[0], "kind": "allow"}]}, "$.options[0].kind"),
        ({"timeoutSeconds": 1}, None),
        ({"timeoutSeconds": 0.5}, "$.timeoutSeconds"),
        ({"timeoutSeconds": 604_800}, None),
        ({"timeoutSeconds": 604_801}, "$.timeoutSeconds"),
    ],
)
async def test_a_question_keeps_the_limits_or_is_refused(
    asking_agent: AskingAgent, change: dict[str, Any], field: str | None
) -> None:
    asked = {**ASKED, **change}
    if field is not None:
        error = await asking_agent.made.failure("agents.ask", runId=asking_agent.run_id, **asked)
        assert (error["code"], error["data"].get("field")) == (-32602, field), error
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(asking_agent.made.call, "agents.ask", runId=asking_agent.run_id, **asked))
        question = await wait_for_question(asking_agent.owner)
        assert {name: question[name] for name in ASKED} == {name: asked[name] for name in ASKED}
        await asking_agent.owner.call("questions.answer", id=question["id"], optionId=question["options"][0]["id"])


async def test_questions_that_come_at_once_are_asked_in_their_order(asking_agent: AskingAgent) -> None:
    run = {"runId": asking_agent.run_id}
    titles = [f"May I {number}?" for number in range(10)]
    calls = [
        {"jsonrpc": "2.0", "id": title, "method": "agents.ask", "params": {**ASKED, **run, "title": title}}
        for title in titles
    ]
    await asking_agent.made.connection.write(b"".join(msgspec.json.encode(call) + b"\n" for call in calls))
    with trio.fail_after(PATIENCE_S):
        while len(listed := (await asking_agent.owner.call("questions.list"))["questions"]) < 10:  # noqa: ASYNC110
            await trio.sleep(0.005)
    assert [one["title"] for one in listed] == titles


async def test_whoever_asks_takes_the_question_back_by_cancelling_or_going_away(asking_agent: AskingAgent) -> None:
    owner, run_id, there = asking_agent.owner, asking_agent.run_id, asking_agent.there
    token = (there.services.supervisor.registry.live[run_id]).session.key
    request = await asking_agent.made.connection.send("agents.ask", runId=run_id, **ASKED)
    first = await wait_for_question(owner)
    await asking_agent.made.notify("$/cancelRequest", id=request)
    ends = [await closed(owner, first["id"])]
    # Another connection of the run, with its token.
    caller = Caller(kind="token", scopes=frozenset(), session_key=token, agent_id="alice", run_id=run_id)
    async with there.connect(caller) as program:
        await program.send("agents.ask", runId=run_id, **ASKED)
        second = await wait_for_question(owner)
    ends.append(await closed(owner, second["id"]))
    await asking_agent.made.connection.send("agents.ask", runId=run_id, **ASKED)
    third = await wait_for_question(owner)
    await asking_agent.made.connection.close()
    ends.append(await closed(owner, third["id"]))
    assert [end["outcome"] for end in ends] == ["withdrawn"] * 3
    # The last connection was that of the agent, with which its run ends too.
    assert [end["reason"] for end in ends[:2]] == ["whoever asked it went away"] * 2
    late = await owner.failure("questions.answer", id=third["id"], optionId="yes")
    assert (late["code"], late["data"]["answer"]) == (-32004, ends[2])


async def test_what_another_connection_asks_in_the_name_of_a_run_ends_with_the_run(asking_agent: AskingAgent) -> None:
    owner, run_id, there = asking_agent.owner, asking_agent.run_id, asking_agent.there
    token = there.services.supervisor.registry.live[run_id].session.key
    caller = Caller(kind="token", scopes=frozenset(), session_key=token, agent_id="alice", run_id=run_id)
    async with there.connect(caller) as program:
        await program.send("agents.ask", runId=run_id, **ASKED)
        asked = await wait_for_question(owner)
        asking_agent.made.gate.set()
        end = await closed(owner, asked["id"])
    assert (end["outcome"], end["reason"]) == ("withdrawn", "the run that asked it is over")


@pytest.mark.parametrize("how", ["aborted", "timeout", "reset"])
async def test_a_question_ends_with_its_run_however_that_ends(tmp_path: Path, how: str) -> None:
    heard: list[dict[str, Any]] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        with trio.CancelScope(shield=True):  # the agent does not heed that its run was cancelled
            heard.append(await made.call("agents.ask", runId=params["runId"], **ASKED))
        return {"reply": "late"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        limit = {"timeoutSeconds": 1} if how == "timeout" else {}
        sent = await owner.call("chat.send", sessionKey=KEY, message="go", **limit)
        question = await wait_for_question(owner)
        if how == "aborted":
            await owner.call("chat.abort", sessionKey=KEY)
        elif how == "reset":
            await owner.call("sessions.reset", key=KEY)
        await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        await until(lambda: heard)
        assert heard == [{"questionId": question["id"], "outcome": "withdrawn"}]
        listed = (await owner.call("questions.list"))["questions"]
        expected = [] if how == "reset" else ["the run that asked it is over"]
        assert [one["answer"]["reason"] for one in listed] == expected
        [text] = [
            path.read_text()
            for path in there.services.store.path.glob("agents/alice/sessions/**/*.jsonl")
            if question["id"] in path.read_text()
        ]
        # On record before the end of the run is.
        assert 0 < text.index('"withdrawn"') < text.rindex('"sessiond/run"')


async def test_only_who_lives_the_run_asks_in_its_name(asking_agent: AskingAgent) -> None:
    there, run_id = asking_agent.there, asking_agent.run_id
    scopes = frozenset({"list", "read", "send", "spawn"})
    strangers = [
        OWNER,
        Caller(kind="token", scopes=scopes, session_key=KEY, agent_id="alice"),
        Caller(kind="token", scopes=scopes, session_key=KEY, agent_id="alice", run_id=f"{run_id[:-1]}x"),
    ]
    for caller in strangers:
        async with there.connect(caller) as stranger:
            with trio.fail_after(PATIENCE_S):
                error = await stranger.failure("agents.ask", runId=run_id, **ASKED)
            assert (error["code"], error["data"]["code"]) == (-32002, "run_not_found")
    unknown = await asking_agent.made.failure("agents.ask", runId="none", **ASKED)
    assert unknown["data"]["code"] == "run_not_found"
    asking_agent.made.gate.set()
    await asking_agent.owner.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)
    over = await asking_agent.made.failure("agents.ask", runId=run_id, **ASKED)
    assert over["data"]["code"] == "run_not_found"


async def test_a_run_that_waits_for_a_person_keeps_nobody_from_starting(tmp_path: Path) -> None:
    config = attached_agents_config("alice", "bob", more="[agents.defaults]\nmaxConcurrent = 1\n")
    async with (
        in_process_daemon(tmp_path, config) as there,
        agent(there, "alice", ask_once),
        agent(there, "bob", reply_at_once),
        there.connect() as owner,
    ):
        sent = await owner.call("chat.send", sessionKey=KEY, message="go")
        question = await wait_for_question(owner)
        run = there.services.supervisor.registry.live[sent["runId"]]
        assert run.slot is None
        with trio.fail_after(PATIENCE_S):
            assert await owner.say("agent:bob:main", "x") == "done"
        await owner.call("questions.answer", id=question["id"], optionId="no")
        assert await answered_outcome(owner, sent["runId"]) == "answered no None owner"
        assert there.services.supervisor.live_runs() == 0
