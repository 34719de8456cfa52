"""Format rows as a table that fits the screen: wide columns are narrowed first, then unimportant ones dropped."""

from __future__ import annotations

from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.screen import Screen, clip, columns_of, pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

GAP = "  "


class Column:
    """`cell(row)` is the text of a row; `style` a colour, or a function from the text to one.

    `least` is the width below which the column is dropped; None: it is never clipped. Columns are dropped in the order
    of `keep`, the lowest first. A column that is empty in every row is not shown. `fit(text, width)`
    shortens a text; the default keeps its beginning.
    """

    def __init__(
        self,
        title: str,
        cell: Callable[[Any], str | int | None],
        *,
        right: bool = False,
        least: int | None = None,
        keep: int = 0,
        style: str | Callable[[str], str | None] | None = None,
        fit: Callable[[str, int], str] = clip,
    ) -> None:
        self.title = title
        self.cell = cell
        self.right = right
        self.least = least
        self.keep = keep
        self.style = style
        self.fit = fit


def render(
    columns: Sequence[Column], rows: Sequence[Any], screen: Screen, above: dict[str, int] | None = None
) -> list[str]:
    """The lines of the table, its titles first; none for no rows.

    `above` has, by title, the widths of the columns of rows that are shown already, which these rows continue; it is
    updated. While it is empty the titles come.
    """
    texts = {column: [_text(column.cell(row)) for row in rows] for column in columns}
    above = {} if above is None else above
    shown = [column for column in columns if any(texts[column]) or column.title in above]
    widths = {
        column: max(above.get(column.title, 0), *(columns_of(text) for text in [column.title, *texts[column]]))
        for column in shown
    }
    if screen.width is not None:
        _fit(shown, widths, screen.width)
        for column in shown:  # a shortened text may be narrower than its width
            fitted = [columns_of(column.fit(text, widths[column])) for text in texts[column]]
            widths[column] = min(widths[column], max(columns_of(column.title), above.get(column.title, 0), *fitted))
    if not rows or not shown:
        return []
    lines = [] if above else [_line([(column, column.title, "dim") for column in shown], widths, screen)]
    above |= {column.title: width for column, width in widths.items()}
    for index in range(len(rows)):
        cells = [(column, texts[column][index], _style(column, texts[column][index])) for column in shown]
        lines.append(_line(cells, widths, screen))
    return lines


def pairs(facts: Mapping[str, str | int | None], screen: Screen) -> list[str]:
    """Names and values, one per line, the values aligned; without those that are None."""
    given = {name: _text(value) for name, value in facts.items() if value is not None}
    width = max(map(columns_of, given), default=0)
    return [f"{screen.paint(pad(name, width), 'dim')}  {value}" for name, value in given.items()]


def _fit(shown: list[Column], widths: dict[Column, int], limit: int) -> None:
    """Narrow the widest columns that may be narrowed, then drop columns, until a line fits `limit`."""
    while True:
        over = sum(widths[column] for column in shown) + len(GAP) * (len(shown) - 1) - limit
        if over <= 0:
            return
        elastic = [column for column in shown if column.least is not None and widths[column] > column.least]
        if elastic:
            widest = max(elastic, key=lambda column: widths[column])
            others = [widths[column] for column in elastic if column is not widest]
            # At most down to the next widest in one step, so that two long columns share the loss.
            floor = max(widest.least or 0, min(max(others, default=0), widths[widest] - 1))
            widths[widest] = max(widths[widest] - over, floor)
        elif len(shown) > 1:
            shown.remove(min(shown, key=lambda column: column.keep))
        else:
            widths[shown[0]] = max(limit, 1)
            return


def _line(cells: list[tuple[Column, str, str | None]], widths: dict[Column, int], screen: Screen) -> str:
    parts = []
    for column, text, style in cells:
        fitted = column.fit(text, widths[column])
        is_last = column is cells[-1][0] and not column.right
        padded = fitted if is_last else pad(fitted, widths[column], right=column.right)
        parts.append(screen.paint(padded, style) if text else padded)
    return GAP.join(parts).rstrip()


def _text(value: str | int | None) -> str:
    return "" if value is None else one_line(str(value))


def _style(column: Column, text: str) -> str | None:
    return column.style(text) if callable(column.style) else column.style
