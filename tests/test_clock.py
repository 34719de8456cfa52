"""Timestamps of records, as text and as milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.clock import iso_ms, parse_iso_ms

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999  # first and last millisecond of the years 1 and 9999
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(FIRST, LAST))
def test_every_timestamp_is_formatted_as_by_the_standard_library_and_can_be_parsed(wall_ms: int) -> None:
    text = iso_ms(wall_ms)
    assert text == (EPOCH + timedelta(milliseconds=wall_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert parse_iso_ms(text) == wall_ms


@pytest.mark.parametrize("wall_ms", [FIRST - 1, LAST + 1])
def test_a_timestamp_outside_the_years_1_to_9999_is_refused(wall_ms: int) -> None:
    with pytest.raises(ValueError, match=r"year|ordinal"):
        iso_ms(wall_ms)


@given(st.text(max_size=30) | st.from_regex(r"[0-9T:. Zz+-]{0,30}"))
def test_any_text_parses_to_a_timestamp_or_none(text: str) -> None:
    found = parse_iso_ms(text)
    assert found is None or FIRST - 86_400_000 <= found <= LAST + 86_400_000
