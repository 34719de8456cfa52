"""The answers to the commands of other machines: how long they are kept, and who is told of each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.command_executor import SEND, ExecutorWorld, run_world, take
from support.link_stand_ins import until

from sessiond.link import command_ledger
from sessiond.link import executor as room
from sessiond.link.command_ledger import KEPT_MS, CommandLedger
from sessiond.link.command_wire import (
    MachineAnswer,
    MachineCommand,
)
from sessiond.link.executor import Executor
from sessiond.link.ledger_tables import SHORT_ANSWER_BYTES


@pytest.fixture
def in_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[ExecutorWorld], Awaitable[None]]], None]:
    return partial(run_world, tmp_path, monkeypatch)


def test_what_was_answered_long_ago_is_removed_while_the_link_runs(
    in_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FORGET_S", 0.001)

    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)  # it has begun
            ledger = executor._ledger
            await ledger.do(CommandLedger.accept, "lap", "old", b"", -KEPT_MS)
            await ledger.do(CommandLedger.answer, "lap", "old", b"x")
            await ledger.do(CommandLedger.note_sent, "lap", "old", b"gone")
            while await ledger.do(CommandLedger.find, "lap", "old") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await ledger.do(CommandLedger.find, "lap", "c1") is not None

    in_world(body)


def test_each_step_of_a_command_is_told_to_who_counts_them(in_world: Any) -> None:
    """As `link status` does, which counts again only when it is told."""

    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            counted: list[dict[str, Any]] = []

            async def count() -> None:
                while True:
                    await world.changed.wait()
                    world.changed.clear()
                    counted.append(await executor._ledger.do(CommandLedger.counts))

            counting = asyncio.create_task(count())
            await take(executor, SEND)
            await world.accepted()
            await until(lambda: counted[-1:] == [{"lap": {"running": 1}}])
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="hi")
            await until(lambda: counted[-1:] == [{"lap": {"answered": 1}}])
            await take(executor, MachineCommand(method="abort"), "c2")
            await until(lambda: counted[-1:] == [{"lap": {"answered": 2}}])
            counting.cancel()

    in_world(body)


def test_a_command_whose_answer_was_forgotten_is_not_executed_again_and_told_so(
    in_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_ledger, "MAX_ANSWER_BYTES", 600)

    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            for number, name in enumerate(("c1", "c2")):
                await take(executor, SEND, name)
                await world.accepted()
                world.daemon.end(name, "agent:ops:main", status="ok", reply="x" * 900)
                await world.answers(number + 1)
            # What the server has is noted behind it.
            await until(lambda: not executor._delivering)
            await take(executor, SEND, "c1")
            await take(executor, SEND, "c2")
            again = dict((await world.answers(4))[2:])
            said = "kept the answer until 1970-01-01 00:00 UTC, and does not carry it out again; see the session there"
            assert again["c1"] == MachineAnswer(status="error", error=f"mars {said}")
            assert again["c2"].reply == "x" * 900
            assert len(world.daemon.asked) == 2

    in_world(body)


def test_what_stands_for_a_forgotten_answer_is_short_whatever_the_machine_is_called() -> None:
    made = Executor.__new__(Executor)
    made._name, made._wall_ms = "m" * 32, lambda: 2**42
    assert len(made._forgotten) <= SHORT_ANSWER_BYTES
