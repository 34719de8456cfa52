"""What becomes of a message with a part of a command: acknowledged, dropped, or handed back where the disk is full."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from sessiond.errors import StorageError
from sessiond.link.command_inbox import AGAIN_S, CommandInbox
from sessiond.link.command_ledger import NoRoom
from sessiond.link.command_wire import MAX_AGE_MS, PART_BYTES
from sessiond.link.envelope import PeerMessage, Refused
from sessiond.link.paced_log import BURST


class StandInArrival:
    def __init__(self) -> None:
        self.done: list[Any] = []

    async def ack(self) -> None:
        self.done.append("ack")

    async def retry(self, delay_s: float) -> None:
        self.done.append(delay_s)


class StandInExecutor:
    def __init__(self, fault: Exception | None) -> None:
        self.fault = fault
        self.taken: list[Any] = []

    async def take(self, *given: Any) -> None:
        self.taken.append(given)
        if self.fault is not None:
            raise self.fault


def put_in(
    payload: bytes = b"x",
    fields: bytes = b'{"part":1,"parts":2,"sentAt":7}',
    fault: Exception | None = None,
    now_ms: int = 7,
) -> tuple[list[Any], list[str], list[Any]]:
    """What the executor got, what was dropped, and what was done with the message."""
    executor, arrival = StandInExecutor(fault), StandInArrival()
    dropped: list[Refused] = []
    message = PeerMessage("lap", "mars", "cmd", "c1", fields, payload, False)
    asyncio.run(CommandInbox(executor, dropped.append, lambda: now_ms).take(message, arrival))
    return executor.taken, [one.reason for one in dropped], arrival.done


def test_a_part_is_acknowledged_when_it_was_taken() -> None:
    assert put_in() == ([("lap", "c1", 1, 2, b"x")], [], ["ack"])


@pytest.mark.parametrize(("length", "is_taken"), [(PART_BYTES, True), (PART_BYTES + 1, False)])
def test_a_part_that_is_too_long_is_dropped(length: int, is_taken: bool) -> None:
    taken, dropped, done = put_in(bytes(length))
    assert (bool(taken), dropped, done) == (is_taken, [] if is_taken else ["content"], ["ack"])


@pytest.mark.parametrize(("now_ms", "is_taken"), [(7 + MAX_AGE_MS, True), (8 + MAX_AGE_MS, False)])
def test_a_command_that_was_signed_long_ago_is_dropped(now_ms: int, is_taken: bool) -> None:
    taken, dropped, done = put_in(now_ms=now_ms)
    assert (bool(taken), dropped, done) == (is_taken, [] if is_taken else ["time"], ["ack"])


def test_fields_that_are_none_are_dropped() -> None:
    assert put_in(fields=b'{"part":2,"parts":2}') == ([], ["content"], ["ack"])


def test_what_is_too_much_of_one_machine_takes_no_place_on_the_server() -> None:
    """What is handed back waits among the 64 that a consumer has on their way, which are for all machines."""
    assert put_in(fault=NoRoom()) == ([("lap", "c1", 1, 2, b"x")], ["room"], ["ack"])


def test_what_the_disk_refuses_again_and_again_fills_no_log() -> None:
    executor, arrival = StandInExecutor(StorageError("full")), StandInArrival()
    inbox = CommandInbox(executor, lambda _refused: None, lambda: 7)
    message = PeerMessage("lap", "mars", "cmd", "c1", b'{"part":0,"parts":1,"sentAt":7}', b"x", False)

    async def body() -> None:
        for _ in range(BURST + 50):
            await inbox.take(message, arrival)

    with capture_logs() as lines:
        asyncio.run(body())
    assert len(arrival.done) == BURST + 50
    assert [line["event"] for line in lines] == ["a command was not taken"] * BURST


def test_what_the_disk_refuses_comes_again() -> None:
    assert put_in(fault=StorageError("full")) == ([("lap", "c1", 1, 2, b"x")], [], [AGAIN_S])
