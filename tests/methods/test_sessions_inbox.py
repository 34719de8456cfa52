"""`sessions_inbox`: messages to a session of an MCP client are kept until it reads them, also over a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.clock import Clock
from sessiond.model.caller import Caller
from sessiond.model.keys import is_inbox
from sessiond.runs import inbox

KEY = "agent:main:mcp:reader"
READER = Caller(kind="token", scopes=frozenset({"list", "read", "send"}), session_key=KEY, agent_id="main")


@pytest.fixture
async def daemon_parts(tmp_path: Path) -> AsyncIterator[InProcessDaemon]:
    async with in_process_daemon(tmp_path) as made:
        yield made


@pytest.fixture
async def owner(daemon_parts: InProcessDaemon) -> AsyncIterator[Connection]:
    async with daemon_parts.connect() as connection:
        await connection.call("sessions.create", key=KEY)
        yield connection


@pytest.fixture
async def reader(daemon_parts: InProcessDaemon, owner: Connection) -> AsyncIterator[Connection]:
    async with daemon_parts.connect(READER) as connection:
        yield connection


async def send_to_inbox(owner: Connection, *texts: str, **more: Any) -> list[Any]:
    return [await owner.call("chat.send", sessionKey=KEY, message=text, **more) for text in texts]


def texts_of(page: dict[str, Any]) -> list[str]:
    return [message["text"] for message in page["messages"]]


def test_only_sessions_of_mcp_clients_have_inboxes() -> None:
    assert is_inbox("agent:main:mcp:reader")
    assert not is_inbox("agent:mcp:main")
    assert not is_inbox("agent:main:subagent:mcp:reader")


async def test_a_message_to_an_inbox_is_kept_and_no_agent_runs(owner, reader) -> None:
    (sent,) = await send_to_inbox(owner, "are you there?")
    assert {**sent, "runId": "", "cursor": ""} == {"runId": "", "status": "accepted", "cursor": "", "reason": "inbox"}
    page = await reader.call("sessions_inbox")
    (message,) = page["messages"]
    assert {**message, "id": "", "timestamp": ""} == {
        "id": "",
        "seq": 1,
        "cursor": message["cursor"],
        "timestamp": "",
        "text": "are you there?",
    }
    assert {**page, "messages": []} == {"sessionKey": KEY, "messages": [], "cursor": page["cursor"], "hasMore": False}
    history = await owner.call("sessions_history", sessionKey=KEY)
    assert [message["role"] for message in history["messages"]] == ["user"]


async def test_the_run_of_a_kept_message_has_already_ended(owner) -> None:
    (sent,) = await send_to_inbox(owner, "hello")
    ended = await owner.call("agent.wait", runId=sent["runId"])
    assert {name: ended[name] for name in ("status", "sessionKey")} == {"status": "ok", "sessionKey": KEY}
    assert "reply" not in ended


async def test_unread_messages_are_returned_again_until_the_cursor_acknowledges_them(owner, reader) -> None:
    await send_to_inbox(owner, "one", "two")
    first = await reader.call("sessions_inbox")
    assert texts_of(first) == texts_of(await reader.call("sessions_inbox")) == ["one", "two"]
    await send_to_inbox(owner, "three")
    assert texts_of(await reader.call("sessions_inbox", cursor=first["cursor"])) == ["three"]
    # The acknowledgement is remembered: it also counts for later calls without a cursor.
    assert texts_of(await reader.call("sessions_inbox")) == ["three"]


async def test_the_cursor_of_a_message_continues_after_that_message(owner, reader) -> None:
    await send_to_inbox(owner, "one", "two", "three")
    page = await reader.call("sessions_inbox")
    assert texts_of(await reader.call("sessions_inbox", cursor=page["messages"][1]["cursor"])) == ["three"]


async def test_an_older_cursor_reads_again_without_marking_messages_unread(owner, reader) -> None:
    await send_to_inbox(owner, "one", "two")
    page = await reader.call("sessions_inbox")
    await reader.call("sessions_inbox", cursor=page["cursor"])
    assert texts_of(await reader.call("sessions_inbox", cursor=page["messages"][0]["cursor"])) == ["two"]
    assert texts_of(await reader.call("sessions_inbox")) == []


async def test_polling_an_empty_inbox_writes_nothing(daemon_parts, owner, reader) -> None:
    await send_to_inbox(owner, "one")
    cursor = (await reader.call("sessions_inbox"))["cursor"]
    cursor = (await reader.call("sessions_inbox", cursor=cursor))["cursor"]
    session = daemon_parts.services.store.catalog.by_key[KEY]
    before = session.entry.file.folded_to
    for _ in range(3):
        cursor = (await reader.call("sessions_inbox", cursor=cursor))["cursor"]
    assert session.entry.file.folded_to == before


async def test_an_answer_is_kept_unless_whoever_asked_has_waited_for_it(tmp_path: Path) -> None:
    async with (
        in_process_daemon(tmp_path, '[tools.sessions]\nvisibility = "agent"\n') as parts,
        parts.connect() as owner,
        parts.connect(READER) as reader,
    ):
        for key in (KEY, "agent:main:main"):
            await owner.call("sessions.create", key=key)
        asked = {"sessionKey": "agent:main:main", "timeoutSeconds": PATIENCE_S}
        heard = await reader.call("sessions_send", message="waits for it", **asked)
        assert heard["reply"] == "waits for it"
        await reader.call("sessions_send", message="does not", **{**asked, "timeoutSeconds": 0})
        page = await reader.call("sessions_inbox", wait=25)
        assert texts_of(page) == ["does not"]


async def test_a_wait_ends_with_the_next_message(owner, reader) -> None:
    request = await reader.send("sessions_inbox", wait=25)
    await send_to_inbox(owner, "at last")
    answer = await reader.answer(request)
    assert texts_of(answer["result"]) == ["at last"]


async def test_a_wait_times_out_with_no_messages(reader) -> None:
    with trio.fail_after(PATIENCE_S):
        assert texts_of(await reader.call("sessions_inbox", wait=1)) == []


async def test_a_wait_can_be_cancelled(reader) -> None:
    request = await reader.send("sessions_inbox", wait=3600)
    await reader._stream.send_all(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":%d}}\n' % request)
    assert (await reader.answer(request))["error"]["code"] == -32800


async def test_the_owner_has_no_inbox_and_the_error_says_what_to_use(owner) -> None:
    error = await owner.failure("sessions_inbox")
    assert (error["code"], error["data"]["code"]) == (-32602, "no_session")
    assert "`sessions_history` reads any session" in error["message"]


async def test_a_cursor_of_another_session_is_refused(owner, reader) -> None:
    await owner.say("main", "hello")
    other = await owner.call("sessions_history", sessionKey="main")
    error = await reader.failure("sessions_inbox", cursor=other["cursor"])
    assert (error["code"], error["data"]["code"]) == (-32602, "cursor_stale")


async def test_a_full_inbox_comes_in_pages_of_fifty(owner, reader) -> None:
    await send_to_inbox(owner, *map(str, range(inbox.PAGE_MESSAGES + 1)))
    first = await reader.call("sessions_inbox")
    second = await reader.call("sessions_inbox", cursor=first["cursor"])
    assert (len(first["messages"]), first["hasMore"]) == (50, True)
    assert (texts_of(second), second["hasMore"]) == (["50"], False)


async def test_a_page_is_limited_by_the_length_of_its_messages(owner, reader) -> None:
    long = "x" * (inbox.PAGE_BYTES // 2)
    await send_to_inbox(owner, long, long, "short")
    page = await reader.call("sessions_inbox")
    assert ([len(text) for text in texts_of(page)], page["hasMore"]) == ([len(long), len(long)], True)
    assert texts_of(await reader.call("sessions_inbox", cursor=page["cursor"])) == ["short"]


async def test_the_same_idempotency_key_stores_one_message(owner, reader) -> None:
    first, second = await send_to_inbox(owner, "once", "once", idempotencyKey="k")
    assert first["runId"] == second["runId"]
    assert texts_of(await reader.call("sessions_inbox")) == ["once"]


async def test_messages_that_the_reader_injects_itself_are_not_in_its_inbox(reader) -> None:
    note = {"role": "assistant", "content": "a note of my own"}
    await reader.call("chat.inject", sessionKey="current", messages=[note])
    assert texts_of(await reader.call("sessions_inbox")) == []


async def test_secrets_are_masked_for_the_reader(owner, reader) -> None:
    await send_to_inbox(owner, "Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789")
    (message,) = (await reader.call("sessions_inbox"))["messages"]
    assert "abcdefghijklmnop" not in message["text"]


@check_each(
    ("method", "target"), [("chat.send", "sessionKey"), ("sessions_send", "sessionKey"), ("sessions.steer", "key")]
)
async def test_messages_kept_for_an_inbox_do_not_trigger_the_idle_reset(tmp_path, method, target) -> None:
    real, shift = Clock(), [0]
    clock = Clock(wall_ms=lambda: real.wall_ms() + shift[0])
    async with in_process_daemon(
        tmp_path, '[session]\nreset = { mode = "idle", idleMinutes = 1 }\n', clock=clock
    ) as made:
        async with made.connect() as owner, made.connect(READER) as reader:
            await owner.call("sessions.create", key=KEY)
            await send_to_inbox(owner, "one")
            shift[0] = 600_000
            await owner.call(method, **{target: KEY, "message": "two"})
            assert texts_of(await reader.call("sessions_inbox")) == ["one", "two"]


async def test_with_an_attached_agent_messages_run_instead_of_being_kept(daemon_parts, owner, reader) -> None:
    async with daemon_parts.connect() as agent:
        await agent.call("agents.attach", agentId="main")
        (sent,) = await send_to_inbox(owner, "for the agent")
        assert "reason" not in sent
        while (message := await agent.receive()).get("method") != "run.start":
            pass
        assert message["params"]["message"] == "for the agent"


async def test_no_message_is_lost_or_repeated_when_the_daemon_is_killed(daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key=KEY)
    token = daemon.call("tokens.mint", sessionKey=KEY, scopes=["read"])["token"]

    def read(**params: Any) -> Any:
        with daemon.connect() as wire:
            wire.call("initialize", protocol=1, client={"name": "test"}, token=token)
            return wire.call("sessions_inbox", **params)

    daemon.call("chat.send", sessionKey=KEY, message="one")
    daemon.call("chat.send", sessionKey=KEY, message="two", idempotencyKey="k")
    first = read()
    daemon.kill()
    daemon.start()
    daemon.call("chat.send", sessionKey=KEY, message="two", idempotencyKey="k")
    assert read() == first
    done = read(cursor=first["messages"][0]["cursor"])
    daemon.kill()
    daemon.start()
    assert texts_of(read()) == texts_of(done) == ["two"]


async def test_after_a_torn_write_the_message_is_kept_and_no_agent_runs(daemon) -> None:
    # The record of the run's end is torn off: a restart must neither run an agent for the message nor lose it.
    daemon.start()
    daemon.call("sessions.create", key=KEY)
    daemon.call("chat.send", sessionKey=KEY, message="kept")
    daemon.stop()
    (path,) = daemon.transcripts()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    daemon.start()
    daemon.wait_for(lambda: daemon.rows()[0]["status"] == "error", "the run has no end")
    history = daemon.call("sessions_history", sessionKey=KEY)
    assert [(message["role"], message["content"]) for message in history["messages"]] == [("user", "kept")]


async def test_the_owner_can_read_and_mark_a_programs_inbox_by_its_key(owner, reader) -> None:
    await send_to_inbox(owner, "one", "two")
    page = await owner.call("sessions_inbox", sessionKey="mcp:reader")
    assert (page["sessionKey"], texts_of(page)) == (KEY, ["one", "two"])
    assert texts_of(await reader.call("sessions_inbox")) == ["one", "two"]
    assert texts_of(await owner.call("sessions_inbox", sessionKey=KEY, cursor=page["cursor"])) == []
    assert texts_of(await reader.call("sessions_inbox")) == []


async def test_a_session_with_an_agent_has_no_inbox(owner) -> None:
    await owner.say("main", "hello")
    error = await owner.failure("sessions_inbox", sessionKey="main")
    assert (error["code"], error["data"]["code"]) == (-32602, "no_inbox")


async def test_reading_a_session_does_not_allow_reading_its_inbox(tmp_path: Path) -> None:
    config = '[tools.sessions]\nvisibility = "agent"\n'
    async with (
        in_process_daemon(tmp_path, config) as daemon_parts,
        daemon_parts.connect() as owner,
        daemon_parts.connect(READER) as reader,
    ):
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.create", key="mcp:other")
        await reader.call("sessions_history", sessionKey="agent:main:mcp:other")
        error = await reader.failure("sessions_inbox", sessionKey="agent:main:mcp:other")
        assert error["data"]["type"] == "forbidden"
        await reader.call("sessions_inbox", sessionKey=KEY)


async def test_read_messages_stay_read_in_a_copy_of_the_store_with_another_key(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    async with (
        in_process_daemon(tmp_path / "a") as daemon_parts,
        daemon_parts.connect() as owner,
        daemon_parts.connect(READER) as reader,
    ):
        await owner.call("sessions.create", key=KEY)
        await send_to_inbox(owner, "one", "two")
        await reader.call("sessions_inbox", cursor=(await reader.call("sessions_inbox"))["cursor"])
        await send_to_inbox(owner, "three")
        store = daemon_parts.services.store.path
    transcripts = [path.relative_to(store) for path in store.rglob("*.jsonl") if "sessions" in path.parts]
    copies = {path: (store / path).read_bytes() for path in transcripts}
    cut = {path: data.replace(b'"one"', b'"oneone"') for path, data in copies.items()}
    for name, files, unread in (("b", copies, ["three"]), ("c", cut, ["oneone", "two", "three"])):
        async with in_process_daemon(tmp_path / name) as daemon_parts:
            there = daemon_parts.services.store.path
        for path, data in files.items():
            (there / path).parent.mkdir(parents=True, exist_ok=True)
            (there / path).write_bytes(data)
        async with in_process_daemon(tmp_path / name) as daemon_parts, daemon_parts.connect(READER) as reader:
            assert texts_of(await reader.call("sessions_inbox")) == unread
