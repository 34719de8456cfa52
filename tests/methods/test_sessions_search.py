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


async def _all_pages(client: Connection, **params: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The matches of all pages, and the pages."""
    pages: list[dict[str, Any]] = []
    while not pages or pages[-1]["hasMore"]:
        more = {"cursor": pages[-1]["nextCursor"]} if pages else {}
        pages.append(await client.call("sessions_search", **params, **more))
    assert "nextCursor" not in pages[-1]
    return [match for page in pages for match in page["matches"]], pages


async def test_pages_go_on_where_the_one_before_ended(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for number in range(3):
            await _inject(client, f"agent:main:s{number}", *(f"hello {number} {place}" for place in range(5)))
        every = (await client.call("sessions_search", query="hello"))["matches"]
        assert len(every) == 15
        assert every == sorted(every, key=lambda one: (-one["timestamp"], one["sessionKey"]))
        for limit in (1, 4, 15):
            found, pages = await _all_pages(client, query="hello", limit=limit)
            assert found == every
            assert all(len(page["matches"]) == limit for page in pages[:-1])
            assert not any("progress" in page for page in pages)
        first = await client.call("sessions_search", query="hello", limit=4)
        await _inject(client, "agent:main:s1", "hello, later")
        await client.call("sessions.delete", key="agent:main:s2")
        rest = await client.call("sessions_search", query="hello", limit=50, cursor=first["nextCursor"])
        assert rest["matches"] == [one for one in every[4:] if not one["sessionKey"].endswith("s2")]


OTHER_SEARCHES: list[dict[str, Any]] = [
    *({"query": "hell"}, {"role": "user"}, {"since": 5}, {"until": 2**42}, {"sources": ["sessiond"]}, {"cwd": "/"}),
    *({"sessionKey": "main"}, {"includeArchived": True}, {"machine": "mars"}),
    *({"cursor": "x"}, {"cursor": ""}, {"cursor": "\u00e9."}, {"cursor": "5-1-0123456789ab"}),
]


async def test_a_cursor_of_another_search_is_refused(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", "hello", "hello")
        cursor = (await client.call("sessions_search", query="hello", limit=1))["nextCursor"]
        same = {"query": "hello", "cursor": cursor, "limit": 7, "withinMs": 60_000}
        assert len((await client.call("sessions_search", **same))["matches"]) == 1
        changed = cursor[:3] + ("A" if cursor[3] != "A" else "B") + cursor[4:]
        for other in (*OTHER_SEARCHES, {"cursor": changed}):
            error = await client.failure("sessions_search", **{"query": "hello", "cursor": cursor, **other})
            data = error["data"]
            assert (error["code"], data["field"], data["code"]) == (-32602, "$.cursor", "cursor_invalid"), other


async def test_a_page_that_is_wanted_soon_comes_back_short_and_goes_on(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for number in range(4):
            await _inject(client, f"agent:main:s{number}", *["hay", "hello"] * 3)
        every = (await client.call("sessions_search", query="hello"))["matches"]
        found, pages = await _all_pages(client, query="hello", withinMs=0)
        assert found == every
        assert len(pages) > 4
        total = sum(one.entry.file.folded_to for one in daemon.services.store.catalog.by_key.values())
        looked = [page["progress"]["lookedAt"] for page in pages[:-1]]
        assert {page["progress"]["total"] for page in pages[:-1]} == {total}
        assert looked == sorted(looked) and looked[0] < looked[-1] <= total
        assert "progress" not in pages[-1]
        assert (await client.call("sessions_search", query="hello", withinMs=60_000))["matches"] == every


async def test_archives_are_searched_when_asked_for(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for key in ("agent:main:a", "agent:main:b"):
            await _inject(client, key, "hello")
        old = (await client.call("sessions.resolve", key="agent:main:a"))["sessionId"]
        await client.call("sessions.reset", key="agent:main:a")
        await client.call("sessions.delete", key="agent:main:b")
        await _inject(client, "agent:main:a", "hello again")
        assert _matching_keys(await client.call("sessions_search", query="hello")) == ["agent:main:a"]
        found, _ = await _all_pages(client, query="hello", includeArchived=True, limit=1)
        assert [match["sessionKey"] for match in found] == ["agent:main:a", "agent:main:b", "agent:main:a"]
        assert "sessionId" not in found[0]
        assert found[2]["sessionId"] == old
        page = await client.call("sessions_history", sessionKey=old, cursor=found[2]["cursor"])
        assert [message["content"] for message in page["messages"]] == ["hello"]
        async with daemon.connect(_agent("agent:main:a")) as agent:
            seen = await agent.call("sessions_search", query="hello", includeArchived=True)
            assert _matching_keys(seen) == ["agent:main:a"] * 2
