"""Runs for another machine: they outlive its link, its connection and the daemon, and each has one end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from runtimes.test_attached import AttachedHost, FakeConnection
from support.supervised_runs import RunHarness, run_harness

from sessiond.errors import Unsupported
from sessiond.runtimes.attached import AgentConnectionLost, NotReached

KEY = "agent:mars:mars/main"


class MachineHost(AttachedHost):
    """A host that is linked with the machine mars."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.resumable = {"mars"}

    def leave_open(self) -> None:
        self.attached.leave_open()


class LosingConnection(FakeConnection):
    """A connection that is lost while it has a run."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.act = self.lose

    async def lose(self, _method: str, _params: dict[str, Any]) -> Any:
        await self.gate.wait()
        raise self.error


@pytest.fixture
def host(tmp_path: Path) -> MachineHost:
    return MachineHost(tmp_path)


@pytest.fixture
async def harness(tmp_path: Path, host: MachineHost) -> AsyncIterator[RunHarness]:
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        yield harness


ONE_ANSWER = ["user: hello", "assistant: re: hello"]


async def test_a_run_waits_for_the_link_however_long_it_takes(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    run = await harness.accept("hello", KEY)
    await trio.sleep(30 * 86400)
    host.attached.attach("mars", FakeConnection())
    assert await harness.wait_for_end(run) == ("ok", "re: hello")
    assert harness.messages(KEY) == ONE_ANSWER


@pytest.mark.parametrize("error", [AgentConnectionLost(), NotReached()])
async def test_a_run_whose_connection_was_lost_is_asked_for_again_under_the_same_id(
    harness: RunHarness, host: MachineHost, autojump_clock: Any, error: Exception
):
    lost = [LosingConnection(error) for _ in range(3)]
    run = await harness.accept("hello", KEY)
    for connection in lost:
        host.attached.attach("mars", connection)
        await connection.begun.wait()
        connection.gate.set()
        await trio.sleep(1000)
        assert host.attached.counts() == {}
    last = FakeConnection()
    host.attached.attach("mars", last)
    assert await harness.wait_for_end(run) == ("ok", "re: hello")
    asked = [params for one in (*lost, last) for _, params in one.asked]
    assert [one["runId"] for one in asked] == [run.run_id] * 4
    assert harness.messages(KEY) == ONE_ANSWER
    assert [status for _, status in harness.run_statuses(KEY)] == ["accepted", "running", "ok"]


@pytest.mark.parametrize("queued_first", [True, False])
async def test_a_run_that_a_machine_has_goes_on_after_a_kill(
    tmp_path: Path, host: MachineHost, autojump_clock: Any, queued_first: bool
):
    """Whether it was accepted before the link attached, which writes its message later, or after."""
    connection = FakeConnection()
    connection.act = connection.wait
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        if not queued_first:
            host.attached.attach("mars", connection)
        run = await harness.accept("hello", KEY, context="who asks")
        later = await harness.accept("later", KEY)
        if queued_first:
            host.attached.attach("mars", connection)
        await connection.begun.wait()
        copy = harness.copy_store(tmp_path / "killed")
        connection.gate.set()
        await later.done.wait()
    second, again = MachineHost(tmp_path), FakeConnection()
    async with run_harness(copy, host=second) as harness:
        second.on_change = harness.supervisor.agents_changed
        assert harness.messages(KEY) == ["user: hello"]
        second.attached.attach("mars", again)
        found = [harness.supervisor.registry.get(one.run_id) for one in (run, later)]
        assert [await harness.wait_for_end(one) for one in found if one] == [("ok", "re: hello"), ("ok", "re: later")]
        facts = [(params["runId"], params["message"], params.get("context")) for _, params in again.asked]
        assert facts == [(run.run_id, "hello", "who asks"), (later.run_id, "later", None)]
        assert harness.messages(KEY) == [*ONE_ANSWER, "user: later", "assistant: re: later"]


async def test_a_stop_of_the_daemon_neither_ends_the_run_nor_cancels_it_at_the_link(
    tmp_path: Path, host: MachineHost, autojump_clock: Any
):
    connection = FakeConnection()
    connection.act = connection.wait
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        host.attached.attach("mars", connection)
        run = await harness.accept("hello", KEY)
        await connection.begun.wait()
        harness.supervisor.interrupt_all()
    assert connection.cancelled == []
    second = MachineHost(tmp_path)
    async with run_harness(tmp_path / "store", host=second) as harness:
        second.on_change = harness.supervisor.agents_changed
        found = harness.supervisor.registry.get(run.run_id)
        assert found is not None
        assert found.status == "running"
        second.attached.attach("mars", FakeConnection())
        assert await harness.wait_for_end(found) == ("ok", "re: hello")
        assert harness.messages(KEY) == ONE_ANSWER


async def test_a_connection_that_ends_while_the_daemon_stops_leaves_the_run_open(
    tmp_path: Path, host: MachineHost, autojump_clock: Any
):
    connection = LosingConnection(AgentConnectionLost())
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        host.attached.attach("mars", connection)
        await harness.accept("hello", KEY)
        await connection.begun.wait()
        connection.gate.set()
        harness.supervisor.interrupt_all()
    async with run_harness(tmp_path / "store", host=MachineHost(tmp_path)) as harness:
        assert [status for _, status in harness.run_statuses(KEY)] == ["accepted", "running"]
        assert [run.status for run in harness.supervisor.registry.live.values()] == ["running"]


async def test_an_abort_is_told_to_the_link_and_an_ended_run_is_never_asked_for_again(
    tmp_path: Path, host: MachineHost, autojump_clock: Any
):
    connection = FakeConnection()
    connection.act = connection.wait
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        host.attached.attach("mars", connection)
        run = await harness.accept("hello", KEY)
        await connection.begun.wait()
        await harness.supervisor.stop(run.session)
        assert connection.cancelled == ["run.start"]
        assert await harness.wait_for_end(run) == ("aborted", "aborted")
    second, later = MachineHost(tmp_path), FakeConnection()
    async with run_harness(tmp_path / "store", host=second) as harness:
        second.on_change = harness.supervisor.agents_changed
        second.attached.attach("mars", later)
        await trio.sleep(1000)
        assert later.asked == []


async def test_a_run_that_waits_for_a_lost_link_can_be_aborted(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    connection = LosingConnection(AgentConnectionLost())
    host.attached.attach("mars", connection)
    run = await harness.accept("hello", KEY)
    await connection.begun.wait()
    connection.gate.set()
    await trio.sleep(1)
    assert await harness.supervisor.stop(run.session) == [run.run_id]
    assert harness.messages(KEY) == ["user: hello"]


async def test_runs_of_a_machine_take_no_slot_of_others(harness: RunHarness, host: MachineHost, autojump_clock: Any):
    host.most = (1, 1)
    connection = FakeConnection()
    connection.act = connection.wait
    host.attached.attach("mars", connection)
    for number in range(20):
        await harness.accept("x", f"agent:mars:mars/{number}")
    local = FakeConnection()
    host.attached.attach("alice", local)
    run = await harness.accept("hello", "agent:alice:main")
    assert await harness.wait_for_end(run) == ("ok", "re: hello")
    assert len(connection.live_runs) == 20
    connection.gate.set()


async def test_a_limit_that_the_sender_set_counts_from_the_first_time_that_it_was_asked_for(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    connection = LosingConnection(AgentConnectionLost())
    host.attached.attach("mars", connection)
    run = await harness.accept("hello", KEY, timeout_s=60.0)
    await connection.begun.wait()
    connection.gate.set()
    await trio.sleep(1)
    assert run.started_at is not None
    run.started_at -= 61_000
    second = FakeConnection()
    host.attached.attach("mars", second)
    assert await harness.wait_for_end(run) == ("timeout", "the run met its limit of 60 s")


async def test_messages_in_an_answer_are_refused_because_the_answer_may_come_twice(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    connection = FakeConnection()

    async def act(_method: str, _params: dict[str, Any]) -> Any:
        return {"messages": [{"role": "assistant", "content": "hi"}]}

    connection.act = act
    host.attached.attach("mars", connection)
    status, error = await harness.wait_for_end(await harness.accept("hello", KEY))
    assert (status, error) == ("error", "machine mars answered with messages, which might come twice")
    assert harness.messages(KEY) == ["user: hello"]


async def test_messages_during_a_run_are_refused_too_but_its_live_text_is_told(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    connection = FakeConnection()
    connection.act = connection.wait
    host.attached.attach("mars", connection)
    run = await harness.accept("hello", KEY)
    await connection.begun.wait()
    turn = host.attached.turn(run.run_id, connection)
    assert turn is not None
    with pytest.raises(Unsupported, match="a message might come twice"):
        turn.append(msgspec.Raw(b'{"role":"assistant","content":"hi"}'))
    turn.sink.delta("hi")
    assert run.text_so_far.end() == "hi"
    connection.gate.set()
    assert await harness.wait_for_end(run) == ("ok", "re: hello")


async def test_runs_for_a_machine_that_was_taken_out_of_the_configuration_expire(
    harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    run = await harness.accept("hello", KEY)
    host.resumable = set()
    harness.supervisor.agents_changed()
    status, error = await harness.wait_for_end(run)
    assert (status, error) == ("error", "agent mars was not attached within 300 s; start it and send again")


async def test_what_a_machine_has_begun_stays_ahead_of_what_comes_meanwhile(
    tmp_path: Path, harness: RunHarness, host: MachineHost, autojump_clock: Any
):
    """Also ahead of a message that is put before all others, and after a restart."""
    connection = LosingConnection(AgentConnectionLost())
    host.attached.attach("mars", connection)
    await harness.accept("begun", KEY)
    await connection.begun.wait()
    connection.gate.set()
    await trio.sleep(1)
    await harness.accept("later", KEY)
    await harness.accept("first", KEY, first=True)
    order = ["begun", "first", "later"]
    assert [run.request.text for run in harness.supervisor.queues.runs_of(KEY)] == order
    copy = harness.copy_store(tmp_path / "killed")
    second, again = MachineHost(tmp_path), FakeConnection()
    async with run_harness(copy, host=second) as restarted:
        second.on_change = restarted.supervisor.agents_changed
        second.attached.attach("mars", again)
        for run in list(restarted.supervisor.registry.live.values()):
            await run.done.wait()
        assert [params["message"] for _, params in again.asked] == order
