from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.cli.terminal.screen import Screen, clip_key, columns_of
from sessiond.cli.terminal.table import Column, pairs, render

CELL = st.text(max_size=30) | st.none() | st.integers()


def column(index: int, least: int | None, keep: int, right: bool) -> Column:
    return Column(f"TITLE{index}", lambda row: row[index], least=least, keep=keep, right=right)


@given(
    st.lists(st.tuples(st.none() | st.integers(1, 8), st.integers(0, 9), st.booleans()), min_size=1, max_size=5),
    st.data(),
)
def test_a_table_has_one_line_for_each_row_and_none_is_too_wide(shapes: list[Any], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*[CELL] * len(shapes)), max_size=5))
    width = data.draw(st.integers(1, 60))
    columns = [column(index, *shape) for index, shape in enumerate(shapes)]
    lines = render(columns, rows, Screen(width))
    assert len(lines) in (0, len(rows) + 1)
    assert all(columns_of(line) <= width for line in lines)
    assert all("\n" not in line and "\x1b" not in line for line in lines)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5))
def test_without_a_width_nothing_is_clipped(rows: list[Any]) -> None:
    assert not any("…" in line for line in render([column(0, 4, 1, False), column(1, 4, 1, True)], rows, Screen(None)))


ROWS = [("agent:main:subagent:1234", "ok", 5), ("main", "running", 1200)]
COLUMNS = (
    Column("KEY", lambda row: row[0], least=8, keep=3),
    Column("STATUS", lambda row: row[1], keep=2, style=lambda text: "green" if text == "ok" else None),
    Column("MSGS", lambda row: row[2], right=True, keep=1),
)


def test_columns_are_aligned_and_numbers_are_right_aligned() -> None:
    assert render(COLUMNS, ROWS, Screen(None)) == [
        "KEY                       STATUS   MSGS",
        "agent:main:subagent:1234  ok          5",
        "main                      running  1200",
    ]


def test_a_column_is_no_wider_than_its_shown_content() -> None:
    key = "agent:counter:subagent:ad5e3015-e420-59e6-be4c-6888631e407f"
    columns = (Column("KEY", lambda row: row[0], least=8, fit=clip_key), *COLUMNS[1:])
    assert render(columns, [(key, "ok", 5), ("main", "ok", 2)], Screen(60)) == [
        "KEY                               STATUS  MSGS",
        "agent:counter:subagent:ad5e3015…  ok         5",
        "main                              ok         2",
    ]


def test_a_narrow_screen_first_clips_and_then_drops_the_least_important_columns() -> None:
    assert render(COLUMNS, ROWS, Screen(25)) == [
        "KEY         STATUS   MSGS",
        "agent:mai…  ok          5",
        "main        running  1200",
    ]
    assert render(COLUMNS, ROWS, Screen(17)) == ["KEY       STATUS", "agent:m…  ok", "main      running"]
    assert render(COLUMNS, ROWS, Screen(8)) == ["KEY", "agent:m…", "main"]
    assert render(COLUMNS, ROWS, Screen(3)) == ["KEY", "ag…", "ma…"]


def test_wide_letters_count_as_two_columns() -> None:
    rows = [("漢字漢字", "x"), ("abc", "y")]
    table = (Column("N", lambda row: row[0], least=3, keep=1), Column("V", lambda row: row[1]))
    assert render(table, rows, Screen(None)) == ["N         V", "漢字漢字  x", "abc       y"]
    assert render(table, rows, Screen(8)) == ["N      V", "漢字…  x", "abc    y"]


def test_an_empty_column_and_an_empty_table_are_not_shown() -> None:
    assert render(COLUMNS, [("main", None, 1)], Screen(None)) == ["KEY   MSGS", "main     1"]
    assert render(COLUMNS, [], Screen(80)) == []


def test_colour_is_outside_the_padding() -> None:
    assert render(COLUMNS[1:], ROWS[:1], Screen(None, colour=True)) == [
        "\x1b[2mSTATUS\x1b[0m  \x1b[2mMSGS\x1b[0m",
        "\x1b[32mok    \x1b[0m     5",
    ]


def test_an_empty_cell_has_no_style() -> None:
    columns = (Column("A", lambda row: row[0], style="red"), Column("B", lambda row: row[1]))
    _, first, second = render(columns, [("x", "1"), ("", "2")], Screen(40, colour=True))
    assert (first, second) == ("\x1b[31mx\x1b[0m  1", "   2")


def test_pairs_are_aligned_and_unknown_values_left_out() -> None:
    assert pairs({"store": "/s", "pid": 7, "agents": None}, Screen(80)) == ["store  /s", "pid    7"]
