"""RunSupervisor: runs are accepted, go on in order and within the limits, and end exactly once."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S
from support.sampling import amount
from support.supervised_runs import MAIN, Agent, FakeHost, RunHarness, ScriptedFollowUp, inline, request, run_harness

from sessiond.errors import Conflict, LimitExceeded, SessiondError, StorageError
from sessiond.model.record import RUN
from sessiond.runs.run import Run, view
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSink, RunSpec
from sessiond.store.catalog import Session

FINAL = {"ok", "error", "timeout", "aborted"}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RunHarness]:
    async with run_harness(tmp_path / "store") as harness:
        yield harness


async def test_a_run_is_written_in_two_commits(harness: RunHarness, autojump_clock: Any):
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


async def test_a_session_has_one_run_at_a_time_in_the_order_of_acceptance(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    runs = [await harness.accept(f"m{number}") for number in range(5)]
    await harness.agent.wait_for_turn("m0").wait()
    assert (harness.supervisor.live_runs(), harness.supervisor.queued_runs()) == (1, 4)
    # The messages of queued runs are not in the transcript's conversation yet.
    assert harness.messages() == ["user: m0"]
    harness.agent.gate.set()
    assert [await harness.wait_for_end(run) for run in runs] == [("ok", f"re: m{number}") for number in range(5)]
    assert harness.messages() == [
        line for number in range(5) for line in (f"user: m{number}", f"assistant: re: m{number}")
    ]
    assert (harness.supervisor.live_runs(), harness.supervisor.queued_runs()) == (0, 0)


async def test_the_number_of_live_runs_is_bounded_and_sub_agents_have_run_slots_of_their_own(
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


async def test_light_runs_take_no_slots_of_the_others_and_are_limited_for_themselves(
    harness: RunHarness, autojump_clock: Any
):
    harness.host.most = (1, 1)
    light = harness.host.agents["light"] = Agent()
    harness.host.light = {"light"}
    light.act = light.wait
    harness.agent.act = harness.agent.wait
    many = [await harness.accept("light", f"agent:light:chat:{number}") for number in range(66)]
    others = [await harness.accept(f"other {number}", f"agent:main:chat:{number}") for number in range(2)]
    await trio.testing.wait_all_tasks_blocked()
    assert Counter(run.status for run in many) == {"running": 64, "queued": 2}
    assert [run.status for run in others] == ["running", "queued"]
    light.gate.set()
    assert {(await harness.wait_for_end(run))[0] for run in many} == {"ok"}
    # Their slots are their own: none of them was that of the run that still waits.
    assert [run.status for run in others] == ["running", "queued"]
    harness.agent.gate.set()
    assert {(await harness.wait_for_end(run))[0] for run in others} == {"ok"}
    assert harness.supervisor.queues._slots.taken == {"light": 0, "subagent": 0, "other": 0}


async def test_a_slot_is_freed_in_its_own_class_after_the_agent_changed_class(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    run = await harness.accept("hello")
    harness.host.light = {"main"}  # the configuration was read again meanwhile
    harness.agent.gate.set()
    await run.done.wait()
    assert harness.supervisor.queues._slots.taken == {"light": 0, "subagent": 0, "other": 0}


async def test_a_session_with_many_runs_does_not_starve_the_others(harness: RunHarness, autojump_clock: Any):
    harness.host.most = (1, 1)
    harness.agent.act = harness.agent.wait
    busy = [await harness.accept(f"b{number}", "agent:main:busy") for number in range(3)]
    other = await harness.accept("other", "agent:main:other")
    harness.agent.gate.set()
    for run in (*busy, other):
        await run.done.wait()
    assert [turn.message for turn in harness.agent.turns] == ["b0", "b1", "other", "b2"]


async def test_a_run_that_waits_for_another_gives_up_its_run_slot(harness: RunHarness, autojump_clock: Any):
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
    # Two go on for a moment: the run that stopped waiting continues at once, and no third run starts.
    assert [run.status for run in (first, second, third)] == ["running", "running", "queued"]
    harness.agent.gate.set()
    assert [(await harness.wait_for_end(run))[0] for run in (first, second, third)] == ["ok"] * 3


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_run_slot_is_freed_once_whether_the_wait_or_the_run_ends_first(
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
            nursery.start_soon(_unpark_run, harness, run)
    after = [await harness.accept(f"m{number}", f"agent:main:{number}") for number in range(2)]
    await trio.testing.wait_all_tasks_blocked()
    assert [one.status for one in after] == ["running", "queued"]


async def _unpark_run(harness: RunHarness, run: Any) -> None:
    harness.supervisor.unpark(run, "x.1")


async def test_a_run_with_priority_is_queued_before_ordinary_runs_and_after_others_with_priority(
    harness: RunHarness, autojump_clock: Any
):
    harness.agent.act = harness.agent.wait
    texts = [("live", False), ("q1", False), ("s1", True), ("q2", False), ("s2", True)]
    runs = [await harness.accept(text, first=first) for text, first in texts]
    harness.agent.gate.set()
    for run in runs:
        await run.done.wait()
    assert [turn.message for turn in harness.agent.turns] == ["live", "s1", "s2", "q1", "q2"]


async def test_a_run_that_reaches_its_time_limit_ends_as_timeout(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    run = await harness.accept("slow", timeout_s=2.5)
    assert await harness.wait_for_end(run) == ("timeout", "the run met its limit of 2.5 s")
    entry = run.session.entry
    assert (entry.status, entry.runtime_ms) == ("timeout", 2500)


async def test_stop_aborts_the_live_and_the_queued_runs_and_frees_the_run_slot(
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


async def test_stopping_one_run_leaves_the_others(harness: RunHarness, autojump_clock: Any):
    harness.agent.act = harness.agent.wait
    live, queued, last = [await harness.accept(f"m{number}") for number in range(3)]
    assert await harness.supervisor.stop(live.session, queued.run_id) == [queued.run_id]
    harness.agent.gate.set()
    assert [(await harness.wait_for_end(run))[0] for run in (live, queued, last)] == ["ok", "aborted", "ok"]


async def test_stop_without_live_runs_returns_an_empty_list(harness: RunHarness, autojump_clock: Any):
    run = await harness.accept("done")
    await run.done.wait()
    assert await harness.supervisor.stop(run.session) == []
    assert await harness.supervisor.stop(run.session, "nobody.knows") == []


async def test_an_unexpected_exception_ends_only_its_run_with_an_internal_error(
    harness: RunHarness, autojump_clock: Any
):
    async def broken(spec: RunSpec, sink: RunSink) -> RunOutcome:
        raise RuntimeError("a secret path")

    harness.agent.act = broken
    run = await harness.accept("hello")
    assert await harness.wait_for_end(run) == ("error", "internal error in sessiond; its log says more")
    harness.agent.act = harness.agent.answer
    assert (await harness.wait_for_end(await harness.accept("again")))[0] == "ok"


async def test_the_last_message_with_text_is_the_reply(harness: RunHarness, autojump_clock: Any):
    async def write_messages(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "thinking aloud"})
        await sink.message({"role": "assistant", "content": "the answer"})
        await sink.message({"role": "assistant", "content": ""})
        return RunOutcome(usage={"input": 3, "output": 4, "totalTokens": 7}, model="m1")

    harness.agent.act = write_messages
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "the answer")
    assert harness.messages() == ["user: ask", "assistant: thinking aloud", "assistant: the answer", "assistant: "]
    entry = run.session.entry
    assert (entry.input_tokens, entry.output_tokens, entry.total_tokens, entry.model) == (3, 4, 7, "m1")
    harness.supervisor.registry._ended.clear()
    found = await harness.supervisor.registry.find(run.run_id)
    assert found is not None and (found.status, found.reply) == ("ok", "the answer")


async def test_a_user_message_written_by_the_agent_is_neither_its_reply_nor_its_usage(
    harness: RunHarness, autojump_clock: Any
):
    async def write_messages(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "the answer"})
        await sink.message({"role": "user", "content": "what a program asked it in between", "usage": {"input": 9}})
        return RunOutcome(usage={"input": 3, "output": 4, "totalTokens": 7})

    harness.agent.act = write_messages
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "the answer")
    assert run.session.entry.input_tokens == 3


async def test_notes_of_a_runtime_are_in_the_record_of_the_run_end(harness: RunHarness, autojump_clock: Any):
    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        return RunOutcome(reply="done", notes=("its output was cut",) if spec.message == "noted" else ())

    harness.agent.act = act
    for text in ("noted", "plain"):
        await (await harness.accept(text)).done.wait()
    ends = [one["data"] for one in harness.records() if one.get("customType") == RUN and one["data"]["status"] == "ok"]
    assert [end.get("notes") for end in ends] == [["its output was cut"], None]


async def test_accepting_a_known_run_id_returns_the_same_run(harness: RunHarness, autojump_clock: Any):
    session = await harness.session()
    run_id = f"{session.session_id}.0123456789abcdef"
    runs = [await harness.supervisor.accept(session, request("step"), run_id=run_id) for _ in range(2)]
    assert runs[1] is runs[0]
    assert await harness.wait_for_end(runs[0]) == ("ok", "re: step")
    assert await harness.supervisor.accept(session, request("step"), run_id=run_id) is runs[0]
    assert harness.run_statuses() == [(run_id, "accepted"), (run_id, "running"), (run_id, "ok")]


async def test_a_reply_that_differs_from_the_last_message_is_written_as_a_message(
    harness: RunHarness, autojump_clock: Any
):
    async def write_messages(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await sink.message({"role": "assistant", "content": "on my way", "usage": {"input": 1, "output": 1}})
        return RunOutcome(reply="there", usage={"input": 5, "output": 5})

    harness.agent.act = write_messages
    run = await harness.accept("ask")
    assert await harness.wait_for_end(run) == ("ok", "there")
    assert harness.messages() == ["user: ask", "assistant: on my way", "assistant: there"]
    # The usage in the message is counted, and that of the outcome is not counted in addition.
    assert run.session.entry.input_tokens == 1


async def test_the_cost_of_a_run_is_written_with_its_end(harness: RunHarness, autojump_clock: Any):
    harness.host.cost = 0.25
    await (await harness.accept("a")).done.wait()
    run = await harness.accept("b")
    await run.done.wait()
    assert run.session.entry.estimated_cost_usd == 0.5


async def test_at_end_is_called_before_the_run_end_is_written_and_after_end_after_it(
    harness: RunHarness, autojump_clock: Any
):
    order: list[str] = []

    def at_end(run: Any) -> list[Any]:
        order.append(f"at_end {run.status} {run.reply}")
        return []

    async def after_end(run: Any) -> None:
        await trio.lowlevel.checkpoint()
        order.append(f"after_end {run.done.is_set()}")

    harness.follow_ups.append(ScriptedFollowUp(at_end, lambda run: partial(after_end, run)))
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


class TestUnattendedRuns:
    async def test_a_run_of_an_agent_that_does_not_attach_ends_after_the_queue_ttl(
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
        # The run never began, so its message is not in the conversation.
        assert harness.messages("agent:alice:main") == []

    async def test_an_agent_that_attaches_in_time_gets_its_runs_in_order(
        self, harness: RunHarness, autojump_clock: Any
    ):
        runs = [await harness.accept(f"m{number}", "agent:alice:main") for number in range(3)]
        await trio.sleep(299)
        harness.host.agents["alice"] = Agent()
        harness.supervisor.agents_changed()
        assert [await harness.wait_for_end(run) for run in runs] == [("ok", f"re: m{number}") for number in range(3)]
        assert trio.current_time() == pytest.approx(299)

    async def test_the_queue_ttl_counts_from_the_moment_the_agent_detached(
        self, harness: RunHarness, autojump_clock: Any
    ):
        alice = harness.host.agents["alice"] = Agent()
        alice.act = alice.wait
        live = await harness.accept("live", "agent:alice:main")
        queued = await harness.accept("queued", "agent:alice:main")
        await trio.sleep(500)
        del harness.host.agents["alice"]
        harness.supervisor.agents_changed()
        detached_at = trio.current_time()
        alice.gate.set()
        assert (await harness.wait_for_end(live))[0] == "ok"
        assert (await harness.wait_for_end(queued))[0] == "error"
        assert trio.current_time() - detached_at == pytest.approx(300)

    async def test_the_queue_ttl_starts_anew_each_time_the_agent_detaches(
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

    async def test_an_unattended_run_does_not_hold_up_other_agents(self, harness: RunHarness, autojump_clock: Any):
        await harness.accept("hello", "agent:alice:main")
        assert (await harness.wait_for_end(await harness.accept("hello")))[0] == "ok"


class Disk:
    """File work done inline; a commit fails with ENOSPC where `refuse(args)` is true."""

    def __init__(self) -> None:
        self.refuse: Callable[[Any], bool] = lambda args: False

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_carry_out" and self.refuse(args):
            # Appends that have failed are not written.
            for waiting in args[0].waiters:
                waiting.error = OSError(errno.ENOSPC, "No space left on device")
        return await inline(function, *args)


class TestDisk:
    @pytest.fixture
    def disk(self) -> Disk:
        return Disk()

    @pytest.fixture
    async def harness(
        self, tmp_path: Path, autojump_clock: trio.testing.MockClock, disk: Disk
    ) -> AsyncIterator[RunHarness]:
        async with run_harness(tmp_path / "store", run_sync=disk.run_sync) as harness:
            yield harness

    async def test_a_run_whose_acceptance_cannot_be_stored_is_refused(
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

    async def test_a_queued_run_whose_acceptance_cannot_be_stored_leaves_the_queue(
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

    async def test_a_full_disk_delays_the_run_end_and_loses_nothing(
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

    async def test_two_callers_with_one_idempotency_key_both_get_the_storage_error(
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


async def test_a_run_starts_even_if_its_caller_disconnects_while_the_acceptance_is_stored(tmp_path: Path):
    """An acceptance that was written is always followed by a start."""
    commit_gate = trio.Event()
    commit_begun = trio.Event()

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_carry_out":
            commit_begun.set()
            await commit_gate.wait()
        return await inline(function, *args)

    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=run_sync) as harness:
            session = await harness.session()
            with trio.CancelScope() as scope:

                async def leave() -> None:
                    await commit_begun.wait()
                    scope.cancel()
                    commit_gate.set()

                harness.nursery.start_soon(leave)
                await harness.supervisor.accept(session, request("hello"))
            assert scope.cancel_called
            await harness.agent.wait_for_turn("hello").wait()
            [run] = harness.supervisor.registry._ended.values() or harness.supervisor.registry.live.values()
            assert (await harness.wait_for_end(run))[0] == "ok"


async def test_stopping_the_daemon_ends_live_runs_as_interrupted_and_keeps_queued_ones(tmp_path: Path):
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


async def test_every_run_has_exactly_one_end_under_mixed_load(tmp_path: Path, autojump_clock: Any):
    """Many runs are accepted while some are aborted, some fail and an agent attaches and detaches."""
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

        async def attach_and_detach() -> None:
            for turn in range(40):
                host.agents.pop("alice", None) if turn % 2 else host.agents.update(alice=alice)
                harness.supervisor.agents_changed()
                await trio.sleep(13)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attach_and_detach)
            for number in range(amount(300, 60)):
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
        assert harness.supervisor.queues._slots.taken == {"light": 0, "subagent": 0, "other": 0}
        assert {run.status for run in runs} == FINAL


async def test_create_makes_the_session_and_its_first_run(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        key = "agent:main:subagent:1"
        run = await harness.supervisor.create(key, request("task"), cwd="/w", spawned_by=MAIN)
        assert await harness.wait_for_end(run) == ("ok", "re: task")
        assert harness.messages(key) == ["user: task", "assistant: re: task"]
        assert harness.store.catalog.by_key[key].entry.spawned_by == MAIN


async def test_an_idle_and_a_busy_session_accept_messages_of_the_same_length(tmp_path: Path, autojump_clock: Any):
    """The longest accepted message is nearly as long as a record may be."""
    async with run_harness(tmp_path / "store", record_limit=8192) as harness:

        async def is_accepted(key: str, length: int) -> bool:
            try:
                run = await harness.accept("ä" * length, key, idempotency_key=f"k{length:04}", payload="p")
            except LimitExceeded:
                return False
            if key == MAIN:
                await run.done.wait()
                # The echo of the longest message does not fit into a record, so that run has no reply.
                assert run.reply in (None, "re: " + "ä" * length)
            return True

        async def find_longest(key: str) -> int:
            low, high = 1, 8192
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if await is_accepted(key, middle) else (low, middle)
            return low

        idle = await find_longest(MAIN)
        # No agent is attached for alice, so her runs wait.
        assert await find_longest("agent:alice:main") == idle
    assert 8192 - 800 < 2 * idle < 8192


class _GatedCommits:
    """File work whose commit number `held` waits for `gate`; `begun` is set when it waits."""

    def __init__(self, held: int) -> None:
        self.count, self.held = 0, held
        self.begun, self.gate = trio.Event(), trio.Event()

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        if getattr(function, "__name__", "") == "_carry_out":
            self.count += 1
            if self.count == self.held:
                self.begun.set()
                await self.gate.wait()
        return await inline(function, *args)


async def _queue_second_run(harness: RunHarness, commits: _GatedCommits) -> Run:
    """A run that was queued first: its acceptance, start and end are the 2nd, the 4th and the 5th commit."""
    harness.agent.act = harness.agent.wait
    await harness.accept("first")
    run = await harness.accept("hello")
    harness.agent.gate.set()
    await commits.begun.wait()
    return run


def _statuses_of(harness: RunHarness, run: Run) -> list[str]:
    return [status for run_id, status in harness.run_statuses() if run_id == run.run_id]


@pytest.mark.parametrize(
    ("held", "steps"),
    [
        # While its start is being written it has begun: it ends as interrupted and is not started a second time.
        (4, ["accepted", "running", "error"]),
        # While its end is being written, that stays its end.
        (5, ["accepted", "running", "ok"]),
    ],
    ids=["start", "end"],
)
async def test_a_start_or_end_that_is_being_written_when_the_daemon_stops_is_kept(
    tmp_path: Path, held: int, steps: list[str]
):
    commits = _GatedCommits(held)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await _queue_second_run(harness, commits)
            harness.supervisor.interrupt_all()
            harness.nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            commits.gate.set()
        assert _statuses_of(harness, run) == steps
        async with run_harness(tmp_path / "store") as harness:
            found = await harness.supervisor.registry.find(run.run_id)
            assert found is not None and found.status == steps[-1]
            assert _statuses_of(harness, run) == steps


async def test_a_run_stopped_while_its_start_is_written_has_one_start_and_one_end(tmp_path: Path):
    commits = _GatedCommits(4)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await _queue_second_run(harness, commits)

            async def open_gate() -> None:
                await trio.testing.wait_all_tasks_blocked()
                commits.gate.set()

            harness.nursery.start_soon(open_gate)
            await harness.supervisor.stop(run.session, run.run_id)
            assert (await harness.wait_for_end(run))[0] == "aborted"
            assert _statuses_of(harness, run) == ["accepted", "running", "aborted"]
            assert run.started_at is not None


async def test_a_run_whose_end_is_being_written_cannot_be_stopped(tmp_path: Path):
    commits = _GatedCommits(2)
    with trio.fail_after(PATIENCE_S):
        async with run_harness(tmp_path / "store", run_sync=commits.run_sync) as harness:
            run = await harness.accept("hello")
            await commits.begun.wait()

            async def open_gate() -> None:
                await trio.testing.wait_all_tasks_blocked()
                commits.gate.set()

            harness.nursery.start_soon(open_gate)
            assert await harness.supervisor.stop_for_reset(run.session) == []
            assert await harness.wait_for_end(run) == ("ok", "re: hello")
            assert not view(run).by_reset


async def test_with_a_full_disk_the_daemon_stops_and_its_next_start_ends_the_run(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        await harness.agent.wait_for_turn("hello").wait()
        append, refused = harness.store.append, 0

        async def refuse(*args: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused > 50:  # so that a stop that retries for ever fails instead of hanging
                return await append(*args)
            raise StorageError("could not write: No space left on device")

        harness.store.append = refuse  # type: ignore[method-assign]
        harness.agent.gate.set()
        await trio.sleep(10)  # the write of its end is retried
        tried = refused
        assert tried >= 4
        harness.nursery.cancel_scope.cancel()
    assert refused == tried + 1, "the stop tries once more and then gives up"
    async with run_harness(tmp_path / "store") as harness:
        found = harness.supervisor.registry.get(run.run_id)
        assert found is not None
        assert await harness.wait_for_end(found) == ("error", "interrupted")
        assert [status for _, status in harness.run_statuses()] == ["accepted", "running", "error"]


async def test_a_session_is_created_and_its_run_starts_even_if_the_caller_disconnects(
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
        # Its run slot is free again.
        assert await harness.wait_for_end(await harness.accept("more", key)) == ("ok", "re: more")


async def test_stopping_a_run_whose_acceptance_then_fails_does_not_hang(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        session, append_gate = await harness.session(), trio.Event()

        async def refuse(*_: Any) -> Any:
            await append_gate.wait()
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
                append_gate.set()
        assert harness.supervisor.live_runs() == 0


async def test_a_run_that_waits_for_the_slot_of_a_run_that_the_disk_refuses_starts(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.host.most = (1, 1)
        session, append_gate, append = await harness.session(), trio.Event(), harness.store.append

        async def refuse_first(where: Session, parts: Any) -> Any:
            if where is session:
                await append_gate.wait()
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
        append_gate.set()
        with trio.fail_after(10):
            assert await harness.wait_for_end(run) == ("ok", "re: elsewhere")


async def test_a_run_accepted_while_its_agent_attaches_is_queued_after_the_waiting_ones(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        key, agent = "agent:alice:main", Agent()
        runs = [await harness.accept("one", key), await harness.accept("two", key)]
        harness.host.agents["alice"] = agent
        # The supervisor has not been notified yet; it finds the agent when it accepts the next run.
        runs.append(await harness.accept("three", key))
        for run in runs:
            assert (await harness.wait_for_end(run))[0] == "ok"
        assert [turn.message for turn in agent.turns] == ["one", "two", "three"]


async def test_a_run_whose_agent_detaches_before_taking_it_is_the_first_when_the_agent_is_back(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        key, agent = "agent:alice:main", Agent()

        async def detach(spec: RunSpec, sink: RunSink) -> RunOutcome:
            del harness.host.agents["alice"]
            await agent.gate.wait()
            raise AgentAway

        agent.act = detach
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


async def test_a_run_end_too_large_with_the_printed_text_is_written_without_it(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store", record_limit=4096) as harness:

        async def print_much(spec: RunSpec, sink: RunSink) -> RunOutcome:
            harness.supervisor.registry.live[spec.run_id].text_so_far.add("\U0001f426" * 4096)
            return RunOutcome(error="it broke")

        harness.agent.act = print_much
        with trio.fail_after(PATIENCE_S):
            run = await harness.accept("hello")
            status, error = await harness.wait_for_end(run)
        assert status == "error"
        assert "cannot be stored" in error
