"""Waiting for runs: cycles, time limits, and agents that disconnect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.patience import PATIENCE_S
from support.rows import check_each

OPEN = """
[tools.sessions]
visibility = "all"
[tools.agentToAgent]
enabled = true
allow = ["*"]
"""
ALICE, BOB = "agent:alice:main", "agent:bob:main"


def meta(params: dict[str, Any]) -> dict[str, Any]:
    return {"runId": params["runId"]}


async def answer_ok(program: Program, params: dict[str, Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return {"reply": "ok"}


async def wait_for_gate(program: Program, params: dict[str, Any]) -> Any:
    await program.gate.wait()
    return {"reply": "ok"}


async def test_a_wait_that_would_close_a_cycle_ends_at_once(tmp_path: Path):
    """Alice waits for Bob's run, and Bob for Alice's; and a run that waits for itself."""
    told: dict[str, Any] = {}
    runs: dict[str, str] = {}
    ready = trio.Event()

    async def alice_acts(program: Program, params: dict[str, Any]) -> Any:
        runs["alice"] = params["runId"]
        await ready.wait()
        told["self"] = await program.call("agent.wait", runId=params["runId"], _meta=meta(params))
        told["alice"] = await program.call(
            "agent.wait", runId=runs["bob"], timeoutMs=PATIENCE_S * 1000, _meta=meta(params)
        )
        return {"reply": "a"}

    async def bob_acts(program: Program, params: dict[str, Any]) -> Any:
        runs["bob"] = params["runId"]
        ready.set()
        await until(lambda: "self" in told)
        # Alice's wait has been sent, or soon will be.
        await until(lambda: there_runs()["alice"].waits_for)
        told["bob"] = await program.call(
            "agent.wait", runId=runs["alice"], timeoutMs=PATIENCE_S * 1000, _meta=meta(params)
        )
        return {"reply": "b"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", "bob", more=OPEN)) as there,
        agent(there, "alice", alice_acts),
        agent(there, "bob", bob_acts),
        there.connect() as owner,
    ):
        live = there.app.services.supervisor.registry.live

        def there_runs() -> dict[str, Any]:
            return {name: live[run_id] for name, run_id in runs.items()}

        for key in (ALICE, BOB):
            await owner.call("sessions.create", key=key)
        first = (await owner.call("chat.send", sessionKey=ALICE, message="go"))["runId"]
        await owner.call("chat.send", sessionKey=BOB, message="go")
        with trio.fail_after(PATIENCE_S):
            assert (await owner.call("agent.wait", runId=first))["status"] == "ok"
    for name in ("self", "bob"):
        assert (told[name]["status"], told[name]["reason"]) == ("running", "ancestor_busy")
    assert (told["alice"]["status"], told["alice"]["reply"]) == ("ok", "b")


async def test_a_wait_with_a_sessions_token_does_not_count_as_its_run_waiting(tmp_path: Path):
    more = OPEN + "[agents.defaults]\nmaxConcurrent = 1\n"
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", "bob", more=more)) as there,
        there.connect() as owner,
    ):
        services = there.app.services
        async with agent(there, "alice", wait_for_gate) as alice, agent(there, "bob", answer_ok):
            for key in (ALICE, BOB):
                await owner.call("sessions.create", key=key)
            await owner.call("chat.send", sessionKey=ALICE, message="x")
            await alice.got.wait()
            queued = (await owner.call("chat.send", sessionKey=BOB, message="y"))["runId"]
            token = (await owner.call("tokens.mint", scopes=["read", "send"], sessionKey=ALICE))["token"]
            async with there.connect(services.tokens.caller(token)) as outside:
                asked = await outside.send("agent.wait", runId=queued, timeoutMs=PATIENCE_S * 1000)
                run = services.supervisor.registry.live[queued]
                await until(lambda: run.listeners)
                # Alice's run keeps its run slot: it does not wait for anything.
                assert services.supervisor.current(ALICE).waits_for == {}
                assert run.status == "queued"
                alice.gate.set()
                assert (await outside.answer(asked))["result"]["status"] == "ok"


async def test_a_timeout_may_be_a_fraction_of_a_second(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", wait_for_gate),
        there.connect() as owner,
    ):
        await owner.call("sessions.create", key=BOB)
        got = await owner.call("sessions_send", sessionKey=BOB, message="x", timeoutSeconds=0.2)
        assert (got["status"], got["error"]) == (
            "timeout",
            "no answer within 0.2 s; the run goes on, and agent.wait tells its end",
        )


@check_each("number", range(5))
async def test_a_message_sent_while_the_agent_disconnects_waits_for_its_return(tmp_path: Path, number: int):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=BOB)
        async with agent(there, "bob", answer_ok) as bob:
            await bob.connection.close()
            if number % 2:
                await trio.lowlevel.checkpoint()
            run_id = (await owner.call("chat.send", sessionKey=BOB, message="hello"))["runId"]
        run = there.app.services.supervisor.registry.live[run_id]
        await until(lambda: not there.app.services.attached.counts())
        await until(lambda: there.app.services.supervisor.current(BOB) is None)
        assert not run.done.is_set()
        async with agent(there, "bob", answer_ok) as again:
            assert (await owner.call("agent.wait", runId=run_id))["reply"] == "ok"
            assert [turn["message"] for turn in again.turns] == ["hello"]
        messages = (await owner.call("chat.history", sessionKey=BOB))["messages"]
        assert [one["role"] for one in messages] == ["user", "assistant"]


async def test_a_run_whose_agent_disconnected_can_be_stopped_and_is_interrupted_by_a_restart(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=BOB)
        async with agent(there, "bob", answer_ok) as bob:
            await bob.connection.close()
            first = (await owner.call("chat.send", sessionKey=BOB, message="one"))["runId"]
            second = (await owner.call("chat.send", sessionKey=BOB, message="two"))["runId"]
        await until(lambda: there.app.services.supervisor.queued_runs() == 2)
        assert (await owner.call("chat.abort", sessionKey=BOB, runId=first))["runIds"] == [first]
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answer_ok),
        there.connect() as owner,
    ):
        assert (await owner.call("agent.wait", runId=first))["status"] == "aborted"
        assert (await owner.call("agent.wait", runId=second))["status"] in ("ok", "error")
