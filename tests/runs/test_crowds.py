"""So many runs of a session that wait, or that somebody wrote into its transcript, and no more: nothing is held up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.supervised_runs import MAIN, House, clock, house, pass_over, request

from sessiond.errors import Overloaded
from sessiond.model.entry import MAX_ACCEPTED_RUNS, MAX_OPEN_RUNS
from sessiond.rpc.errors import error_object
from sessiond.runs.steer import steer
from sessiond.runtimes.attached import AttachedAgents

FORGED = 3 * MAX_ACCEPTED_RUNS


async def fill(home: House, count: int) -> None:
    """So many runs in the session, the first of which goes on until the gate opens."""
    home.agent.act = home.agent.wait
    await home.session()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(home.accept, f"m{number}")


async def test_a_session_takes_so_many_runs_and_not_one_more_by_any_road(tmp_path: Path, autojump_clock: Any) -> None:
    async with house(tmp_path / "store") as home:
        await fill(home, MAX_ACCEPTED_RUNS - 1)
        last = await home.accept("the last")
        session = await home.session()
        size = (home.store.path / session.path).stat().st_size

        async def by_steering() -> None:
            await steer(
                home.store,
                home.supervisor,
                AttachedAgents(pass_over),
                clock(),
                session=session,
                request=request("steered"),
                on_queued=lambda: None,
            )

        async def with_a_key() -> None:
            await home.supervisor.accept_once(session, request("keyed", idempotency_key="k", payload="p"))

        async def as_a_step() -> None:
            await home.supervisor.accept(session, request("step", step="announce"), run_id=f"{session.session_id}.0")

        for road in (lambda: home.accept("one more"), by_steering, with_a_key, as_a_step):
            with pytest.raises(Overloaded) as refused:
                await road()
            wire = error_object(refused.value)
            assert (wire.code, wire.data["code"]) == (-32007, "too_many_runs")
            assert wire.message == (
                f"1000 runs of {MAIN} are going on or wait already; wait until some have ended, or abort them, and send"
                " again"
            )
        assert (home.store.path / session.path).stat().st_size == size
        assert not home.supervisor.has_room(session)
        # Another session does not feel it, and once one has ended there is room for one.
        other = await home.accept("elsewhere", "agent:main:other")
        assert await home.supervisor.stop(session, last.run_id) == [last.run_id]
        await home.accept("the last again")
        with pytest.raises(Overloaded):
            await home.accept("one more")
        home.agent.gate.set()
        assert await home.end(other) == ("ok", "re: elsewhere")


async def test_a_thousand_runs_are_aborted_in_many_small_writes(tmp_path: Path, autojump_clock: Any) -> None:
    async with house(tmp_path / "store") as home:
        await fill(home, MAX_ACCEPTED_RUNS)
        before = home.store.committer.syncs
        session = await home.session()
        assert len(await home.supervisor.stop(session)) == MAX_ACCEPTED_RUNS
        assert home.store.committer.syncs - before >= 30
        assert (session.entry.runs, session.entry.status) == ((), "aborted")


def forge(path: Path, session_id: str, count: int) -> None:
    """Write as many accepted runs into a transcript, as any program can."""
    line = '{"type":"custom","customType":"sessiond/run","data":{"runId":"%s.%016x","status":"accepted","at":1}}\n'
    with path.open("a") as file:
        file.writelines(line % (session_id, number) for number in range(count))


async def test_runs_that_somebody_wrote_are_kept_up_to_a_bound_and_ended_in_small_writes(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with house(tmp_path / "store") as home:
        session = await home.session()
        path = home.store.path / session.path
    forge(path, session.session_id, FORGED)
    async with house(tmp_path / "store") as home:
        session = await home.session()
        assert len(session.entry.runs) == MAX_OPEN_RUNS
        lost = home.supervisor.registry.of_session(MAIN)
        assert len(lost) == MAX_OPEN_RUNS
        for run in lost:
            assert (await home.end(run))[0] == "error"
        assert session.entry.runs == ()
        assert home.store.committer.syncs >= 60
        run = await home.accept("hello")
        assert await home.end(run) == ("ok", "re: hello")


async def test_what_is_accepted_beside_runs_that_somebody_wrote_is_never_beyond_the_bound(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with house(tmp_path / "store") as home:
        home.agent.act = home.agent.wait
        session = await home.session()
        await home.accept("before")
        forge(home.store.path / session.path, session.session_id, MAX_ACCEPTED_RUNS)
        run = await home.accept("beside")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS + 2
        with pytest.raises(Overloaded, match=r"another program wrote into the transcript .* restart sessiond"):
            await home.accept("one more")
        photo = home.photo(tmp_path / "photo")
    async with house(photo) as home:
        found = home.supervisor.registry.get(run.run_id)
        assert found is not None
        assert await home.end(found) == ("ok", "re: beside")


async def test_of_runs_that_somebody_wrote_one_below_the_bound_leaves_room_for_one(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with house(tmp_path / "store") as home:
        home.agent.act = home.agent.wait
        session = await home.session()
        forge(home.store.path / session.path, session.session_id, MAX_ACCEPTED_RUNS - 2)
        await home.accept("one")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS - 1
        assert home.supervisor.has_room(session)
        await home.accept("two")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS
        assert not home.supervisor.has_room(session)
        with pytest.raises(Overloaded, match="another program wrote"):
            await home.accept("three")
