from __future__ import annotations

from sessiond.model.entry import Entry, FileFacts
from sessiond.sessions.prune import old
from sessiond.store.catalog import Folder, Session

NOW = 1_795_300_000_000


def _session(updated_at: int, written_at: int, *, archived: bool = True) -> Session:
    entry = Entry(session_id="s", updated_at=updated_at, file=FileFacts(mtime_ns=written_at * 1_000_000))
    return Session(key="agent:main:s", entry=entry, folder=Folder("main", -1, archived=archived))


def test_a_transcript_is_as_old_as_the_last_thing_written_to_it() -> None:
    assert old([_session(NOW - 1001, NOW - 5000)], 1000, NOW)[0].age_ms == 1001
    assert old([_session(NOW - 1000, NOW - 5000)], 1000, NOW) == []
    assert old([_session(NOW - 5000, NOW - 1000)], 1000, NOW) == []
    assert old([_session(NOW - 5000, NOW - 1001)], 1000, NOW)[0].age_ms == 1001


def test_the_oldest_comes_first_and_live_ones_never() -> None:
    found = old([_session(NOW - age, 0, archived=age != 4) for age in (2, 5, 4, 3, 0)], 0, NOW)
    assert [one.age_ms for one in found] == [5, 3, 2]
