"""What an entry keeps of usage: rows by day and model, the newest usages, and where a copy may begin."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sampling import amount

from sessiond.model.entry import Entry
from sessiond.model.usage import Usage
from sessiond.model.usage_rows import (
    DAY_MS,
    MAX_HEADS,
    MAX_PASSED,
    MAX_RECENT,
    MAX_ROWS,
    NOTHING_USED,
    OWN_RECENT,
    UsageFacts,
    UsageItem,
    count_costs,
    count_item,
    hash_id,
    item_of,
    note_summary,
)

T = 1_795_305_600_000  # a midnight, UTC


def item(usage_id: str | None, at_ms: int | None = T, count: int = 1, model: str = "m", cost: float | None = None):
    return item_of(Usage(input=count, cost=cost), usage_id, at_ms, model)


def count_all(*items: UsageItem, facts: UsageFacts = NOTHING_USED) -> UsageFacts:
    for one in items:
        facts, _ = count_item(facts, one)
    return facts


def sums(facts: UsageFacts) -> list[tuple[int, str, float | None, int]]:
    return [(row.day - T // DAY_MS, row.model, row.cost, row.input) for row in facts.rows]


def test_days_models_and_what_has_a_cost_have_rows_of_their_own():
    facts = count_all(
        item("a", T), item("b", T + DAY_MS - 1, 10), item("c", T + DAY_MS, 100), item("d", T, 1000, "n"),
        item("e", T, 10_000, cost=0.5), item("f", T, 1, cost=0.25), item("g", None, 7),
    )  # fmt: skip
    assert sums(facts) == [
        (0, "m", None, 11),
        (1, "m", None, 100),
        (0, "n", None, 1000),
        (0, "m", 0.75, 10_001),
        (-1 - T // DAY_MS, "m", None, 7),
    ]
    assert (facts.rows[0].first_ms, facts.rows[0].last_ms) == (T, T + DAY_MS - 1)


def test_what_is_repeated_takes_the_place_of_what_it_repeats_on_another_day_too():
    others = [item(f"o{number}", T) for number in range(MAX_RECENT - 1)]
    facts, replaced = count_item(count_all(item("a", T, 100, cost=0.5), *others), item("a", T + DAY_MS, 200, "n"))
    assert replaced is not None and (replaced.counts[0], replaced.cost) == (100, 0.5)
    assert sums(facts) == [(0, "m", 0.0, 0), (0, "m", None, MAX_RECENT - 1), (1, "n", None, 200)]
    assert not facts.is_unsure
    # One more between, and it is not known any more. It was the first, so that it is known that something is repeated.
    far = count_all(item("a", T, 100), *others, item("o", T), item("a", T, 200))
    assert (far.rows[0].input, far.is_unsure) == (300 + MAX_RECENT, True)


@pytest.mark.parametrize(("between", "is_noticed"), [(0, True), (1, True), (MAX_PASSED - 1, True), (MAX_PASSED, False)])
def test_what_is_repeated_long_after_it_is_noticed(between: int, is_noticed: bool):
    others = [item(f"o{number}") for number in range(MAX_RECENT + between)]
    facts = count_all(item("head"), item("a", count=100), *others)
    assert not facts.is_unsure and facts.is_plausible
    again = count_all(item("a", count=200), facts=facts)
    assert (again.is_unsure, again.rows[0].input) == (is_noticed, 301 + len(others))
    # What is read whenever it is asked for needs no more of this.
    assert again.passed == b"" if is_noticed else len(again.passed) == len(facts.passed)
    assert count_all(item("b"), facts=again).is_unsure is is_noticed


def test_an_own_transcript_repeats_only_its_newest():
    facts = NOTHING_USED
    for number in range(2 * MAX_RECENT):
        facts, _ = count_item(facts, item(f"a{number}"), OWN_RECENT)
    assert (facts.passed, len(facts.recent_ids)) == (b"", OWN_RECENT)


def test_what_is_no_whole_number_of_pieces_is_not_from_here():
    assert not UsageFacts(passed=b"1234").is_plausible
    assert UsageFacts(passed=b"123").is_plausible
    assert not UsageFacts(passed=b"123" * (MAX_PASSED + 1)).is_plausible


def test_what_has_no_id_is_never_repeated():
    assert sums(count_all(item(None), item(None))) == [(0, "m", None, 2)]


def test_heads_are_the_first_usage_and_those_behind_the_newest_summaries():
    facts = count_all(item("a"), item("b"))
    assert facts.heads == (hash_id("a"),)
    for number in range(20):
        facts = count_all(item(f"c{number}"), item(f"d{number}"), facts=note_summary(note_summary(facts)))
    assert facts.heads == (hash_id("a"), *(hash_id(f"c{number}") for number in range(21 - MAX_HEADS, 20)))
    assert facts.recent_ids == [hash_id(f"{name}{number}") for number in range(16, 20) for name in "cd"]


def test_of_many_days_the_newest_are_kept_and_it_says_so():
    days = [item(f"i{day}", T + day * DAY_MS) for day in range(3000)]
    facts = count_all(*days[:MAX_ROWS])
    assert (len(facts.rows), facts.dropped_to) == (MAX_ROWS, 0)
    facts = count_all(*days)
    assert (facts.rows[0].day, len(facts.rows)) == (T // DAY_MS + 3000 - MAX_ROWS, MAX_ROWS)
    assert facts.dropped_to == T + (2999 - MAX_ROWS) * DAY_MS
    assert facts.is_plausible and len(msgspec.json.encode(facts)) < 12_000
    # A repetition finds its row, whose number has changed.
    facts, replaced = count_item(facts, item("i2999", T + 2999 * DAY_MS, 5))
    assert replaced is not None and facts.rows[-1].input == 5


def test_what_counts_more_than_fits_is_read_from_the_file():
    assert not count_all(item("a", count=2**32 - 1)).is_unsure
    facts = count_all(item("a", count=2**32), item("b", count=2**53))
    assert facts.is_unsure and facts.rows[0].input == 2**53


def test_of_what_a_program_says_of_the_cost_the_last_counts():
    facts = count_costs(count_all(item("a", T)), {"m": 0.5})
    facts = count_costs(facts, {"m": 0.5})
    facts = count_costs(count_all(item("b", T + DAY_MS), facts=facts), {"m": 0.75, "n": 1.0})
    assert sums(facts) == [(0, "m", None, 1), (0, "m", 0.5, 0), (1, "m", None, 1), (1, "m", 0.25, 0), (1, "n", 1.0, 0)]
    # It counts anew.
    facts = count_costs(facts, {"m": 0.125})
    assert [row.cost for row in facts.rows if row.cost] == [0.125]
    assert count_costs(NOTHING_USED, {str(number): 1.0 for number in range(100)}).costs == {"unknown": 100.0}


def test_an_entry_with_parts_of_no_use_is_not_plausible():
    facts = count_all(item("a"))
    assert Entry(session_id="s", usage=facts).is_plausible
    for wrong in ({"recent": facts.recent[1:]}, {"recent": facts.recent * 9}, {"rows": facts.rows * (MAX_ROWS + 1)}):
        assert not Entry(session_id="s", usage=msgspec.structs.replace(facts, **wrong)).is_plausible


_ITEMS = st.builds(
    item_of,
    st.builds(
        Usage, *[st.integers(0, 2**53)] * 5, st.one_of(st.none(), st.floats(0, 1e6), st.just({"total": 0.5}))
    ),
    st.one_of(st.none(), st.sampled_from("abcdefghijkl")),
    st.one_of(st.none(), st.integers(0, 253_402_300_799_999)),
    st.one_of(st.none(), st.text(max_size=200)),
)  # fmt: skip


@settings(max_examples=amount(300, 40), deadline=None)
@given(st.lists(st.one_of(_ITEMS, st.dictionaries(st.text(max_size=3), st.floats(0.01, 9)), st.none()), max_size=40))
def test_whatever_is_counted_can_be_saved_and_read_again(steps):
    facts = NOTHING_USED
    for step in steps:
        if step is None:
            facts = note_summary(facts)
        else:
            facts = count_costs(facts, step) if isinstance(step, dict) else count_item(facts, step)[0]
    assert facts.is_plausible
    assert msgspec.json.decode(msgspec.json.encode(facts), type=UsageFacts) == facts
