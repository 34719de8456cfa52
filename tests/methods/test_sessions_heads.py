from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon

from sessiond.methods.sessions_heads import MAX_HEADS
from sessiond.model.caller import Caller
from sessiond.ranges import HEAD_BYTES

ADMIN = Caller(kind="token", scopes=frozenset({"list", "read", "send", "spawn", "admin"}), token_id="t")


def _file(daemon: InProcessDaemon, key: str) -> tuple[str, Path]:
    store = daemon.services.store
    session = store.catalog.by_key[key]
    return session.session_id, store.path / session.path


async def _heads(client: Connection, *sessions: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    found = await client.call("sessions.heads", sessions=list(sessions), **more)
    heads: list[dict[str, Any]] = found["heads"]
    return heads


@pytest.mark.parametrize("most", [1, HEAD_BYTES.default, HEAD_BYTES.most])
async def test_each_head_is_what_sessions_bytes_says_of_it(tmp_path: Path, most: int) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        names = ["agent:main:main", "agent:main:two", "agent:main:three"]
        for name in names:
            await client.say(name, name * 200)
        await client.call("sessions.patch", key=names[1], label="public")
        ids = [_file(daemon, name)[0] for name in names]
        heads = await _heads(client, *({"sessionId": one} for one in ids), maxBytes=most)
        for one, head in zip(ids, heads, strict=True):
            got = await client.call("sessions.bytes", sessionId=one, maxBytes=most)
            same = {name: got[name] for name in ("sessionId", "size", "label", "cwd", "cursor", "data") if name in got}
            assert head == {**same, "status": "ok"}
        assert base64.b64decode(heads[0]["data"]) == _file(daemon, names[0])[1].read_bytes()[:most]


async def test_one_that_is_missing_stale_or_cannot_be_read_says_so_and_costs_no_other(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for name in ("one", "cut", "removed"):
            await client.say(f"agent:main:{name}", "hello")
        one, whole = _file(daemon, "agent:main:one")
        cut, path = _file(daemon, "agent:main:cut")
        removed, gone = _file(daemon, "agent:main:removed")
        cursors = [(await client.call("sessions.bytes", sessionId=of))["cursor"] for of in (one, cut)]
        path.write_bytes(path.read_bytes()[:-40])
        gone.unlink()
        heads = await _heads(
            client,
            {"sessionId": "nothing-here"},
            {"sessionId": cut, "cursor": cursors[1]},
            {"sessionId": one, "cursor": "12-3-0123456789abcdef0123"},
            {"sessionId": removed},
            {"sessionId": one, "cursor": cursors[0]},
        )
        statuses = ["missing", "stale", "stale", heads[3]["status"], "ok"]
        ids = ["nothing-here", cut, one, removed, one]
        wanted = [{"sessionId": name, "status": status} for name, status in zip(ids, statuses, strict=True)]
        # Whether the daemon has noticed the removal by now.
        assert heads[3]["status"] in ("busy", "missing")
        assert heads[:4] == wanted[:4]
        assert base64.b64decode(heads[4]["data"]) == whole.read_bytes()[: HEAD_BYTES.default]


async def test_so_many_are_answered_at_once_and_no_more(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        many = [{"sessionId": f"s{number}"} for number in range(MAX_HEADS + 1)]
        assert len(await _heads(client, *many[:MAX_HEADS])) == MAX_HEADS
        refused = await client.failure("sessions.heads", sessions=many)
        assert (refused["data"]["limit"], refused["data"]["value"]) == ("sessions", MAX_HEADS)


async def test_only_the_owner_has_heads(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        async with daemon.connect(ADMIN) as admin:
            refused = await admin.failure("sessions.heads", sessions=[{"sessionId": "x"}])
            assert refused["data"]["type"] == "forbidden"


def test_heads_come_over_every_transport(call: Call, shared: Daemon, fresh: str) -> None:
    session_id = call("sessions.resolve", key=fresh)["sessionId"]
    [head] = call("sessions.heads", sessions=[{"sessionId": session_id}])["heads"]
    [path] = (shared.store / "agents" / "main" / "sessions").glob(f"{session_id}.jsonl")
    assert base64.b64decode(head["data"]) == path.read_bytes()[: HEAD_BYTES.default]
    with pytest.raises(CallFailed):
        call("sessions.heads", sessions=[])


@given(cursor=st.text() | st.text().map(lambda text: f"bytes:{text}"))
def test_whatever_a_cursor_says_it_holds_or_is_stale(shared: Daemon, cursor: str) -> None:
    [row, *_] = shared.call("sessions_list", limit=1)["sessions"] or [{"sessionId": shared.reply("main", "x") or ""}]
    wanted = [{"sessionId": row["sessionId"], "cursor": cursor}]
    [head] = shared.call("sessions.heads", sessions=wanted)["heads"]
    assert head["status"] == "stale"
