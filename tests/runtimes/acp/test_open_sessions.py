"""What is known of the lists that sessions have on record; how sessions are opened is in `test_runtime.py`."""

from __future__ import annotations

from sessiond.runtimes.acp.open_sessions import _MOST_LISTED, RecordedLists


def test_the_lists_of_the_sessions_opened_last_are_known() -> None:
    lists = RecordedLists()
    for number in range(_MOST_LISTED):
        lists.find(str(number))["kind"] = b"digest"
    assert lists.find("0") == {"kind": b"digest"}
    assert lists.find("another") == {}
    # The one that was opened longest ago made room.
    assert lists.find("2") == {"kind": b"digest"} and lists.find("1") == {}
