"""Runs here that another machine answers: sent until the answer is there, stopped with their run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.link_stand_ins import StandInServer, refusal, run_until, settle

from sessiond.client.errors import ConnectionLost, RpcError
from sessiond.client.retry import Backoff
from sessiond.client.wire import DaemonRequest
from sessiond.link import commands as room
from sessiond.link import repeated_sending
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.command_wire import (
    MAX_BODY_BYTES,
    CommandFile,
    CommandOrigin,
    MachineAnswer,
    MachineCommand,
    decode_command,
    encode,
    split,
)
from sessiond.link.commands import Commands
from sessiond.link.ledger_thread import LedgerThread

SESSION = "agent:mars:mars/agent:ops:main"
CHILD = "agent:mars:subagent:1"


class StandInOwner:
    """What the daemon says of runs."""

    def __init__(self) -> None:
        self.status = "running"
        self.fault: Exception | None = None
        self.asked: list[tuple[str, int]] = []

    async def call(self, method: str, params: dict[str, Any] | None = None, /, **more: Any) -> Any:
        assert method == "agent.wait", f"nobody asks for {method}"
        self.asked.append((more["runId"], more["timeoutMs"]))
        if self.fault is not None:
            raise self.fault
        return {"status": self.status}


class StandInConnection:
    lost: Exception | None = None

    def __init__(self) -> None:
        self.attached: list[str] = []

    async def call(self, method: str, **params: Any) -> None:
        self.attached.append(f"{method} {params['agentId']}")


class World:
    def __init__(self, ledger: LedgerThread) -> None:
        self.ledger = ledger
        self.server, self.owner, self.connection = StandInServer(), StandInOwner(), StandInConnection()
        self.there = True
        self.counted: list[int] = []
        self.commands = Commands(
            ledger,
            self.owner,
            names=["mars", "moon"],
            send=self.server.send,
            is_there=lambda peer: self.there,
            read_files=lambda peer, receipt: tuple(CommandFile(one["name"], b"data") for one in receipt["files"]),
            changed=lambda: self.counted.append(len(self.commands)),
            wall_ms=lambda: 1_000,
        )

    def start(self, run_id: str = "r1", key: str = SESSION, **params: Any) -> asyncio.Task[dict[str, Any]]:
        given = {"runId": run_id, "sessionKey": key, "message": "hello", "step": "primary", **params}
        return asyncio.create_task(self.commands.start(self.connection, DaemonRequest(1, "run.start", given)))

    async def command(self, number: int = 0) -> MachineCommand:
        await self.server.wait_for(number + 1)
        return decode_command(self.server.kept[number][2])

    def answer(self, answer: MachineAnswer, run_id: str = "r1", peer: str = "mars") -> None:
        parts = split(encode(answer))
        for number, part in enumerate(parts):
            self.commands.take(peer, run_id, number, len(parts), part)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.commands.run())
    await settle()
    try:
        yield world
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def in_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[World], Awaitable[None]]], None]]:
    ledger = LedgerThread(CommandLedger(tmp_path), list)
    monkeypatch.setattr(repeated_sending, "Backoff", lambda first_s, max_s: Backoff(0.0, 0.0))

    def run(body: Callable[[World], Awaitable[None]]) -> None:
        async def made() -> None:
            async with running(World(ledger)) as world:
                await body(world)

        run_until(made)

    yield run
    ledger.close()


def test_a_message_goes_there_and_its_reply_ends_the_run(in_world: Any) -> None:
    async def body(world: World) -> None:
        run = world.start(
            target="mars/agent:ops:main", provenance={"sourceSessionKey": "agent:main:main", "traceId": "t", "hops": 1}
        )
        assert await world.command() == MachineCommand(
            method="send", target="agent:ops:main", message="hello", origin=CommandOrigin("agent:main:main", "t", 1)
        )
        world.answer(MachineAnswer(status="ok", reply="hi"))
        assert await run == {"reply": "hi"}
        assert world.counted == [1, 0]

    in_world(body)


@pytest.mark.parametrize("status", ["error", "refused"])
def test_what_went_wrong_there_is_the_error_of_the_run(in_world: Any, status: Any) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        world.answer(MachineAnswer(status=status, error="you may not"))
        with pytest.raises(RpcError, match="mars: you may not"):
            await run

    in_world(body)


def test_it_is_sent_again_until_the_answer_is_there_with_the_same_id(in_world: Any) -> None:
    async def body(world: World) -> None:
        world.server.refusals = 3
        run = world.start(target="mars/main")
        await world.server.wait_for(3)
        assert len({(peer, identity, body) for peer, identity, body in world.server.kept}) == 1
        world.answer(MachineAnswer(status="ok"))
        assert await run == {}

    in_world(body)


def test_a_machine_that_is_asleep_is_sent_one_copy_and_more_when_it_is_back(in_world: Any) -> None:
    async def body(world: World) -> None:
        world.there = False
        run = world.start(target="mars/main")
        await world.server.wait_for(1)
        await settle()
        assert len(world.server.kept) == 1
        world.there = True
        world.commands.note_presence("mars")
        await world.server.wait_for(2)
        world.answer(MachineAnswer(status="ok", reply="hi"))
        assert await run == {"reply": "hi"}

    in_world(body)


def test_only_the_machine_that_was_asked_answers_and_the_first_answer_counts(in_world: Any) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        world.answer(MachineAnswer(status="ok", reply="forged"), peer="moon")
        world.answer(MachineAnswer(status="ok", reply="for nobody"), run_id="r2")
        world.answer(MachineAnswer(status="ok", reply="first"))
        world.answer(MachineAnswer(status="ok", reply="second"))
        assert await run == {"reply": "first"}

    in_world(body)


def test_a_long_answer_comes_in_parts_in_any_order(in_world: Any) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        long = MachineAnswer(status="ok", reply="x" * 700_000)
        parts = split(encode(long))
        assert len(parts) == 3
        for number in (2, 0, 0, 1):
            world.commands.take("mars", "r1", number, 3, parts[number])
        assert await run == {"reply": long.reply}

    in_world(body)


def test_a_sub_agent_is_spawned_with_its_files_and_later_messages_go_to_it(in_world: Any) -> None:
    async def body(world: World) -> None:
        files = {"relDir": "x", "files": [{"name": "a.csv"}]}
        run = world.start(key=CHILD, target="mars/ops", attachments=files, deadline=61_000)
        assert await world.command() == MachineCommand(
            method="spawn",
            target="ops",
            message="hello",
            files=(CommandFile("a.csv", b"data"),),
            within_s=60.0,
        )
        world.answer(MachineAnswer(status="ok", reply="done", session_key="agent:ops:subagent:9"))
        assert await run == {"reply": "done"}
        count = len(world.server.kept)
        run = world.start("r2", key=CHILD, target="mars/ops", message="and now?")
        assert await world.command(count) == MachineCommand(
            method="send", target="agent:ops:subagent:9", message="and now?"
        )
        world.answer(MachineAnswer(status="ok", reply="more"), "r2")
        assert await run == {"reply": "more"}

    in_world(body)


def test_a_reply_step_says_what_it_is_and_an_announcement_asks_nobody(in_world: Any) -> None:
    async def body(world: World) -> None:
        assert await world.start(target="mars/main", step="announce") == {"reply": "ANNOUNCE_SKIP"}
        assert await world.start(key=CHILD, target="mars/ops", step="announce") == {"reply": "ANNOUNCE_SKIP"}
        assert not world.server.kept
        run = world.start(target="mars/main", step="reply", context="Turn 2 of 5.")
        assert (await world.command()).message == "Turn 2 of 5.\n\nhello"
        world.answer(MachineAnswer(status="ok", reply="REPLY_SKIP"))
        assert await run == {"reply": "REPLY_SKIP"}

    in_world(body)


def test_a_run_in_the_session_as_which_the_peer_acts_here_goes_nowhere(in_world: Any) -> None:
    async def body(world: World) -> None:
        found = [await world.start(key="agent:mars:main", step=step) for step in ("primary", "reply", "announce")]
        assert found == [{}, {"reply": "REPLY_SKIP"}, {"reply": "ANNOUNCE_SKIP"}]
        assert not world.server.kept

    in_world(body)


def test_what_cannot_travel_is_refused_with_a_sentence(in_world: Any) -> None:
    async def body(world: World) -> None:
        with pytest.raises(RpcError, match="files go to another machine with sessions_spawn"):
            await world.start(target="mars/main", attachments={"files": [{"name": "a"}]})
        with pytest.raises(RpcError, match=f"and {MAX_BODY_BYTES} go to another machine at once"):
            await world.start(target="mars/main", message="x" * MAX_BODY_BYTES)
        assert not world.server.kept and len(world.commands) == 0

    in_world(body)


@pytest.mark.parametrize(
    ("status", "is_lost", "is_leaving", "stops"),
    [
        ("aborted", False, False, True),
        ("running", False, False, False),
        ("aborted", True, False, False),
        ("aborted", False, True, False),
    ],
)
def test_the_run_there_is_stopped_only_with_the_run_here(
    in_world: Any, status: str, is_lost: bool, is_leaving: bool, stops: bool
) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        world.owner.status, world.commands.is_leaving = status, is_leaving
        world.connection.lost = ConnectionLost("gone") if is_lost else None
        count = len(world.server.kept)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
        await settle()
        if stops:
            await world.server.wait_for(count + 3)
        stopped = {decode_command(body).method for _, _, body in world.server.kept[count:]}
        assert stopped == ({"abort"} if stops else set())

    in_world(body)


async def stop(world: World, run: asyncio.Task[Any], status: str = "aborted") -> None:
    world.owner.status = status
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def unanswered(world: World) -> list[tuple[str, str]]:
    return await world.ledger.do(CommandLedger.unanswered_commands)


def test_a_machine_is_told_to_stop_until_it_answers_however_long_the_server_is_away(in_world: Any) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        world.server.refusals, world.there = 20, False
        count = len(world.server.kept)
        await stop(world, run)
        await world.server.wait_for(count + 1)
        await settle()
        assert [identity for _, identity, _ in world.server.kept[count:]] == ["r1"], "to one that is asleep once"
        world.there = True
        world.commands.note_presence("mars")
        await world.server.wait_for(count + 3)
        world.answer(MachineAnswer(status="ok"), peer="moon")
        assert await unanswered(world) == [("mars", "r1")], "another machine has no say in it"
        world.answer(MachineAnswer(status="error", error="it was stopped"))
        while await unanswered(world):
            await settle()
        await settle()
        count = len(world.server.kept)
        await settle()
        assert len(world.server.kept) == count

    in_world(body)


@pytest.mark.parametrize(
    ("status", "fault", "stops"),
    [
        ("aborted", None, True),
        ("timeout", None, True),
        ("error", None, True),
        ("running", None, False),
        ("ok", None, False),
        ("aborted", refusal("not_found"), True),
        ("aborted", refusal("overloaded"), False),
        ("aborted", ConnectionLost("gone"), False),
    ],
)
def test_what_was_stopped_while_no_link_ran_is_told_when_one_does(
    in_world: Any, status: str, fault: Exception | None, stops: bool
) -> None:
    async def body(world: World) -> None:
        run = world.start(target="mars/main")
        await world.command()
        world.commands.is_leaving = True
        await stop(world, run)
        again = World(world.ledger)
        again.owner.status, again.owner.fault = status, fault
        async with running(again):
            await again.commands.attach(again.connection)
            if stops:
                await again.server.wait_for(2)
            while again.owner.asked != [("r1", 0)]:
                await settle()
            left = await unanswered(again)
            assert {decode_command(data).method for _, _, data in again.server.kept} == ({"abort"} if stops else set())
            assert left == ([] if status == "ok" else [("mars", "r1")])

    in_world(body)


def test_what_goes_on_or_has_its_answer_is_not_stopped(in_world: Any) -> None:
    async def body(world: World) -> None:
        answered, goes_on = world.start("r1", target="mars/main"), world.start("r2", target="mars/main")
        await world.server.wait_for(2)
        assert sorted(await unanswered(world)) == [("mars", "r1"), ("mars", "r2")]
        world.answer(MachineAnswer(status="error", error="no"))
        with pytest.raises(RpcError):
            await answered
        assert await unanswered(world) == [("mars", "r2")]
        world.owner.status = "aborted"
        await world.commands.attach(world.connection)
        await settle()
        assert world.owner.asked == [] and not goes_on.done()
        assert {decode_command(data).method for _, _, data in world.server.kept} == {"send"}

    in_world(body)


def test_an_answer_that_no_line_to_the_daemon_holds_is_an_error(in_world: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "MAX_LINE_BYTES", 20)

    async def body(world: World) -> None:
        for number, (reply, fits) in enumerate((("\1" * 3, True), ("\1" * 4, False))):
            run = world.start(run_id=f"r{number}", target="mars/main")
            await world.command(number)
            world.answer(MachineAnswer(status="ok", reply=reply), run_id=f"r{number}")
            if fits:
                assert await run == {"reply": reply}
            else:
                with pytest.raises(RpcError, match="mars: its answer is longer than sessiond takes"):
                    await run
        run = world.start(run_id="r2", target="mars/main")
        await world.command(2)
        world.answer(MachineAnswer(status="error", error="\1" * 4), run_id="r2")
        with pytest.raises(RpcError, match="mars: its answer is longer than sessiond takes"):
            await run

    in_world(body)


@pytest.mark.parametrize(("length", "is_kept"), [(room.MAX_KEY_CHARS, True), (room.MAX_KEY_CHARS + 1, False)])
def test_a_sub_agent_has_a_key_of_a_usual_length(in_world: Any, length: int, is_kept: bool) -> None:
    async def body(world: World) -> None:
        run = world.start(key="agent:mars:subagent:1", target="mars/ops")
        await world.command()
        world.answer(MachineAnswer(status="ok", session_key="k" * length))
        await run
        world.start(run_id="r2", key="agent:mars:subagent:1", target="mars/ops")
        assert (await world.command(1)).method == ("send" if is_kept else "spawn")

    in_world(body)


def test_it_attaches_as_every_other_machine(in_world: Any) -> None:
    async def body(world: World) -> None:
        await world.commands.attach(world.connection)
        assert world.connection.attached == ["agents.attach mars", "agents.attach moon"]

    in_world(body)
