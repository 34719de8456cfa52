from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessiond.errors import StorageError
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.fold import FOLD_VERSION
from sessiond.sessions.prune import PrunableTranscript, Removal, find_old
from sessiond.store.catalog import Folder, Session

NOW = 1_795_300_000_000


def _session(updated_at: int, written_at: int, *, archived: bool = True) -> Session:
    entry = Entry(session_id="s", updated_at=updated_at, file=FileFacts(mtime_ns=written_at * 1_000_000))
    return Session(key="agent:main:s", entry=entry, folder=Folder("main", -1, archived=archived, dialect=V3))


def test_the_age_of_a_transcript_counts_from_its_last_message_or_write() -> None:
    assert find_old([_session(NOW - 1001, NOW - 5000)], 1000, NOW)[0].age_ms == 1001
    assert find_old([_session(NOW - 1000, NOW - 5000)], 1000, NOW) == []
    assert find_old([_session(NOW - 5000, NOW - 1000)], 1000, NOW) == []
    assert find_old([_session(NOW - 5000, NOW - 1001)], 1000, NOW)[0].age_ms == 1001


def test_the_oldest_are_listed_first_and_live_sessions_never() -> None:
    found = find_old([_session(NOW - age, 0, archived=age != 4) for age in (2, 5, 4, 3, 0)], 0, NOW)
    assert [one.age_ms for one in found] == [5, 3, 2]


def test_a_failed_sync_is_a_storage_error_that_says_how_many_were_removed(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text("x")
    status = (tmp_path / "s.jsonl").stat()
    facts = FileFacts(bytes=1, mtime_ns=status.st_mtime_ns, inode=status.st_ino, fold=FOLD_VERSION)
    path_fd = os.open(tmp_path, os.O_PATH)  # every operation works on it except a sync
    folder = Folder("main", path_fd, archived=True, dialect=V3)
    session = Session(key="agent:main:s", entry=Entry(session_id="s", file=facts), folder=folder)
    removal = Removal([PrunableTranscript(session, 1)])
    with pytest.raises(StorageError, match="removed 1 transcript, but the folder could not be synced"):
        list(removal.steps())
    os.close(path_fd)
    assert removal.removed == [session] and os.listdir(tmp_path) == []
