from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from support.in_process import Connection, in_process_daemon
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.model.caller import Caller

READ = frozenset(["list", "read"])


def _agent(key: str, **more: Any) -> Caller:
    return Caller(kind="token", scopes=READ, session_key=key, agent_id=key.split(":")[1], **more)


async def _inject(client: Connection, key: str, *texts: str) -> None:
    await client.call("sessions.create", key=key)
    for text in texts:
        await client.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])


def _matching_keys(found: dict[str, Any]) -> list[str]:
    return [match["sessionKey"] for match in found["matches"]]


async def test_a_match_has_a_snippet_and_a_cursor_to_the_message(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", "one", "Two needles", "three")
        found = await client.call("sessions_search", query="NEEDLE")
        (match,) = found["matches"]
        row = daemon.services.store.catalog.by_key["agent:main:main"].entry
        assert row.updated_at - 5000 < match.pop("timestamp") <= row.updated_at
        page = await client.call(
            "sessions_history", sessionKey=match["sessionKey"], cursor=match.pop("cursor"), limit=1
        )
        assert (page["messages"][0]["content"], page["positions"][0]["seq"]) == ("Two needles", 2)
        assert match == {"sessionKey": "agent:main:main", "role": "user", "snippet": "Two needles"}
        assert (found["hasMore"], found["contentRedacted"]) == (False, False)


async def test_filters_and_limits_apply(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "agent:main:a", *["hello"] * 3)
        await _inject(client, "agent:main:b", *["hello"] * 3)
        await client.call(
            "chat.inject", sessionKey="agent:main:b", messages=[{"role": "assistant", "content": "hello"}]
        )
        search = "sessions_search"
        assert (
            _matching_keys(await client.call(search, query="hello", sessionKey="agent:main:a")) == ["agent:main:a"] * 3
        )
        assert _matching_keys(await client.call(search, query="hello", role="assistant")) == ["agent:main:b"]
        assert len(_matching_keys(await client.call(search, query="hello"))) == 7
        for limit, count in ((7, 7), (6.9, 6), (0, 1), (-3, 1), (10**9, 7)):
            found = await client.call(search, query="hello", limit=limit)
            assert (len(found["matches"]), found["hasMore"]) == (count, count < 7)
        since = (await client.call(search, query="hello", limit=1))["matches"][0]["timestamp"]
        assert _matching_keys(await client.call(search, query="hello", since=since + 1)) == []
        assert "agent:main:b" in _matching_keys(await client.call(search, query="hello", since=since))
        assert len(_matching_keys(await client.call(search, query="hello", since=-(10**30)))) == 7
        assert _matching_keys(await client.call(search, query="hello", since=10**30)) == []


@check_each("query", ["", " \n", "x" * 513])
async def test_an_invalid_query_is_refused(tmp_path: Path, query: str) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        error = await client.failure("sessions_search", query=query)
        assert (error["code"], error["data"]["field"]) == (-32602, "$.query")
        assert (await client.call("sessions_search", query="x" * 512))["matches"] == []


async def test_only_sessions_that_the_caller_may_read_are_searched(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        root, child, other = "agent:main:root", "agent:main:child", "agent:main:other"
        await _inject(client, root, "hello")
        await _inject(client, child, "hello")
        await client.call("sessions.create", key=child, parentSessionKey=root)
        await client.call("sessions.delete", key=child)
        await client.call("sessions.create", key=child, parentSessionKey=root)
        await _inject(client, child, "hello")
        await _inject(client, other, "hello")
        async with daemon.connect(_agent(root)) as agent:
            assert sorted(_matching_keys(await agent.call("sessions_search", query="hello"))) == [child, root]
            there = await agent.failure("sessions_search", query="hello", sessionKey=other)
            gone = await agent.failure("sessions_search", query="hello", sessionKey="agent:main:otter")
            assert there["message"].replace("other", "otter") == gone["message"]
            assert there["code"] == gone["code"] == -32002
        async with daemon.connect(_agent(child)) as agent:
            assert _matching_keys(await agent.call("sessions_search", query="hello")) == [child]
        async with daemon.connect(Caller(kind="token", scopes=frozenset(["list"]), session_key=root)) as agent:
            assert (await agent.failure("sessions_search", query="hello"))["code"] == -32003
        assert sorted(_matching_keys(await client.call("sessions_search", query="hello"))) == [child, other, root]


async def test_an_archived_transcript_is_searched_when_named_by_its_id(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        made = await client.call("sessions.create", key="agent:main:a")
        await _inject(client, "agent:main:a", "hello")
        await client.call("sessions.reset", key="agent:main:a")
        assert _matching_keys(await client.call("sessions_search", query="hello")) == []
        found = await client.call("sessions_search", query="hello", sessionKey=made["sessionId"])
        cursor = found["matches"][0]["cursor"]
        page = await client.call("sessions_history", sessionKey=made["sessionId"], cursor=cursor)
        assert [message["content"] for message in page["messages"]] == ["hello"]


async def test_secrets_are_masked_for_tokens_and_cannot_be_searched_for(tmp_path: Path) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", f"my key is {secret}, keep it")
        async with daemon.connect(_agent("agent:main:main")) as agent:
            found = await agent.call("sessions_search", query="my key")
            assert secret not in found["matches"][0]["snippet"]
            assert found["contentRedacted"] is True
            for part in (secret, secret[10:20], "mnopqr"):
                assert (await agent.call("sessions_search", query=part))["matches"] == []
        found = await client.call("sessions_search", query=secret[10:20])
        assert secret in found["matches"][0]["snippet"]


async def test_a_cancelled_search_ends_at_once_and_blocks_nobody(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        text = "hello " * 2000
        for _ in range(8):
            messages = [{"role": "user", "content": text}] * 100
            await client.call("chat.inject", sessionKey=await _create_session(client), messages=messages)
        searching = await client.send("sessions_search", query="parentId", limit=200)
        await client.call("ping")
        await client.send("$/cancelRequest", id=searching)
        with trio.fail_after(PATIENCE_S):
            answer = await client.answer(searching)
        assert answer["error"]["code"] == -32800
        async with daemon.connect() as hasty:
            await hasty.send("sessions_search", query="parentId")
        # Closing the connection ends its search: the thread is free for the next one.
        assert (await client.call("sessions_search", query="hello", limit=1))["hasMore"] is True


async def _create_session(client: Connection) -> str:
    key: str = (await client.call("sessions.create", key="agent:main:big"))["key"]
    return key
