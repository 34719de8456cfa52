"""When what was added to a session is indexed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, FileFacts
from sessiond.store import dirfd
from sessiond.store.folder import Folder
from sessiond.store.session import Session
from sessiond.trigrams.coverage import REST_S, Coverage, name_file
from sessiond.trigrams.rows import FileRow

FOLDER = Folder("main", -1, dialect=V3)


def short(number: int) -> Session:
    facts = FileFacts(bytes=100, mtime_ns=1, inode=number + 1, folded_to=100)
    key = f"agent:main:s{number}"
    return Session(key=key, entry=Entry(session_id=f"s{number}", session_key=key, file=facts), folder=FOLDER)


def replace_folder(session: Session, folder: Folder) -> Session:
    session.folder = folder
    return session


def test_what_was_found_within_one_second_is_indexed_together() -> None:
    coverage = Coverage()
    sessions = [short(number) for number in range(40)]
    for number, session in enumerate(sessions):
        coverage.note(session, 1000.0 + number / 20)  # two seconds in all
    assert coverage.next_due == 1000 + REST_S
    assert coverage.take(999.9 + REST_S) == []
    assert [job.session for job in coverage.take(1000 + REST_S)] == sessions[:20]
    assert coverage.next_due == 1001 + REST_S
    assert [job.session for job in coverage.take(1001 + REST_S)] == sessions[20:]
    assert coverage.next_due is None


def test_what_the_database_has_of_files_is_claimed_by_their_sessions_where_they_are_the_same(tmp_path: Path) -> None:
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd:
        folder = Folder("main", fd, dialect=V3)
        sessions = [replace_folder(short(number), folder) for number in range(3)]
        names = [name_file(session, folder.identity[0], session.entry.file.inode) for session in sessions]
        # By id, name, indexed_to, checksum, bytes, mtime_ns, messages and chars.
        same, touched = FileRow(7, names[0], 100, 0, 100, 1, 1, 2**40), FileRow(8, names[1], 100, 0, 100, 2, 1, 5)
        coverage = Coverage([same, touched])
        for session in sessions:
            coverage.note(session, 1000.0)
        assert (coverage.indexed_bytes, coverage.chars) == (100, 2**40)
        known = coverage.copy_known()
        assert [known[session].file_id for session in sessions] == [7, 0, 0]
        assert [job.session for job in coverage.take(1000 + REST_S)] == sessions[1:]


def test_what_the_database_has_takes_few_bytes_until_it_is_claimed() -> None:
    def read() -> Iterator[FileRow]:
        for number in range(10_000):
            some = 10**9 + number
            yield FileRow(some, f"65024:{number}", some + 1, some + 2, some + 3, some * 10**9, some + 4, some + 5)

    tracemalloc.start()
    try:
        coverage = Coverage(read())
        assert coverage.next_due is None
        assert tracemalloc.get_traced_memory()[1] < 200 * 10_000
    finally:
        tracemalloc.stop()


def test_what_is_changed_again_rests_again() -> None:
    coverage = Coverage()
    first, second = short(1), short(2)
    coverage.note(first, 1000.0)
    coverage.note(second, 1000.5)
    coverage.note(first, 1030.0)
    assert [job.session for job in coverage.take(1000 + REST_S)] == [second]
    assert [job.session for job in coverage.take(1030 + REST_S)] == [first]


def test_only_what_is_due_sooner_than_all_else_has_to_be_told() -> None:
    coverage = Coverage()
    first, second = short(1), short(2)
    assert coverage.note(first, 1000.0)
    # A session that is written to again and again rests again and again.
    assert not coverage.note(first, 1000.0)
    assert not coverage.note(first, 1030.0)
    assert not coverage.note(second, 1030.0)
    coverage.drop(first)
    coverage.drop(second)
    assert coverage.note(second, 1031.0)


def test_of_many_that_have_rested_only_those_are_looked_at_that_are_taken() -> None:
    coverage = Coverage()
    sessions = [short(number) for number in range(200)]
    for session in sessions:
        coverage.note(session, 1000.0)
    taken = []
    while jobs := coverage.take(1000 + REST_S):
        assert not coverage.due
        taken.append([job.session for job in jobs])
    assert [len(some) for some in taken] == [64, 64, 64, 8]
    assert [*chain.from_iterable(taken)] == sessions


def test_what_has_rested_is_indexed_although_more_becomes_due_all_the_time() -> None:
    coverage = Coverage()
    rested = short(0)
    coverage.note(rested, 1000.0)
    for number in range(1, 200):
        session = short(number)
        session.entry = replace(session.entry, file=replace(session.entry.file, bytes=100_000, folded_to=100_000))
        coverage.note(session, 1000.0)
    taken = [coverage.take(1000 + REST_S) for _ in range(4)]
    assert [len(jobs) for jobs in taken] == [64, 64, 64, 8]
    assert taken[-1][-1].session is rested


def test_what_is_gone_while_it_rests_is_not_indexed() -> None:
    coverage = Coverage()
    sessions = [short(number) for number in range(3)]
    for session in sessions:
        coverage.note(session, 1000.0)
    coverage.drop(sessions[1])
    assert [job.session for job in coverage.take(1000 + REST_S)] == [sessions[0], sessions[2]]


def test_what_rests_and_becomes_long_is_indexed_at_once_and_once() -> None:
    coverage, session = Coverage(), short(1)
    coverage.note(session, 1000.0)
    session.entry = replace(session.entry, file=replace(session.entry.file, bytes=100_000, folded_to=100_000))
    assert coverage.note(session, 1001.0)
    assert [job.session for job in coverage.take(1001.0)] == [session]
    assert (coverage.next_due, coverage.take(1001 + REST_S)) == (None, [])


def test_what_rests_and_is_replaced_is_indexed_anew_at_once_and_once() -> None:
    coverage, session = Coverage(), short(1)
    coverage.note(session, 1000.0)
    session.activity.epoch += 1
    assert coverage.note(session, 1001.0)
    assert [(job.session, job.is_doubted) for job in coverage.take(1001.0)] == [(session, True)]
    assert (coverage.next_due, coverage.take(1001 + REST_S)) == (None, [])
