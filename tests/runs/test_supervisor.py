"""RunSupervisor: accepted, in order, so many at once, ended exactly once."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S
from support.supervised_runs import MAIN, Agent, FakeHost, RunHarness, ScriptedFollowUp, inline, request, run_harness

from sessiond.errors import Conflict, LimitExceeded, SessiondError, StorageError
from sessiond.model.record import RUN
from sessiond.runs.run import Run, view
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSink, RunSpec
from sessiond.store.catalog import Session

FINAL = {"ok", "error", "timeout", "aborted"}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RunHarness]:
    async with run_harness(tmp_path / "store") as made:
        yield made


async def test_message_start_and_end_are_two_writes(harness: RunHarness, autojump_clock: Any):
    session = await harness.session()
    before = harness.store.committer.syncs
    run = await harness.accept("hello")
    assert harness.store.committer.syncs == before + 1
    assert await harness.wait_for_end(run) == ("ok", "re: hello")
    assert harness.store.committer.syncs == before + 2
    assert [record["type"] for record in harness.records()] == [
        "session",
        "custom",
        "message",
        "custom",
        "message",
        "custom",
    ]
    assert harness.run_statuses() == [(run.run_id, status) for status in ("accepted", "running", "ok")]
    assert harness.messages() == ["user: hello", "assistant: re: hello"]
    assert (session.entry.status, session.entry.runs) == ("ok", ())
    assert harness.host.retired == [run.run_id]


async def test_a_session_lives_one_run_at_a_time_in_the_order_of_acceptance(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    runs = [await harness.accept(f"m{number}") for number in range(5)]
    await harness.agent.wait_for_turn("m0").wait()
    assert (harness.supervisor.live_runs(), harness.supervisor.queued_runs()) == (1, 4)
    # The others' messages are not in the conversation yet.
    assert harness.messages() == ["user: m0"]
    harness.agent.gate.set()
    assert [await harness.wait_for_end(run) for run in runs] == [("ok", f"re: m{number}") for number in range(5)]
    assert harness.messages() == [
        line for number in range(5) for line in (f"user: m{number}", f"assistant: re: m{number}")
    ]
    assert (harness.supervisor.live_runs(), harness.supervisor.queued_runs()) == (0, 0)


async def test_only_so_many_runs_go_on_at_once_and_sub_agents_have_places_of_their_own(
    harness: RunHarness, autojump_clock: Any
):
    harness.host.most = (2, 1)
    harness.agent.act = harness.agent.wait
    keys = [f"agent:main:chat:{number}" for number in range(3)]
    children = [f"agent:main:subagent:{number}" for number in range(2)]
    runs = [await harness.accept(key, key) for key in (*keys, *children)]
    for key in (*keys[:2], children[0]):
        await harness.agent.wait_for_turn(key).wait()
    assert [run.status for run in runs] == ["running", "running", "queued", "running", "queued"]
    assert harness.supervisor.live_by_agent() == {"main": 3}
    harness.agent.gate.set()
    assert {(await harness.wait_for_end(run))[0] for run in runs} == {"ok"}


async def test_a_session_with_much_to_do_does_not_starve_the_others(harness: RunHarness, autojump_clock: Any):
    harness.host.most = (1, 1)
    harness.agent.act = harness.agent.wait
    busy = [await harness.accept(f"b{number}", "agent:main:busy") for number in range(3)]
    other = await harness.accept("other", "agent:main:other")
    harness.agent.gate.set()
    for run in (*busy, other):
        await run.done.wait()
    assert [turn.message for turn in harness.agent.turns] == ["b0", "b1", "other", "b2"]


async def test_a_run_that_waits_for_another_leaves_its_place(harness: RunHarness, autojump_clock: Any):
    harness.host.most = (1, 1)
    harness.agent.act = harness.agent.wait
    first = await harness.accept("first", "agent:main:a")
    second = await harness.accept("second", "agent:main:b")
    await harness.agent.wait_for_turn("first").wait()
    harness.supervisor.park(first, second.run_id)
    await harness.agent.wait_for_turn("second").wait()
    harness.supervisor.unpark(first, second.run_id)
    third = await harness.accept("third", "agent:main:c")
    await trio.testing.wait_all_tasks_blocked()
    # Two go on for a moment: the one that came back is not held up, and no third one comes in.
    assert [run.status for run in (first, second, third)] == ["running", "running", "queued"]
    harness.agent.gate.set()
    assert [(await harness.wait_for_end(run))[0] for run in (first, second, third)] == ["ok"] * 3


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_place_is_given_back_once_whenever_the_wait_ends(
    harness: RunHarness, autojump_clock: Any, ends_first: bool
):
    harness.host.most = (1, 1)
    harness.agent.act = harness.agent.wait
    session = await harness.session()
    run = await harness.accept("waits")
    await harness.agent.wait_for_turn("waits").wait()
    harness.supervisor.park(run, "x.1")
    if ends_first:
        await harness.supervisor.stop(session)
        harness.supervisor.unpark(run, "x.1")
    else:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.supervisor.stop, session)
            nursery.start_soon(_unpark, harness, run)
    after = [await harness.accept(f"m{number}", f"agent:main:{number}") for number in range(2)]
    await trio.testing.wait_all_tasks_blocked()
    assert [one.status for one in after] == ["running", "queued"]


async def _unpark(harness: RunHarness, run: Any) -> None:
    harness.supervisor.unpark(run, "x.1")


async def test_a_run_that_is_to_be_first_goes_before_those_that_wait_and_behind_its_likes(
    harness: RunHarness, autojump_clock: Any
):
    harness.agent.act = harness.agent.wait
    texts = [("live", False), ("q1", False), ("s1", True), ("q2", False), ("s2", True)]
    runs = [await harness.accept(text, first=first) for text, first in texts]
    harness.agent.gate.set()
    for run in runs:
        await run.done.wait()
    assert [turn.message for turn in harness.agent.turns] == ["live", "s1", "s2", "q1", "q2"]


async def test_the_limit_of_a_run_ends_it_as_timeout(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    run = await harness.accept("slow", timeout_s=2.5)
    assert await harness.wait_for_end(run) == ("timeout", "the run met its limit of 2.5 s")
    entry = run.session.entry
    assert (entry.status, entry.runtime_ms) == ("timeout", 2500)


async def test_stop_aborts_the_live_run_and_the_queued_ones_and_frees_the_place(
    harness: RunHarness, autojump_clock: Any
):
    harness.host.most = (1, 1)
    harness.agent.act = harness.agent.wait
    runs = [await harness.accept(f"m{number}") for number in range(3)]
    other = await harness.accept("other", "agent:main:other")
    await harness.agent.wait_for_turn("m0").wait()
    assert await harness.supervisor.stop(runs[0].session) == [run.run_id for run in runs]
    assert [await harness.wait_for_end(run) for run in runs] == [("aborted", "aborted")] * 3
    assert runs[0].session.entry.aborted_last_run is True
    await harness.agent.wait_for_turn("other").wait()
    assert other.status == "running"


async def test_stop_of_one_run_leaves_the_others(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    live, queued, last = [await harness.accept(f"m{number}") for number in range(3)]
    assert await harness.supervisor.stop(live.session, queued.run_id) == [queued.run_id]
    harness.agent.gate.set()
    assert [(await harness.wait_for_end(run))[0] for run in (live, queued, last)] == ["ok", "aborted", "ok"]


async def test_stop_of_nothing_stops_nothing(harness: RunHarness, autojump_clock: Any):
    run = await harness.accept("done")
    await run.done.wait()
    assert await harness.supervisor.stop(run.session) == []
    assert await harness.supervisor.stop(run.session, "nobody.knows") == []


async def test_what_goes_wrong_inside_a_run_is_its_result(harness: RunHarness, autojump_clock: Any):
    async def broken(spec: RunSpec, sink: RunSink) -> RunOutcome:
        raise RuntimeError("a secret path")

    harness.agent.act = broken
    run = await harness.accept("hello")
    assert await harness.wait_for_end(run) == ("error", "internal error in sessiond; its log says more")
    harness.agent.act = harness.agent.answer
    assert (await harness.wait_for_end(await harness.accept("again")))[0] == "ok"


async def test_the_newest_message_that_says_something_is_the_reply(harness: RunHarness, autojump_clock: Any):
    async def talks(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "thinking aloud"})
        await sink.message({"role": "assistant", "content": "the answer"})
        await sink.message({"role": "assistant", "content": ""})
        return RunOutcome(usage={"input": 3, "output": 4, "totalTokens": 7}, model="m1")

    harness.agent.act = talks
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "the answer")
    assert harness.messages() == ["user: ask", "assistant: thinking aloud", "assistant: the answer", "assistant: "]
    entry = run.session.entry
    assert (entry.input_tokens, entry.output_tokens, entry.total_tokens, entry.model) == (3, 4, 7, "m1")
    harness.supervisor.registry._ended.clear()
    found = await harness.supervisor.registry.find(run.run_id)
    assert found is not None and (found.status, found.reply) == ("ok", "the answer")


async def test_what_the_agent_did_not_say_itself_is_not_its_reply(harness: RunHarness, autojump_clock: Any):
    async def talks(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "the answer"})
        await sink.message({"role": "user", "content": "what a program asked it in between", "usage": {"input": 9}})
        return RunOutcome(usage={"input": 3, "output": 4, "totalTokens": 7})

    harness.agent.act = talks
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "the answer")
    assert run.session.entry.input_tokens == 3


async def test_what_a_runtime_notes_stands_in_the_record_of_the_end(harness: RunHarness, autojump_clock: Any):
    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        return RunOutcome(reply="done", notes=("its output was cut",) if spec.message == "noted" else ())

    harness.agent.act = act
    for text in ("noted", "plain"):
        await (await harness.accept(text)).done.wait()
    ends = [one["data"] for one in harness.records() if one.get("customType") == RUN and one["data"]["status"] == "ok"]
    assert [end.get("notes") for end in ends] == [["its output was cut"], None]


async def test_the_same_id_is_the_same_run_while_it_goes_on_and_afterwards(harness: RunHarness, autojump_clock: Any):
    session = await harness.session()
    run_id = f"{session.session_id}.0123456789abcdef"
    runs = [await harness.supervisor.accept(session, request("step"), run_id=run_id) for _ in range(2)]
    assert runs[1] is runs[0]
    assert await harness.wait_for_end(runs[0]) == ("ok", "re: step")
    assert await harness.supervisor.accept(session, request("step"), run_id=run_id) is runs[0]
    assert harness.run_statuses() == [(run_id, "accepted"), (run_id, "running"), (run_id, "ok")]


async def test_a_reply_that_is_no_message_yet_becomes_one(harness: RunHarness, autojump_clock: Any):
    async def talks(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "on my way", "usage": {"input": 1, "output": 1}})
        return RunOutcome(reply="there", usage={"input": 5, "output": 5})

    harness.agent.act = talks
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "there")
    assert harness.messages() == ["user: ask", "assistant: on my way", "assistant: there"]
    # The message told its usage; the run's sum of it is not counted again.
    assert run.session.entry.input_tokens == 1


async def test_a_price_is_written_with_the_end(harness: RunHarness, autojump_clock: Any):
    harness.host.cost = 0.25
    await (await harness.accept("a")).done.wait()
    run = await harness.accept("b")
    await run.done.wait()
    assert run.session.entry.estimated_cost_usd == 0.5


async def test_more_records_go_into_the_write_of_the_end_and_what_follows_comes_after_it(
    harness: RunHarness, autojump_clock: Any
):
    order: list[str] = []

    def at_end(run: Any) -> list[Any]:
        order.append(f"at_end {run.status} {run.reply}")
        return []

    async def after_end(run: Any) -> None:
        await trio.lowlevel.checkpoint()
        order.append(f"after_end {run.done.is_set()}")

    harness.follow_ups.append(ScriptedFollowUp(at_end, after_end))
    await (await harness.accept("hello")).done.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["at_end ok re: hello", "after_end True"]


class TestIdempotency:
    async def test_the_same_key_and_payload_give_the_same_run(self, harness: RunHarness, autojump_clock: Any):
        session = await harness.session()
        asked = request("hello", idempotency_key="k", payload="p")
        ids: list[str] = []

        async def ask() -> None:
            ids.append(await harness.supervisor.accept_once(session, asked))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        run = harness.supervisor.registry.get(ids[0])
        assert run is not None
        await run.done.wait()
        await ask()
        assert len(ids) == 6 and len(set(ids)) == 1
        assert harness.messages() == ["user: hello", "assistant: re: hello"]

    async def test_another_payload_is_a_conflict_that_names_the_run(self, harness: RunHarness, autojump_clock: Any):
        session = await harness.session()
        run_id = await harness.supervisor.accept_once(session, request("one", idempotency_key="k", payload="p"))
        with pytest.raises(Conflict) as caught:
            await harness.supervisor.accept_once(session, request("two", idempotency_key="k", payload="q"))
        assert caught.value.data == {"runId": run_id}

    async def test_without_a_key_every_request_is_a_run(self, harness: RunHarness, autojump_clock: Any):
        session = await harness.session()
        assert await harness.supervisor.accept_once(session, request("x")) != await harness.supervisor.accept_once(
            session, request("x")
        )


class TestAbsence:
    async def test_a_run_of_an_agent_that_does_not_come_ends_after_its_time(
        self, harness: RunHarness, autojump_clock: Any
    ):
        harness.host.ttl_s = 30
        began = trio.current_time()
        run = await harness.accept("hello", "agent:alice:main")
        assert await harness.wait_for_end(run) == (
            "error",
            "agent alice was not attached within 30 s; start it and send again",
        )
        assert trio.current_time() - began == pytest.approx(30)
        # It never began, and its message is no part of the conversation.
        assert harness.messages("agent:alice:main") == []

    async def test_an_agent_that_comes_in_time_lives_its_runs_in_order(self, harness: RunHarness, autojump_clock: Any):
        runs = [await harness.accept(f"m{number}", "agent:alice:main") for number in range(3)]
        await trio.sleep(299)
        harness.host.agents["alice"] = Agent()
        harness.supervisor.agents_changed()
        assert [await harness.wait_for_end(run) for run in runs] == [("ok", f"re: m{number}") for number in range(3)]
        assert trio.current_time() == pytest.approx(299)

    async def test_the_time_counts_from_when_the_agent_left(self, harness: RunHarness, autojump_clock: Any):
        alice = harness.host.agents["alice"] = Agent()
        alice.act = alice.wait
        live = await harness.accept("live", "agent:alice:main")
        queued = await harness.accept("queued", "agent:alice:main")
        await trio.sleep(500)
        del harness.host.agents["alice"]
        harness.supervisor.agents_changed()
        left = trio.current_time()
        alice.gate.set()
        assert (await harness.wait_for_end(live))[0] == "ok"
        assert (await harness.wait_for_end(queued))[0] == "error"
        assert trio.current_time() - left == pytest.approx(300)

    async def test_an_agent_that_came_and_left_again_has_the_whole_time_again(
        self, harness: RunHarness, autojump_clock: Any
    ):
        harness.host.ttl_s = 10
        harness.host.most = (0, 0)
        run = await harness.accept("hello", "agent:alice:main")
        for _ in range(3):
            await trio.sleep(8)
            harness.host.agents["alice"] = Agent()
            harness.supervisor.agents_changed()
            del harness.host.agents["alice"]
            harness.supervisor.agents_changed()
        await run.done.wait()
        assert trio.current_time() == pytest.approx(34)

    async def test_other_agents_are_not_held_up(self, harness: RunHarness, autojump_clock: Any):
        await harness.accept("hello", "agent:alice:main")
        assert (await harness.wait_for_end(await harness.accept("hello")))[0] == "ok"


class Disk:
    """Runs file work inline and refuses what `refuse` says."""

    def __init__(self) -> None:
        self.refuse: Callable[[Any], bool] = lambda args: False

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_commit" and self.refuse(args):
            for job in args[0]:
                for waiting in job.waiters:
                    waiting.error = OSError(errno.ENOSPC, "No space left on device")
            return None
        return await inline(function, *args)


class TestDisk:
    @pytest.fixture
    def disk(self) -> Disk:
        return Disk()

    @pytest.fixture
    async def harness(
        self, tmp_path: Path, autojump_clock: trio.testing.MockClock, disk: Disk
    ) -> AsyncIterator[RunHarness]:
        async with run_harness(tmp_path / "store", run_sync=disk.run_sync) as made:
            yield made

    async def test_what_could_not_be_stored_was_never_accepted(
        self, harness: RunHarness, autojump_clock: Any, disk: Disk
    ):
        session = await harness.session()
        disk.refuse = lambda args: True
        with pytest.raises(StorageError):
            await harness.accept("lost")
        disk.refuse = lambda args: False
        assert harness.supervisor.registry.live == {}
        assert (await harness.wait_for_end(await harness.accept("kept")))[0] == "ok"
        assert [turn.message for turn in harness.agent.turns] == ["kept"]
        assert harness.messages() == ["user: kept", "assistant: re: kept"]
        assert session.entry.status == "ok"

    async def test_a_queued_one_that_could_not_be_stored_leaves_the_queue(
        self, harness: RunHarness, autojump_clock: Any, disk: Disk
    ):
        harness.agent.act = harness.agent.wait
        live = await harness.accept("live")
        await harness.agent.wait_for_turn("live").wait()
        disk.refuse = lambda args: True
        with pytest.raises(StorageError):
            await harness.accept("lost")
        disk.refuse = lambda args: False
        last = await harness.accept("last")
        harness.agent.gate.set()
        assert [(await harness.wait_for_end(run))[0] for run in (live, last)] == ["ok", "ok"]
        assert [turn.message for turn in harness.agent.turns] == ["live", "last"]

    async def test_a_full_disk_delays_the_end_and_loses_nothing(
        self, harness: RunHarness, autojump_clock: Any, disk: Disk
    ):
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        following = await harness.accept("next")
        await harness.agent.wait_for_turn("hello").wait()
        disk.refuse = lambda args: trio.current_time() < 20
        harness.agent.gate.set()
        assert await harness.wait_for_end(run) == ("ok", "re: hello")
        assert trio.current_time() >= 20
        assert await harness.wait_for_end(following) == ("ok", "re: next")
        assert [status for run_id, status in harness.run_statuses() if run_id == run.run_id] == [
            "accepted",
            "running",
            "ok",
        ]

    async def test_two_callers_with_one_key_both_hear_that_it_failed(
        self, harness: RunHarness, autojump_clock: Any, disk: Disk
    ):
        session = await harness.session()
        disk.refuse = lambda args: True
        errors: list[SessiondError] = []

        async def ask() -> None:
            try:
                await harness.supervisor.accept_once(session, request("x", idempotency_key="k", payload="p"))
            except StorageError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert len(errors) == 2

    async def test_a_reply_that_is_too_long_ends_the_run_as_an_error(self, harness: RunHarness, autojump_clock: Any):
        async def verbose(spec: RunSpec, sink: RunSink) -> RunOutcome:
            return RunOutcome(reply="x" * 2_000_000)

        harness.agent.act = verbose
        status, error = await harness.wait_for_end(await harness.accept("hello"))
        assert status == "error"
        assert error is not None and error.startswith("the reply cannot be stored: the record is 2000")

    async def test_a_message_that_is_too_long_is_not_accepted(self, harness: RunHarness, autojump_clock: Any):
        with pytest.raises(LimitExceeded):
            await harness.accept("x" * 2_000_000)
        assert harness.supervisor.registry.live == {}


async def test_a_caller_who_goes_away_while_it_is_stored_leaves_a_run_that_starts(tmp_path: Path):
    """Nothing that was written is without somebody who starts it."""
    slow = trio.Event()
    asked = trio.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_commit":
            asked.set()
            await slow.wait()
        return await inline(function, *args)

    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=run_sync) as harness:
            session = await harness.session()
            with trio.CancelScope() as scope:

                async def leave() -> None:
                    await asked.wait()
                    scope.cancel()
                    slow.set()

                harness.nursery.start_soon(leave)
                await harness.supervisor.accept(session, request("hello"))
            assert scope.cancel_called
            await harness.agent.wait_for_turn("hello").wait()
            [run] = harness.supervisor.registry._ended.values() or harness.supervisor.registry.live.values()
            assert (await harness.wait_for_end(run))[0] == "ok"


async def test_the_way_down_ends_live_runs_as_interrupted_and_keeps_the_queued_ones(tmp_path: Path):
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store") as harness:
            harness.agent.act = harness.agent.wait
            live, queued = await harness.accept("live"), await harness.accept("queued")
            await harness.agent.wait_for_turn("live").wait()
        async with run_harness(tmp_path / "store") as harness:
            found = await harness.supervisor.registry.find(live.run_id)
            assert found is not None and (found.status, found.error) == ("error", "interrupted")
            again = harness.supervisor.registry.get(queued.run_id)
            assert again is not None
            assert await harness.wait_for_end(again) == ("ok", "re: queued")
            assert harness.messages() == ["user: live", "user: queued", "assistant: re: queued"]


async def test_a_storm_of_everything_gives_every_run_exactly_one_end(tmp_path: Path, autojump_clock: Any):
    """Accepting, aborting, agents that come and go, waits for each other: each accepted run ends, and once."""
    host = FakeHost(tmp_path)
    async with run_harness(tmp_path / "store", host=host) as harness:
        runs = []
        keys = [f"agent:{agent}:s{number}" for agent in ("main", "alice") for number in range(4)]

        async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
            number = int(spec.message)
            await trio.sleep(number % 7)
            if number % 11 == 0:
                raise RuntimeError
            return RunOutcome(reply=spec.message, error="bad" if number % 5 == 0 else None)

        harness.agent.act = act
        alice = Agent()
        alice.act = act

        async def come_and_go() -> None:
            for turn in range(40):
                host.agents.pop("alice", None) if turn % 2 else host.agents.update(alice=alice)
                harness.supervisor.agents_changed()
                await trio.sleep(13)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_and_go)
            for number in range(300):
                run = await harness.accept(
                    str(number),
                    keys[number * 7 % len(keys)],
                    timeout_s=5 if number % 3 else None,
                    first=number % 13 == 0,
                )
                runs.append(run)
                if number % 17 == 0:
                    nursery.start_soon(harness.supervisor.stop, run.session)
                if number % 10 == 0:
                    await trio.sleep(1)
        for run in runs:
            await run.done.wait()
        ends: Counter[str] = Counter()
        for key in keys:
            ends.update(run_id for run_id, status in harness.run_statuses(key) if status in FINAL)
            assert harness.store.catalog.by_key[key].entry.runs == ()
        assert ends == {run.run_id: 1 for run in runs}
        assert (harness.supervisor.live_runs(), harness.supervisor.queued_runs()) == (0, 0)
        assert harness.supervisor.queues._slots._taken == {False: 0, True: 0}
        assert {run.status for run in runs} == FINAL


async def test_a_session_made_with_its_first_run_is_one_write(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        key = "agent:main:subagent:1"
        run = await harness.supervisor.create(key, request("task"), cwd="/w", spawned_by=MAIN)
        assert await harness.wait_for_end(run) == ("ok", "re: task")
        assert harness.messages(key) == ["user: task", "assistant: re: task"]
        assert harness.store.catalog.by_key[key].entry.spawned_by == MAIN


async def test_what_an_idle_session_accepts_a_busy_one_accepts(tmp_path: Path, autojump_clock: Any):
    """The longest message is the same, and nearly what a record holds."""
    async with run_harness(tmp_path / "store", record_limit=8192) as harness:

        async def is_taken(key: str, length: int) -> bool:
            try:
                run = await harness.accept("ä" * length, key, idempotency_key=f"k{length:04}", payload="p")
            except LimitExceeded:
                return False
            if key == MAIN:
                await run.done.wait()
                # The echo of the longest is longer than a record; that is the reply's own end.
                assert run.reply in (None, "re: " + "ä" * length)
            return True

        async def longest(key: str) -> int:
            low, high = 1, 8192
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if await is_taken(key, middle) else (low, middle)
            return low

        idle = await longest(MAIN)
        # Nobody is attached for her: her runs wait.
        assert await longest("agent:alice:main") == idle
    assert 8192 - 800 < 2 * idle < 8192


class _Commits:
    """File work of which the n-th commit waits to be let through."""

    def __init__(self, held: int) -> None:
        self.count, self.held = 0, held
        self.asked, self.slow = trio.Event(), trio.Event()

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_commit":
            self.count += 1
            if self.count == self.held:
                self.asked.set()
                await self.slow.wait()
        return await inline(function, *args)


async def _behind_another(harness: RunHarness, commits: _Commits) -> Run:
    """A run that had to wait: its acceptance, its start and its end are three commits, the 2nd, the 4th and the 5th."""
    harness.agent.act = harness.agent.wait
    await harness.accept("first")
    run = await harness.accept("hello")
    harness.agent.gate.set()
    await commits.asked.wait()
    return run


def _of(harness: RunHarness, run: Run) -> list[str]:
    return [status for run_id, status in harness.run_statuses() if run_id == run.run_id]


@pytest.mark.parametrize(
    ("held", "steps"),
    [
        # Its start is being written: it has begun, so it ends as interrupted, and is not started a second time.
        (4, ["accepted", "running", "error"]),
        # Its end is being written: that is its end.
        (5, ["accepted", "running", "ok"]),
    ],
    ids=["start", "end"],
)
async def test_what_is_being_written_of_a_run_when_the_daemon_stops_counts(tmp_path: Path, held: int, steps: list[str]):
    commits = _Commits(held)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await _behind_another(harness, commits)
            harness.supervisor.interrupt_all()
            harness.nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            commits.slow.set()
        assert _of(harness, run) == steps
        async with run_harness(tmp_path / "store") as harness:
            found = await harness.supervisor.registry.find(run.run_id)
            assert found is not None and found.status == steps[-1]
            assert _of(harness, run) == steps


async def test_a_run_that_is_stopped_while_its_start_is_written_has_one_start_and_one_end(tmp_path: Path):
    commits = _Commits(4)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await _behind_another(harness, commits)

            async def let() -> None:
                await trio.testing.wait_all_tasks_blocked()
                commits.slow.set()

            harness.nursery.start_soon(let)
            await harness.supervisor.stop(run.session, run.run_id)
            assert (await harness.wait_for_end(run))[0] == "aborted"
            assert _of(harness, run) == ["accepted", "running", "aborted"]
            assert run.started_at is not None


async def test_a_run_whose_end_is_being_written_is_not_stopped_any_more(tmp_path: Path):
    commits = _Commits(2)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await harness.accept("hello")
            await commits.asked.wait()

            async def let() -> None:
                await trio.testing.wait_all_tasks_blocked()
                commits.slow.set()

            harness.nursery.start_soon(let)
            assert await harness.supervisor.stop_for_reset(run.session) == []
            assert await harness.wait_for_end(run) == ("ok", "re: hello")
            assert not view(run).by_reset


async def test_on_a_disk_that_stays_full_the_daemon_stops_and_the_next_start_ends_the_run(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        await harness.agent.wait_for_turn("hello").wait()
        append, refused = harness.store.append, 0

        async def refuse(*args: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused > 50:  # on the way down nobody may try for ever
                return await append(*args)
            raise StorageError("could not write: No space left on device")

        harness.store.append = refuse  # type: ignore[method-assign]
        harness.agent.gate.set()
        await trio.sleep(10)  # its end is tried again and again
        tried = refused
        assert tried >= 4
        harness.nursery.cancel_scope.cancel()
    assert refused == tried + 1, "once more on the way down, and then no more"
    async with run_harness(tmp_path / "store") as harness:
        found = harness.supervisor.registry.get(run.run_id)
        assert found is not None
        assert await harness.wait_for_end(found) == ("error", "interrupted")
        assert [status for _, status in harness.run_statuses()] == ["accepted", "running", "error"]


async def test_a_session_that_is_being_made_when_its_caller_goes_away_is_made_and_its_run_starts(
    tmp_path: Path, autojump_clock: Any
):
    key = "agent:main:subagent:1"
    async with run_harness(tmp_path / "store", run_sync=trio.to_thread.run_sync) as harness:
        harness.host.most = (1, 1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await harness.supervisor.create(key, request("task"), cwd="/w")
        [run] = harness.supervisor.registry.of_session(key)
        assert await harness.wait_for_end(run) == ("ok", "re: task")
        # Its place is free again.
        assert await harness.wait_for_end(await harness.accept("more", key)) == ("ok", "re: more")


async def test_who_stops_a_run_that_is_then_refused_by_the_disk_does_not_wait_for_ever(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        session, slow = await harness.session(), trio.Event()

        async def refuse(*_: Any) -> Any:
            await slow.wait()
            raise StorageError("no space left on device")

        harness.store.append = refuse  # type: ignore[method-assign]

        async def ask() -> None:
            with pytest.raises(StorageError):
                await harness.supervisor.accept(session, request("hello"))

        async def stop() -> None:
            assert await harness.supervisor.stop(session) == []

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for task in (ask, stop):
                    nursery.start_soon(task)
                    await trio.testing.wait_all_tasks_blocked()
                slow.set()
        assert harness.supervisor.live_runs() == 0


async def test_what_waits_for_the_place_of_a_run_that_the_disk_refuses_starts(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.host.most = (1, 1)
        session, slow, append = await harness.session(), trio.Event(), harness.store.append

        async def refuse_first(where: Session, parts: Any) -> Any:
            if where is session:
                await slow.wait()
                raise StorageError("no space left on device")
            return await append(where, parts)

        harness.store.append = refuse_first  # type: ignore[method-assign]

        async def ask() -> None:
            with pytest.raises(StorageError):
                await harness.supervisor.accept(session, request("hello"))

        harness.nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        run = await harness.accept("elsewhere", "agent:main:other")
        await trio.testing.wait_all_tasks_blocked()
        assert not run.begun
        slow.set()
        with trio.fail_after(10):
            assert await harness.wait_for_end(run) == ("ok", "re: elsewhere")


async def test_what_is_accepted_while_an_agent_comes_is_behind_what_waits(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        key, agent = "agent:alice:main", Agent()
        runs = [await harness.accept("one", key), await harness.accept("two", key)]
        harness.host.agents["alice"] = agent
        # Nobody has told the supervisor yet; it finds the agent there.
        runs.append(await harness.accept("three", key))
        for run in runs:
            assert (await harness.wait_for_end(run))[0] == "ok"
        assert [turn.message for turn in agent.turns] == ["one", "two", "three"]


async def test_a_run_whose_agent_went_before_it_took_it_is_the_first_when_it_is_back(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        key, agent = "agent:alice:main", Agent()

        async def go(spec: RunSpec, sink: RunSink) -> RunOutcome:
            del harness.host.agents["alice"]
            await agent.gate.wait()
            raise AgentAway

        agent.act = go
        harness.host.agents["alice"] = agent
        runs = [await harness.accept(text, key) for text in ("one", "two", "three")]
        agent.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert harness.supervisor.queues.runs_of(key) == runs
        harness.host.agents["alice"] = again = Agent()
        harness.supervisor.agents_changed()
        for run in runs:
            assert (await harness.wait_for_end(run))[0] == "ok"
        assert [turn.message for turn in again.turns] == ["one", "two", "three"]


async def test_an_end_for_which_what_was_printed_is_too_long_comes_without_it(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store", record_limit=4096) as harness:

        async def prints(spec: RunSpec, sink: RunSink) -> RunOutcome:
            harness.supervisor.registry.live[spec.run_id].printed = "\U0001f426" * 4096
            return RunOutcome(error="it broke")

        harness.agent.act = prints
        with trio.fail_after(PATIENCE_S):
            run = await harness.accept("hello")
            status, error = await harness.wait_for_end(run)
        assert status == "error"
        assert "cannot be stored" in error
