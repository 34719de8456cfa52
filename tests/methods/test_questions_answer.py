"""`questions.answer`: who may answer what, and what a second answer gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config
from support.patience import PATIENCE_S
from support.questions import answered_outcome, ask_once, wait_for_question

KEY = "agent:alice:main"
SEES_ALL = '[tools.sessions]\nvisibility = "all"\n[tools.agentToAgent]\nenabled = true\nallow = ["*"]\n'


@asynccontextmanager
async def asked_question(
    folder: Path, more: str = SEES_ALL
) -> AsyncIterator[tuple[InProcessDaemon, Connection, dict[str, Any], str]]:
    """A daemon, its owner, the question that an agent asks in KEY, and the id of the run that asks."""
    async with (
        in_process_daemon(folder, attached_agents_config("alice", "bob", more=more)) as there,
        agent(there, "alice", ask_once),
        there.connect() as owner,
    ):
        sent = await owner.call("chat.send", sessionKey=KEY, message="go")
        yield there, owner, await wait_for_question(owner), sent["runId"]


async def token_of(owner: Connection, there: InProcessDaemon, *scopes: str, **named: Any) -> Any:
    """The caller with a token."""
    minted = await owner.call("tokens.mint", scopes=list(scopes), **named)
    return there.services.tokens.caller(minted["token"])


async def test_kin_never_answers_and_a_supervisor_of_another_agent_does(tmp_path: Path) -> None:
    async with asked_question(tmp_path) as (there, owner, question, run_id):
        await owner.call("sessions.create", key="agent:alice:other")
        await owner.call("sessions.create", key="agent:bob:child", parentSessionKey=KEY)
        await owner.call("sessions.create", key="agent:bob:main")
        kin = [{"sessionKey": KEY}, {"sessionKey": "agent:alice:other"}, {"sessionKey": "agent:bob:child"}]
        for named in [*kin, {"agentId": "alice"}]:
            caller = await token_of(owner, there, "list", "answer", **named)
            async with there.connect(caller) as client:
                refused = await client.failure("questions.answer", id=question["id"], optionId="yes")
                # A child does not see who spawned it, nor where nothing more is configured.
                assert refused["code"] == -32003, named
                assert refused["data"]["code"] == "question_kin", named
        caller = await token_of(owner, there, "list", "answer", sessionKey="agent:bob:main")
        async with there.connect(caller) as supervisor:
            assert (await supervisor.call("questions.list", open=True))["questions"] == [question]
            await supervisor.call("questions.answer", id=question["id"], optionId="no", note="not today")
        ended = await owner.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)
        assert ended["reply"] == "answered no not today agent:bob:main"


async def test_the_scope_is_held_by_name_only_and_an_invisible_question_is_missing(tmp_path: Path) -> None:
    async with asked_question(tmp_path, more="") as (there, owner, question, _):
        answer = {"id": question["id"], "optionId": "yes"}
        admin = await token_of(owner, there, "admin")
        async with there.connect(admin) as client:
            assert (await client.failure("questions.answer", **answer))["code"] == -32003
            # Nor does it mint one that may.
            refused = await client.failure("tokens.mint", scopes=["answer"], sessionKey="agent:bob:main")
            assert (refused["code"], refused["data"]["code"]) == (-32003, "token_wider")
        async with there.connect(await token_of(owner, there, "answer", agentId="bob")) as stranger:
            hidden = await stranger.failure("questions.answer", **answer)
            missing = await stranger.failure("questions.answer", id="0" * 16, optionId="yes")
            assert hidden["code"] == missing["code"] == -32002
            assert hidden["message"].replace(question["id"], "0" * 16) == missing["message"]
        stand_in = await token_of(owner, there, "admin", "answer")
        async with there.connect(stand_in) as client:
            assert (await client.call("questions.answer", **answer))["status"] == "answered"
        [closed] = (await owner.call("questions.list", open=False))["questions"]
        assert closed["answer"]["by"] == "owner"


async def test_an_unknown_option_changes_nothing_and_a_note_has_a_limit(tmp_path: Path) -> None:
    async with asked_question(tmp_path) as (_, owner, question, run_id):
        unknown = await owner.failure("questions.answer", id=question["id"], optionId="maybe")
        assert (unknown["code"], unknown["data"]["field"]) == (-32602, "$.optionId")
        long = await owner.failure("questions.answer", id=question["id"], optionId="yes", note="é" * 2048 + "x")
        assert (long["code"], long["data"]["field"]) == (-32602, "$.note")
        assert await wait_for_question(owner) == question
        await owner.call("questions.answer", id=question["id"], optionId="yes", note="é" * 2048)
        assert (await answered_outcome(owner, run_id)).startswith("answered yes é")


async def test_a_run_never_has_the_scope(tmp_path: Path) -> None:
    refusals: list[int] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        [question] = (await made.call("questions.list", open=True))["questions"]
        meta = {"_meta": {"runId": params["runId"]}}
        error = await made.failure("questions.answer", id=question["id"], optionId="yes", **meta)
        refusals.append(error["code"])
        return {"reply": "refused"}

    async with asked_question(tmp_path) as (there, owner, _, __), agent(there, "bob", act):
        assert await owner.say("agent:bob:main", "go") == "refused"
    assert refusals == [-32003]
