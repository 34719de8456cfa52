"""`run.event`: what an attached agent shows and appends during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Refused, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config
from support.patience import PATIENCE_S
from support.rows import check_each

KEY = "agent:alice:main"


async def test_deltas_and_tool_events_are_live_and_messages_are_stored_in_order(tmp_path: Path):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        async def tell(kind: str, **more: Any) -> None:
            await made.notify("run.event", runId=params["runId"], type=kind, **more)

        await tell("delta", text="thin")
        await tell("delta", text="king")
        await tell("tool", phase="start", toolCallId="t1", name="look", args={"at": 1})
        await tell("tool", phase="end", toolCallId="t1", name="look", result="42", isError=False)
        for number in range(100):
            await tell("message", message={"role": "assistant", "content": str(number)})
        await tell("message", message={"role": "toolResult", "toolCallId": "t1", "content": [], "isError": False})
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        await owner.call("sessions.create", key=KEY)
        async with there.connect() as follower:
            await follower.call("sessions.messages.subscribe", key=KEY)
            assert await owner.say(KEY, "go") == "done"
            deltas = [await follower.event("session.delta") for _ in range(2)]
            tools = [await follower.event("session.tool") for _ in range(2)]
        run_id = deltas[0]["runId"]
        assert deltas == [{"sessionKey": KEY, "runId": run_id, "text": text} for text in ("thin", "king")]
        common = {"sessionKey": KEY, "runId": run_id, "toolCallId": "t1", "name": "look"}
        assert tools == [
            {**common, "phase": "start", "args": {"at": 1}},
            {**common, "phase": "end", "result": "42", "isError": False},
        ]
        page = await owner.call("sessions_history", sessionKey=KEY, includeTools=True, limit=1000)
        said = [message["content"] for message in page["messages"]]
        assert said == ["go", *map(str, range(100)), [], [{"type": "text", "text": "done"}]]


@check_each(
    ("event", "code"),
    [
        ({"type": "delta"}, -32602),
        ({"type": "tool", "phase": "start", "name": "x"}, -32602),
        ({"type": "tool", "phase": "begin", "toolCallId": "t", "name": "x"}, -32602),
        ({"type": "message"}, -32602),
        ({"type": "message", "message": "text"}, -32602),
        ({"type": "message", "message": {"content": "x"}}, -32602),
        ({"type": "message", "message": {"role": "", "content": "x"}}, -32602),
        ({"type": "message", "message": {"role": "assistant"}}, -32602),
        ({"type": "message", "message": {"role": "assistant", "content": {}}}, -32602),
        ({"type": "sing", "text": "la"}, -32602),
        ({"type": "delta", "text": "x", "runId": "other"}, -32002),
    ],
)
async def test_an_invalid_event_is_refused_if_sent_as_a_request(tmp_path: Path, event: dict[str, Any], code: int):
    codes: list[int] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        with pytest.raises(Refused) as refused:
            await made.call("run.event", **{"runId": params["runId"], **event})
        codes.append(refused.value.args[0]["code"])
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        assert await owner.say(KEY, "go") == "done"
        page = await owner.call("sessions_history", sessionKey=KEY)
    assert codes == [code]
    assert len(page["messages"]) == 2


async def test_events_for_a_run_of_another_connection_or_an_ended_run_are_refused(tmp_path: Path):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        await made.gate.wait()
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act) as alice,
    ):
        async with there.connect() as owner:
            sent = await owner.call("chat.send", sessionKey=KEY, message="x")
            event = {"runId": sent["runId"], "type": "delta", "text": "x"}
            await alice.got.wait()
            assert (await owner.failure("run.event", **event))["code"] == -32002
            alice.gate.set()
            await owner.call("agent.wait", runId=sent["runId"])
            with pytest.raises(Refused), trio.fail_after(PATIENCE_S):
                await alice.call("run.event", **event)


async def test_attachment_content_is_never_stored_in_the_transcript(tmp_path: Path):
    call = {
        "type": "toolCall",
        "id": "1",
        "name": "sessions_spawn",
        "arguments": {"task": "t", "attachments": [{"name": "a", "content": "TOPSECRET"}]},
    }

    async def act(made: Program, params: dict[str, Any]) -> Any:
        message = {"role": "assistant", "content": [call]}
        await made.notify("run.event", runId=params["runId"], type="message", message=message)
        return {"messages": [message], "reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        await owner.say(KEY, "go")
        session = there.services.store.catalog.by_key[KEY]
        data = (there.services.store.path / session.path).read_bytes()
    assert b"TOPSECRET" not in data
    assert data.count(b"__REDACTED__") == 2
