from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.terminal.escape import escape, one_line

HOSTILE = "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x85\x9b\u200e\u202e\u2066\u2028\u2029\ufeff\U000e0041\ud800"


@given(st.text(st.characters() | st.sampled_from(HOSTILE), max_size=60))
def test_no_terminal_control_survives(text: str) -> None:
    for shown in (escape(text), one_line(text)):
        assert not set(shown) & set(HOSTILE + "\n\t")


@given(st.text(st.characters() | st.sampled_from(HOSTILE + "\n"), max_size=60))
def test_line_breaks_are_kept_on_request_and_other_controls_never(text: str) -> None:
    shown = escape(text, lines=True)
    assert shown.count("\n") == text.count("\n")
    assert not set(shown) & set(HOSTILE + "\t")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M"]), max_size=60))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


@check_each(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\u202egnp.exe", r"a\u202egnp.exe"),
        ("\x9b31m", r"\x9b31m"),
        ("tab\there", "tab    here"),
        ("no\u00a0break\u3000wide", "no break wide"),
        ("👩\u200d👧 ﬁ ü 漢", "👩\u200d👧 ﬁ ü 漢"),
        ("lone \ud800", r"lone \ud800"),
        ("tag \U000e0041", r"tag \U000e0041"),
    ],
)
def test_control_and_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_one_line_folds_white_space_before_escaping() -> None:
    assert one_line("  a\n\n b\t\x1b c ") == r"a b \x1b c"
