"""Where a text may stand in some transcripts, by one database. Synchronous; for worker threads."""

from __future__ import annotations

from collections.abc import Iterable

from sessiond.store.catalog import Session
from sessiond.trigrams import rows
from sessiond.trigrams.coverage import IndexedFile
from sessiond.trigrams.database import IndexDatabase, IndexDoubt, IndexTrouble
from sessiond.trigrams.narrowing import EVERYTHING, CandidateBlock, SessionCandidates

# While the index is built, a statement of the builder may take longer: then everything is looked through instead, which
# takes seconds where the index is large.
LOCK_PATIENCE_S = 1.0


class FoundBlocks:
    """The blocks that may have a text, in files of which something is indexed (`known`).

    What was known is asked for before the database: then the database knows at least as much.
    """

    is_narrowed = True

    def __init__(self, database: IndexDatabase, known: dict[Session, IndexedFile], expression: str) -> None:
        """Raises IndexDoubt and IndexTrouble."""
        self._database, self._known = database, known
        self._ids: frozenset[int] = frozenset()
        self._newest = 0
        with _Locked(database):
            database.check_intact()
            self._by_file = rows.find_blocks(database, expression)
            if self._by_file is None:
                self._ids, self._newest = rows.find_ids(database, expression)

    def find_in(self, session: Session) -> SessionCandidates:
        """Where to look in a session. May block for a moment."""
        known = self._known.get(session)
        if known is None:
            return EVERYTHING
        if self._by_file is not None:
            found = self._by_file.get(known.file_id, [])
        else:
            try:
                with _Locked(self._database):
                    every = rows.blocks_of(self._database, known.file_id)
            except (IndexDoubt, IndexTrouble):
                return EVERYTHING
            # Blocks that were added since are not among those that were asked for. Of very many all count.
            found = [block for number, block in every if number in self._ids or number > self._newest]
        return SessionCandidates(known.indexed_to, _clip(found, known.indexed_to))

    def bytes_of(self, session: Session) -> int:
        """How many bytes of a session have to be looked at, as far as that is known at once."""
        folded_to, known = session.entry.file.folded_to, self._known.get(session)
        if known is None or self._by_file is None:
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
