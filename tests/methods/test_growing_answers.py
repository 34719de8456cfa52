"""Answers that Claude Code writes line by line, and lists that Gemini CLI changes, as clients see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.followed_store import append
from support.foreign_daemon import daemon, home_of
from support.in_process import Connection

from sessiond.client.follow import FollowState
from sessiond.client.wire import Event

ID = "0e821bfa-0000-4000-8000-000000000001"
KEY = f"claude:{ID}"
GEMINI_KEY = f"gemini:{ID}"


def claude_line(kind: str, message: dict[str, Any], number: int) -> bytes:
    stamp = f"2026-01-02T03:04:{number:02}.000Z"
    body = {"type": kind, "uuid": f"u{number}", "sessionId": ID, "cwd": "/w", "timestamp": stamp}
    return json.dumps({**body, "message": message}).encode() + b"\n"


def typed(number: int, text: str) -> bytes:
    return claude_line("user", {"role": "user", "content": text}, number)


def block(number: int, message_id: str, **content: Any) -> bytes:
    usage = {"input_tokens": 5, "output_tokens": number}
    message = {"id": message_id, "role": "assistant", "model": "m", "content": [content], "usage": usage}
    return claude_line("assistant", message, number)


def call(number: int, message_id: str, call_id: str) -> bytes:
    return block(number, message_id, type="tool_use", id=call_id, name="Read", input={})


def result(number: int, call_id: str, text: str) -> bytes:
    content = [{"type": "tool_result", "tool_use_id": call_id, "content": text}]
    return claude_line("user", {"role": "user", "content": content}, number)


def kinds_of(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [one["type"] for one in content] if isinstance(content, list) else [content]


async def message_events(connection: Connection, count: int) -> list[tuple[int, str, list[str]]]:
    events = [await connection.event("session.message") for _ in range(count)]
    return [(event["seq"], event["messageId"], kinds_of(event["message"])) for event in events]


async def test_an_answer_grows_for_its_followers_and_is_one_message_of_the_history(tmp_path: Path) -> None:
    path = home_of(tmp_path) / ".claude" / "projects" / "-w" / f"{ID}.jsonl"
    path.parent.mkdir(parents=True)
    append(path, typed(1, "look at both"))
    async with daemon(tmp_path) as (parts, owner), parts.connect() as later:
        await owner.call("sessions.messages.subscribe", key=KEY)
        append(path, block(2, "msg", type="text", text="I look"))
        [first] = [await owner.event("session.message")]
        append(path, call(3, "msg", "a") + result(4, "a", "one") + call(5, "msg", "b") + result(6, "b", "two"))
        append(path, block(7, "msg2", type="text", text="done"))
        assert await message_events(owner, 5) == [
            (2, "msg", ["text", "toolCall"]),
            (3, "u4", ["text"]),
            (2, "msg", ["text", "toolCall", "toolCall"]),
            (4, "u6", ["text"]),
            (5, "msg2", ["text"]),
        ]
        await later.call("sessions.messages.subscribe", key=KEY, cursor=first["cursor"])
        assert (await message_events(later, 4))[2] == (2, "msg", ["text", "toolCall", "toolCall"])
        page = await owner.call("sessions_history", sessionKey=KEY, includeTools=True)
        assert [kinds_of(message)[1:] for message in page["messages"]] == [[], ["toolCall", "toolCall"], [], [], []]
        [row] = (await owner.call("sessions_list", includeCursors=True))["sessions"]
        assert (row["messageCount"], row["inputTokens"], row["outputTokens"]) == (5, 10, 12)
        found = await owner.call("sessions_search", query="look")
        assert len(found["matches"]) == 2


async def test_an_answer_of_many_parts_is_found_once(tmp_path: Path) -> None:
    path = home_of(tmp_path) / ".claude" / "projects" / "-w" / f"{ID}.jsonl"
    path.parent.mkdir(parents=True)
    append(path, typed(1, "go"))
    append(path, block(2, "msg", type="text", text="a heron") + block(3, "msg", type="text", text="the heron"))
    append(path, block(4, "other", type="text", text="one more heron"))
    async with daemon(tmp_path) as (_, owner):
        found = await owner.call("sessions_search", query="heron")
        assert [match["snippet"] for match in found["matches"]] == ["one more heron", "a heron the heron"]


async def test_a_client_that_follows_sees_a_rewind(tmp_path: Path) -> None:
    path = home_of(tmp_path) / ".gemini" / "tmp" / "w" / "chats" / "session-2026-01-02T03-04-0e821bfa.jsonl"
    path.parent.mkdir(parents=True)
    head = {"sessionId": ID, "projectHash": "x", "startTime": "2026-01-02T03:04:05.000Z", "kind": "main"}
    append(path, json.dumps(head).encode() + b"\n")

    def write(**line: Any) -> None:
        append(path, json.dumps(line).encode() + b"\n")

    write(id="1", type="user", content="first")
    write(id="2", type="user", content="second")
    async with daemon(tmp_path) as (_, owner):
        await owner.call("sessions.messages.subscribe", key=GEMINI_KEY)
        follow, had = FollowState(GEMINI_KEY, None), dict[int, str]()
        write(**{"$rewindTo": "2"})
        write(id="3", type="user", content="instead")
        while had.get(2) != "instead":
            got = await owner.receive()
            if "method" not in got or not follow.take(event := Event(got["method"], got["params"])):
                continue
            if event.name == "session.resync":
                had.clear()
            elif event.name == "session.message":
                content = event["message"]["content"]
                had[event["seq"]] = content if isinstance(content, str) else content[0]["text"]
        assert had == {1: "first", 2: "instead"}
