"""sessions_send without the wire: provenance, hop limit, rate limit, idempotency, and which run waits for which."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.conversing_runs import ALICE, BOB, conversation_harness, host_with, scripted, source_session
from support.supervised_runs import Agent, FakeHost

from sessiond.conversations.rate_limit import WINDOW_S, RateLimit
from sessiond.conversations.wait_cycle import waits_on, waits_on_sender
from sessiond.errors import Conflict, Overloaded
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


def host_with_waiting_agents(folder: Path, *names: str) -> FakeHost:
    """Agents that wait for their gates."""
    agents = {}
    for name in names:
        agents[name] = Agent()
        agents[name].act = agents[name].wait
    return host_with(folder, **agents)


async def test_the_context_names_both_sessions_and_says_that_the_message_is_data(tmp_path: Path, autojump_clock: Any):
    bob = scripted("b0", "ANNOUNCE_SKIP")
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, bob=bob)) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
    context = bob.turns[0].context
    assert context is not None
    assert f"From: {ALICE}" in context
    assert f"To: {BOB} (channel telegram)" in context
    assert "data from that session's agent" in context
    assert bob.turns[0].message == "please"


class TestHops:
    async def test_each_message_of_a_chain_counts_one_hop_more_under_one_trace_id(
        self, tmp_path: Path, autojump_clock: Any
    ):
        host = host_with_waiting_agents(tmp_path, "alice", "bob")
        async with conversation_harness(tmp_path / "store", host) as harness:
            first = await harness.send("1")
            second = await harness.send("2", source=BOB, target=ALICE, run=first)
            third = await harness.send("3", source=ALICE, target="agent:bob:other", run=second)
            facts = [run.request.message["provenance"] for run in (first, second, third)]
            assert [one["hops"] for one in facts] == [1, 2, 3]
            assert len({one["traceId"] for one in facts}) == 1
            apart = await harness.send("4", source=ALICE, target="agent:bob:other2")
            assert apart.request.message["provenance"]["hops"] == 1
            assert apart.request.message["provenance"]["traceId"] != facts[0]["traceId"]

    @pytest.mark.parametrize(("most", "passes"), [(3, True), (2, False)])
    async def test_more_hops_than_the_limit_are_refused_as_overloaded(
        self, tmp_path: Path, autojump_clock: Any, most: int, passes: bool
    ):
        config = f"[limits]\nmaxHops = {most}\n"
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "alice", "bob"), config=config
        ) as harness:
            run = None
            for number in range(2):
                run = await harness.send("x", source=ALICE, target=f"agent:bob:{number}", run=run)
            if passes:
                assert (await harness.send("x", run=run)).request.message["provenance"]["hops"] == 3
            else:
                with pytest.raises(Overloaded) as caught:
                    await harness.send("x", run=run)
                assert (caught.value.code, caught.value.data) == (
                    "too_many_hops",
                    {"limit": "limits.maxHops", "value": 2, "retryAfterMs": 60_000},
                )
                assert not [one for one in harness.runs.supervisor.registry.live.values() if one.key == BOB]

    async def test_two_agents_that_keep_sending_to_each_other_are_stopped_by_the_limits(
        self, tmp_path: Path, autojump_clock: Any
    ):
        """A -> B -> A -> ... without waiting, each from its own run; reply-back turns are such runs as well."""
        host = FakeHost(tmp_path)
        sent: list[int] = []
        refused: list[str] = []
        async with conversation_harness(tmp_path / "store", host) as harness:

            async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
                own = harness.runs.supervisor.registry.get(spec.run_id)
                assert own is not None
                other = BOB if spec.session_key == ALICE else ALICE
                try:
                    run = await harness.send("again", source=spec.session_key, target=other, run=own)
                    sent.append(run.request.message["provenance"]["hops"])
                except Overloaded as error:
                    refused.append(error.code or "")
                return RunOutcome(reply="done")

            for name in ("alice", "bob"):
                host.agents[name] = Agent()
                host.agents[name].act = act  # type: ignore[attr-defined]
            await harness.runs.accept("begin", ALICE)
            await harness.wait_until_settled()
            assert max(sent) <= 16
            assert set(refused) <= {"too_many_hops", "rate_limited"}
            assert refused


class TestRateLimit:
    async def test_the_messages_between_two_sessions_per_minute_are_limited(self, tmp_path: Path, autojump_clock: Any):
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "alice", "bob")
        ) as harness:
            began = trio.current_time()
            for number in range(30):
                await harness.send(
                    str(number), source=ALICE if number % 2 else BOB, target=BOB if number % 2 else ALICE
                )
                await trio.sleep(1)
            with pytest.raises(Overloaded) as caught:
                await harness.send("31")
            # The first one leaves the window a minute after it was sent.
            left_ms = round((began + 60 - trio.current_time()) * 1000)
            assert caught.value.data == {
                "limit": "limits.messagesPerMinute",
                "value": 30,
                "retryAfterMs": pytest.approx(left_ms, abs=1),
            }
            await harness.send("to somebody else", target="agent:bob:other")
            await harness.send("from the owner", source=None)
            await trio.sleep(caught.value.data["retryAfterMs"] / 1000)
            await harness.send("now")
            with pytest.raises(Overloaded):
                await harness.send("and one more")

    async def test_a_repeated_request_does_not_count_as_a_message(self, tmp_path: Path, autojump_clock: Any):
        config = "[limits]\nmessagesPerMinute = 1\n"
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "bob"), config=config
        ) as harness:
            first = await harness.send("x", key="k")
            assert await harness.send("x", key="k") is first
            with pytest.raises(Overloaded):
                await harness.send("y")

    @given(st.lists(st.integers(min_value=0, max_value=30), max_size=60), st.integers(min_value=1, max_value=5))
    def test_no_minute_has_more_messages_than_the_limit_and_retry_after_is_exact(self, gaps: list[int], most: int):
        limit, now = RateLimit(), 0.0
        passed: list[float] = []
        for gap in gaps:
            now += gap
            try:
                limit.check("a", "b", now, most)
            except Overloaded as error:
                wait_s = error.data["retryAfterMs"] / 1000
                assert 0 < wait_s <= WINDOW_S
                later = copy.deepcopy(limit)
                later.check("b", "a", now + wait_s, most)
                with pytest.raises(Overloaded):
                    limit.check("b", "a", now + wait_s - 0.001, most)
                continue
            limit.count("b", "a", now)
            passed.append(now)
            assert len([one for one in passed if one > now - WINDOW_S]) <= most

    def test_pairs_without_recent_messages_are_forgotten(self):
        limit = RateLimit()
        for number in range(3000):
            limit.count("a", f"b{number}", float(number))
        assert len(limit._times) <= 1025


class TestIdempotency:
    async def test_the_same_key_text_and_sender_return_the_same_run(self, tmp_path: Path, autojump_clock: Any):
        async with conversation_harness(tmp_path / "store", host_with_waiting_agents(tmp_path, "bob")) as harness:
            first = await harness.send("x", key="k")
            assert await harness.send("x", key="k") is first
            for other in ({"text": "y"}, {"source": "agent:carol:main"}, {"source": None}):
                text = other.pop("text", "x")
                with pytest.raises(Conflict):
                    await harness.send(str(text), key="k", **other)  # type: ignore[arg-type]
            assert await harness.send("x", key="k2") is not first


class TestWaiting:
    async def test_waiting_is_found_through_other_runs_and_through_queues(self, tmp_path: Path, autojump_clock: Any):
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "a", "b", "c")
        ) as harness:
            supervisor = harness.runs.supervisor
            a, b, c = [await harness.runs.accept(name, f"agent:{name}:main") for name in ("a", "b", "c")]
            behind_b = await harness.runs.accept("behind", "agent:b:main")
            assert waits_on(supervisor, a, a)
            assert not waits_on(supervisor, a, b)
            supervisor.park(a, behind_b.run_id)
            # A queued run waits for the runs before it.
            assert waits_on(supervisor, a, b)
            assert not waits_on(supervisor, a, c)
            supervisor.park(b, c.run_id)
            assert waits_on(supervisor, a, c)
            assert not waits_on(supervisor, c, a)
            supervisor.unpark(b, c.run_id)
            assert not waits_on(supervisor, a, c)

    async def test_a_circle_of_waiting_runs_is_searched_once(self, tmp_path: Path, autojump_clock: Any):
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "a", "b", "c")
        ) as harness:
            supervisor = harness.runs.supervisor
            a, b, c = [await harness.runs.accept(name, f"agent:{name}:main") for name in ("a", "b", "c")]
            supervisor.park(a, b.run_id)
            supervisor.park(b, a.run_id)
            assert not waits_on(supervisor, a, c)
            assert waits_on(supervisor, a, b)

    async def test_each_run_of_a_long_queue_is_visited_once(self, tmp_path: Path, autojump_clock: Any):
        async with conversation_harness(tmp_path / "store", host_with_waiting_agents(tmp_path, "a", "b")) as harness:
            supervisor = harness.runs.supervisor
            queued = [await harness.runs.accept(str(number), "agent:a:main") for number in range(200)]
            other = await harness.runs.accept("other", "agent:b:main")
            for run in queued[1:]:
                supervisor.park(run, queued[0].run_id)
            calls = 0

            def count(_frame: Any, event: str, _what: Any) -> None:
                nonlocal calls
                calls += event in ("call", "c_call")

            sys.setprofile(count)
            try:
                found = waits_on(supervisor, queued[-1], other)
            finally:
                sys.setprofile(None)
            assert not found
            assert calls < 20 * len(queued)
            assert waits_on(supervisor, queued[-1], queued[0]) and not waits_on(supervisor, queued[0], queued[-1])
            for run in queued[1:]:
                supervisor.unpark(run, queued[0].run_id)

    async def test_a_message_back_to_a_session_that_waits_for_the_sender_is_recognized(
        self, tmp_path: Path, autojump_clock: Any
    ):
        async with conversation_harness(
            tmp_path / "store", host_with_waiting_agents(tmp_path, "alice", "bob")
        ) as harness:
            own = await harness.runs.accept("begin", ALICE)
            there = await harness.send("1", run=own)
            supervisor = harness.runs.supervisor
            alice, bob = (harness.runs.store.catalog.by_key[key] for key in (ALICE, BOB))
            supervisor.park(own, there.run_id)
            assert waits_on_sender(supervisor, source_session(bob, there), alice)
            supervisor.unpark(own, there.run_id)
            assert not waits_on_sender(supervisor, source_session(bob, there), alice)
            assert waits_on_sender(supervisor, source_session(bob, there), bob)
