"""Requests that come on one connection without waiting for answers are accepted in the order in which they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.in_process import Connection, inside
from support.in_process_agents import Program, agent, attached
from support.patience import PATIENCE_S

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


MANY = [{"role": "user", "content": "x" * 100} for _ in range(1000)]


def stored(folder: Path) -> int:
    """The messages in the only file of the folder."""
    [file] = folder.glob("*.jsonl")
    return file.read_text().count('"type":"message"')


@pytest.mark.parametrize("method", ["sessions.delete", "sessions.reset"])
async def test_a_session_is_deleted_or_reset_behind_many_messages_that_came_before(tmp_path: Path, method: str):
    key, sessions = "agent:bob:short", tmp_path / "store" / "agents" / "bob" / "sessions"
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner, there.connect() as reader:
        await owner.call("sessions.create", key=key)
        await reader.call("sessions.messages.subscribe", key=key)
        asked = [
            await owner.send("chat.inject", sessionKey=key, messages=MANY),
            await owner.send(method, key=key),
        ]
        injected, archived = await collect(owner, asked)
        assert (len(injected["result"]["ids"]), archived["result"]["archived"]) == (1000, True)
        assert stored(sessions / "archive") == 1000
        for _ in range(1000):
            await reader.event("session.message")


async def test_whatever_writes_to_the_session_comes_behind_many_messages_that_came_before(tmp_path: Path):
    """Also the run of the very program that sends them, which ends with the answer to another request."""
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner, there.connect() as bob:
        await owner.call("sessions.create", key=KEY)
        await bob.call("agents.attach", agentId="bob")
        await owner.call("chat.send", sessionKey=KEY, message="go")
        start = await bob.receive()
        while start.get("method") != "run.start":
            start = await bob.receive()
        asked = [
            await bob.send("chat.inject", sessionKey=KEY, messages=MANY),
            await bob.send("sessions.patch", key=KEY, label="behind"),
            await bob.send(
                "run.event",
                runId=start["params"]["runId"],
                type="message",
                message={"role": "assistant", "content": "behind"},
            ),
        ]
        answer = {"jsonrpc": "2.0", "id": start["id"], "result": {"reply": "the reply"}}
        await bob.write(msgspec.json.encode(answer) + b"\n")
        assert all("result" in one for one in await collect(bob, asked))
        await owner.call("agent.wait", runId=start["params"]["runId"])
    [file] = (tmp_path / "store" / "agents" / "bob" / "sessions").glob("*.jsonl")
    lines = file.read_text().splitlines()
    many = [place for place, line in enumerate(lines) if "x" * 100 in line]
    behind = [place for place, line in enumerate(lines) if '"behind"' in line or '"the reply"' in line]
    assert (len(many), many[-1] - many[0]) == (1000, 999)
    assert len(behind) >= 2 and min(behind) > many[-1]


async def test_many_messages_are_stored_though_their_client_leaves_at_once_as_few_are(tmp_path: Path):
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.messages.subscribe", key=KEY)
        for count in (1, 1000):
            async with there.connect() as leaving:
                await leaving.send("chat.inject", sessionKey=KEY, messages=MANY[:count])
            with trio.fail_after(PATIENCE_S):
                for _ in range(count):
                    await owner.event("session.message")


async def test_many_messages_that_are_called_off_are_stored_as_few_are(tmp_path: Path):
    async with inside(tmp_path, attached("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        asked = await owner.send("chat.inject", sessionKey=KEY, messages=MANY)
        await owner.send("$/cancelRequest", id=asked)
        behind = await owner.send("chat.inject", sessionKey=KEY, messages=MANY[:1])
        cancelled, kept = await collect(owner, [asked, behind])
        assert cancelled["error"]["code"] == -32800 and "result" in kept
        assert stored(tmp_path / "store" / "agents" / "bob" / "sessions") == 1001
