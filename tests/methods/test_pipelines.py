"""Requests that come on one connection without waiting for answers are accepted in the order in which they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from support.in_process import Connection, inside
from support.in_process_agents import Program, agent, attached

KEY = "agent:bob:main"


async def answers(program: Program, params: dict[str, Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return {"reply": "ok"}


async def collect(owner: Connection, asked: list[int]) -> list[dict[str, Any]]:
    """The answers to these requests, in their order; they come in any."""
    found: dict[Any, dict[str, Any]] = {}
    while not found.keys() >= set(asked):
        message = await owner.receive()
        if "method" not in message:
            found[message["id"]] = message
    return [found[request] for request in asked]


async def test_fifty_messages_in_a_row_run_in_that_order(tmp_path: Path):
    texts = [f"m{number}" for number in range(50)]
    async with inside(tmp_path, attached("bob")) as there, agent(there, "bob", answers) as bob:
        async with there.connect() as owner:
            await owner.call("sessions.create", key=KEY)
            asked = [await owner.send("chat.send", sessionKey=KEY, message=text) for text in texts]
            run_ids = [one["result"]["runId"] for one in await collect(owner, asked)]
            assert (await owner.call("agent.wait", runId=run_ids[-1]))["status"] == "ok"
        assert len(set(run_ids)) == 50
        assert [turn["message"] for turn in bob.turns] == texts


async def test_every_kind_of_message_keeps_its_place_also_where_the_first_one_makes_the_session(tmp_path: Path):
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        # Nobody is attached yet: what is accepted waits, and shows in which order it was.
        asked = [
            await owner.send("chat.send", sessionKey=KEY, message="m0"),
            await owner.send("sessions_send", sessionKey=KEY, message="m1", timeoutSeconds=0),
            await owner.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "note"}]),
            await owner.send("agent", sessionKey=KEY, message="m2"),
            await owner.send("sessions_send", sessionKey=KEY, message="m3", timeoutSeconds=30),
            await owner.send("sessions.send", sessionKey=KEY, message="m4"),
        ]
        async with agent(there, "bob", answers) as bob:
            *_, last = [one["result"] for one in await collect(owner, asked)]
            await owner.call("agent.wait", runId=last["runId"])
        primary = [turn["message"] for turn in bob.turns if turn["step"] == "primary"]
        assert primary == ["m0", "m1", "m2", "m3", "m4"]


async def test_a_request_that_is_refused_or_called_off_holds_up_nobody(tmp_path: Path):
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        refused = [await owner.send("chat.send", sessionKey="agent:nobody:x", message="x") for _ in range(3)]
        waits = await owner.send("sessions_send", sessionKey=KEY, message="waits", timeoutSeconds=30)
        behind = await owner.send("chat.send", sessionKey=KEY, message="behind")
        *errors, sent = await collect(owner, [*refused, behind])
        assert all("error" in one for one in errors) and "result" in sent
        await owner.send("$/cancelRequest", id=waits)
        [called_off] = await collect(owner, [waits])
        assert called_off["error"]["code"] == -32800


async def test_many_messages_at_once_keep_their_place_though_they_are_looked_at_for_long(tmp_path: Path):
    def inject(*texts: str) -> dict[str, Any]:
        return {"sessionKey": KEY, "messages": [{"role": "user", "content": text} for text in texts]}

    many, long = [f"m{number}" for number in range(300)], "x" * 400_000
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        asked = [
            await owner.send("chat.inject", **inject(*many)),
            await owner.send("chat.inject", **inject("one")),
            await owner.send("chat.inject", **inject(long)),
            await owner.send("chat.send", sessionKey=KEY, message="two"),
            await owner.send("chat.inject", **inject("three")),
        ]
        answers = [one["result"] for one in await collect(owner, asked)]
        assert [len(answers[place]["ids"]) for place in (0, 1, 2, 4)] == [300, 1, 1, 1]
        page = await owner.call("sessions_history", sessionKey=KEY, limit=1000, maxBytes=1 << 24)
    said = [message["content"] for message in page["messages"] if message["role"] == "user"]
    assert [text for text in said if text != "two"] == [*many, "one", long, "three"]


async def test_many_messages_are_refused_by_the_place_of_the_bad_one_and_nothing_is_written(tmp_path: Path):
    messages: list[Any] = [{"role": "user", "content": "x"} for _ in range(300)]
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        refused = await owner.failure("chat.inject", sessionKey=KEY, messages=[*messages, {"role": "", "content": "x"}])
        assert (refused["code"], refused["data"]["field"]) == (-32602, "$.messages[300].role")
        page = await owner.call("sessions_history", sessionKey=KEY)
        assert page["messages"] == []


async def test_many_messages_go_to_nobody_once_their_session_is_gone(tmp_path: Path):
    """It is deleted while they are looked at: the request behind it does not wait."""
    messages = [{"role": "user", "content": "x" * 100} for _ in range(1000)]
    key = "agent:bob:short"
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=key)
        asked = [
            await owner.send("chat.inject", sessionKey=key, messages=messages),
            await owner.send("sessions.delete", key=key),
        ]
        stored, deleted = await collect(owner, asked)
        assert deleted["result"]["deleted"]
        archive = tmp_path / "store" / "agents" / "bob" / "sessions" / "archive"
        [file] = archive.glob("*.jsonl")
        kept = file.read_text().count('"type":"message"')
        assert kept == (1000 if "result" in stored else 0)
        assert "result" in stored or stored["error"]["code"] == -32002
