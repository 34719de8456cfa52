"""When what was added to a session is indexed."""

from __future__ import annotations

from itertools import chain

from msgspec.structs import replace

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry, FileFacts
from sessiond.store.folder import Folder
from sessiond.store.session import Session
from sessiond.trigrams.coverage import REST_S, Coverage

FOLDER = Folder("main", -1, dialect=V3)


def short(number: int) -> Session:
    facts = FileFacts(bytes=100, mtime_ns=1, inode=number + 1, folded_to=100)
    key = f"agent:main:s{number}"
    return Session(key=key, entry=Entry(session_id=f"s{number}", session_key=key, file=facts), folder=FOLDER)


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
