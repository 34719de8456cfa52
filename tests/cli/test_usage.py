"""`sessiond usage` against a stand-in for the daemon: tables, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from sessiond.cli.frame.registry import find
from sessiond.cli.usage import GROUPS


def row(total: int, cost: float | None = None, **more: Any) -> dict[str, Any]:
    sums = {"inputTokens": total - 2, "outputTokens": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": total}
    return {**more, **sums, **({} if cost is None else {"costUsd": cost})}


ANSWER = {
    "totals": row(30_000, 1.5),
    "byDay": [row(10_000, day="2026-01-01"), row(20_000, 1.5, day="2026-01-02")],
    "byModel": [row(30_000, 1.5, model="=big\x1b[2J")],
    "byProject": [row(20_000, cwd="/home/me/a"), row(10_000, cwd="")],
    "byAgent": [row(30_000, agentId="")],
    "bySource": [row(30_000, source="claude")],
    "bySession": [row(30_000, key="claude:x", sessionId="x", archived=False)],
}


@pytest.fixture
def asked(fake: Any) -> list[dict[str, Any]]:
    """The parameters of each call."""
    seen: list[dict[str, Any]] = []

    def answer(params: dict[str, Any], _connection: Any) -> dict[str, Any]:
        seen.append(params)
        return ANSWER

    fake.answers["sessions.usage"] = answer
    return seen


def test_rows_for_programs_are_whole_numbers(sessiond: Callable[..., Any], asked: list[dict[str, Any]]) -> None:
    done = sessiond("usage", "main", "--since", "7d")
    assert (done.status, [re.split(" {2,}", line) for line in done.out.splitlines()[:2]]) == (
        0,
        [
            ["DAY", "INPUT", "OUTPUT", "CACHE READ", "CACHE WRITE", "TOTAL", "COST"],
            ["2026-01-01", "9998", "2", "0", "0", "10000", "-"],
        ],
    )
    assert asked[0]["key"] == "main" and asked[0]["since"] > 0
    assert "neither" not in done.err


def test_every_grouping_names_its_rows_and_csv_has_no_formula(
    sessiond: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    names = {}
    for by in GROUPS:
        done = sessiond("usage", "--by", by, "--csv")
        head, *rows = csv.reader(io.StringIO(done.out))
        assert (done.status, head) == (
            0,
            [by, "inputTokens", "outputTokens", "cacheRead", "cacheWrite", "totalTokens", "costUsd", "unpricedTokens"],
        )
        names[by] = [each[0] for each in rows]
    assert names == {
        "day": ["2026-01-01", "2026-01-02"],
        "model": ["'=big\\x1b[2J"],
        "project": ["/home/me/a", "(no folder known)"],
        "agent": ["(other programs)"],
        "source": ["claude"],
        "session": ["claude:x"],
    }
    assert "\x1b" not in sessiond("usage", "--by", "model").out
    assert json.loads(sessiond("usage", "--json").out) == ANSWER
    assert sessiond("usage", "--json", "--csv").status == 2
    assert sessiond("usage", "--by", "moon").status == 2
    assert len(asked) == len(GROUPS) + 2


def test_whole_days_begin_at_midnight_and_hours_where_they_begin(
    sessiond: Callable[..., Any], asked: list[dict[str, Any]]
) -> None:
    for age in ("7d", "24h", "23h", "100000d"):
        assert sessiond("usage", "--since", age).status == 0
    assert [one["since"] % 86_400_000 == 0 for one in asked[:2]] == [True, True]
    assert asked[2]["since"] - asked[1]["since"] >= 3_600_000
    assert asked[3]["since"] == 0


def test_sessions_that_are_not_read_whole_yet_are_named(sessiond: Callable[..., Any], fake: Any) -> None:
    fake.answers["sessions.usage"] = lambda *_: {**ANSWER, "partial": 3}
    assert "3 sessions are still being read" in sessiond("usage").err
    fake.answers["sessions.usage"] = lambda *_: {**ANSWER, "partial": 1}
    assert "1 session is still being read" in sessiond("usage").err
    assert json.loads(sessiond("usage", "--json").out)["partial"] == 1


def test_nothing_used_is_said(sessiond: Callable[..., Any], fake: Any) -> None:
    fake.answers["sessions.usage"] = lambda *_: {**ANSWER, "byDay": [], "totals": row(0)}
    done = sessiond("usage")
    assert (done.status, done.out) == (0, "") and "no tokens are counted yet" in done.err
    assert find("usage") is not None
