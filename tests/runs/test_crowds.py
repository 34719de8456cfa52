"""The limit of open runs in one session: for accepted runs and for run records that another program wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.sampling import amount, whole_only
from support.supervised_runs import MAIN, RunHarness, clock, ignore_call, request, run_harness

from sessiond.errors import Overloaded
from sessiond.model.entry import MAX_ACCEPTED_RUNS, MAX_OPEN_RUNS
from sessiond.rpc.errors import error_object
from sessiond.runs.steer import steer
from sessiond.runtimes.attached import AttachedAgents

FORGED = MAX_OPEN_RUNS + amount(MAX_ACCEPTED_RUNS, 100)


async def fill(harness: RunHarness, count: int) -> None:
    """Accept `count` runs in the session; the first goes on until the gate opens."""
    harness.agent.act = harness.agent.wait
    await harness.session()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(harness.accept, f"m{number}")


async def test_a_session_at_its_limit_of_runs_refuses_more_however_they_are_sent(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with run_harness(tmp_path / "store") as harness:
        await fill(harness, MAX_ACCEPTED_RUNS - 1)
        last = await harness.accept("the last")
        session = await harness.session()
        size = (harness.store.path / session.path).stat().st_size

        async def accept_by_steering() -> None:
            await steer(
                harness.store,
                harness.supervisor,
                AttachedAgents(ignore_call, lambda _: False),
                clock(),
                session=session,
                request=request("steered"),
                on_queued=lambda: None,
            )

        async def accept_with_idempotency_key() -> None:
            await harness.supervisor.accept_once(session, request("keyed", idempotency_key="k", payload="p"))

        async def accept_announce_step() -> None:
            await harness.supervisor.accept(session, request("step", step="announce"), run_id=f"{session.session_id}.0")

        for accept in (
            lambda: harness.accept("one more"),
            accept_by_steering,
            accept_with_idempotency_key,
            accept_announce_step,
        ):
            with pytest.raises(Overloaded) as refused:
                await accept()
            wire = error_object(refused.value)
            assert (wire.code, wire.data["code"]) == (-32007, "too_many_runs")
            assert wire.message == (
                f"1000 runs of {MAIN} are going on or wait already; wait until some have ended, or abort them, and send"
                " again"
            )
        assert (harness.store.path / session.path).stat().st_size == size
        assert not harness.supervisor.has_room(session)
        # Another session still accepts runs, and once one run has ended there is room for one more.
        other = await harness.accept("elsewhere", "agent:main:other")
        assert await harness.supervisor.stop(session, last.run_id) == [last.run_id]
        await harness.accept("the last again")
        with pytest.raises(Overloaded):
            await harness.accept("one more")
        harness.agent.gate.set()
        assert await harness.wait_for_end(other) == ("ok", "re: elsewhere")


async def test_aborting_a_thousand_runs_takes_many_small_writes(tmp_path: Path, autojump_clock: Any) -> None:
    async with run_harness(tmp_path / "store") as harness:
        await fill(harness, MAX_ACCEPTED_RUNS)
        before = harness.store.committer.syncs
        session = await harness.session()
        assert len(await harness.supervisor.stop(session)) == MAX_ACCEPTED_RUNS
        assert harness.store.committer.syncs - before >= 30
        assert (session.entry.runs, session.entry.status) == ((), "aborted")


def forge(path: Path, session_id: str, count: int) -> None:
    """Append records of `count` accepted runs to a transcript, as any program can."""
    line = '{"type":"custom","customType":"sessiond/run","data":{"runId":"%s.%016x","status":"accepted","at":1}}\n'
    with path.open("a") as file:
        file.writelines(line % (session_id, number) for number in range(count))


async def test_forged_runs_are_read_up_to_the_limit_and_ended_in_small_writes(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with run_harness(tmp_path / "store") as harness:
        session = await harness.session()
        path = harness.store.path / session.path
    forge(path, session.session_id, FORGED)
    async with run_harness(tmp_path / "store") as harness:
        session = await harness.session()
        assert len(session.entry.runs) == MAX_OPEN_RUNS
        lost = harness.supervisor.registry.of_session(MAIN)
        assert len(lost) == MAX_OPEN_RUNS
        for run in lost:
            assert (await harness.wait_for_end(run))[0] == "error"
        assert session.entry.runs == ()
        assert harness.store.committer.syncs >= 60
        run = await harness.accept("hello")
        assert await harness.wait_for_end(run) == ("ok", "re: hello")


@whole_only("test_forged_runs_are_read_up_to_the_limit_and_ended_in_small_writes")
async def test_a_run_accepted_next_to_forged_runs_survives_a_restart(tmp_path: Path, autojump_clock: Any) -> None:
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        session = await harness.session()
        await harness.accept("before")
        forge(harness.store.path / session.path, session.session_id, MAX_ACCEPTED_RUNS)
        run = await harness.accept("beside")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS + 2
        with pytest.raises(Overloaded, match=r"another program wrote into the transcript .* restart sessiond"):
            await harness.accept("one more")
        snapshot = harness.copy_store(tmp_path / "snapshot")
    async with run_harness(snapshot) as harness:
        found = harness.supervisor.registry.get(run.run_id)
        assert found is not None
        assert await harness.wait_for_end(found) == ("ok", "re: beside")


async def test_forged_runs_count_towards_the_limit_of_runs(tmp_path: Path, autojump_clock: Any) -> None:
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        session = await harness.session()
        forge(harness.store.path / session.path, session.session_id, MAX_ACCEPTED_RUNS - 2)
        await harness.accept("one")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS - 1
        assert harness.supervisor.has_room(session)
        await harness.accept("two")
        assert len(session.entry.runs) == MAX_ACCEPTED_RUNS
        assert not harness.supervisor.has_room(session)
        with pytest.raises(Overloaded, match="another program wrote"):
            await harness.accept("three")
