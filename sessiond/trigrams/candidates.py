"""Where a text may stand in some transcripts, by one database. Synchronous; for worker threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sessiond.store.catalog import Session
from sessiond.trigrams import rows
from sessiond.trigrams.coverage import IndexedFile, is_current, is_of_file
from sessiond.trigrams.database import IndexDatabase, IndexDoubt, IndexTrouble
from sessiond.trigrams.narrowing import EVERYTHING, CandidateBlock, SessionCandidates

# While the index is built, a statement of the builder may take longer: then everything is looked through instead, which
# takes seconds where the index is large.
LOCK_PATIENCE_S = 1.0


class FrequencyLimits(NamedTuple):
    """What is done where more than `at_once` blocks may have a text: each file is asked for by itself, as most are
    never read. In the first `whole_files` all blocks are read: a text that is nearly everywhere is found there often
    enough, and asking in which of all blocks it is takes milliseconds. Then it is asked, unless more than `ids` may
    have it: the search has found enough before it comes to those that do not.
    """

    at_once: int = 1000
    whole_files: int = 3
    ids: int = 16_000


_LIMITS = FrequencyLimits()


class FoundBlocks:
    """The blocks that may have a text, in the files of which something is indexed (`known`). What has it matches all of
    `expressions`, of which each says more than the one before.

    What was known is asked for before the database: then the database knows at least as much.
    """

    def __init__(
        self,
        database: IndexDatabase,
        known: dict[Session, IndexedFile],
        expressions: Sequence[str],
        limits: FrequencyLimits = _LIMITS,
    ) -> None:
        """Raises IndexDoubt and IndexTrouble."""
        self._database, self._known = database, known
        self._expression, self._most_ids, self._files_left = expressions[-1], limits.ids, limits.whole_files
        # The ids of the blocks that have the text, and the greatest of all at the time; 0: they were not asked for.
        self._ids: frozenset[int] = frozenset()
        self._newest = 0
        with _Locked(database):
            database.check_intact()
            self._by_file = rows.find_blocks(database, expressions, limits.at_once)

    def leave_out(self, sessions: Iterable[Session]) -> list[Session]:
        """These sessions without those that do not have the text, as far as that is known at once."""
        by_file, find = self._by_file, self._known.get
        if by_file is None:
            return list(sessions)
        left = []
        for session in sessions:
            known = find(session)
            if (
                known is None
                or known.file_id in by_file
                or not is_of_file(known, session)
                or known.indexed_to < session.entry.file.folded_to
            ):
                left.append(session)
        return left

    def find_in(self, session: Session) -> SessionCandidates:
        """Where to look in a session. May block for a moment."""
        known = self._known.get(session)
        if known is None or not is_current(known, session):
            return EVERYTHING
        if self._by_file is not None:
            found = self._by_file.get(known.file_id, [])
        else:
            try:
                with _Locked(self._database):
                    self._find_ids()
                    every = rows.blocks_of(self._database, known.file_id)
            except (IndexDoubt, IndexTrouble):
                return EVERYTHING
            # Blocks that were added since are not among those that were asked for. Of very many all count.
            found = [block for number, block in every if number in self._ids or number > self._newest]
        return SessionCandidates(known.indexed_to, _clip(found, known.indexed_to))

    def _find_ids(self) -> None:
        """Ask which blocks have the text, if that is worth it by now."""
        if not self._files_left:
            self._ids, self._newest = rows.find_ids(self._database, self._expression, self._most_ids)
        self._files_left -= 1

    def bytes_of(self, session: Session) -> int:
        """How many bytes of a session have to be looked at, as far as that is known at once."""
        folded_to, known = session.entry.file.folded_to, self._known.get(session)
        if known is None or self._by_file is None or not is_current(known, session):
            return folded_to
        blocks = _clip(self._by_file.get(known.file_id, ()), known.indexed_to)
        return folded_to - known.indexed_to + sum(block.end - block.begin for block in blocks)


def _clip(blocks: Iterable[CandidateBlock], stop: int) -> tuple[CandidateBlock, ...]:
    """The blocks in the order of the file, up to `stop`. Of two with the same lines, or some of them, one is left."""
    found: list[CandidateBlock] = []
    for block in sorted(blocks, key=lambda block: block.begin):
        if block.begin >= stop:
            continue
        block = block._replace(end=min(block.end, stop))
        if found and block.begin < found[-1].end:
            block = _join(found.pop(), block)
        found.append(block)
    return tuple(found)


def _join(first: CandidateBlock, second: CandidateBlock) -> CandidateBlock:
    oldest, newest = None, None
    if first.oldest_ms is not None and second.oldest_ms is not None:
        oldest = min(first.oldest_ms, second.oldest_ms)
    if first.newest_ms is not None and second.newest_ms is not None:
        newest = max(first.newest_ms, second.newest_ms)
    return first._replace(end=max(first.end, second.end), oldest_ms=oldest, newest_ms=newest)


class _Locked:
    """The lock of a database, for a reader: not for longer than a search can wait."""

    def __init__(self, database: IndexDatabase) -> None:
        self._lock = database.lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=LOCK_PATIENCE_S):
            raise IndexTrouble("it is being written")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
