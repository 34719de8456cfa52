"""What the search index says about one query: where in each transcript it has to be looked for. Only the types.

The index never answers. Whoever searches reads the places named here, and judges them as if there were no index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sessiond.store.catalog import Session


class CandidateBlock(NamedTuple):
    """Whole lines from `begin` to `end`, some of which may have the text.

    `oldest_ms` and `newest_ms` are the least and the greatest time of the messages in it, None where one of them has no
    time. `messages_before` is how many messages stand before `begin`, None where that is not known. `marks` are
    lines of which that is known, too (`marks.find_mark`).
    """

    begin: int
    end: int
    oldest_ms: int | None
    newest_ms: int | None
    messages_before: int | None
    marks: str = ""


class SessionCandidates(NamedTuple):
    """Where in one transcript a text may stand: in `blocks`, in the order of the file, and behind `indexed_to`."""

    indexed_to: int
    blocks: tuple[CandidateBlock, ...]


# Everything has to be looked through.
EVERYTHING = SessionCandidates(0, ())


class Narrowed(Protocol):
    """The answer to one query."""

    def leave_out(self, sessions: Iterable[Session]) -> list[Session]:
        """These sessions without those that do not have the text, as far as that is known at once."""

    def find_in(self, session: Session) -> SessionCandidates:
        """Where to look in a session. May block for a moment."""

    def bytes_of(self, session: Session) -> int:
        """How many bytes of a session have to be looked at, as far as that is known at once."""


class SearchIndex(Protocol):
    """What a search asks."""

    def narrow(self, text: str) -> Narrowed:
        """Where to look for `text`, which is from `fold_case`. Blocks; for worker threads."""


class _NotNarrowed:
    def leave_out(self, sessions: Iterable[Session]) -> list[Session]:
        return list(sessions)

    def find_in(self, _session: Session) -> SessionCandidates:
        return EVERYTHING

    def bytes_of(self, session: Session) -> int:
        return session.entry.file.folded_to


NOT_NARROWED: Narrowed = _NotNarrowed()


class _NoIndex:
    def narrow(self, _text: str) -> Narrowed:
        return NOT_NARROWED


NO_INDEX: SearchIndex = _NoIndex()
