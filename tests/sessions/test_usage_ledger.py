"""What is kept in memory of the transcripts that were read for their usage."""

from __future__ import annotations

from sessiond.model.usage_rows import UsageItem
from sessiond.sessions.usage_ledger import MOST_KEPT, CostMark, KeptLedgers, UsageLedger

ITEM = UsageItem(None, 0, "m", (0, 0, 0, 0, 0), None)
STATE = (1, 2)


def ledger(items: int = 0, *costs: int) -> UsageLedger:
    marks = [CostMark(0, None, {str(number): 1.0 for number in range(count)}) for count in costs]
    return UsageLedger([ITEM] * items, marks)


def find_kept(kept: KeptLedgers, *paths: str) -> list[str]:
    return [path for path in paths if kept.find(path, STATE) is not None]


def test_a_transcript_with_more_than_is_kept_is_not_and_takes_no_place() -> None:
    kept = KeptLedgers()
    kept.put("a", STATE, ledger(10))
    for size, expected in ((MOST_KEPT, ["a"]), (MOST_KEPT - 1 - 11, ["a", "b"]), (MOST_KEPT - 1 - 10, ["b"])):
        kept.put("b", STATE, ledger(size))
        assert find_kept(kept, "a", "b") == expected, size


def test_what_was_not_asked_for_for_longest_goes_first() -> None:
    kept, third = KeptLedgers(), MOST_KEPT // 3
    for path in "abc":
        kept.put(path, STATE, ledger(third - 1))
    assert find_kept(kept, "a") == ["a"]
    kept.put("d", STATE, ledger(third))
    assert find_kept(kept, "a", "b", "c", "d") == ["a", "c", "d"]


def test_costs_and_empty_transcripts_count_too() -> None:
    kept = KeptLedgers()
    kept.put("a", STATE, ledger())
    kept.put("b", STATE, ledger(0, *[3] * (MOST_KEPT // 4)))
    assert find_kept(kept, "a", "b") == ["a"]
    kept.put("b", STATE, ledger(0, *[3] * (MOST_KEPT // 4 - 1)))
    assert find_kept(kept, "a", "b") == ["a", "b"]
    for number in range(MOST_KEPT + 1):
        kept.put(str(number), STATE, ledger())
    assert find_kept(kept, "a", "b", "0", "1", str(MOST_KEPT)) == ["1", str(MOST_KEPT)]


def test_a_file_in_another_state_is_read_again_and_takes_the_place_of_the_first() -> None:
    kept = KeptLedgers()
    for _ in range(3):
        kept.put("a", STATE, ledger(MOST_KEPT - 1))
    assert kept.find("a", (1, 3)) is None
    kept.put("a", (1, 3), ledger(1))
    kept.put("b", STATE, ledger(MOST_KEPT - 1 - 2))
    assert kept.find("a", STATE) is None and kept.find("a", (1, 3)) is not None
    assert find_kept(kept, "b") == ["b"]
