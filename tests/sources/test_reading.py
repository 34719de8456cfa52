"""How the files of another program are folded: in slices and turns, so that others are not delayed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

from support.followed_store import append
from support.foreign_sessions import FollowedSources, key_of, pi_file

from sessiond.sources import pi, reading


def test_a_turn_is_a_millisecond_of_the_processor_whatever_a_line_takes() -> None:
    steps = {(32768, 0.004): 8192, (8192, 0.001): 8192, (8192, 0.0): 32768, (32768, 0.0001): 32768, (2048, 1.0): 2048}
    assert {step: reading.fit_piece(*step) for step in steps} == steps
    turn = reading.ThreadTurn()
    began = turn._began
    turn.pause_when_over()
    assert turn._began == began or time.thread_time() - began > 0.001
    while time.thread_time() - began <= 0.001:
        pass
    turn.pause_when_over()
    assert turn._began - began > 0.001


def test_when_a_turn_is_over_it_is_asked_whether_others_are_busy() -> None:
    asked: list[float] = []

    def is_busy() -> bool:
        asked.append(time.thread_time())
        return len(asked) == 2

    turn = reading.ThreadTurn(is_busy)
    for number in range(1, 4):
        began = turn._began
        while time.thread_time() - began <= 0.001:
            pass
        turn.pause_when_over()
        assert len(asked) == number and turn._began >= asked[-1] > began + 0.001


async def test_the_lines_before_a_bad_one_are_not_counted_at_every_slice(followed: FollowedSources, home: Path) -> None:
    # 16 MB of bad lines took 13 s of a processor.
    path = pi_file(home, 1, header=False)
    append(path, b"{no json\n" * 3)
    session = followed.parts.session(key_of(1))
    entry = reading.begin_again(session.entry)
    read = reading.FileReader(session.folder, pi.FINDER, followed.parts.store.record_limit)
    got = read.fold_slice(session.place, entry, 2**20)
    assert got.entry.corrupt_records == got.odd_count == 3
    assert [one.number for one in got.odd] == [None, None, None]


async def test_folding_pauses_while_somebody_waits_for_the_disk_and_ends_all_the_same(
    followed: FollowedSources, home: Path
) -> None:
    pi_file(home, 1, *("x" * 1000 for _ in range(300)), header=False)
    session = followed.parts.session(key_of(1))
    read = reading.FileReader(session.folder, pi.FINDER, followed.parts.store.record_limit)
    entry = reading.begin_again(session.entry)

    def pauses_beside(commits: Iterator[bool]) -> int:
        told: list[bool] = []

        def is_busy() -> bool:
            told.append(next(commits))
            return told[-1]

        assert read.fold_slice(session.place, entry, 2**20, is_busy).entry.message_count == 301
        return sum(told)

    assert pauses_beside(repeat(False)) == 0
    assert pauses_beside(chain(repeat(True, 3), repeat(False))) == 3
    without_end = pauses_beside(repeat(True))
    assert without_end > 0 and without_end % reading._MOST_PAUSES == 0
