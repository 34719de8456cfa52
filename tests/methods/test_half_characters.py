"""Text that was cut within an emoji, and system prompts, in every method that reads messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.in_process import in_process_daemon

KEY = "agent:main:cut"
CUT = {"role": "user", "content": "before \ud83d after", "timestamp": 1795224660000}


def _write(store: Path, *messages: dict[str, Any]) -> Path:
    folder = store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s1", "sessionKey": KEY, "agentId": "main"}]
    lines += [{"type": "message", "id": f"m{number}", "message": one} for number, one in enumerate(messages)]
    file = folder / "s1.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


async def test_a_lone_surrogate_is_shown_as_a_replacement_character_and_stays_in_the_file(tmp_path: Path) -> None:
    file = _write(tmp_path / "store", CUT, {"role": "assistant", "content": "fine", "model": "m\udc00"})
    before = file.read_bytes()
    assert b"\\ud83d" in before
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        history = await client.call("chat.history", sessionKey=KEY)
        assert [message["content"] for message in history["messages"]] == ["before \ufffd after", "fine"]
        (row,) = (await client.call("sessions_list", messageLimit=2))["sessions"]
        assert (row["messageCount"], row.get("corruptRecords", 0)) == (2, 0)
        assert [message["content"] for message in row["messages"]] == ["before \ufffd after", "fine"]
        found = await client.call("sessions_search", query="after")
        assert ["before \ufffd after" in match["snippet"] for match in found["matches"]] == [True]
        (preview,) = (await client.call("sessions.preview", keys=[KEY]))["previews"]
        assert preview["items"][0]["text"] == "before \ufffd after"
        cursor = (await client.call("sessions_history", sessionKey=KEY, limit=1))["cursor"]
        await client.call("sessions.messages.subscribe", key=KEY, cursor=cursor)
        with file.open("a") as appended:
            appended.write(json.dumps({"type": "message", "id": "m9", "message": CUT}) + "\n")
        pushed = await client.event("session.message")
        assert pushed["message"]["content"] == "before \ufffd after"
    assert file.read_bytes().startswith(before)


async def test_system_prompts_are_neither_shown_nor_counted(tmp_path: Path) -> None:
    prompt = {"role": "system", "content": "You are kept to yourself."}
    _write(tmp_path / "store", prompt, {"role": "user", "content": "hello"}, prompt)
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        history = await client.call("chat.history", sessionKey=KEY)
        assert [message["content"] for message in history["messages"]] == ["hello"]
        (row,) = (await client.call("sessions_list", messageLimit=9))["sessions"]
        assert (row["messageCount"], len(row["messages"])) == (1, 1)
        assert (await client.call("sessions_search", query="kept to yourself"))["matches"] == []
        (preview,) = (await client.call("sessions.preview", keys=[KEY]))["previews"]
        assert [item["text"] for item in preview["items"]] == ["hello"]
