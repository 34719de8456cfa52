"""`sessions.list` over every transport."""

from __future__ import annotations

from uuid import uuid4

from support.method_calls import Call
from support.real_daemon import Daemon


def test_rows_have_a_title_and_a_preview_of_the_last_message(call: Call, shared: Daemon) -> None:
    key = f"agent:main:test:{uuid4()}"
    shared.reply(key, "please summarise   the\nwhole book")
    [row] = call("sessions.list", search=key)["sessions"]
    assert row["derivedTitle"] == "please summarise the whole book"
    assert row["lastMessagePreview"] == "please summarise the whole book"


def test_without_read_there_is_no_text_in_the_rows(call: Call, shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["list"], sessionKey=fresh)["token"]
    [row] = call("sessions.list", by=token)["sessions"]
    assert "derivedTitle" not in row
    assert "lastMessagePreview" not in row
