"""A list of messages that lines change: numbers, replacements, cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.message_list import MAX_KEPT, ListState, apply_line
from sessiond.model.record import Record


def message(key: str, *more: Record, echo: bool = False) -> Record:
    return Record("any", b"", message=b"{}", role="user", message_id=key, more=more, is_echo=echo)


def whole(*keys: str) -> Record:
    return Record("any", b"", more=tuple(message(key) for key in keys), replaces=True)


def rewind(key: str) -> Record:
    return Record("any", b"", marker="rewind", rewind_to=key)


class Shown:
    """The list as a reader has it that obeys the changes."""

    def __init__(self) -> None:
        self.state, self.keys, self.cuts = ListState(), list[str](), 0

    def apply(self, *records: Record) -> Shown:
        for record in records:
            self.state, change = apply_line(self.state, record)
            self.cuts += change.is_cut
            del self.keys[change.kept :]
            for number, placed in change.placed:
                self.keys[number - 1 : number] = [placed.message_id or ""]
        return self


def test_messages_get_numbers_in_their_order_also_several_in_a_line():
    shown = Shown().apply(message("a"), message("b", message("c"), message("d")), message("e"))
    assert (shown.keys, shown.state.count) == (list("abcde"), 5)


def test_a_message_with_a_known_key_takes_the_place_of_the_earlier_one():
    state = Shown().apply(message("a"), message("b"), message("c")).state
    state, change = apply_line(state, message("b", message("d")))
    assert [(number, record.message_id) for number, record in change.placed] == [(2, "b"), (4, "d")]
    assert (state.count, change.kept, change.is_cut) == (4, 3, False)


def test_an_echo_is_shown_only_where_its_message_is_not_there():
    shown = Shown().apply(message("a"), message("r", echo=True))
    assert shown.keys == ["a", "r"]
    _, change = apply_line(shown.state, message("r", echo=True))
    assert change.placed == []


def test_a_rewind_drops_a_message_and_all_behind_it_and_an_unknown_one_drops_all():
    shown = Shown().apply(*map(message, "abcd"), rewind("c"))
    assert (shown.keys, shown.state.count, shown.cuts) == (["a", "b"], 2, 1)
    assert Shown().apply(*map(message, "ab"), rewind("z")).keys == []
    assert Shown().apply(rewind("z")).cuts == 0


def test_a_whole_list_that_begins_with_the_one_there_was_changes_nothing_of_it():
    shown = Shown().apply(message("a"), message("b"))
    state, change = apply_line(shown.state, whole("a", "b", "c"))
    assert (change.kept, change.is_cut, state.count) == (2, False, 3)
    assert [(number, record.message_id) for number, record in change.placed] == [(3, "c")]
    _, change = apply_line(shown.state, whole("a", "b"))
    assert (change.placed, change.is_cut) == ([], False)


def test_any_other_whole_list_replaces_the_one_there_was():
    shown = Shown().apply(message("a"), message("b"), whole("a", "c"))
    assert (shown.keys, shown.cuts) == (["a", "c"], 1)
    assert Shown().apply(message("a"), whole()).keys == []


def test_only_the_newest_keys_are_kept():
    shown = Shown().apply(*(message(str(number)) for number in range(MAX_KEPT + 1)))
    assert len(shown.state.keys) == MAX_KEPT * 8
    _, change = apply_line(shown.state, message("1"))
    assert change.placed[0][0] == 2
    _, change = apply_line(shown.state, message("0"))
    assert change.placed[0][0] == MAX_KEPT + 2
    shown.apply(rewind("1"))
    assert shown.state.count == 1


KEYS = st.sampled_from("abcdef")
RECORDS = st.one_of(
    st.builds(message, KEYS, echo=st.booleans()),
    st.builds(lambda first, second: message(first, message(second)), KEYS, KEYS),
    st.lists(KEYS, max_size=4, unique=True).map(lambda keys: whole(*keys)),
    KEYS.map(rewind),
)


@given(st.lists(RECORDS, max_size=12))
def test_the_count_is_that_of_the_list_and_every_key_is_in_it_once(records):
    shown = Shown()
    for record in records:
        shown.apply(record)
        assert shown.state.count == len(shown.keys) == len(set(shown.keys))
        match record.marker, record.replaces:
            case "rewind", _:
                assert record.rewind_to not in shown.keys
            case _, True:
                assert shown.keys == [one.message_id for one in record.more]
            case _:
                assert {record.message_id, *(one.message_id for one in record.more)} <= set(shown.keys)
