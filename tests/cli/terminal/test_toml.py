from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.cli.terminal.toml import render

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
TABLE = st.recursive(
    st.dictionaries(TEXT, PLAIN | st.lists(PLAIN, max_size=3), max_size=4),
    lambda inner: st.dictionaries(TEXT, PLAIN | inner | st.lists(inner, min_size=1, max_size=3), max_size=4),
    max_leaves=10,
)


@given(TABLE)
def test_written_toml_reads_back_the_same(table: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(render(table))) == table


def test_tables_are_written_after_the_plain_values_under_headers() -> None:
    table = {"a": {"b": {"c": 1}}, "list": [{"id": "x", "runtime": {"type": "echo"}}], "rules": [], "z": True}
    assert render(table) == [
        "rules = []",
        "z = true",
        "",
        "[a.b]",
        "c = 1",
        "",
        "[[list]]",
        'id = "x"',
        "",
        "[list.runtime]",
        'type = "echo"',
    ]
