from __future__ import annotations

import json
import sys
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.case import fold_case
from sessiond.sessions.prefilter import Prefilter

# Characters that are difficult for searches: those whose case mapping changes their length, exists in one direction
# only or depends on their context, and those that JSON escapes.
TROUBLE = (
    "aAiIkKsSn\u0130\u0131\u212a\u017f\u1e9e\u00df\u03a3\u03c3\u03c2\u0307\u00e9\u0416\u0436\u65e5\u672c\u05d0\U0001f600"
    "\"\\/\n\t<\x7f '."
)
text_of_trouble = st.text(st.sampled_from(TROUBLE) | st.characters(exclude_categories=["Cs"]), max_size=12)


def _escape_everything(text: str) -> str:
    """JSON with every character written as an escape."""
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2)) + '"'


@given(
    before=text_of_trouble,
    query=text_of_trouble.filter(bool),
    after=text_of_trouble,
    change=st.sampled_from([str, str.upper, str.lower, str.swapcase, str.title]),
    write=st.sampled_from([json.dumps, lambda text: json.dumps(text, ensure_ascii=False), _escape_everything,
                           lambda text: json.dumps(text).replace("/", "\\/")]),
)  # fmt: skip
@example(before="", query="i", after="", change=str, write=lambda text: '"\u0130"')
@example(
    before="x\n", query="\u03c3", after=" ", change=str.upper, write=lambda text: json.dumps(text, ensure_ascii=False)
)
def test_every_line_that_contains_the_text_is_a_candidate(before, query, after, change, write) -> None:  # type: ignore[no-untyped-def]
    line = write(before + change(query) + after)
    if fold_case(query) not in fold_case(json.loads(line)):
        return
    data = f'{{"a":1}}\n{line}\n{{"b":2}}\n'.encode()
    begin = data.index(b"\n") + 1
    assert (begin, begin + len(line.encode())) in Prefilter(fold_case(query)).candidates(data)


def test_only_two_characters_have_ascii_in_their_lower_case_and_none_a_caseless_letter() -> None:
    for code in range(0x80, sys.maxunicode + 1):
        character = chr(code)
        low = character.lower()
        if any(part < "\x80" for part in low):
            assert character in "\u0130\u212a"
        if low != character:
            assert not any(unicodedata.category(part) == "Lo" for part in low)


@check_each(
    ("query", "line", "is_candidate"),
    [
        ("hello", b'"HELLO there"', True),
        ("hello", b'"help"', False),
        ("say \"hello\"", b'"say \\"HELLO\\""', True),
        ("caf\u00e9 noir", '"CAF\u00c9 NOIR"'.encode(), True),
        ("caf\u00e9 noir", b'"caf\\u00e9 noir"', True),
        ("caf\u00e9 noir", b'"cafeteria"', False),
        ("\u00e9t\u00e9", '"en \u00c9T\u00c9"'.encode(), True),
        ("\u00e9t\u00e9", b'"tttt"', False),
        ("\u00e9t\u00e9", b'"\\u00c9t\\u00c9"', True),
        ("\u65e5\u672c", '"\u65e5\u672c\u8a9e"'.encode(), True),
        ("\u65e5\u672c", b'"\\u65e5\\u672c"', True),
        ("\u65e5\u672c", "\"\u672c\u65e5\"".encode(), False),
        ("red", b'"\\u001b[31mgreen"', False),
        ("red", b'"\\u0052ed"', True),
        ('"', b'"anything"', True),
    ],
)  # fmt: skip
def test_most_lines_without_the_text_are_ruled_out_by_their_bytes(query: str, line: bytes, is_candidate: bool) -> None:
    found = Prefilter(fold_case(query)).candidates(b'{"type":"x"}\n' + line + b"\n")
    assert ((13, 13 + len(line)) in found) is is_candidate
    assert ((0, 12) in found) is (query == '"')


def test_candidates_are_given_newest_first_and_once_each() -> None:
    data = b"aa aa\nbb\naa\n"
    assert Prefilter("aa").candidates(data) == [(9, 11), (0, 5)]
    assert Prefilter("aa").candidates(b"") == []
