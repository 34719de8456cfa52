from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.frame.command import Option


@check_each(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("1.5h", 5400), ("30s", 30), ("15m", 900), ("12h", 43_200), ("90d", 7_776_000)],
)
def test_durations_are_seconds_or_have_a_unit(text: str, seconds: float) -> None:
    assert Option("--age", "A.", kind="duration").read(text) == seconds


@check_each(
    ("kind", "text", "said"),
    [
        ("duration", "1y", "'1y' is not a duration: write 90 (seconds), 30s, 15m, 12h, 90d or 2w"),
        ("duration", "", "'' is not a duration"),
        ("duration", "-5m", "'-5m' is not a duration"),
        ("int", "1.5", "'1.5' is not a whole number"),
        ("number", "nan", "'nan' is not a number of at least 0"),
        ("number", "inf", "'inf' is not a number of at least 0"),
    ],
)
def test_a_bad_value_has_its_own_error_message(kind: str, text: str, said: str) -> None:
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(").replace(")", r"\)")):
        Option("--x", "X.", kind=kind).read(text)


@given(st.text(max_size=10), st.sampled_from(["int", "number", "duration"]))
def test_any_text_is_parsed_or_raises_value_error(text: str, kind: str) -> None:
    with suppress(ValueError):
        assert Option("--x", "X.", kind=kind).read(text) is not None
