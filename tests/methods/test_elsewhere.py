"""Messages and sub-agents for other machines: whom they go to, what the link is asked for, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Refused, in_process_daemon
from support.in_process_agents import Program, agent, until
from support.linked_machines import OPEN, linked_daemon, machine_connection, user_messages
from support.patience import PATIENCE_S
from support.replicas import ID, header, line, replica_path, write_replica
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.sessions.elsewhere import address_of

OURS = "agent:mars:mars/agent:ops:main"
FILE = {"name": "a.txt", "content": "plum"}


async def answer(_: Program, params: dict[str, Any]) -> Any:
    return {"reply": f"re: {params['message']}"}


async def wait(program: Program, params: dict[str, Any]) -> Any:
    await program.gate.wait()
    return await answer(program, params)


async def test_a_message_to_another_machine_is_a_run_of_ours_that_its_link_is_asked_for(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer) as link:
        sent = await owner.call("chat.send", sessionKey="mars/agent:ops:Main", message="hello")
        assert sent["sessionKey"] == OURS
        ended = await owner.call("agent.wait", runId=sent["runId"])
        assert (ended["status"], ended["reply"], ended["sessionKey"]) == ("ok", "re: hello", OURS)
        (turn,) = link.turns
        assert turn["target"] == "mars/agent:ops:main"
        # Neither a token nor what the configuration says for agents here.
        assert not turn.keys() & {"token", "workspace", "model", "thinking", "deadline"}
        rows = {row["key"]: row for row in (await owner.call("sessions_list"))["sessions"]}
        assert rows[OURS]["continues"] == "mars/agent:ops:main"
        # Every way of naming it is the same session.
        for name in ("mars/agent:ops:main", " MARS/agent:OPS:main ", OURS):
            again = await owner.call("sessions_send", sessionKey=name, message="more", timeoutSeconds=PATIENCE_S)
            assert (again["status"], again["reply"], again["sessionKey"]) == ("ok", "re: more", OURS)
        assert {turn["target"] for turn in link.turns} == {"mars/agent:ops:main"}


async def test_the_default_time_limit_and_model_are_not_for_another_machine_but_the_senders_are(
    tmp_path: Path,
) -> None:
    more = '[agents.defaults]\nrunTimeoutSeconds = 60\nmodel = "small"\nthinking = "low"\n'
    async with linked_daemon(tmp_path, more=more) as (parts, owner), agent(parts, "mars", answer) as link:
        for params in ({}, {"timeoutSeconds": 50, "thinking": "high"}):
            sent = await owner.call("chat.send", sessionKey="mars/main", message="hello", **params)
            await owner.call("agent.wait", runId=sent["runId"])
        first, second = link.turns
        assert not first.keys() & {"deadline", "model", "thinking"}
        assert second["thinking"] == "high"
        assert second["deadline"] > 0


async def test_a_message_to_a_label_or_an_id_there_keeps_its_letters(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer) as link:
        keys = []
        for name in ("mars/Nightly", "mars/nightly", "mars/Nightly"):
            sent = await owner.call("sessions_send", sessionKey=name, message="hello", timeoutSeconds=PATIENCE_S)
            keys.append(sent["sessionKey"])
        assert [turn["target"] for turn in link.turns] == ["mars/Nightly", "mars/nightly", "mars/Nightly"]
        assert keys[0] == keys[2] == "agent:mars:mars/nightly"
        assert keys[1].startswith("agent:mars:mars/nightly:")


async def test_an_unknown_machine_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner):
        for method, params in (("chat.send", {"sessionKey": "pluto/main"}), ("sessions.steer", {"key": "pluto/main"})):
            error = await owner.failure(method, message="hello", **params)
            assert error["message"] == "no machine 'pluto'; the machines are mars, venus"
            assert error["data"]["code"] == "machine_not_found"
        error = await owner.failure("sessions_send", sessionKey="mars/ ", message="hello")
        assert error["message"] == "$.sessionKey names no session on mars: write mars/main, for example"
        assert [key for key in parts.services.store.catalog.by_key if "mars" in key] == []


A2A = "[tools.agentToAgent]\nenabled = true\nallow = {}\n"
ALL = '[tools.sessions]\nvisibility = "all"\n'
SEND_TREE = '[tools.sessions]\nvisibility = "all"\nsendVisibility = "tree"\n'
V, E, A = ('tools.sessions.visibility = "all"', "tools.agentToAgent.enabled = true", 'tools.agentToAgent.allow = ["*"]')
S, B = ('tools.sessions.sendVisibility = "all"', 'agents.defaults.sandbox.sessionToolsVisibility = "all"')


@check_each(
    ("more", "sandboxed", "missing"),
    [
        ("", False, [V, E, A]),
        (ALL, False, [E, A]),
        (ALL + A2A.format("[]"), False, [A]),
        (ALL + A2A.format('["mars", "pluto"]'), False, [A]),
        (ALL + A2A.format('["main", "ops"]'), False, [A]),
        (A2A.format('["main", "mars"]'), False, [V]),
        (SEND_TREE + A2A.format('["*"]'), False, [S]),
        (A2A.format('["*"]'), False, [V]),
        (OPEN, True, [B]),
        ("", True, [V, B, E, A]),
    ],
)
async def test_who_may_not_send_to_machines_is_told_what_to_configure_whether_there_is_one(
    tmp_path: Path, more: str, sandboxed: bool, missing: list[str]
) -> None:
    async with linked_daemon(tmp_path, more=more) as (parts, owner):
        minted = await owner.call("tokens.mint", scopes=["send"], sessionKey="agent:main:main", sandboxed=sandboxed)
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            known, unknown = [
                await other.failure("sessions_send", sessionKey=f"{name}/main", message="hello")
                for name in ("mars", "pluto")
            ]
        assert known["message"] == (
            "no session 'mars/main' to which an agent here may send; for other machines the configuration of sessiond"
            f" has to say {', '.join(missing)}; then: sessiond config reload"
        )
        assert unknown["message"].replace("pluto", "mars") == known["message"] and unknown["data"] == known["data"]
        assert known["data"] == {"type": "not_found", "code": "machine_not_reached", "settings": missing}


async def test_where_there_are_no_machines_nobody_is_told_how_to_reach_them(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as parts, parts.connect() as owner:
        minted = await owner.call("tokens.mint", scopes=["send"], sessionKey="agent:main:main")
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            refused = await other.failure("sessions_send", sessionKey="team/main", message="hello")
    assert refused["data"]["code"] == "session_not_found"


async def test_another_machine_is_not_told_what_to_configure_here(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), machine_connection(parts, owner) as mars:
        refused = await mars.failure("sessions_send", sessionKey="venus/main", message="hello")
    assert refused["data"]["code"] == "session_not_found" and "configuration" not in refused["message"]


async def test_agents_may_send_to_a_machine_as_to_any_other_agent(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path, more=OPEN) as (parts, owner), agent(parts, "mars", answer) as link:
        minted = await owner.call("tokens.mint", scopes=["send"], sessionKey="agent:main:main")
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            sent = await other.call("sessions_send", sessionKey="mars/main", message="hello", timeoutSeconds=PATIENCE_S)
        assert sent["reply"] == "re: hello"
        assert link.turns[0]["provenance"]["sourceSessionKey"] == "agent:main:main"


async def test_files_go_to_another_machine_with_a_spawn_only(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (_, owner):
        error = await owner.failure("chat.send", sessionKey="mars/main", message="hello", attachments=[FILE])
        assert error["data"]["code"] == "attachments_unsupported"
        assert "sessions_spawn" in error["message"]


async def test_a_spawn_on_another_machine_is_a_child_of_ours_with_its_files_and_is_announced(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer) as link:
        spawned = await owner.call("sessions_spawn", task="look", agentId="mars/ops", attachments=[FILE])
        assert spawned["childSessionKey"].startswith("agent:mars:subagent:")
        await owner.call("agent.wait", runId=spawned["runId"])
        (turn,) = link.turns
        assert (turn["target"], turn["message"]) == ("mars/ops", "look")
        folder = Path(turn["workspace"], turn["attachments"]["relDir"])
        assert (folder / "a.txt").read_text() == "plum"

        async def announced() -> list[str]:
            history = await owner.call("sessions_history", sessionKey="main")
            return [message["content"] for message in user_messages(history)]

        with trio.fail_after(PATIENCE_S):
            while not (said := await announced()):
                await trio.lowlevel.checkpoint()
        assert said[0].startswith("Status: ok\nResult: re: look\n")
        assert len(link.turns) == 1  # no announce step


@check_each(
    ("agent_id", "code", "sentence"),
    [
        ("mars", "agent_id_invalid", "mars is another machine: name the agent there, like mars/main"),
        ("ops/main", "agent_not_allowed", "agent ops is not allowed"),
        ("main/ops", "agent_id_invalid", "$.agentId: main is an agent here and no other machine"),
        ("venus/ops", "agent_not_allowed", "agent venus is not allowed"),
        ("mars/a b", "agent_id_invalid", "$.agentId is no agent id: 'mars/a b'"),
        ("pluto/ops", "agent_not_allowed", "agent pluto is not allowed"),
    ],
)
async def test_a_spawn_names_a_machine_that_it_may_use_and_the_agent_there(
    tmp_path: Path, agent_id: str, code: str, sentence: str
) -> None:
    async with linked_daemon(tmp_path) as (_, owner):
        error = await owner.failure("sessions_spawn", task="look", agentId=agent_id)
    assert error["data"]["code"] == code
    assert error["message"].startswith(sentence)


async def test_a_reset_keeps_the_way_to_the_other_machine(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer) as link:
        await owner.call("sessions_send", sessionKey="mars/main", message="one", timeoutSeconds=PATIENCE_S)
        await owner.call("sessions.reset", key="mars/main")
        sent = await owner.call("sessions_send", sessionKey="mars/main", message="two", timeoutSeconds=PATIENCE_S)
        assert sent["sessionKey"] == "agent:mars:mars/main"
        assert [turn["target"] for turn in link.turns] == ["mars/main", "mars/main"]
        history = await owner.call("sessions_history", sessionKey="mars/main")
        assert [message["content"] for message in user_messages(history)] == ["two"]


async def test_an_abort_by_its_address_is_told_to_the_link(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", wait) as link:
        sent = await owner.call("chat.send", sessionKey="mars/main", message="hello")
        await until(lambda: link.turns)
        assert (await owner.call("chat.abort", sessionKey="mars/main"))["runIds"] == [sent["runId"]]
        await until(lambda: link.called_off)


async def test_a_machine_is_listed_as_one_and_attached_by_the_owner_alone(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner):
        agents = {one["id"]: one for one in (await owner.call("agents_list"))["agents"]}
        assert (agents["mars"]["machine"], agents["mars"]["runtime"]) == (True, "attached")
        assert "machine" not in agents["ops"] and "awaySince" not in agents["ops"]
        assert agents["mars"]["awaySince"] == parts.services.store.opened_at_ms
        for scope, claims in (
            ("send", {"agentId": "mars"}),
            ("send", {"sessionKey": "agent:mars:main"}),
            ("admin", {"sessionKey": "agent:main:main"}),
        ):
            minted = await owner.call("tokens.mint", scopes=[scope], **claims)
            async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
                error = await other.failure("agents.attach", agentId="mars")
                assert error["message"] == "mars is another machine: only the owner's `sessiond link` attaches for it"
        async with agent(parts, "mars", answer):
            assert parts.services.attached.counts() == {"mars": 1}


async def test_a_conversation_with_another_machine_ends_after_its_turns_and_asks_for_no_announcement(
    tmp_path: Path,
) -> None:
    """Turns of the target go there; what the requester says here comes from its agent."""
    more = OPEN + "[session.agentToAgent]\nmaxPingPongTurns = 3\n"

    async with linked_daemon(tmp_path, more=more) as (parts, owner), agent(parts, "mars", answer) as link:
        minted = await owner.call("tokens.mint", scopes=["send"], sessionKey="agent:main:main")
        await owner.call("chat.send", sessionKey="main", message="begin")
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            await other.call("sessions_send", sessionKey="mars/main", message="hello", timeoutSeconds=PATIENCE_S)
        session = parts.services.store.catalog.by_key["agent:mars:mars/main"]
        await until(lambda: len(link.turns) == 2 and not session.entry.talks and not session.entry.runs)
        assert [(turn["step"], turn.get("turn")) for turn in link.turns] == [("primary", None), ("reply", 2)]


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_none_or_refused(text: str) -> None:
    try:
        found = address_of(text)
    except (InvalidParams, Refused):
        return
    assert found is None or ("/" in text and found.machine and found.there)


async def test_a_session_of_another_machine_that_is_shown_here_is_sent_to_by_every_name_of_it(tmp_path: Path) -> None:
    there, session_id = "mars/agent:ops:main", ID.format(1)
    write_replica(
        replica_path(tmp_path / "store", session_id), header(session_id, "agent:ops:main"), line("said there")
    )
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer) as link:
        await until(lambda: there in parts.services.store.catalog.by_key)
        for name in (session_id, f"mars/{session_id}", there):
            sent = await owner.call("chat.send", sessionKey=name, message="hello")
            assert sent["sessionKey"] == OURS, name
            await owner.call("agent.wait", runId=sent["runId"])
        assert {turn["target"] for turn in link.turns} == {there}
        # What is read by its address is what that machine says; what is changed is ours.
        assert len((await owner.call("sessions_history", sessionKey=there))["messages"]) == 1
        assert (await owner.call("sessions.reset", key=there))["key"] == OURS


async def test_a_hidden_session_with_another_machine_is_answered_as_a_missing_one(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), agent(parts, "mars", answer):
        await owner.call("sessions_send", sessionKey="mars/main", message="hello", timeoutSeconds=PATIENCE_S)
        minted = await owner.call("tokens.mint", scopes=["read", "send", "admin"], sessionKey="agent:main:main")
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            for method, name in (
                ("sessions_history", "sessionKey"),
                ("chat.abort", "sessionKey"),
                ("sessions.reset", "key"),
            ):
                hidden, missing = [await other.failure(method, **{name: f"mars/{there}"}) for there in ("main", "none")]
                assert hidden == {
                    **missing,
                    "message": missing["message"].replace("none", "main"),
                }, method
