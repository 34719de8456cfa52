"""Sessions of other programs are read, never changed: every method that would change one says so, and says what to do.

Whoever may not see them gets the answer for a missing session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.foreign_daemon import CONFIG, READER, daemon, home_of
from support.foreign_sessions import UUID, key_of, pi_file
from support.in_process import in_process_daemon

from sessiond.model.caller import Caller
from sessiond.model.record import ENTRY
from sessiond.store.store import Custom

KEY = key_of(1)
TREE = CONFIG.replace('"all"', '"tree"')
MESSAGES = [{"role": "user", "content": "x"}]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("chat.send", {"sessionKey": KEY, "message": "/stop"}),
    ("chat.send", {"sessionKey": KEY, "message": "/reset"}),
    ("chat.send", {"sessionKey": KEY, "message": "/send off"}),
    ("chat.inject", {"sessionKey": KEY, "messages": MESSAGES}),
    ("chat.abort", {"sessionKey": KEY}),
    ("sessions.kill", {"key": KEY}),
    ("sessions.patch", {"key": KEY, "label": "x"}),
    ("sessions.reset", {"key": KEY}),
    ("sessions.delete", {"key": KEY}),
    ("sessions.create", {"key": KEY}),
    ("sessions.create", {"key": "agent:main:x", "parentSessionKey": KEY}),
]
# These continue it in a session of ours.
SENDS: list[tuple[str, dict[str, Any]]] = [
    ("chat.send", {"sessionKey": KEY, "message": "go on"}),
    ("sessions_send", {"sessionKey": KEY, "message": "go on"}),
    ("sessions.steer", {"key": KEY, "message": "go on"}),
]


async def test_what_would_change_one_is_refused_and_names_what_goes_on_with_it(tmp_path: Path) -> None:
    path = pi_file(home_of(tmp_path), 1, "one")
    before = path.read_bytes(), path.stat().st_mtime_ns
    async with daemon(tmp_path) as (_, owner):
        for method, params in CHANGES:
            for spelling in (KEY, KEY.upper(), UUID.format(1)):
                named = {name: spelling if value == KEY else value for name, value in params.items()}
                error = await owner.failure(method, **named)
                assert (error["code"], error["data"]["type"], error["data"]["code"]) == (
                    -32003,
                    "forbidden",
                    "read_only",
                ), (method, named)
                assert "`sessions_send`" in error["message"]
                assert error["data"]["sessionKey"] == KEY
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


async def test_whoever_may_not_see_it_gets_the_answer_for_a_missing_one(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, "one")
    admin = Caller(
        kind="token",
        scopes=frozenset({"list", "read", "send", "admin"}),
        session_key="agent:main:main",
        token_id="t",
        sandboxed=True,
    )
    async with daemon(tmp_path) as (parts, _), parts.connect(admin) as sandboxed:
        for method, params in (*CHANGES, *SENDS):
            error = await sandboxed.failure(method, **params)
            missing = {name: key_of(2) if value == KEY else value for name, value in params.items()}
            other = await sandboxed.failure(method, **missing)
            assert error["code"] == other["code"], method
            assert error["message"].replace(KEY, key_of(2)) == other["message"], method


async def test_a_caller_that_sees_all_is_told_that_it_is_read_only(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, "one")
    async with daemon(tmp_path) as (parts, _), parts.connect(READER) as reader:
        error = await reader.failure("chat.abort", sessionKey=KEY)
        assert error["data"]["code"] == "read_only"
        assert (await reader.call("sessions_history", sessionKey=KEY))["sessionKey"] == KEY


@pytest.mark.parametrize("scopes", [["read"], ["admin"]])
async def test_no_token_acts_as_a_session_of_another_program(tmp_path: Path, scopes: list[str]) -> None:
    pi_file(home_of(tmp_path), 1, "one")
    async with daemon(tmp_path) as (_, owner):
        for named in (KEY, key_of(2), UUID.format(1)):
            error = await owner.failure("tokens.mint", scopes=scopes, sessionKey=named)
            assert (error["code"], error["data"]["field"]) == (-32602, "$.sessionKey"), named


async def test_the_key_of_what_is_shown_as_our_session_names_it_to_nobody_who_may_not_see_it(tmp_path: Path) -> None:
    minter = Caller(
        kind="token", scopes=frozenset({"list", "read", "admin"}), session_key="agent:main:other", token_id="m"
    )
    async with in_process_daemon(tmp_path, TREE) as parts, parts.connect() as owner, parts.connect(minter) as other:
        await owner.call("sessions.create", key="agent:main:hidden")
        hidden = parts.services.store.catalog.by_key["agent:main:hidden"]
        await parts.services.store.append(hidden, [Custom(ENTRY, {"nativeSessionId": "abc"})])
        assert (await owner.call("sessions.resolve", key="claude:ABC".lower()))["key"] == "agent:main:hidden"
        for method in ("sessions_history", "sessions_send"):
            more = {"message": "x"} if method == "sessions_send" else {}
            refused = await other.failure(method, sessionKey="claude:abc", **more)
            missing = await other.failure(method, sessionKey="claude:xyz", **more)
            assert refused["message"].replace("abc", "xyz") == missing["message"]
            assert refused["data"] == missing["data"]
        refused = await other.failure("tokens.mint", scopes=["read"], sessionKey="claude:abc")
        missing = await other.failure("tokens.mint", scopes=["read"], sessionKey="claude:xyz")
        assert refused["message"].replace("abc", "xyz") == missing["message"]
        assert (await owner.call("tokens.mint", scopes=["read"], sessionKey="claude:abc"))["token"]
