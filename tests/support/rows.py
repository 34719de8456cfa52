"""Tables of cases as one test: pytest's own `parametrize` costs several milliseconds a case, and a table has hundreds.

    @check_each(("text", "size"), [("", 0), ("ab", 2)])
    def test_sizes(text: str, size: int) -> None: ...

is written as `parametrize` is and goes over all rows, whatever fails; the failure names every row that failed and has
its traceback. Rows share the test's fixtures, except that each has a folder, patches and captured output of its own.
For rows that share nothing else; a daemon or store that one row could change for the next wants `parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LONGEST_VALUE = 80
Row = tuple[Callable[[], str], dict[str, Any]]


class _Outcomes:
    """What the rows of one test came to."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._failures: list[BaseException] = []
        self._failed: list[str] = []
        self._skipped: list[str] = []

    @contextmanager
    def note(self, name_row: Callable[[], str]) -> Iterator[None]:
        """Keep the failure of this row, so that the next ones run."""
        try:
            yield
        except pytest.skip.Exception as error:
            self._skipped.append(f"{name_row()}: {error}")
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 every row is checked, whatever fails
            error.add_note(f"in the row {name_row()}")
            self._failures.append(error)
            self._failed.append(name_row())

    def report(self) -> None:
        """Fail if a row failed, naming all of them; skip if one skipped."""
        if self._failures:
            names = ", ".join(self._failed)
            raise BaseExceptionGroup(f"{len(self._failures)} of {self._count} rows failed: {names}", self._failures)
        if self._skipped:
            pytest.skip(f"{len(self._skipped)} of {self._count} rows: {'; '.join(self._skipped)}")


def check_each(names: str | Sequence[str], rows: Any, *, ids: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Run the decorated test with each row; several of these above each other make the product of their rows."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_read_table(keys, list(rows), ids, alone=names == keys[0]))
    assert table, "a table without rows checks nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def check_all(*args: Any, **fixtures: Any) -> None:
            outcomes = _Outcomes(len(table))
            for number, (name_row, values) in enumerate(table):
                with outcomes.note(name_row), _renew(fixtures, number) as own:
                    test(*args, **own, **values)
            outcomes.report()

        @functools.wraps(test)
        async def check_all_in_trio(*args: Any, **fixtures: Any) -> None:
            outcomes = _Outcomes(len(table))
            for number, (name_row, values) in enumerate(table):
                with outcomes.note(name_row), _renew(fixtures, number) as own:
                    await test(*args, **own, **values)
            outcomes.report()

        signature = inspect.signature(test)
        missing = set(keys) - set(signature.parameters)
        assert not missing, f"{test.__name__} has no parameters {missing}"
        rest = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        wrapper: Any = check_all_in_trio if inspect.iscoroutinefunction(test) else check_all
        wrapper.__signature__ = signature.replace(parameters=rest)
        return wrapper  # type: ignore[no-any-return]

    return decorate


def _read_table(keys: list[str], rows: list[Any], ids: Any, *, alone: bool) -> Iterator[Row]:
    given = [None] * len(rows) if ids is None or callable(ids) else list(ids)
    for row, name in zip(rows, given, strict=True):
        if isinstance(row, type(pytest.param())):
            assert not row.marks, "a row cannot have marks"
            values, name = list(row.values), row.id or name
        else:
            values = [row] if alone else list(row)
        name_row = functools.partial(_name_row, name, values, ids if callable(ids) else None)
        yield name_row, dict(zip(keys, values, strict=True))


def _name_row(name: object, values: list[Any], name_value: Callable[[Any], Any] | None) -> str:
    if name is not None:
        return str(name)
    names = [name_value and name_value(value) for value in values]
    texts = [repr(value) if given is None else str(given) for value, given in zip(values, names, strict=True)]
    return "-".join(text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…" for text in texts)


@contextmanager
def _renew(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures as a row gets them."""
    own = dict(fixtures)
    for name in ("tmp_path", "short_path"):
        if name in own:
            own[name] = _make_folder(own[name], number)
    if "capsys" in own:
        own["capsys"].readouterr()
    with pytest.MonkeyPatch.context() as patches:
        if "monkeypatch" in own:
            own["monkeypatch"] = patches
        yield own


def _make_folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir(mode=0o700)
    return folder
