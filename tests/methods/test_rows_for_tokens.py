"""What the rows of a list show to callers with a token: names masked, and no session that they may not see."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from support.in_process import in_process_daemon

from sessiond.methods.sessions_list import SessionsListAnswer, SessionsListResult
from sessiond.model.caller import Caller


async def test_names_are_masked_for_callers_with_a_token_and_a_masked_secret_is_not_found(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as owner:
        await owner.call("sessions.create", key="main")
        name = "its token=abcdef123456"
        await owner.call("sessions.patch", key="main", displayName=name)
        caller = Caller(kind="token", scopes=frozenset(["list", "read"]), session_key="agent:main:main")
        for scopes in (["list", "read"], ["list"]):
            async with daemon.connect(replace(caller, scopes=frozenset(scopes))) as client:
                for method in ("sessions_list", "sessions.list"):
                    [row] = (await client.call(method))["sessions"]
                    assert row["displayName"] == "its token=***"
                    assert (await client.call(method, search="cdef"))["sessions"] == []
                    assert len((await client.call(method, search="TOKEN="))["sessions"]) == 1
        [row] = (await owner.call("sessions_list", search="cdef"))["sessions"]
        assert row["displayName"] == name


async def test_a_hidden_parent_is_answered_as_none(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as owner:
        parent = (await owner.call("sessions.create", key="main"))["key"]
        child = (await owner.call("sessions.create", key="agent:main:child", parentSessionKey=parent))["key"]
        await owner.call("sessions.create", key="agent:main:grandchild", parentSessionKey=child)
        caller = Caller(kind="token", scopes=frozenset(["list", "read"]), session_key=child)
        async with daemon.connect(caller) as client:
            rows = (await client.call("sessions_list"))["sessions"]
            assert {row["key"]: row.get("spawnedBy") for row in rows} == {child: None, "agent:main:grandchild": child}
            for hidden in (parent, "agent:main:none", "..", "claude:x"):
                found = await client.call("sessions_list", spawnedBy=hidden)
                assert (found["count"], found["hasMore"], found.get("partial", 0)) == (0, False, 0), hidden
            assert (await client.call("sessions_list", spawnedBy=child))["count"] == 1
        assert (await owner.call("sessions_list", spawnedBy=parent))["sessions"][0]["spawnedBy"] == parent


def test_what_is_sent_has_the_members_that_are_documented() -> None:
    assert SessionsListAnswer.__struct_encode_fields__ == SessionsListResult.__struct_encode_fields__
    assert SessionsListAnswer.__struct_defaults__ == SessionsListResult.__struct_defaults__
