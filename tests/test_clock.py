"""Timestamps of records, as text and as milliseconds; random ids."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.clock import Ids, are_iso_ms, iso_ms, parse_iso_ms

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


NEARLY = st.from_regex(r"\A[0-9]{4}-[0-9٢]{2}-[0-3W][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}[Zz+]\Z")


@given(st.lists(NEARLY | st.integers(0, LAST).map(iso_ms) | st.text(max_size=30) | st.integers(), max_size=3))
def test_times_are_known_by_their_texts_exactly_where_all_are_written_as_we_write_them(values: list[object]) -> None:
    def is_ours(value: object) -> bool:
        found = parse_iso_ms(value) if isinstance(value, str) else None
        return found is not None and 0 <= found <= LAST and iso_ms(found) == value

    assert are_iso_ms(values) == all(map(is_ours, values))


def test_texts_that_are_times_only_when_joined_are_none() -> None:
    one, other = iso_ms(0), iso_ms(1)
    assert are_iso_ms([one, other])
    assert not are_iso_ms([one[:20], one[20:] + other])


def test_ids_have_the_documented_form() -> None:
    ids = Ids()
    variants = Counter()
    for _ in range(2000):
        text = ids.uuid()
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)
        assert re.fullmatch(r"[0-9a-f]{16}", ids.record())
        variants[text[19]] += 1
    assert set(variants) == set("89ab")
    assert min(variants.values()) > 300


def test_no_two_threads_get_the_same_id() -> None:
    ids = Ids()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: [ids.record() for _ in range(1000)], range(16)))
    assert len({one for some in made for one in some}) == 16_000


FORKS = """
import os
from sessiond.clock import Ids
ids = Ids()
ids.record()
forked = os.fork()
text = " ".join(ids.record() for _ in range(600)) + "\\n"
if forked:
    os.waitpid(forked, 0)
os.write(1, text.encode())
"""


def test_a_forked_process_does_not_get_the_ids_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True)
    one, other = (line.split() for line in done.stdout.splitlines())
    assert len({*one, *other}) == len(one) + len(other) == 1200
