"""What a stop, a full disk, a removed transcript or a reset does to runs in each state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from support.conversing_runs import ALICE, BOB, Adapter, conversation_harness, host_with, scripted
from support.rows import check_each
from support.supervised_runs import MAIN, Agent, FakeHost, RunHarness, ignore_call, request, run_harness

from sessiond.errors import Conflict, NotFound, StorageError
from sessiond.model.entry import KeyedRun
from sessiond.model.fold import MAX_KEYED_RUNS
from sessiond.model.record import FINAL
from sessiond.policy.replyback import ANNOUNCE_MESSAGE
from sessiond.runs.persistence import RETRY_S
from sessiond.runtimes.runtime import RunOutcome
from sessiond.sessions.lifecycle import SessionChanges, reset
from sessiond.store.catalog import Session
from sessiond.store.store import Message


def refuse_appends(harness: RunHarness, refuses: Any) -> None:
    """Make the disk refuse every append for whose parts `refuses(parts)` is true."""
    append = harness.store.append

    async def refusing(session: Any, parts: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if refuses(parts):
            raise StorageError("no space left on device")
        return await append(session, parts)

    harness.store.append = refusing  # type: ignore[method-assign]


def is_start(parts: Any) -> bool:
    """Whether these parts contain the record of a run's start."""
    return any(not isinstance(part, Message) and (part.data or {}).get("status") == "running" for part in parts)


async def test_a_dispatched_run_that_had_not_begun_starts_after_the_restart(tmp_path: Path, autojump_clock: Any):
    host = FakeHost(tmp_path)
    del host.agents["main"]
    async with run_harness(tmp_path / "store", host=host) as harness:
        session = await harness.session()
        runs = [
            await harness.supervisor.accept(session, request(text, idempotency_key=text, payload="p"))
            for text in ("one", "two")
        ]
        host.agents["main"] = Agent()
        # The runs are dispatched, but the daemon stops before their tasks are scheduled.
        harness.supervisor.dispatch()
        harness.supervisor.interrupt_all()
    async with run_harness(tmp_path / "store") as harness:
        for run in runs:
            again = harness.supervisor.registry.get(run.run_id)
            assert again is not None
            assert await harness.wait_for_end(again) == ("ok", f"re: {run.request.text}")
            session = harness.store.catalog.by_key[MAIN]
            assert harness.supervisor.run_of_key(session, run.request.text, "p") == run.run_id
        assert [one for one in harness.messages() if one.startswith("user")] == ["user: one", "user: two"]
        assert [status for _, status in harness.run_statuses()] == ["accepted"] * 2 + ["running", "ok"] * 2


async def test_a_queued_run_that_was_aborted_ends_as_aborted_even_if_the_daemon_stops_meanwhile(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        live, queued = await harness.accept("live"), await harness.accept("queued")
        await harness.agent.wait_for_turn("live").wait()
        harness.nursery.start_soon(harness.supervisor.stop, queued.session, queued.run_id)
        await trio.testing.wait_all_tasks_blocked()
        harness.supervisor.interrupt_all()
    async with run_harness(tmp_path / "store") as harness:
        assert harness.supervisor.registry.live == {}
        assert harness.run_statuses()[-2:] in (
            [(queued.run_id, "aborted"), (live.run_id, "error")],
            [(live.run_id, "error"), (queued.run_id, "aborted")],
        )


async def test_a_full_disk_delays_the_start_of_a_queued_run(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("live")
        queued = await harness.accept("queued")
        left = [3]

        def refuses(parts: Any) -> bool:
            left[0] -= is_start(parts)
            return is_start(parts) and left[0] >= 0

        refuse_appends(harness, refuses)
        began = trio.current_time()
        harness.agent.gate.set()
        assert await harness.wait_for_end(queued) == ("ok", "re: queued")
        assert trio.current_time() - began == pytest.approx(sum(RETRY_S[:3]))
        assert harness.messages()[-2:] == ["user: queued", "assistant: re: queued"]


@pytest.mark.parametrize("stopped_by", ["abort", "daemon"])
async def test_a_run_whose_start_waits_for_the_disk_can_be_stopped(
    tmp_path: Path, autojump_clock: Any, stopped_by: str
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        live, queued = await harness.accept("live"), await harness.accept("queued")
        refuse_appends(harness, is_start)
        harness.agent.gate.set()
        await live.done.wait()
        await trio.testing.wait_all_tasks_blocked()
        if stopped_by == "abort":
            assert await harness.supervisor.stop(queued.session) == [queued.run_id]
            assert await harness.wait_for_end(queued) == ("aborted", "aborted")
    if stopped_by == "daemon":
        async with run_harness(tmp_path / "store") as harness:
            [again] = harness.supervisor.registry.live.values()
            assert await harness.wait_for_end(again) == ("ok", "re: queued")


async def test_a_run_end_that_the_disk_refuses_does_not_delay_the_stop_of_the_daemon(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        run = await harness.accept("hello")
        refuse_appends(harness, lambda _parts: True)
        await trio.sleep(100)
        assert not run.done.is_set()
        stopped_at = trio.current_time()
    assert trio.current_time() == stopped_at
    assert not run.done.is_set()  # its end is not on record
    async with run_harness(tmp_path / "store") as harness:
        [again] = harness.supervisor.registry.live.values()
        assert await harness.wait_for_end(again) == ("error", "interrupted")


async def test_a_removed_transcript_ends_the_runs_of_its_session(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        live, queued = await harness.accept("live"), await harness.accept("queued")
        await harness.agent.wait_for_turn("live").wait()
        session = live.session
        (harness.store.path / session.path).unlink()
        harness.store.catalog.remove(session)
        harness.supervisor.handle_missing_transcript(session)
        sentence = f"the transcript of {MAIN} was removed while the run was going on"
        assert [await harness.wait_for_end(run) for run in (live, queued)] == [("error", sentence)] * 2
        assert (harness.supervisor.live_runs(), harness.supervisor.registry.live) == (0, {})
        # The key is free for another session.
        harness.agent.gate.set()
        assert (await harness.wait_for_end(await harness.accept("again")))[0] == "ok"


async def test_a_session_whose_transcript_is_only_renamed_keeps_its_run(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        await harness.agent.wait_for_turn("hello").wait()
        harness.store.catalog.remove(run.session)
        harness.supervisor.handle_missing_transcript(run.session)
        harness.store.catalog.add(run.session)
        await trio.testing.wait_all_tasks_blocked()
        harness.agent.gate.set()
        assert await harness.wait_for_end(run) == ("ok", "re: hello")


async def test_a_transcript_that_is_missing_for_a_moment_costs_no_run(tmp_path: Path, autojump_clock: Any):
    """Programs save a file by moving the old one away. A writer to the key waits meanwhile, too."""
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        live, queued = await harness.accept("live"), await harness.accept("queued")
        await harness.agent.wait_for_turn("live").wait()
        session, session_changes = live.session, SessionChanges(harness.store, ignore_call)
        path, away = harness.store.path / session.path, tmp_path / "away"
        path.rename(away)
        harness.store.catalog.remove(session)
        harness.supervisor.handle_missing_transcript(session)
        harness.agent.gate.set()  # the end cannot be written now
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            async def ensure() -> None:
                assert await session_changes.ensure(MAIN, "main", cwd="") == (session, False)

            nursery.start_soon(ensure)
            await trio.sleep(harness.store.presence.patience_s / 2)
            assert not live.done.is_set()
            away.rename(path)
            harness.store.catalog.add(session)
            harness.supervisor.handle_restored_transcript(session)
        assert [await harness.wait_for_end(run) for run in (live, queued)] == [("ok", "re: live"), ("ok", "re: queued")]
        assert [status for _, status in harness.run_statuses()] == [
            "accepted",
            "running",
            "accepted",
            "ok",
            "running",
            "ok",
        ]


async def test_a_message_for_an_unknown_agent_is_refused_with_the_reason(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        session = await harness.session("agent:gone:main")
        harness.host.unknown.add("gone")
        with pytest.raises(NotFound, match="belongs to agent gone, which is not configured and not attached"):
            await harness.supervisor.accept(session, request("hello"))
        assert harness.run_statuses("agent:gone:main") == []


async def test_queued_conversations_take_each_step_once_after_a_restart(tmp_path: Path, autojump_clock: Any):
    """Queued runs end while open conversations are still being read; none of them is continued twice."""
    alice, bob = scripted("a"), scripted("b0", "b1", "b2", "b3")
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": Adapter()}) as conversing:
        bob.act = bob.wait
        runs = [await conversing.send(f"m{number}") for number in range(3)]
        await bob.wait_for_turn("m0").wait()
        conversing.runs.copy_store(tmp_path / "copy")

    # Reading is slow, and everything else that can go on meanwhile does so.
    async def run_slowly(function: Any, *args: Any) -> Any:
        await trio.testing.wait_all_tasks_blocked(0.01)
        return function(*args)

    alice, bob = scripted("REPLY_SKIP"), scripted("done")
    telegram = Adapter()
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(
        tmp_path / "copy", host, adapters={"telegram": telegram}, run_sync=run_slowly
    ) as conversing:
        with trio.fail_after(600):
            await conversing.wait_until_settled()
        steps = conversing.runs.run_statuses(ALICE) + conversing.runs.run_statuses(BOB)
        assert len(steps) == len(set(steps))
        assert sorted(run_id for run_id, status in steps if status == "accepted") == sorted(
            {run_id for run_id, _ in steps}
        )
        assert [status for run_id, status in steps if run_id == runs[1].run_id] == ["accepted", "running", "ok"]
        assert len(telegram.ids) == len(telegram.texts) == 2


@pytest.mark.parametrize("who", ["target", "requester"])
async def test_a_conversation_goes_on_after_a_reset_of_either_session(tmp_path: Path, autojump_clock: Any, who: str):
    """One of the two is reset while Alice has her turn; the following steps go to the new transcripts."""
    alice, bob, telegram = Agent(), scripted("b0", "the outcome"), Adapter()
    alice.act = alice.wait
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as conversing:
        harness = conversing.runs
        run = await conversing.send("please")
        await alice.wait_for_turn("b0").wait()
        key = BOB if who == "target" else ALICE
        session_changes, feed = SessionChanges(harness.store, ignore_call), harness.feed
        new, archived = await reset(
            session_changes, feed, harness.store.catalog.by_key[key], harness.supervisor.stop_for_reset
        )
        assert archived
        alice.gate.set()
        while not telegram.texts:  # noqa: ASYNC110
            await trio.sleep(1)
        await conversing.wait_until_settled()
        # Either the reset aborted Alice's turn, or the target takes its announce step in its new transcript.
        assert [turn.step for turn in bob.turns][-1] == "announce"
        assert telegram.texts == ["the outcome"]
        if who == "target":
            assert "assistant: the outcome" in harness.messages(BOB) and new.session_id != run.session.session_id
        assert await conversing.announcing.status(run.session, run.run_id) == "delivered"


@check_each("killed", [None, "in the middle", "afterwards"])
async def test_the_reply_is_delivered_when_a_reset_cuts_off_the_announce_step(
    tmp_path: Path, autojump_clock: Any, killed: str | None
):
    """Also if the daemon is killed right after the reset, or after it aborted the runs and before it moved a file."""
    bob, telegram = Agent(), Adapter()

    async def act(spec: Any, sink: Any) -> RunOutcome:
        if spec.step == "announce":
            await bob.gate.wait()
        return RunOutcome(reply=f"re: {spec.message}")

    bob.act = act
    host = host_with(tmp_path, alice=scripted("REPLY_SKIP"), bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as conversing:
        harness = conversing.runs
        await conversing.send("please")
        await bob.wait_for_turn(ANNOUNCE_MESSAGE).wait()
        if killed:
            conversing.conversations._announce = sleep_forever  # type: ignore[method-assign]
        session_changes, feed = SessionChanges(harness.store, ignore_call), harness.feed

        async def stop(session: Session) -> None:
            await harness.supervisor.stop_for_reset(session)
            if killed == "in the middle":
                await trio.testing.wait_all_tasks_blocked()
                harness.copy_store(tmp_path / "snapshot")

        await reset(session_changes, feed, harness.store.catalog.by_key[BOB], stop)
        if not killed:
            while not telegram.texts:  # noqa: ASYNC110 - `wait_until_settled` does not see archived sessions
                await trio.sleep(1)
            await conversing.wait_until_settled()
            assert telegram.texts == ["re: please"]
            return
        await trio.testing.wait_all_tasks_blocked()
        if killed == "afterwards":
            harness.copy_store(tmp_path / "snapshot")
    host = host_with(tmp_path, alice=scripted("x"), bob=scripted("x"))
    for expected in (["re: please"], []):
        telegram = Adapter()
        async with conversation_harness(tmp_path / "snapshot", host, adapters={"telegram": telegram}) as conversing:
            await conversing.wait_until_settled()
            await trio.sleep(100)
            assert telegram.texts == expected


async def sleep_forever(*_: Any) -> None:
    await trio.sleep_forever()


async def test_an_idempotency_key_still_names_its_run_after_a_reset(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        asked = request("hello", idempotency_key="k", payload="p")
        first = await harness.supervisor.accept_once(await harness.session(), asked)
        await harness.supervisor.registry.live[first].done.wait()
        session_changes, feed = SessionChanges(harness.store, ignore_call), harness.feed
        for number in range(2):
            await reset(session_changes, feed, harness.store.catalog.by_key[MAIN], harness.supervisor.stop_for_reset)
            await harness.wait_for_end(await harness.accept(f"m{number}", idempotency_key=f"m{number}", payload="p"))
        session = harness.store.catalog.by_key[MAIN]
        assert await harness.supervisor.accept_once(session, asked) == first
        with pytest.raises(Conflict):
            harness.supervisor.run_of_key(session, "k", "another")
    # Also after a restart, and up to the number of keys that one transcript remembers.
    async with run_harness(tmp_path / "store") as harness:
        session = harness.store.catalog.by_key[MAIN]
        assert harness.supervisor.run_of_key(session, "k", "p") == first
        assert len(list(harness.supervisor._keyed_runs(session))) == 3
        many = tuple(KeyedRun(f"n{number}", "r", "p") for number in range(MAX_KEYED_RUNS - 1))
        session.entry = replace(session.entry, keyed=many)
        assert len(list(harness.supervisor._keyed_runs(session))) == MAX_KEYED_RUNS
        assert harness.supervisor.run_of_key(session, "k", "p") is None


async def test_a_kill_at_any_commit_around_a_reset_leaves_each_message_and_each_run_end_once(
    tmp_path: Path, autojump_clock: Any
):
    """The store is copied at every commit of runs before and after a reset, and each copy is recovered."""
    snapshots: list[Path] = []
    async with run_harness(tmp_path / "store") as harness:

        def take_snapshot() -> None:
            snapshots.append(harness.copy_store(tmp_path / f"snapshot{len(snapshots)}"))

        await harness.session()
        harness.listener.after_poke.append(take_snapshot)
        harness.agent.act = harness.agent.wait
        for text in ("live", "queued 1", "queued 2"):
            await harness.accept(text, idempotency_key=text, payload="p")
        await harness.agent.wait_for_turn("live").wait()
        session_changes, feed = SessionChanges(harness.store, ignore_call), harness.feed
        await reset(session_changes, feed, harness.store.catalog.by_key[MAIN], harness.supervisor.stop_for_reset)
        harness.agent.gate.set()
        for text in ("after 1", "after 2"):
            await harness.accept(text, idempotency_key=text, payload="p")
        await trio.sleep(1)
    assert len(snapshots) >= 8
    for snapshot in snapshots:
        ends: dict[str, str] = {}
        for _ in range(2):
            async with run_harness(snapshot) as harness:
                for run in list(harness.supervisor.registry.live.values()):
                    await run.done.wait()
                check_once(snapshot, ends)


def check_once(store: Path, ends: dict[str, str]) -> None:
    """Check that every accepted run has one end, the same as in earlier checks, and its text once if it began."""
    texts: list[str] = []
    statuses: dict[str, list[str]] = {}
    for path in store.rglob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            record = json.loads(line) if line.strip() else {}
            if record.get("customType") == "sessiond/run":
                statuses.setdefault(record["data"]["runId"], []).append(record["data"]["status"])
            elif record.get("type") == "message" and record["message"]["role"] == "user":
                texts.append(record["message"]["content"])
    assert len(texts) == len(set(texts))
    assert len(texts) == sum("running" in found for found in statuses.values())
    for run_id, found in statuses.items():
        assert found.count("accepted") == 1 and sum(status in FINAL for status in found) == 1, found
        assert ends.setdefault(run_id, found[-1]) == found[-1]


async def test_runs_accepted_while_the_daemon_stops_start_after_the_restart(tmp_path: Path, autojump_clock: Any):
    child_key = "agent:main:subagent:1"
    async with run_harness(tmp_path / "store") as harness:
        await harness.session()
        harness.supervisor.interrupt_all()
        await harness.accept("late")
        await harness.supervisor.create(child_key, request("task"), cwd="/w")
    async with run_harness(tmp_path / "store") as harness:
        for run in list(harness.supervisor.registry.live.values()):
            assert await harness.wait_for_end(run) == ("ok", f"re: {run.request.text}")
        for key in (MAIN, child_key):
            assert [status for _, status in harness.run_statuses(key)] == ["accepted", "running", "ok"]


async def test_a_run_end_that_the_disk_refuses_as_the_daemon_begins_to_stop_is_written_once_more(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        await harness.agent.wait_for_turn("hello").wait()
        refused = []

        def refuses(parts: Any) -> bool:
            if not refused:
                harness.supervisor.interrupt_all()
                refused.append(parts)
                return True
            return False

        refuse_appends(harness, refuses)
        harness.agent.gate.set()
        with trio.fail_after(60):
            assert await harness.wait_for_end(run) == ("ok", "re: hello")
