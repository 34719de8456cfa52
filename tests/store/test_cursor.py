"""Cursors: a good one names its place, all others are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.errors import InvalidParams
from sessiond.store.cursor import Cursors, Position

CURSORS = Cursors(b"k" * 32)
places = st.integers(0, 10**17)


@given(places, places, st.text(max_size=10), st.integers(0, 2**63))
def test_a_cursor_names_the_place_it_was_made_for(offset, seq, session_id, inode):
    text = CURSORS.text(session_id, inode, offset, seq)
    assert text.isascii() and text.isprintable() and " " not in text
    assert CURSORS.read(text, session_id, inode, offset) == Position(offset, seq)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,20}-[0-9]{1,20}-[0-9a-f]{12}", fullmatch=True))
def test_made_up_cursors_are_refused(text):
    with pytest.raises(InvalidParams) as refused:
        CURSORS.read(text, "s", 1, 10**18, field="$.before")
    assert refused.value.data == {"field": "$.before"}
    assert refused.value.code in ("cursor_invalid", "cursor_stale")
    assert refused.value.message.startswith("$.before ")


@given(st.data())
def test_a_cursor_with_one_character_changed_is_refused(data):
    text = CURSORS.text("s", 7, 1234, 56)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0123456789abcdef-x ").filter(lambda character: character != text[place]))
    with pytest.raises(InvalidParams):
        CURSORS.read(text[:place] + other + text[place + 1 :], "s", 7, 10**9)


@pytest.mark.parametrize(
    ("session_id", "inode", "size"),
    [("other", 7, 5000), ("s", 8, 5000), ("s", 7, 1233)],
    ids=["another session's", "from before the file was replaced", "from before the file shrank"],
)
def test_a_cursor_that_is_not_this_files_is_stale(session_id, inode, size):
    text = CURSORS.text("s", 7, 1234, 56)
    with pytest.raises(InvalidParams) as refused:
        CURSORS.read(text, session_id, inode, size)
    assert refused.value.code == "cursor_stale"


def test_a_cursor_of_another_store_is_stale():
    with pytest.raises(InvalidParams) as refused:
        CURSORS.read(Cursors(b"j" * 32).text("s", 7, 1, 1), "s", 7, 10)
    assert refused.value.code == "cursor_stale"


def test_a_cursor_at_the_very_end_is_good():
    assert CURSORS.read(CURSORS.text("s", 7, 10, 1), "s", 7, 10) == Position(10, 1)
