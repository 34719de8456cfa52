"""`machines.report`: rows of a machine say since when it is away, and one event says that it changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.foreign_daemon import CONFIG, READER, daemon
from support.in_process import Connection
from support.replicas import ID, header, line, replica_path, write_replica

from sessiond.errors import LimitExceeded
from sessiond.model.caller import Caller
from sessiond.store.machine_presence import MAX_MACHINES, MachinePresence

KEY, OTHER = "mars/agent:ops:main", "venus/agent:ops:main"


async def away(connection: Connection) -> dict[str, Any]:
    """Since when each foreign row is away."""
    rows = (await connection.call("sessions_list"))["sessions"]
    return {row["key"]: row.get("awaySince") for row in rows if row.get("machine")}


def two_machines(tmp_path: Path) -> None:
    for machine in ("mars", "venus"):
        write_replica(replica_path(tmp_path / "store", ID.format(1), machine=machine), header(ID.format(1)), line("hi"))


async def test_a_machine_is_away_unless_a_connection_says_that_it_is_reached(tmp_path: Path) -> None:
    two_machines(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        began = parts.services.store.opened_at_ms
        assert await away(owner) == {KEY: began, OTHER: began}
        async with parts.connect() as link:
            assert await link.call("machines.report", machine="mars", present=True) == {"machine": "mars"}
            assert await away(owner) == {KEY: None, OTHER: began}
            gone = await link.call("machines.report", machine="mars", present=False)
            assert gone["awaySince"] >= began
            assert await away(owner) == {KEY: gone["awaySince"], OTHER: began}
            again = await link.call("machines.report", machine="mars", present=False)
            assert again == gone, "it stays away since then"


async def test_when_the_connection_that_reported_closes_its_machines_are_away(tmp_path: Path) -> None:
    two_machines(tmp_path)
    async with daemon(tmp_path) as (parts, owner):
        await owner.call("sessions.subscribe")
        async with parts.connect() as link, parts.connect() as newer:
            for machine in ("mars", "venus"):
                await link.call("machines.report", machine=machine, present=True)
            await newer.call("machines.report", machine="venus", present=True)
            reached = [await owner.event("machine.changed") for _ in range(2)]
            assert reached == [{"machine": "mars"}, {"machine": "venus"}]
            await link.close()
            gone = await owner.event("machine.changed")
            assert gone.keys() == {"machine", "awaySince"}
            # Who reported last counts.
            assert await away(owner) == {KEY: gone["awaySince"], OTHER: None}


async def test_one_event_comes_and_not_one_of_each_session(tmp_path: Path) -> None:
    for number in range(30):
        path = replica_path(tmp_path / "store", ID.format(number))
        write_replica(path, header(ID.format(number), f"agent:ops:s{number}"), line("hello"))
    async with daemon(tmp_path) as (parts, owner), parts.connect() as link:
        await owner.call("sessions.subscribe")
        await link.call("machines.report", machine="mars", present=True)
        await link.call("machines.report", machine="mars", present=True)
        await owner.call("ping")
        assert [event["method"] for event in owner.events] == ["machine.changed"]


@pytest.mark.parametrize("config", [CONFIG, CONFIG.replace('"all"', '"agent"')])
async def test_who_does_not_see_its_sessions_hears_nothing_of_a_machine(tmp_path: Path, config: str) -> None:
    async with daemon(tmp_path, config) as (parts, owner), parts.connect(READER) as reader:
        await reader.call("sessions.subscribe")
        await owner.call("machines.report", machine="mars", present=True)
        await reader.call("ping")
        assert len(reader.events) == ("all" in config)


async def test_only_the_owner_reports_and_only_of_what_may_be_a_machine(tmp_path: Path) -> None:
    admin = Caller(kind="token", scopes=frozenset({"admin"}), token_id="t")
    async with daemon(tmp_path) as (parts, owner), parts.connect(admin) as other:
        refused = await other.failure("machines.report", machine="mars", present=True)
        assert refused["data"]["type"] == "forbidden"
        for wrong in ("", "Mars", "m" * 33, "mars/", "a b"):
            refused = await owner.failure("machines.report", machine=wrong, present=True)
            assert refused["data"]["field"] == "$.machine"
        assert await owner.call("machines.report", machine="m" * 32, present=True) == {"machine": "m" * 32}


def test_so_many_machines_are_remembered() -> None:
    presence = MachinePresence(lambda: 5, 1)
    for number in range(MAX_MACHINES):
        assert presence.report(f"m{number}", "link", present=True)
    with pytest.raises(LimitExceeded):
        presence.report("one-more", "link", present=True)
    assert not presence.report("m0", "link", present=True)
    assert presence.forget("another") == []
    assert len(presence.forget("link")) == MAX_MACHINES
    assert presence.forget("link") == []
