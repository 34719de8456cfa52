"""Byte ranges of transcripts on their way: what a range is, and what a copy does with one. Pure.

A copy is always an exact prefix of its original: a range is taken if it begins at or before the end of the copy, and
agrees with what is there. When an original was cut, replaced or reset, its sender gives it a new *generation*. They are
in order, so that whatever a server held back or sends again never replaces what is newer.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from sessiond.model.keys import AGENT_ID

# The largest range: one message carries it, of which each costs 5 ms of all five processes besides its bytes. 64 of
# them, as many as are not acknowledged, stay below the 64 MiB with which a server gives up a connection.
RANGE_BYTES = 768 << 10
# A range begins so much earlier than it has to: a copy that has other bytes there, which were sent before the original
# was changed, and the range that would have shown it lost, must not grow.
OVERLAP_BYTES = 1024
# What is answered to one question at most: whoever asks has it before it asks for more, so that the server never holds
# more than that.
ANSWER_BYTES = 8 << 20
# A row shows what a list shows of a session; together they fit into a message.
HEAD_BYTES = 2048
MAX_ROWS = 400
MAX_KEY_CHARS = 1024
# The questions between machines: for a part of a session, and for all rows.
COPY, ROWS = "copy", "rows"
# Offsets are exact in JSON of any program up to here.
_MAX_OFFSET = 2**53

# An imported transcript keeps its name, which may have capitals.
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SessionId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{SESSION.pattern})\Z")]
AgentId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{AGENT_ID.pattern})\Z")]
Generation = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
Offset = Annotated[int, msgspec.Meta(ge=0, le=_MAX_OFFSET)]

# append   it goes on where the copy ends, or before      replace  it is the beginning of a newer generation
# gap      something is missing before it                 ended    its generation is over
Verdict = Literal["append", "replace", "gap", "ended"]


class RangeFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a message with a range; the bytes are its payload, the session is its id. `size`: so many bytes the
    original had.
    """

    agent: AgentId
    generation: Generation
    begin: Offset = msgspec.field(name="from")
    to: Offset
    size: Offset


class RowFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A session that is exported, or `gone`: not any more. `head` bytes of the payload are its first lines."""

    session: SessionId
    agent: AgentId
    generation: Generation
    key: Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)] = ""
    size: Offset = 0
    updated_at: Offset = 0
    gone: bool = False
    head: Annotated[int, msgspec.Meta(ge=0, le=HEAD_BYTES)] = 0


class RowsFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a message with rows. What a row says counts unless one with a higher counter came before."""

    counter: Offset
    rows: Annotated[tuple[RowFields, ...], msgspec.Meta(max_length=MAX_ROWS)]


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of the question for a part of a session: `have` bytes of `generation` are there. `wrong`: they are not
    what came later. The part comes as messages of the kind ask.
    """

    session: SessionId
    generation: Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{16})?\Z")] = ""
    have: Offset = 0
    wrong: bool = False


class RowsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of the question for all rows. `counter` is the highest that was seen; with `heads` if there is no copy
    of anything.
    """

    counter: Offset = 0
    heads: bool = False


class Promise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of the reply. `gone`: the session is not exported; `busy`: ask later."""

    gone: bool = False
    busy: bool = False


class ByteSpan(msgspec.Struct, frozen=True):
    """Bytes of a session from `begin` on. `mtime_ms`: the time that a new copy gets, None: now."""

    session: str
    agent: str
    generation: str
    begin: int
    data: bytes
    mtime_ms: int | None = None

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


class CopyState(msgspec.Struct, frozen=True):
    """What is known of a copy. `is_begun` is False until the beginning of its generation is on disk; `is_gone`: its
    sender exports it no more, and only a newer generation brings it back. `counter` is that of its newest row.
    """

    agent: str
    generation: str
    is_begun: bool = True
    is_gone: bool = False
    counter: int = 0


def make_generation(after: str, now_ms: int, salt: int) -> str:
    """A generation that comes after `after` (which may be empty), also where the clock was set back."""
    return f"{min(max((now_ms << 16) | (salt & 0xFFFF), int(after or '0', 16) + 1), 2**64 - 1):016x}"


def judge(state: CopyState | None, size: int, span: ByteSpan) -> Verdict:
    """What to do with a range, for a copy of `size` bytes."""
    if state is not None:
        if span.generation < state.generation or (state.is_gone and span.generation == state.generation):
            return "ended"
        if span.generation == state.generation and state.is_begun:
            return "append" if span.begin <= size else "gap"
    return "replace" if span.begin == 0 else "gap"
