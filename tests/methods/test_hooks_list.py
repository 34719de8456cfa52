"""`hooks.list`: who looks for waiting messages without a key finds those for sessions in terminals."""

from __future__ import annotations

from pathlib import Path

from support.foreign_daemon import READER, daemon
from support.foreign_sessions import UUID
from support.hooked import KEY, claude_file, report


async def test_sessions_for_which_messages_wait_are_listed_until_they_are_read(tmp_path: Path) -> None:
    other = UUID.format(2)
    claude_file(tmp_path)
    claude_file(tmp_path, session=other)
    async with daemon(tmp_path) as (parts, owner):
        for session in (KEY.partition(":")[2], other):
            await report(owner, tmp_path, "UserPromptSubmit", session)
        assert await owner.call("hooks.list") == {"waiting": []}
        for text in ("one", "two"):
            await owner.call("sessions_send", sessionKey=KEY, message=text, timeoutSeconds=0)
        page = await owner.call("sessions_inbox", sessionKey=KEY)
        there = {"sessionKey": KEY, "hasMore": False}
        first, second = page["messages"]
        listed = {"waiting": [{**there, "unread": 2, "oldest": first["timestamp"]}]}
        assert await owner.call("hooks.list") == listed
        assert await owner.call("hooks.list") == listed, "a look marks nothing as read"
        # They wait, too, when the session has ended.
        await report(owner, tmp_path, "SessionEnd")
        assert await owner.call("hooks.list") == listed
        await owner.call("sessions_inbox", sessionKey=KEY, cursor=first["cursor"])
        assert await owner.call("hooks.list") == {"waiting": [{**there, "unread": 1, "oldest": second["timestamp"]}]}
        await owner.call("sessions_inbox", sessionKey=KEY, cursor=second["cursor"])
        assert await owner.call("hooks.list") == {"waiting": []}
        async with parts.connect(READER) as reader:
            assert (await reader.failure("hooks.list"))["data"]["type"] == "forbidden"
