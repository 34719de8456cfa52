"""Keeps copies of other machines' sessions: takes ranges and rows from the stream, and asks for what is missing.

Every message is acknowledged once what it brought is on disk, or is of no use: what is missing is asked for, and never
by letting a message come again, behind which the answer would wait. Hostile messages change nothing but the folder of
the machine that has signed them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

import structlog

from sessiond.errors import StorageError
from sessiond.link.bus import Arrival
from sessiond.link.copy_asker import Ask, CopyAsker, Wanted
from sessiond.link.copy_pace import CopyPace
from sessiond.link.copy_states import CopyStates
from sessiond.link.courier import Taker
from sessiond.link.envelope import PeerMessage, Refused, read_fields
from sessiond.link.paced_log import PacedLog
from sessiond.link.ranges import (
    RANGE_BYTES,
    SESSION,
    ByteSpan,
    CopyState,
    RangeFields,
    RowFields,
    RowsFields,
    RowsRequest,
)
from sessiond.link.replica import Applied, MachineFolder
from sessiond.link.subjects import Kind

_Given = TypeVarTuple("_Given")
_Found = TypeVar("_Found")

log = structlog.get_logger("sessiond.link")

_KINDS: tuple[Kind, ...] = ("rec", "ask", "row")
# So many messages at most are written and synced together, and about so many bytes: the next part is asked for only
# when this one is written.
_BATCH, _BATCH_BYTES = 32, 4 << 20
# When a copy that the disk refused is asked for again.
_FAILED_S = 30.0
# When a machine is asked again whose copies had no room.
_FULL_S = 600.0


class MessageSource(Protocol):
    """The part of `Courier` that is used here."""

    def consume(self, kind: Kind, take: Taker) -> None: ...
    def drop(self, refused: Refused) -> None: ...


class TranscriptReader:
    """`asks(machine)` is how a machine is asked. `changed()` is called when other limits are reached than before."""

    def __init__(
        self,
        store: Path,
        states: CopyStates,
        machines: Iterable[str],
        *,
        courier: MessageSource,
        asks: Callable[[str], Ask],
        changed: Callable[[], object],
        wall_ms: Callable[[], int],
        **limits: int,
    ) -> None:
        self._courier, self._states, self._wall_ms = courier, states, wall_ms
        self._folders = {name: MachineFolder(store, name, states, **limits) for name in machines}
        self._paces = {name: CopyPace() for name in self._folders}
        self._askers = {
            name: CopyAsker(name, asks(name), have=self._have_of(name), rows=self._rows_of(name))
            for name in self._folders
        }
        self._queues: dict[Kind, asyncio.Queue[tuple[PeerMessage, Arrival]]] = {}
        # One thread: folders and states are for one caller at a time.
        self._thread = ThreadPoolExecutor(1, "copies")
        self._told: dict[str, str] = {}
        self._paced = PacedLog(time.monotonic)
        self._changed, self._limits = changed, self.limits
        for kind in _KINDS:
            self._consume(kind)

    @property
    def limits(self) -> dict[str, str]:
        """The machines whose copies have reached a limit, and which."""
        return {name: folder.limit for name, folder in self._folders.items() if folder.limit}

    def note_presence(self, machine: str) -> None:
        """The machine is there again."""
        self._askers[machine].note_presence()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for asker in self._askers.values():
                    tasks.create_task(asker.run())
                for kind, queue in self._queues.items():
                    tasks.create_task(self._work(kind, queue))
        finally:
            self._thread.shutdown()
            for folder in self._folders.values():
                folder.close()

    def _consume(self, kind: Kind) -> None:
        # What is beyond waits in the server: a disk that hangs has everything delivered again and again.
        queue = self._queues[kind] = asyncio.Queue(2 * _BATCH)

        async def take(message: PeerMessage, arrival: Arrival) -> None:
            await queue.put((message, arrival))

        self._courier.consume(kind, take)

    async def _work(self, kind: Kind, queue: asyncio.Queue[tuple[PeerMessage, Arrival]]) -> None:
        while True:
            batch = [await queue.get()]
            size = len(batch[0][0].payload)
            while len(batch) < _BATCH and size < _BATCH_BYTES and not queue.empty():
                batch.append(queue.get_nowait())
                size += len(batch[-1][0].payload)
            messages = [message for message, _ in batch]
            await (self._take_rows(messages) if kind == "row" else self._take_ranges(messages))
            if self.limits != self._limits:
                self._limits = self.limits
                self._changed()
            for _, arrival in batch:
                await arrival.ack()

    # Ranges.

    async def _take_ranges(self, messages: Sequence[PeerMessage]) -> None:
        parts: dict[str, list[tuple[ByteSpan, int]]] = {}
        for message in messages:
            found = read_span(message)
            if isinstance(found, Refused):
                self._courier.drop(found)
            elif message.sender in self._folders:
                parts.setdefault(message.sender, []).append(found)
        for machine, spans in parts.items():
            applied = await self._in_thread(self._folders[machine].apply, [span for span, _ in spans])
            for (span, size), one in zip(spans, applied, strict=True):
                self._follow_up(machine, span, size, one)

    def _follow_up(self, machine: str, span: ByteSpan, total: int, applied: Applied) -> None:
        asker = self._askers[machine]
        wanted = Wanted(span.session, span.generation, max(total, span.end), self._wall_ms())
        match applied.outcome:
            case "written" | "known":
                asker.note_written(span.session, span.generation, applied.size, total)
            case "gap":
                asker.want(wanted)
            case "differs":
                said = "a copy differs from its original; it is made anew"
                self._paced.write(log.warning, machine, said, session=span.session)
                asker.want(Wanted(span.session, span.generation, total, self._wall_ms(), "wrong"))
            case "failed":
                self._tell(machine)
                asker.want(wanted, _FAILED_S)
            case "full":
                self._tell(machine)
                if self._folders[machine].may_take(span.session):  # else it was not asked for
                    asker.pause(_FULL_S)

    def _tell(self, machine: str) -> None:
        trouble = self._folders[machine].trouble
        if self._told.get(machine) != trouble:
            self._told[machine] = trouble
            self._paced.write(log.warning, machine, trouble)  # each copy that fails has a sentence of its own

    # Rows.

    async def _take_rows(self, messages: Sequence[PeerMessage]) -> None:
        for message in messages:
            fields = read_fields(message, RowsFields)
            if isinstance(fields, Refused):
                self._courier.drop(fields)
            elif message.sender in self._folders:
                try:
                    wanted, made = await self._in_thread(self._apply_rows, message.sender, fields, message.payload)
                except StorageError:  # all rows are asked for again after a while
                    self._tell(message.sender)
                    continue
                for one in wanted:
                    self._askers[message.sender].want(one)
                await asyncio.sleep(self._paces[message.sender].wait_s(made, asyncio.get_running_loop().time()))

    def _apply_rows(self, machine: str, fields: RowsFields, heads: bytes) -> tuple[list[Wanted], int]:
        """Take what rows say; what copies miss, and how many of them are new. In the thread."""
        folder, at = self._folders[machine], 0
        newer: list[tuple[RowFields, bytes]] = []
        for row in fields.rows:
            head, at = heads[at : at + row.head], at + row.head
            state = folder.state(row.session)
            if state is None or fields.counter > state.counter:
                newer.append((row, head))
        self._remove_gone(folder, [row for row, _ in newer if row.gone], fields.counter)
        here = [(row, head) for row, head in newer if not row.gone and folder.may_take(row.session)]
        applied = folder.apply([span for row, head in here if (span := self._begin(folder, row, head)) is not None])
        states = [(row.session, folder.state(row.session)) for row, _ in here]
        folder.note_rows(
            (session, CopyState(one.agent, one.generation, one.is_begun, one.is_gone, fields.counter))
            for session, one in states
            if one is not None
        )
        if folder.trouble:
            self._tell(machine)
        sizes = folder.sizes(row.session for row, _ in here)
        taken = (row for row, _ in here if folder.may_take(row.session))
        found = ((row, folder.state(row.session), sizes.get(row.session, 0)) for row in taken)
        made = sum(one.outcome == "written" for one in applied)
        return [one for row, state, size in found if (one := _missing(row, state, size)) is not None], made

    def _begin(self, folder: MachineFolder, row: RowFields, head: bytes) -> ByteSpan | None:
        """The beginning of a copy of which there is nothing yet, or of an older generation only."""
        state = folder.state(row.session)
        if state is not None and state.is_begun and row.generation <= state.generation:
            return None
        # No time to come, nor one that no file could have.
        updated_at = min(row.updated_at, self._wall_ms())
        return ByteSpan(row.session, row.agent, row.generation, 0, head, updated_at or None) if head else None

    def _remove_gone(self, folder: MachineFolder, rows: Sequence[RowFields], counter: int) -> None:
        known = [row for row in rows if _ends(row, folder.state(row.session), is_room=folder.may_know_more)]
        for row in known:
            state = folder.state(row.session)
            folder.remove(row.session, row.agent if state is None else state.agent)
        folder.note_rows((row.session, _gone_state(folder.state(row.session), row, counter)) for row in known)

    # What is there.

    def _have_of(self, machine: str) -> Callable[[str], tuple[str, int]]:
        def have(session: str) -> tuple[str, int]:
            state = self._folders[machine].state(session)
            return ("", 0) if state is None else (state.generation, self._folders[machine].size(session))

        return have

    def _rows_of(self, machine: str) -> Callable[[], RowsRequest]:
        def rows() -> RowsRequest:
            states = list(self._states.of_machine(machine).values())
            highest = max((state.counter for state in states), default=0)
            return RowsRequest(counter=highest, heads=not states)

        return rows

    async def _in_thread(self, work: Callable[[Unpack[_Given]], _Found], *values: *_Given) -> _Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *values)


def read_span(message: PeerMessage) -> tuple[ByteSpan, int] | Refused:
    """The range in a message, and how long its original was."""
    fields = read_fields(message, RangeFields)
    if isinstance(fields, Refused):
        return fields
    if not SESSION.fullmatch(message.id) or len(message.payload) > RANGE_BYTES:
        return Refused("content", f"a range from {message.sender} is longer than allowed, or of no session")
    if fields.to - fields.begin != len(message.payload) or fields.to > fields.size:
        return Refused("content", f"a range from {message.sender} is not as long as it says")
    return ByteSpan(message.id, fields.agent, fields.generation, fields.begin, message.payload), fields.size


def _ends(row: RowFields, state: CopyState | None, *, is_room: bool) -> bool:
    """Whether a row that says `gone` ends a copy. A newer generation may have come before it."""
    return is_room if state is None else row.generation >= state.generation


def _gone_state(state: CopyState | None, row: RowFields, counter: int) -> CopyState:
    generation = row.generation if state is None else max(state.generation, row.generation)
    return CopyState(row.agent, generation, is_gone=True, counter=counter)


def _missing(row: RowFields, state: CopyState | None, size: int) -> Wanted | None:
    """What the copy of a session misses, by its row."""
    if state is not None and state.generation == row.generation and state.is_begun:
        if size == row.size:
            return None
        # A longer copy is of a later moment than the row, or has what its original has lost: whoever is asked for what
        # comes behind it knows.
        return Wanted(row.session, row.generation, row.size, row.updated_at, "check" if size > row.size else "missing")
    # An older generation than that of the copy: an old row, or a sender that has lost its places and learns it so.
    is_older = state is not None and row.generation < state.generation
    return Wanted(row.session, row.generation, row.size, row.updated_at, "check" if is_older else "missing")
