"""What travels for a message to another machine: the command, its answer, and both in parts. Knows no server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

# One message on the server, which takes a megabyte; longer ones keep short ones waiting.
PART_BYTES = 256 * 1024
# What the daemon takes in one call.
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_PARTS = MAX_BODY_BYTES // PART_BYTES
# What a body may be as JSON, which a line to the daemon holds with all else that is in it. A control character is one
# byte in a body, and six there.
MAX_LINE_BYTES = MAX_BODY_BYTES - 64 * 1024
MAX_KEY_CHARS = 1024
# How long after it was signed a command is taken: much longer than servers keep one, and shorter than it is known here
# that it was carried out (`command_ledger.KEPT_MS`); after that whoever has kept a copy could have it done once more.
MAX_AGE_MS = 60 * 86_400_000
# Clocks are wrong, but not by more; who signs ahead would be believed for longer.
MAX_AHEAD_MS = 86_400_000


class CommandFile(msgspec.Struct, frozen=True):
    """A file for a sub-agent."""

    name: str
    data: bytes
    mime_type: str | None = None


class CommandOrigin(msgspec.Struct, frozen=True):
    """The session that asks, and the chain of messages of which this one is part: `hops` have led to it."""

    session_key: str | None = None
    trace_id: str | None = None
    hops: int = 0


class MachineCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked of another machine. Its id is that of the run here that waits for the answer.

    `target` is a session there, or for `spawn` an agent. `origin` is who asks here, if that is no person. `within_s` is
    how long a sub-agent may take. `abort` ends the run of the command with the same id.
    """

    method: Literal["send", "spawn", "abort"]
    target: str = ""
    message: str = ""
    origin: CommandOrigin | None = None
    files: tuple[CommandFile, ...] = ()
    within_s: float | None = None


class PartOf(msgspec.Struct, frozen=True):
    """Which part of a body a message has, from 0 on, and how many there are: the fields of its envelope. `sent_at` is
    when it was signed, in milliseconds since 1970.
    """

    part: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTS)] = 0
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    sent_at: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = msgspec.field(name="sentAt", default=0)

    def __post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"there is no part {self.part} of {self.parts}")

    def is_of_now(self, now_ms: int) -> bool:
        """Whether it was signed lately, as far as clocks say."""
        return -MAX_AHEAD_MS <= now_ms - self.sent_at <= MAX_AGE_MS


class MachineAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of it. `refused`: it was not carried out. `session_key` is that of the session there, if it was."""

    status: Literal["ok", "error", "refused"]
    reply: str | None = None
    error: str | None = None
    session_key: str | None = None


_Body = TypeVar("_Body", MachineCommand, MachineAnswer)


class BadBody(Exception):
    """It is no command, or no answer; the message says why."""


_read_command = msgspec.msgpack.Decoder(MachineCommand).decode
_read_answer = msgspec.msgpack.Decoder(MachineAnswer).decode


def encode(body: MachineCommand | MachineAnswer) -> bytes:
    return msgspec.msgpack.encode(body)


def decode_command(data: bytes) -> MachineCommand:
    """The command in `data`. BadBody where that is none."""
    command = _decode(_read_command, data)
    if command.within_s is not None and not math.isfinite(command.within_s):
        raise BadBody("its time limit is no number")  # which the daemon could not be told
    return command


def decode_answer(data: bytes) -> MachineAnswer:
    """The answer in `data`. BadBody where that is none."""
    return _decode(_read_answer, data)


def _decode(read: Callable[[bytes], _Body], data: bytes) -> _Body:
    try:
        return read(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(str(error)) from None


def split(data: bytes) -> list[bytes]:
    """The parts of a body; at least one."""
    return [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)] or [b""]
