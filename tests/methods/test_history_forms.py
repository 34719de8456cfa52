"""History with markers, with system messages, and as the lines of the file; of other programs' sessions and our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.foreign_daemon import READER, daemon, home_of
from support.foreign_sessions import UUID, key_of, pi_file, pi_line
from support.in_process import Connection
from support.rows import check_each

KEY = key_of(1)
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
COMPACTION = {"type": "compaction", "id": "c1", "timestamp": "2026-01-02T03:05:00.000Z", "summary": "so far"}


def write_session(home: Path) -> Path:
    """Two messages, a prompt before each, a compaction between them, a bad line and a blank one."""
    path = pi_file(home, 1)
    with path.open("ab") as file:
        file.write(pi_line("be brief", "system") + pi_line("one"))
        file.write(b"torn {\n\n" + json.dumps(COMPACTION).encode() + b"\n")
        file.write(pi_line("be kind", "system") + pi_line("two", "assistant"))
    return path


def texts(page: dict[str, Any]) -> list[tuple[int, str]]:
    return [
        (place["seq"], message["content"][0]["text"])
        for message, place in zip(page["messages"], page["positions"], strict=True)
    ]


async def pages(connection: Connection, **params: Any) -> list[dict[str, Any]]:
    """All pages, newest first."""
    found = [await connection.call("sessions_history", sessionKey=KEY, **params)]
    while found[-1]["hasMore"]:
        cursor = found[-1]["nextCursor"]
        found.append(await connection.call("sessions_history", sessionKey=KEY, cursor=cursor, **params))
    return found


async def test_markers_stand_before_a_message_and_are_none(tmp_path: Path) -> None:
    write_session(home_of(tmp_path))
    async with daemon(tmp_path) as (_, owner):
        for limit in (1, 10):
            found = await pages(owner, limit=limit)
            markers = [marker for page in found for marker in page.get("markers", ())]
            [marker] = markers
            assert (marker["kind"], marker["seq"], marker["timestamp"]) == (
                "compaction",
                2,
                "2026-01-02T03:05:00.000Z",
            )
            assert [text for page in reversed(found) for text in texts(page)] == [(1, "one"), (2, "two")]
            assert "markers" in found[-1], "it comes with the message before it"
        page = await owner.call("sessions_history", sessionKey=KEY, cursor=marker["cursor"])
        assert texts(page) == [(1, "one")]


async def test_system_messages_have_the_number_of_the_message_before_them(tmp_path: Path) -> None:
    write_session(home_of(tmp_path))
    async with daemon(tmp_path) as (_, owner):
        for method in ("sessions_history", "chat.history"):
            plain = await owner.call(method, sessionKey=KEY)
            assert texts(plain) == [(1, "one"), (2, "two")]
            whole = await owner.call(method, sessionKey=KEY, includeSystem=True)
            assert texts(whole) == [(0, "be brief"), (1, "one"), (1, "be kind"), (2, "two")]
            assert whole["messages"][0]["role"] == "system"
        found = await pages(owner, limit=1, includeSystem=True)
        assert [text for page in reversed(found) for text in texts(page)] == texts(whole)


async def test_raw_lines_are_those_of_the_file_with_their_numbers(tmp_path: Path) -> None:
    path = write_session(home_of(tmp_path))
    lines = path.read_bytes().split(b"\n")
    async with daemon(tmp_path) as (_, owner):
        for limit in (1, 3, 100):
            found = await pages(owner, raw=True, limit=limit)
            shown = [
                (place["seq"], message)
                for page in reversed(found)
                for message, place in zip(page["messages"], page["positions"], strict=True)
            ]
            assert [number for number, _ in shown] == [1, 2, 3, 6, 7, 8]
            assert all(json.loads(lines[number - 1]) == message for number, message in shown)
            assert sum(page["skipped"] for page in found) == 1
        assert found[0]["positions"][3]["id"] == "c1"
        assert texts(await owner.call("sessions_history", sessionKey=KEY, cursor=found[0]["cursor"], limit=1)) == [
            (2, "two")
        ]
        of_lines = found[0]["positions"][2]["cursor"]
        error = await owner.failure("sessions_history", sessionKey=KEY, cursor=of_lines)
        assert error["data"]["code"] == "cursor_invalid", "its number is that of a line"
        again = await owner.call("sessions_history", sessionKey=KEY, raw=True, cursor=of_lines)
        assert [place["seq"] for place in again["positions"]] == [1, 2, 3]
        plain = (await owner.call("sessions_history", sessionKey=KEY))["positions"][0]["cursor"]
        again = await owner.call("sessions_history", sessionKey=KEY, raw=True, cursor=plain)
        assert [place["seq"] for place in again["positions"]] == [1, 2, 3]


async def test_raw_lines_are_masked_for_tokens_and_cut_where_they_are_too_large(tmp_path: Path) -> None:
    path = pi_file(home_of(tmp_path), 1, f"key {SECRET}")
    with path.open("ab") as file:
        file.write(json.dumps({"type": "later", "id": "x", "note": {"api_key": SECRET}}).encode() + b"\n")
    async with daemon(tmp_path) as (parts, owner), parts.connect(READER) as reader:
        assert SECRET in json.dumps(await owner.call("sessions_history", sessionKey=KEY, raw=True))
        masked = await reader.call("sessions_history", sessionKey=KEY, raw=True)
        assert SECRET not in json.dumps(masked)
        assert (masked["contentRedacted"], len(masked["messages"])) == (True, 3)
        small = await owner.call("sessions_history", sessionKey=KEY, raw=True, maxBytes=20, limit=1)
        assert small["messages"][0]["omitted"]["bytes"] > 20
        assert small["messages"][0]["type"] == "later"


async def test_our_own_transcripts_have_raw_lines_and_markers_too(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (parts, owner):
        await owner.say("main", "hello")
        session = parts.services.store.catalog.by_key["agent:main:main"]
        file = parts.services.store.path / session.path
        with file.open("ab") as appended:
            appended.write(json.dumps(COMPACTION).encode() + b"\n" + pi_line("be brief", "system"))
        await parts.services.feed.read_on(session)
        await owner.say("main", "again")
        for runs in (False, True):
            page = await owner.call("sessions_history", sessionKey="main", includeRuns=runs)
            assert [(marker["kind"], marker["seq"]) for marker in page["markers"]] == [("compaction", 3)]
            assert len(page["messages"]) == 4
        raw = await owner.call("sessions_history", sessionKey="main", raw=True, limit=1000)
        assert raw["messages"] == [json.loads(line) for line in file.read_bytes().splitlines()]
        assert [place["seq"] for place in raw["positions"]] == list(range(1, len(raw["messages"]) + 1))
        system = await owner.call("sessions_history", sessionKey="main", includeSystem=True)
        assert [place["seq"] for place in system["positions"]] == [1, 2, 2, 3, 4]


@check_each("name", [UUID.format(1), UUID.format(1).upper(), KEY.upper(), f"  {KEY} "])
async def test_a_native_id_and_a_key_in_other_letters_name_the_session(tmp_path: Path, name: str) -> None:
    write_session(home_of(tmp_path))
    async with daemon(tmp_path) as (_, owner):
        assert (await owner.call("sessions_history", sessionKey=name))["sessionKey"] == KEY
        assert (await owner.call("sessions.resolve", key=name))["key"] == KEY
        assert (await owner.call("sessions.resolve", sessionId=UUID.format(1)))["key"] == KEY


async def test_a_key_is_compared_with_case_first(tmp_path: Path) -> None:
    folder = pi_file(home_of(tmp_path), 1, "x").parent
    for name in ("Abc", "aBC"):
        text = json.dumps({"type": "session", "version": 3, "id": name, "cwd": "/"}).encode() + b"\n" + pi_line(name)
        (folder / f"2026-01-02T03-04-06-000Z_{name}.jsonl").write_bytes(text)
    async with daemon(tmp_path) as (_, owner):
        for name in ("Abc", "aBC"):
            assert (await owner.call("sessions.resolve", key=f"PI:{name}"))["key"] == f"pi:{name}"
        assert (await owner.failure("sessions.resolve", key="pi:abc"))["code"] == -32002


async def test_a_session_of_which_only_the_ends_were_read_is_read_whole_for_whoever_asks(tmp_path: Path) -> None:
    path = write_session(home_of(tmp_path))
    async with daemon(tmp_path) as (parts, owner):
        catalog = parts.services.store.catalog
        session = catalog.by_key[KEY]
        from msgspec.structs import replace

        from sessiond.model.entry import FileFacts

        source = replace(session.entry.source, partial=True)
        for method, params in (
            ("sessions_history", {"sessionKey": KEY}),
            ("sessions.messages.subscribe", {"key": KEY}),
            ("sessions.preview", {"keys": [KEY]}),
        ):
            catalog.replace(session, replace(session.entry, source=source, message_count=0, file=FileFacts()))
            await owner.call(method, **params)
            assert (session.is_partial, session.entry.message_count) == (False, 2), method
    assert path.exists()
