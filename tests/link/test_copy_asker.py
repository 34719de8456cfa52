"""What is asked for of another machine's sessions, in which order, and how much of that is kept."""

from __future__ import annotations

from typing import Any

from sessiond.link import copy_asker
from sessiond.link.copy_asker import CopyAsker, Wanted
from sessiond.link.envelope import PeerMessage
from sessiond.link.ranges import RowsRequest


async def nobody(question: str, fields: Any) -> PeerMessage:
    raise AssertionError(question)


def test_rows_that_come_again_and_again_are_kept_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(copy_asker, "_MAX_STALE", 10)
    asker = CopyAsker("mars", nobody, have=lambda session: ("", 0), rows=RowsRequest)
    for moment in range(1000):
        for session in ("a", "b", "c"):
            asker.want(Wanted(session, "0" * 16, 1, moment + (session == "b")))
    assert len(asker._order) <= 2 * 3 + 10
    assert [asker._take_newest(), asker._take_newest(), asker._take_newest(), asker._take_newest()] == [
        Wanted("b", "0" * 16, 1, 1000),
        Wanted("a", "0" * 16, 1, 999),
        Wanted("c", "0" * 16, 1, 999),
        None,
    ]
