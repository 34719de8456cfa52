from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.sampling import amount
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS

from sessiond.errors import InvalidParams
from sessiond.model.caller import Caller
from sessiond.sessions.byte_ranges import CHECKED, _parse

ADMIN = Caller(kind="token", scopes=frozenset({"list", "read", "send", "spawn", "admin"}), token_id="t")
NOTE = "x" * 900


def _file(daemon: InProcessDaemon, key: str = "agent:main:main") -> tuple[str, Path]:
    store = daemon.services.store
    session = store.catalog.by_key[key]
    return session.session_id, store.path / session.path


async def _copy(client: Connection, session_id: str, most: int, cursor: str | None = None) -> tuple[bytes, str]:
    """Everything from a cursor on, range by range, and the cursor behind it."""
    copied = b""
    while True:
        got = await client.call("sessions.bytes", sessionId=session_id, cursor=cursor, maxBytes=most)
        data, cursor = base64.b64decode(got["data"]), got["cursor"]
        assert len(data) == got["to"] - got["from"] <= most
        copied += data
        if got["to"] == got["size"]:
            return copied, got["cursor"]


@pytest.mark.parametrize("most", [amount(1, 9), 100, CHECKED - 1, CHECKED + 1, 262_144])
async def test_ranges_that_end_anywhere_make_up_the_file_and_what_is_appended_later(tmp_path: Path, most: int) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", NOTE)
        session_id, path = _file(daemon)
        copied, cursor = await _copy(client, session_id, most)
        assert copied == path.read_bytes()
        nothing = await client.call("sessions.bytes", sessionId=session_id, cursor=cursor)
        assert nothing.pop("cwd") == str(path.parent.parent / "workspace")
        end = len(copied)
        assert nothing == {
            "sessionId": session_id,
            "sessionKey": "agent:main:main",
            "from": end,
            "to": end,
            "size": end,
            "cursor": cursor,
            "data": "",
        }
        await client.say("main", NOTE)
        more, _ = await _copy(client, session_id, most, cursor)
        assert more
        assert copied + more == path.read_bytes()


async def test_a_line_that_another_program_has_not_finished_is_not_returned(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, path = _file(daemon)
        whole = path.read_bytes()
        with path.open("ab") as file:
            file.write(b'{"type":"custom"')
        assert (await _copy(client, session_id, 262_144))[0] == whole


async def _stale(client: Connection, session_id: str, cursor: str) -> bool:
    error = await client.failure("sessions.bytes", sessionId=session_id, cursor=cursor)
    return bool(error["code"] == -32602 and error["data"]["code"] == "cursor_stale")


def _rewrite_in_place(path: Path, text: bytes) -> None:
    with path.open("r+b") as file:
        file.write(text)
        file.truncate()


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(text)
    fresh.chmod(0o600)
    fresh.rename(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path, text: _rewrite_in_place(path, text[:-40]),
        lambda path, text: _rewrite_in_place(path, text.replace(b"hello", b"HELLO")),
        lambda path, text: _rewrite_in_place(path, b""),
        _replace,
        lambda path, text: _replace(path, text + text.splitlines(keepends=True)[-1]),
    ],
    ids=["truncated", "rewritten in place", "emptied", "replaced by a copy", "replaced by a longer one"],
)
async def test_a_cursor_is_stale_once_the_bytes_before_it_are_not_what_they_were(tmp_path: Path, change: Any) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, path = _file(daemon)
        _, cursor = await _copy(client, session_id, 262_144)
        change(path, path.read_bytes())
        # At once, whether the daemon has noticed the change or not.
        assert await _stale(client, session_id, cursor)


async def test_what_lies_behind_a_place_may_change_without_making_its_cursor_stale(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", NOTE)
        session_id, path = _file(daemon)
        first = await client.call("sessions.bytes", sessionId=session_id, maxBytes=50)
        with path.open("ab") as file:
            file.write(b"\n")
        again = await client.call("sessions.bytes", sessionId=session_id, cursor=first["cursor"], maxBytes=50)
        assert base64.b64decode(first["data"]) + base64.b64decode(again["data"]) == path.read_bytes()[:100]


async def test_with_a_valid_cursor_any_byte_may_come_first(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for _ in range(12):
            await client.say("main", NOTE)
        session_id, path = _file(daemon)
        whole = path.read_bytes()
        _, end = await _copy(client, session_id, 262_144)
        first = await client.call("sessions.bytes", sessionId=session_id, maxBytes=10)
        for cursor in (None, first["cursor"], end):
            for at in (0, 1, 10, CHECKED, CHECKED + 7, len(whole), len(whole) + 5):
                got = await client.call("sessions.bytes", sessionId=session_id, cursor=cursor, at=at, maxBytes=20)
                begin = min(at, len(whole))
                assert (got["from"], base64.b64decode(got["data"])) == (begin, whole[begin : begin + 20])
                rest, _ = await _copy(client, session_id, 262_144, got["cursor"])
                assert rest == whole[begin + 20 :]
        _rewrite_in_place(path, whole[:-40])
        error = await client.failure("sessions.bytes", sessionId=session_id, cursor=end, at=0)
        assert error["data"]["code"] == "cursor_stale"


async def test_label_and_folder_are_those_as_of_the_bytes(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, path = _file(daemon)
        assert "label" not in await client.call("sessions.bytes", sessionId=session_id)
        await client.call("sessions.patch", key="main", label="public")
        got = await client.call("sessions.bytes", sessionId=session_id)
        assert (got["label"], got["cwd"]) == ("public", str(path.parent.parent / "workspace"))


async def test_after_a_reset_the_archived_transcript_is_still_read_by_its_id(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, path = _file(daemon)
        before = path.read_bytes()
        first = await client.call("sessions.bytes", sessionId=session_id, maxBytes=10)
        await client.call("sessions.reset", key="main")
        rest, _ = await _copy(client, session_id, 262_144, first["cursor"])
        assert base64.b64decode(first["data"]) + rest == before
        fresh, _ = _file(daemon)
        assert fresh != session_id
        assert await _stale(client, fresh, first["cursor"])


async def test_the_cursor_of_another_session_or_a_forged_one_is_stale(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        await client.say("agent:main:two", "hello")
        (one, _), (two, _) = _file(daemon), _file(daemon, "agent:main:two")
        cursor = (await client.call("sessions.bytes", sessionId=one))["cursor"]
        assert await _stale(client, two, cursor)
        assert await _stale(client, one, cursor[:-1] + ("0" if cursor[-1] != "0" else "1"))
        assert await _stale(client, one, "bytes:999999999999999999-" + "0" * 24)


async def test_only_the_owner_reads_bytes_and_only_of_our_own_transcripts(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, _ = _file(daemon)
        async with daemon.connect(ADMIN) as admin:
            assert (await admin.failure("sessions.bytes", sessionId=session_id))["data"]["type"] == "forbidden"
        missing = await client.failure("sessions.bytes", sessionId="nothing-here")
        assert missing["data"]["code"] == "session_not_found"


async def test_a_file_replaced_a_moment_ago_is_not_mixed_with_what_is_known_of_it(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, path = _file(daemon)
        _replace(path, path.read_bytes() * 2)
        got = await client.answer(await client.send("sessions.bytes", sessionId=session_id))
        # Either the daemon has read the new file by now, or it says so.
        if "error" in got:
            assert got["error"]["data"]["type"] == "storage"
        else:
            assert base64.b64decode(got["result"]["data"]) == path.read_bytes()


def test_bytes_come_over_every_transport(call: Call, shared: Daemon, fresh: str) -> None:
    session_id = call("sessions.resolve", key=fresh)["sessionId"]
    got = call("sessions.bytes", sessionId=session_id)
    [path] = (shared.store / "agents" / "main" / "sessions").glob(f"{session_id}.jsonl")
    data = got["data"] if isinstance(got["data"], bytes) else base64.b64decode(got["data"])
    assert data == path.read_bytes()
    with pytest.raises(CallFailed, match="not a cursor of this method"):
        call("sessions.bytes", sessionId=session_id, cursor="12-3-0123456789abcdef0123")


@pytest.mark.parametrize("size", [1, 70_000, 1_048_576])
def test_over_cbor_bytes_are_bytes(shared: Daemon, size: int) -> None:
    key = f"agent:main:test:{uuid4()}"
    shared.call("sessions.create", key=key)
    for text in ("x" * 500_000, "ö" * 400_000):
        shared.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])
    session_id = shared.call("sessions.resolve", key=key)["sessionId"]
    [path] = (shared.store / "agents" / "main" / "sessions").glob(f"{session_id}.jsonl")
    with SUBSCRIBED_CONNECTIONS["cbor"](shared) as cbor, SUBSCRIBED_CONNECTIONS["ndjson"](shared) as ndjson:
        asked = {"sessionId": session_id, "at": 100, "maxBytes": size}
        got, as_text = (one.call("sessions.bytes", **asked) for one in (cbor, ndjson))
        assert got["data"] == path.read_bytes()[100 : 100 + size]
        assert {**got, "data": base64.b64encode(got["data"]).decode()} == as_text


def test_a_mebibyte_is_the_most_that_one_answer_has(shared: Daemon) -> None:
    key = f"agent:main:test:{uuid4()}"
    shared.call("sessions.create", key=key)
    for _ in range(2):
        shared.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": "x" * 600_000}])
    session_id = shared.call("sessions.resolve", key=key)["sessionId"]
    got = [shared.call("sessions.bytes", sessionId=session_id, maxBytes=most) for most in (2**20, 2**20 + 1)]
    assert [(one["to"], len(base64.b64decode(one["data"]))) for one in got] == [(2**20, 2**20)] * 2


async def test_the_search_index_rests_while_a_session_is_copied(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        session_id, _ = _file(daemon)
        told: list[bool] = []
        daemon.services.search_index.note_copying = lambda: told.append(True)  # type: ignore[method-assign]
        await _copy(client, session_id, 1000)
        assert told


@given(text=st.text())
def test_whatever_a_cursor_says_it_is_parsed_or_refused(text: str) -> None:
    for shown in (text, f"bytes:{text}", f"bytes:1-{text}"):
        try:
            offset, tag = _parse(shown)
        except InvalidParams:
            continue
        assert shown == f"bytes:{offset}-{tag}"
