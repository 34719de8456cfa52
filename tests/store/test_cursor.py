"""Cursors: a valid one gives its place, and any other is recognised as invalid or outdated."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import InvalidParams
from sessiond.store.cursor import Cursors, Position, matches_file, parse

CURSORS = Cursors(b"k" * 32)
places = st.integers(0, 10**17)
GOOD = CURSORS.text("s", 7, 99, Position(1234, 56))


@given(places, places, st.text(max_size=10), st.integers(0, 2**63), st.integers(0, 2**32 - 1))
def test_a_cursor_gives_back_the_place_it_was_made_for(offset, seq, session_id, inode, check):
    text = CURSORS.text(session_id, inode, check, Position(offset, seq))
    assert text.isascii() and text.isprintable() and " " not in text
    cursor = parse(text)
    assert cursor.position == Position(offset, seq)
    assert CURSORS.belongs_to(cursor, session_id) and matches_file(cursor, inode, check)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,20}-[0-9]{1,20}-[0-9a-f]{12}([0-9a-f]{8})?", fullmatch=True))
def test_an_invented_cursor_belongs_to_no_session(text):
    error: InvalidParams | None = None
    try:
        cursor = parse(text, field="$.before")
    except InvalidParams as refused:
        error = refused
    if error is not None:
        assert error.data == {"field": "$.before"}
        assert (error.code, error.message[:9]) == ("cursor_invalid", "$.before ")
    else:
        assert not CURSORS.belongs_to(cursor, "s") and not CURSORS.is_from_release_0_1(cursor, "s", 1)


@given(st.data())
def test_a_cursor_with_one_character_changed_belongs_to_no_session(data):
    place = data.draw(st.integers(0, len(GOOD) - 1))
    other = data.draw(st.sampled_from("0123456789abcdef-x ").filter(lambda character: character != GOOD[place]))
    try:
        cursor = parse(GOOD[:place] + other + GOOD[place + 1 :])
    except InvalidParams:
        return
    assert not CURSORS.belongs_to(cursor, "s")


@check_each(("inode", "check", "same"), [(7, 99, True), (8, 99, False), (7, 98, False)])
def test_a_cursor_from_before_a_rewrite_of_the_file_does_not_match_it(inode, check, same):
    assert matches_file(parse(GOOD), inode, check) is same


def test_a_cursor_of_another_session_or_store_does_not_belong_to_this_one():
    assert not CURSORS.belongs_to(parse(GOOD), "other")
    assert not Cursors(b"j" * 32).belongs_to(parse(GOOD), "s")


def test_a_cursor_of_release_0_1_is_recognised_by_session_and_file():
    tag = blake2b(b"s\0007\00010\0001", key=b"k" * 32, digest_size=6).hexdigest()
    cursor = parse(f"10-1-{tag}")
    assert CURSORS.is_from_release_0_1(cursor, "s", 7)
    assert (
        not CURSORS.is_from_release_0_1(cursor, "s", 8)
        and not CURSORS.is_from_release_0_1(cursor, "t", 7)
        and not CURSORS.belongs_to(cursor, "s")
    )
