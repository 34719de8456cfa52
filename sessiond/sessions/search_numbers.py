"""The numbers of matches among the messages of their sessions, which their cursors have.

Counted from the nearest place whose number is known: a line that is marked in the index, or the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from sessiond.model.foreign_fold import is_later_part, open_after
from sessiond.model.record import TOOL_ROLES
from sessiond.sessions.found import Match
from sessiond.store import blocks, dirfd, transcript
from sessiond.store.catalog import Session
from sessiond.store.joining import find_open_message, read_joined_backwards

# How many lines are parsed in one step.
_LINES_A_STEP = 16


class MatchNumbering:
    """Finds the numbers of matches. `block` is how many bytes are read at once."""

    def __init__(self, record_limit: int, matches: Iterable[Match], block: int) -> None:
        self._limit, self._block = record_limit, block
        self._wanted: dict[Session, list[Match]] = {}
        for match in matches:
            self._wanted.setdefault(match.session, []).append(match)
        self._numbers: dict[tuple[str, int, int, str], int] = {}

    def number_of(self, match: Match) -> int | None:
        """The number of a match; None where its file was replaced meanwhile."""
        return match.listed or self._numbers.get(match.place[1:])

    def steps(self) -> Iterator[None]:
        """Count the messages; runs in worker threads."""
        for session, matches in self._wanted.items():
            left = self._note_known(matches)
            if not left:
                continue
            # The current end of the session, and the number of messages before it.
            entry = session.entry
            facts, count = entry.file, entry.message_count
            try:
                fd = session.folder.open_file(session.file_name)
            except OSError:
                continue
            with dirfd.closing(fd):
                if dirfd.inode_of(os.fstat(fd)) != facts.inode:
                    continue
                for counted in sorted({match.counted for match in left if match.counted is not None}):
                    within = [match for match in left if match.counted == counted]
                    forward = self._count_joined_forward if session.dialect.joins else self._count_lines_forward
                    yield from forward(fd, counted.offset, counted.messages_before, within)
                left = [match for match in left if self.number_of(match) is None]
                back = self._count_joined if session.dialect.joins else self._count_lines
                yield from back(fd, facts.folded_to, count, left)

    def _note_known(self, matches: list[Match]) -> list[Match]:
        """Note the numbers of matches whose line has one in the index; the others that have none yet."""
        left = []
        for match in matches:
            if match.listed:
                continue
            if match.counted is not None and match.counted.offset == match.hit and match.counted.number:
                self._note(match, match.counted.number)
            else:
                left.append(match)
        return left

    def _note(self, match: Match, number: int) -> None:
        self._numbers[match.place[1:]] = number

    def _counter(self, session: Session) -> Callable[[bytes], int]:
        clean = session.entry.corrupt_records == 0
        return partial(blocks.count_messages, record_limit=self._limit, clean=clean, dialect=session.dialect)

    def _count_lines_forward(self, fd: int, begin: int, number: int, matches: list[Match]) -> Iterator[None]:
        """Count from a place before them, where `number` messages stand before."""
        count = self._counter(matches[0].session)
        for match in sorted(matches, key=_offset_of):
            data = os.pread(fd, match.end - begin, begin)
            if len(data) < match.end - begin:
                return
            number += count(data)
            begin = match.end
            self._note(match, number)
            yield

    def _count_joined_forward(self, fd: int, begin: int, number: int, matches: list[Match]) -> Iterator[None]:
        session = matches[0].session
        hits = {match.hit: match for match in matches}
        stop = session.entry.file.folded_to
        # As `joining.ForwardJoiner` counts, without joining any text.
        opened, is_known, start = None, False, number
        for read, line in enumerate(transcript.read_lines(fd, begin, self._limit, dialect=session.dialect, stop=stop)):
            record, part_of = line.record, 0
            if record is not None and record.message is not None:
                is_later = False
                if record.role not in TOOL_ROLES:
                    if not is_known and record.message_id is not None:
                        opened = find_open_message(fd, begin, start, self._limit, session.dialect)
                    is_known, before = True, opened
                    is_later = is_later_part(before, record, line.offset)
                    part_of = before.seq if before is not None and is_later else 0
                    opened = open_after(before, record, line.offset, number)
                number += not is_later
            match = hits.pop(line.offset, None)
            if match is not None:
                self._note(match, part_of or number)
            if not hits:
                return
            if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                yield

    def _count_lines(self, fd: int, end: int, number: int, matches: list[Match]) -> Iterator[None]:
        waiting = sorted(matches, key=_offset_of)
        count = self._counter(matches[0].session) if matches else len
        while waiting and end > 0:
            block = blocks.read_block_before(fd, end, self._limit, size=self._block)
            if block is None:
                return
            stop = len(block.data)
            while waiting and waiting[-1].end > block.start:
                cut = waiting[-1].end - block.start
                number -= count(block.data[cut:stop])
                self._note(waiting.pop(), number)
                stop = cut
            number -= count(block.data[:stop])
            end = block.start
            yield

    def _count_joined(self, fd: int, end: int, number: int, matches: list[Match]) -> Iterator[None]:
        if not matches:
            return
        waiting = sorted(matches, key=_offset_of)
        lines = read_joined_backwards(fd, end, self._limit, dialect=matches[0].session.dialect, stop=end)
        for read, line in enumerate(lines):
            while waiting and waiting[-1].offset >= line.offset:
                self._note(waiting.pop(), number)
            if not waiting:
                return
            number -= line.record is not None and line.record.message is not None
            if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                yield


def _offset_of(match: Match) -> int:
    return match.offset
