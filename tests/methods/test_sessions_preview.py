from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from support.in_process import Connection, in_process_daemon
from support.rows import check_each
from support.shortage import refused_threads

from sessiond.model.caller import Caller

READ = frozenset(["list", "read"])


async def _inject(client: Connection, key: str, *said: tuple[str, Any]) -> None:
    await client.call("sessions.create", key=key)
    messages = [{"role": role, "content": content} for role, content in said]
    await client.call("chat.inject", sessionKey=key, messages=messages)


async def _read_items(client: Connection, key: str = "main", **params: Any) -> list[dict[str, str]]:
    (found,) = (await client.call("sessions.preview", keys=[key], **params))["previews"]
    items: list[dict[str, str]] = found["items"]
    return items


async def test_keys_are_answered_in_the_order_asked(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(
            client,
            "main",
            ("user", "hello\n  there"),
            ("toolResult", "no"),
            ("assistant", [{"type": "text", "text": "hi"}]),
        )
        await client.call("sessions.create", key="agent:main:empty")
        keys = ["agent:main:none", "main", "agent:main:empty", "MAIN "]
        items = [{"role": "user", "text": "hello there"}, {"role": "assistant", "text": "hi"}]
        assert await client.call("sessions.preview", keys=keys) == {
            "previews": [
                {"key": "agent:main:none", "status": "missing", "items": []},
                {"key": "main", "status": "ok", "items": items},
                {"key": "agent:main:empty", "status": "empty", "items": []},
                {"key": "MAIN ", "status": "ok", "items": items},
            ]
        }


async def test_without_a_thread_to_read_in_no_session_is_called_missing(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", ("user", "hello"))
        with refused_threads():
            refused = await client.failure("sessions.preview", keys=["main"])
        assert (refused["code"], refused["data"]) == (-32007, {"type": "overloaded", "retryAfterMs": 1000})
        assert refused["message"] == (
            "could not read the transcript of agent:main:main: no thread can be started; try again in a moment"
        )
        assert await _read_items(client) == [{"role": "user", "text": "hello"}]


class RefusedTranscripts:
    """Transcripts as on a disk that refuses them."""

    def __init__(self, code: int) -> None:
        self._code = code

    def makes(self, _place: str) -> bool:
        return False

    def open(self, place: str) -> int:
        raise OSError(self._code, os.strerror(self._code), place)

    def status(self, place: str) -> os.stat_result:
        raise OSError(self._code, os.strerror(self._code), place)


@check_each(
    ("code", "reason", "remedy"),
    [
        (errno.EACCES, "Permission denied", "let the user of the daemon read it and enter the folders above it"),
        (errno.EPERM, "Operation not permitted", "let the user of the daemon read it and enter the folders above it"),
        (errno.EIO, "Input/output error", "check its disk, and restore the file from a backup if it is damaged"),
        (errno.ETIMEDOUT, "Connection timed out", "wait a moment"),
        (errno.ELOOP, "Too many levels of symbolic links", "see what stands there"),
        (errno.ENOENT, None, None),
    ],
)
async def test_a_transcript_that_cannot_be_read_is_not_called_missing(
    tmp_path: Path, code: int, reason: str | None, remedy: str | None
) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", ("user", "hello"))
        session = daemon.services.store.catalog.by_key["agent:main:main"]
        session.folder.made = RefusedTranscripts(code)
        found = (await client.call("sessions.preview", keys=["main", "agent:main:none"]))["previews"]
        if reason is None:
            assert found[0] == {"key": "main", "status": "missing", "items": []}
        else:
            error = (
                f"could not read {session.path}, the transcript of agent:main:main: {reason}; {remedy}, then try again"
            )
            assert found[0] == {"key": "main", "status": "error", "items": [], "error": error}
            refused = await client.failure("sessions_history", sessionKey="main")
            assert (refused["code"], refused["message"]) == (-32009, error)
        assert found[1] == {"key": "agent:main:none", "status": "missing", "items": []}
        session.folder.made = None


async def test_limits_are_clamped(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", *((("user", f"{number} " + "word " * 1000)) for number in range(60)))
        for limit, count in ((None, 12), (0, 1), (1, 1), (50, 50), (51, 50), (7.8, 7)):
            assert len(await _read_items(client, **({} if limit is None else {"limit": limit}))) == count
        for chars, most in ((None, 240), (0, 20), (20, 20), (2000, 2000), (2001, 2000)):
            items = await _read_items(client, limit=2, **({} if chars is None else {"maxChars": chars}))
            assert [item["text"][:2] for item in items] == ["58", "59"]
            assert all(most * 0.6 <= len(item["text"]) <= most and item["text"].endswith("…") for item in items)


async def test_empty_too_long_and_invalid_lists_of_keys_are_refused(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.failure("sessions.preview", keys=[]))["code"] == -32602
        assert len((await client.call("sessions.preview", keys=["main"] * 64))["previews"]) == 64
        error = await client.failure("sessions.preview", keys=["main"] * 65)
        assert (error["code"], error["data"]["value"]) == (-32005, 64)
        error = await client.failure("sessions.preview", keys=["main", "agent::"])
        assert (error["code"], error["data"]["field"]) == (-32602, "$.keys[1]")


async def test_an_invisible_session_is_missing_and_text_needs_the_scope_read(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "agent:main:other", ("user", "hello"))
        await _inject(client, "agent:main:own", ("user", "hello"))
        own = {"session_key": "agent:main:own", "agent_id": "main"}
        async with daemon.connect(Caller(kind="token", scopes=READ, **own)) as agent:
            found = await agent.call("sessions.preview", keys=["agent:main:other", "agent:main:none", "current"])
            assert [entry["status"] for entry in found["previews"]] == ["missing", "missing", "ok"]
        async with daemon.connect(Caller(kind="token", scopes=frozenset(["list"]), **own)) as agent:
            assert (await agent.failure("sessions.preview", keys=["current"]))["code"] == -32003


async def test_a_secret_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    secret = "sk-" + "abcdefghij" * 10
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await _inject(client, "main", ("user", f"key {secret}"), ("user", "x " * 40_000 + secret))
        own = {"session_key": "agent:main:main", "agent_id": "main"}
        async with daemon.connect(Caller(kind="token", scopes=READ, **own)) as agent:
            first, second = await _read_items(agent, "current", maxChars=60)
            assert first["text"] == "key sk-abc…ghij"
            assert "sk-" not in second["text"]
        assert (await _read_items(client, maxChars=60))[0]["text"].startswith("key sk-abcdefghijabc")
