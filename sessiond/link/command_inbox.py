"""Commands as they arrive: each message is a part of one, for the executor.

A message is acknowledged unless the disk refuses it. What is too much of one machine is dropped, and its sender sends
it again: what stayed on the server would take the places of what other machines send.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import structlog

from sessiond.errors import StorageError
from sessiond.link.command_ledger import NoRoom
from sessiond.link.command_wire import PART_BYTES, PartOf
from sessiond.link.envelope import PeerMessage, Refused, read_fields
from sessiond.link.paced_log import PacedLog

log = structlog.get_logger("sessiond.link")

# When a message that the disk has refused comes again.
AGAIN_S = 20.0


class ArrivedMessage(Protocol):
    """The part of `Arrival` that is used here."""

    async def ack(self) -> None: ...
    async def retry(self, delay_s: float) -> None: ...


class CommandTaker(Protocol):
    """The part of `Executor` that is used here."""

    async def take(self, peer: str, command_id: str, part: int, parts: int, data: bytes) -> None: ...


class CommandInbox:
    """`drop` counts what is dropped."""

    def __init__(self, executor: CommandTaker, drop: Callable[[Refused], object], wall_ms: Callable[[], int]) -> None:
        self._executor, self._drop, self._wall_ms = executor, drop, wall_ms
        # While the disk is full, all that waits comes three times a minute.
        self._paced = PacedLog(time.monotonic)

    async def take(self, message: PeerMessage, arrival: ArrivedMessage) -> None:
        """Keep the part, and acknowledge it."""
        fields = read_part(message)
        if isinstance(fields, PartOf) and not fields.is_of_now(self._wall_ms()):
            why = f"a command from {message.sender} was signed long ago, or its clock and the one here are days apart"
            fields = Refused("time", why)
        if isinstance(fields, Refused):
            self._drop(fields)
            await arrival.ack()
            return
        try:
            await self._executor.take(message.sender, message.id, fields.part, fields.parts, message.payload)
        except NoRoom:
            self._drop(Refused("room", f"{message.sender} has too many commands here that are not executed yet"))
        except StorageError as error:
            self._paced.write(log.error, message.sender, "a command was not taken", reason=error.message)
            await arrival.retry(AGAIN_S)
            return
        await arrival.ack()


def read_part(message: PeerMessage) -> PartOf | Refused:
    """Which part of a command or an answer the message has."""
    if len(message.payload) > PART_BYTES:
        return Refused("content", f"a part from {message.sender} is longer than allowed")
    return read_fields(message, PartOf)
