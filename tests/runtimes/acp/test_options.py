"""The choices that agents offer for a session, whatever they say of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.runtimes.acp.options import ConfigOption, read_options

VALUES = [{"value": "a", "name": "A"}, {"group": "g", "options": [{"value": "b"}, {"value": 7}]}]


def test_the_first_choice_of_a_category_counts_and_the_id_where_there_is_none() -> None:
    options = [
        {"id": "x", "category": "model", "currentValue": "a", "options": VALUES},
        {"id": "y", "category": "model", "currentValue": "b", "options": VALUES},
        {"id": "thought_level", "currentValue": "b", "options": VALUES},
        {"id": "on", "type": "boolean", "currentValue": True},
    ]
    assert read_options({"configOptions": options}) == {
        "model": ConfigOption("x", "a", frozenset("ab")),
        "thought_level": ConfigOption("thought_level", "b", frozenset("ab")),
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "category", "currentValue", "options", "value"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_any_options_are_read(said: Any) -> None:
    for category, option in read_options({"configOptions": said}).items():
        assert category and option.id and all(option.values)
