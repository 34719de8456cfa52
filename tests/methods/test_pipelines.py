"""Requests that come on one connection without waiting for answers are accepted in the order in which they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.in_process import Connection, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config
from support.patience import PATIENCE_S
from support.rows import check_each

KEY = "agent:bob:main"


async def answer_ok(program: Program, params: dict[str, Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return {"reply": "ok"}


async def collect(owner: Connection, asked: list[int]) -> list[dict[str, Any]]:
    """The answers to these requests, in the order of the requests; they may arrive in any order."""
    found: dict[Any, dict[str, Any]] = {}
    while not found.keys() >= set(asked):
        message = await owner.receive()
        if "method" not in message:
            found[message["id"]] = message
    return [found[request] for request in asked]


async def test_fifty_pipelined_messages_run_in_order(tmp_path: Path):
    texts = [f"m{number}" for number in range(50)]
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answer_ok) as bob,
    ):
        async with there.connect() as owner:
            await owner.call("sessions.create", key=KEY)
            asked = [await owner.send("chat.send", sessionKey=KEY, message=text) for text in texts]
            run_ids = [one["result"]["runId"] for one in await collect(owner, asked)]
            assert (await owner.call("agent.wait", runId=run_ids[-1]))["status"] == "ok"
        assert len(set(run_ids)) == 50
        assert [turn["message"] for turn in bob.turns] == texts


async def test_pipelined_messages_of_every_kind_keep_their_order_even_if_the_first_creates_the_session(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        # No agent is attached yet: accepted messages wait, and so show the order in which they were accepted.
        asked = [
            await owner.send("chat.send", sessionKey=KEY, message="m0"),
            await owner.send("sessions_send", sessionKey=KEY, message="m1", timeoutSeconds=0),
            await owner.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "note"}]),
            await owner.send("agent", sessionKey=KEY, message="m2"),
            await owner.send("sessions_send", sessionKey=KEY, message="m3", timeoutSeconds=30),
            await owner.send("sessions.send", sessionKey=KEY, message="m4"),
        ]
        async with agent(there, "bob", answer_ok) as bob:
            *_, last = [one["result"] for one in await collect(owner, asked)]
            await owner.call("agent.wait", runId=last["runId"])
        primary = [turn["message"] for turn in bob.turns if turn["step"] == "primary"]
        assert primary == ["m0", "m1", "m2", "m3", "m4"]


async def test_a_refused_or_cancelled_request_does_not_block_those_behind_it(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        refused = [await owner.send("chat.send", sessionKey="agent:nobody:x", message="x") for _ in range(3)]
        waits = await owner.send("sessions_send", sessionKey=KEY, message="waits", timeoutSeconds=30)
        behind = await owner.send("chat.send", sessionKey=KEY, message="behind")
        *errors, sent = await collect(owner, [*refused, behind])
        assert all("error" in one for one in errors) and "result" in sent
        await owner.send("$/cancelRequest", id=waits)
        [called_off] = await collect(owner, [waits])
        assert called_off["error"]["code"] == -32800


async def test_requests_with_many_messages_keep_their_order_though_checking_them_takes_long(tmp_path: Path):
    def inject(*texts: str) -> dict[str, Any]:
        return {"sessionKey": KEY, "messages": [{"role": "user", "content": text} for text in texts]}

    many, long = [f"m{number}" for number in range(300)], "x" * 400_000
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
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


async def test_of_many_messages_an_invalid_one_is_named_by_index_and_none_is_written(tmp_path: Path):
    messages: list[Any] = [{"role": "user", "content": "x"} for _ in range(300)]
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        refused = await owner.failure("chat.inject", sessionKey=KEY, messages=[*messages, {"role": "", "content": "x"}])
        assert (refused["code"], refused["data"]["field"]) == (-32602, "$.messages[300].role")
        page = await owner.call("sessions_history", sessionKey=KEY)
        assert page["messages"] == []


MANY = [{"role": "user", "content": "x" * 100} for _ in range(1000)]


def count_stored_messages(folder: Path) -> int:
    """The number of messages in the only transcript of the folder."""
    [file] = folder.glob("*.jsonl")
    return file.read_text().count('"type":"message"')


@pytest.mark.parametrize("method", ["sessions.delete", "sessions.reset"])
async def test_a_delete_or_reset_waits_for_the_many_messages_requested_before_it(tmp_path: Path, method: str):
    key, sessions = "agent:bob:short", tmp_path / "store" / "agents" / "bob" / "sessions"
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        there.connect() as owner,
        there.connect() as reader,
    ):
        await owner.call("sessions.create", key=key)
        await reader.call("sessions.messages.subscribe", key=key)
        asked = [
            await owner.send("chat.inject", sessionKey=key, messages=MANY),
            await owner.send(method, key=key),
        ]
        injected, archived = await collect(owner, asked)
        assert (len(injected["result"]["ids"]), archived["result"]["archived"]) == (1000, True)
        assert count_stored_messages(sessions / "archive") == 1000
        for _ in range(1000):
            await reader.event("session.message")


async def test_later_writes_to_the_session_are_stored_after_the_many_messages_requested_before(tmp_path: Path):
    """Even the end of a run whose agent sends the messages itself and answers `run.start` on the same connection."""
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        there.connect() as owner,
        there.connect() as bob,
    ):
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


async def test_many_messages_are_stored_like_few_even_if_their_client_disconnects_at_once(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.messages.subscribe", key=KEY)
        for count in (1, 1000):
            async with there.connect() as leaving:
                await leaving.send("chat.inject", sessionKey=KEY, messages=MANY[:count])
            with trio.fail_after(PATIENCE_S):
                for _ in range(count):
                    await owner.event("session.message")


async def test_many_messages_are_stored_like_few_even_if_the_request_is_cancelled(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        asked = await owner.send("chat.inject", sessionKey=KEY, messages=MANY)
        await owner.send("$/cancelRequest", id=asked)
        behind = await owner.send("chat.inject", sessionKey=KEY, messages=MANY[:1])
        cancelled, kept = await collect(owner, [asked, behind])
        assert cancelled["error"]["code"] == -32800 and "result" in kept
        assert count_stored_messages(tmp_path / "store" / "agents" / "bob" / "sessions") == 1001


FILES = [{"name": f"f{number}", "content": "x" * 1000} for number in range(20)]


@pytest.mark.parametrize("method", ["sessions.delete", "sessions.reset"])
async def test_delete_and_reset_wait_for_a_message_whose_files_are_being_written(tmp_path: Path, method: str):
    """Otherwise the message would go to the new session of the key, or be refused because there is none."""
    key, sessions = "agent:bob:short", tmp_path / "store" / "agents" / "bob" / "sessions"
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=key)
        asked = [
            await owner.send("chat.send", sessionKey=key, message="with files", attachments=FILES),
            await owner.send("sessions.patch", key=key, displayName="patched behind it"),
            await owner.send(method, key=key),
        ]
        sent, patched, archived = await collect(owner, asked)
        assert sent["result"]["status"] == "accepted" and patched["result"]["row"]["displayName"]
        assert archived["result"]["archived"] is True
        [file] = (sessions / "archive").glob("*.jsonl")
        text = file.read_text()
        assert 0 < text.index("with files") < text.index("patched behind it")
        assert all("with files" not in other.read_text() for other in sessions.glob("*.jsonl"))


@check_each("more", [{}, {"attachments": FILES}], ids=["plain", "files"])
@check_each("size", [1, 1_000_000])
async def test_a_message_is_accepted_even_if_its_client_disconnects_at_once(
    tmp_path: Path, size: int, more: dict[str, Any]
):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answer_ok),
        there.connect() as owner,
    ):
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.messages.subscribe", key=KEY)
        async with there.connect() as leaving:
            await leaving.send("chat.send", sessionKey=KEY, message="m" * size, **more)
        with trio.fail_after(PATIENCE_S):
            assert (await owner.event("session.message"))["message"]["role"] == "user"


async def test_settings_that_are_changed_behind_a_reset_are_applied_in_their_order(tmp_path: Path):
    key, names = "agent:bob:short", [f"n{number}" for number in range(20)]
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=key)
        asked = [await owner.send("sessions.reset", key=key)]
        asked += [await owner.send("sessions.patch", key=key, displayName=name) for name in names]
        _, *patched = [one["result"] for one in await collect(owner, asked)]
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert row["displayName"] == names[-1]
        [file] = (tmp_path / "store" / "agents" / "bob" / "sessions").glob("*.jsonl")
        places = [file.read_text().index(f'"{name}"') for name in names]
        assert places == sorted(places)
        assert {one["row"]["sessionId"] for one in patched} == {row["sessionId"]}


async def test_messages_behind_a_reset_stand_in_the_new_session_in_their_order(tmp_path: Path):
    key = "agent:bob:short"
    texts = [["one"], [f"m{number}" for number in range(300)], ["two"], ["three"]]
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=key)
        asked = [await owner.send("sessions.reset", key=key)]
        for some in texts:
            messages = [{"role": "user", "content": text} for text in some]
            asked.append(await owner.send("chat.inject", sessionKey=key, messages=messages))
        _, *injected = [one["result"] for one in await collect(owner, asked)]
        page = await owner.call("sessions_history", sessionKey=key, limit=1000)
        assert [message["content"] for message in page["messages"]] == [text for some in texts for text in some]
        assert [position["id"] for position in page["positions"]] == [id_ for one in injected for id_ in one["ids"]]


async def test_a_message_behind_a_delete_is_refused_and_what_follows_it_is_not_blocked(tmp_path: Path):
    key, message = "agent:bob:short", [{"role": "user", "content": "late"}]
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        await owner.call("sessions.create", key=key)
        asked = [
            await owner.send("sessions.delete", key=key),
            await owner.send("chat.inject", sessionKey=key, messages=message),
            await owner.send("chat.send", sessionKey=KEY, message="behind"),
        ]
        deleted, refused, sent = await collect(owner, asked)
        assert deleted["result"]["archived"] is True
        assert refused["error"]["code"] == -32002
        assert sent["result"]["runId"]
