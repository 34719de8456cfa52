"""`check_each` itself: no row is left out, none hides another, and each has what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from support.rows import check_each


def test_every_row_runs_and_every_failure_is_named() -> None:
    seen = []

    @check_each(("number", "text"), [(1, "one"), pytest.param(2, "two", id="second"), (3, "three")])
    def check(number: int, text: str) -> None:
        seen.append((number, text))
        assert number == 2, "odd"

    with pytest.raises(ExceptionGroup, match=r"2 of 3 rows failed: 1-'one', 3-'three'") as failed:
        check()
    assert seen == [(1, "one"), (2, "two"), (3, "three")]
    assert [error.__notes__ for error in failed.value.exceptions] == [["in the row 1-'one'"], ["in the row 3-'three'"]]


def test_a_missing_exception_fails_its_row_only() -> None:
    seen = []

    @check_each("number", [0, 1, 0], ids=["a", "b", "c"])
    def check(number: int) -> None:
        seen.append(number)
        with pytest.raises(ZeroDivisionError):
            1 // number

    with pytest.raises(BaseExceptionGroup, match="1 of 3 rows failed: b"):
        check()
    assert seen == [0, 1, 0]


def test_tables_above_each_other_make_the_product() -> None:
    seen = []

    @check_each("first", "ab")
    @check_each(("second",), [(1,), (2,)])
    def check(first: str, second: int) -> None:
        seen.append((first, second))

    check()
    assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


async def test_rows_of_an_asynchronous_test_run_one_after_the_other() -> None:
    seen = []

    @check_each("number", [2, 1], ids=str)
    async def check(number: int) -> None:
        for _ in range(number):
            await trio.lowlevel.checkpoint()
        seen.append(number)
        raise trio.TooSlowError

    with pytest.raises(ExceptionGroup, match="2 of 2 rows failed: 2, 1"):
        await check()
    assert seen == [2, 1]


def test_a_skipped_row_skips_the_test_only_if_no_row_failed() -> None:
    @check_each("reason", ["none", "no strace"])
    def check(reason: str) -> None:
        if reason != "none":
            pytest.skip(reason)

    with pytest.raises(pytest.skip.Exception, match="1 of 2 rows: 'no strace': no strace"):
        check()

    @check_each("number", [0, 1])
    def check_more(number: int) -> None:
        if number == 0:
            pytest.skip("zero")
        assert number == 0

    with pytest.raises(ExceptionGroup, match="1 of 2 rows failed: 1"):
        check_more()


def test_each_row_has_its_own_folder_patches_and_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Place:
        name = "unpatched"

    @check_each("number", [0, 1])
    def check(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert (list(tmp_path.iterdir()), Place.name, capsys.readouterr().out) == ([], "unpatched", "")
        (tmp_path / "file").touch()
        monkeypatch.setattr(Place, "name", "patched")
        print("printed")

    check(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


def test_a_table_without_rows_and_an_unknown_parameter_are_refused() -> None:
    with pytest.raises(AssertionError, match="checks nothing"):
        check_each("number", [])
    with pytest.raises(AssertionError, match="has no parameters"):
        check_each("number", [1])(lambda other: None)
    with pytest.raises(ValueError, match="zip"):
        check_each(("first", "second"), [(1,)])
