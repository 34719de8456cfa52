"""`sessions_search` over sessions of other programs and our own: by program, folder and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.foreign_daemon import daemon, home_of
from support.foreign_sessions import key_of, pi_file, pi_line
from support.replicas import ID, header, line, replica_path, write_replica

from sessiond.clock import parse_iso_ms

KEY = key_of(1)


@pytest.mark.parametrize(
    ("params", "keys"),
    [
        ({}, {KEY, "agent:main:main"}),
        ({"sources": ["pi"]}, {KEY}),
        ({"sources": ["sessiond"]}, {"agent:main:main"}),
        ({"sources": ["claude"]}, set()),
        ({"cwd": "/home/me"}, {KEY}),
        ({"cwd": "/home/m"}, set()),
        ({"sessionKey": KEY, "sources": ["sessiond"]}, set()),
        ({"role": "assistant", "sources": ["pi"]}, set()),
    ],
)
async def test_only_chosen_sessions_are_searched(tmp_path: Path, params: dict[str, Any], keys: set[str]) -> None:
    pi_file(home_of(tmp_path), 1, "a needle in pi")
    async with daemon(tmp_path) as (_, owner):
        await owner.call("chat.inject", sessionKey=await _main(owner), messages=[{"role": "user", "content": "needle"}])
        found = (await owner.call("sessions_search", query="NEEDLE", **params))["matches"]
        assert {match["sessionKey"] for match in found} == keys


@pytest.mark.parametrize(
    ("params", "keys"),
    [
        ({"machine": "mars"}, {"mars/agent:ops:main"}),
        ({"machine": "venus"}, {"venus/agent:ops:main"}),
        ({"machine": "pluto"}, set()),
        ({"sources": ["machine"]}, {"mars/agent:ops:main", "venus/agent:ops:main"}),
        ({"machine": "mars", "sources": ["sessiond"]}, set()),
        ({"machine": "mars", "cwd": "/srv"}, {"mars/agent:ops:main"}),
        ({"machine": "mars", "cwd": "/home"}, set()),
    ],
)
async def test_only_sessions_of_the_machine_are_searched(
    tmp_path: Path, params: dict[str, Any], keys: set[str]
) -> None:
    for machine in ("mars", "venus"):
        path = replica_path(tmp_path / "store", ID.format(1), machine=machine)
        write_replica(path, header(ID.format(1)), line(f"a needle on {machine}"))
    async with daemon(tmp_path) as (_, owner):
        await owner.call("sessions.create", key="main")
        await owner.call("chat.inject", sessionKey="main", messages=[{"role": "user", "content": "needle"}])
        found = (await owner.call("sessions_search", query="needle", **params))["matches"]
        assert {match["sessionKey"] for match in found} == keys
        refused = await owner.failure("sessions_search", query="needle", machine="no machine")
        assert refused["data"]["field"] == "$.machine"


async def _main(owner: Any) -> str:
    await owner.say("main", "hello")
    return "main"


async def test_both_ends_of_a_time_count(tmp_path: Path) -> None:
    path = pi_file(home_of(tmp_path), 1)
    with path.open("ab") as file:
        file.write(b"".join(pi_line(f"needle {second}", at_s=second) for second in (1, 2, 3)))
    at = {second: parse_iso_ms(f"2026-01-02T03:00:0{second}.000Z") for second in (1, 2, 3)}
    async with daemon(tmp_path) as (_, owner):

        async def found(**params: Any) -> list[str]:
            answer = await owner.call("sessions_search", query="needle", **params)
            return [match["snippet"] for match in answer["matches"]]

        assert await found(until=at[2]) == ["needle 2", "needle 1"]
        assert await found(since=at[2]) == ["needle 3", "needle 2"]
        assert await found(since=at[2], until=at[2]) == ["needle 2"]
        assert await found(until=at[2], limit=1) == ["needle 2"]
        assert await found(until=0) == []


async def test_what_was_not_read_whole_yet_is_counted_and_found_where_it_is_named(tmp_path: Path) -> None:
    pi_file(home_of(tmp_path), 1, "needle")
    async with daemon(tmp_path) as (parts, owner):
        from msgspec.structs import replace

        from sessiond.model.entry import FileFacts

        catalog = parts.services.store.catalog
        session = catalog.by_key[KEY]
        source = replace(session.entry.source, partial=True)
        catalog.replace(session, replace(session.entry, source=source, message_count=0, file=FileFacts()))
        answer = await owner.call("sessions_search", query="needle")
        assert (answer["matches"], answer["partial"]) == ([], 1)
        assert "partial" not in await owner.call("sessions_search", query="needle", sources=["sessiond"])
        [match] = (await owner.call("sessions_search", query="needle", sessionKey=KEY))["matches"]
        assert match["sessionKey"] == KEY
        assert "partial" not in await owner.call("sessions_search", query="needle")


@pytest.mark.parametrize(("params", "field"), [({"sources": []}, "$.sources"), ({"cwd": "x"}, "$.cwd")])
async def test_bad_filters_are_refused(tmp_path: Path, params: dict[str, Any], field: str) -> None:
    async with daemon(tmp_path) as (_, owner):
        error = await owner.failure("sessions_search", query="x", **params)
        assert (error["code"], error["data"]["field"]) == (-32602, field)
