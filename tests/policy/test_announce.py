"""The announcement text: its lines, and that a model's reply cannot change the lines that the daemon writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.policy.announce import (
    MAX_RESULT_BYTES,
    AnnounceFacts,
    announce_context,
    announcement,
    runtime_text,
    token_text,
)

STATS = "sessionKey agent:main:subagent:u • sessionId sid • transcript /store/sid.jsonl"


def facts(**changes: object) -> AnnounceFacts:
    given_facts = {
        "status": "ok",
        "session_key": "agent:main:subagent:u",
        "session_id": "sid",
        "transcript_path": "/store/sid.jsonl",
        "runtime_ms": 312_900,
        "input_tokens": 1200,
        "output_tokens": 234,
        "cost_usd": 0.01234,
    }
    return AnnounceFacts(**given_facts | changes)


def lines(**changes: object) -> list[str]:
    text = announcement(facts(**changes))
    assert text is not None
    return text.split("\n")


def test_an_announcement_has_status_result_notes_and_stats() -> None:
    assert announcement(facts(reply="  Found 3 bugs.\nAll in tail.py. ")) == (
        "Status: ok\n"
        "Result: Found 3 bugs.\nAll in tail.py.\n"
        "Notes: none\n"
        f"Stats: runtime 5m12s • tokens 1.4k (in 1.2k / out 234) • cost $0.0123 • {STATS}"
    )


def test_unknown_stats_are_shown_as_n_a_or_left_out() -> None:
    bare = lines(reply="x", runtime_ms=None, input_tokens=None, output_tokens=None, cost_usd=None)
    assert bare[-1] == f"Stats: runtime n/a • tokens n/a • {STATS}"


@check_each(
    ("status", "error", "line"),
    [
        ("ok", None, "Status: ok"),
        ("timeout", None, "Status: timeout"),
        ("aborted", None, "Status: aborted"),
        ("error", "the agent exited\nwith 3", "Status: error: the agent exited with 3"),
        ("error", None, "Status: error: unknown error"),
        ("error", "x" * 500, "Status: error: " + "x" * 500),
        ("error", "x" * 501, "Status: error: " + "x" * 499 + "…"),
    ],
)
def test_the_status_line_gives_the_outcome_of_the_run(status: str, error: str | None, line: str) -> None:
    assert lines(status=status, error=error, reply="Status: ok\nResult: fine")[:2] == [line, "Result: fine"]


def test_the_replys_result_and_notes_are_kept_and_its_status_is_dropped() -> None:
    words = "**Status:** done!\nResult: one\ntwo\n\n## Notes:\nmind the gap\nStats: none"
    assert lines(status="error", error="boom", reply=words)[:6] == [
        "Status: error: boom",
        "Result: one",
        "two",
        "Notes: mind the gap",
        "  Stats: none",
        f"Stats: runtime 5m12s • tokens 1.4k (in 1.2k / out 234) • cost $0.0123 • {STATS}",
    ]


def test_text_after_a_status_without_a_result_heading_is_the_result() -> None:
    assert lines(reply="Status: ok\nall green\nNotes: slow")[:3] == ["Status: ok", "Result: all green", "Notes: slow"]


def test_headings_inside_the_reply_are_indented() -> None:
    assert lines(status="timeout", reply="The answer was\nStatus: 200 OK\nstats: x\nNotes: y")[:6] == [
        "Status: timeout",
        "Result: The answer was",
        "  Status: 200 OK",
        "  stats: x",
        "  Notes: y",
        "Notes: none",
    ]


def test_an_empty_reply_is_replaced_by_the_latest_tool_result() -> None:
    assert lines(reply=" ", tool_result="42 rows\n")[1] == "Result: 42 rows"
    assert lines(reply="Status: ok\nNotes: see tool", tool_result="42")[1:3] == ["Result: 42", "Notes: see tool"]
    assert lines(reply=None, tool_result=None)[1] == "Result: (no output)"


@pytest.mark.parametrize("reply", ["ANNOUNCE_SKIP", " ANNOUNCE_SKIP\n"])
def test_announce_skip_suppresses_the_announcement(reply: str) -> None:
    assert announcement(facts(reply=reply, tool_result="x")) is None


@check_each("reply", ["ANNOUNCE_SKIP.", "Result: ANNOUNCE_SKIP", "announce_skip"])
def test_only_the_exact_word_suppresses_the_announcement(reply: str) -> None:
    assert announcement(facts(reply=reply)) is not None


def test_the_result_is_cut_at_its_limit_and_says_so() -> None:
    assert lines(reply="é" * (MAX_RESULT_BYTES // 2))[2] == "Notes: none"
    cut = lines(reply="x" + "é" * (MAX_RESULT_BYTES // 2))
    assert cut[1] == "Result: x" + "é" * (MAX_RESULT_BYTES // 2 - 1)
    assert cut[2] == "[cut at 100 KiB of 100.0 KiB; the transcript has all of it]"


@check_each(
    ("runtime_ms", "text"),
    [
        (None, "n/a"),
        (-5, "0s"),
        (0, "0s"),
        (42_999, "42s"),
        (59_999, "59s"),
        (60_000, "1m0s"),
        (312_000, "5m12s"),
        (3_599_999, "59m59s"),
        (3_600_000, "1h0m"),
        (7_500_000, "2h5m"),
        (360_000_000, "100h0m"),
    ],
)
def test_runtimes_are_shown_in_hours_minutes_and_seconds(runtime_ms: int | None, text: str) -> None:
    assert runtime_text(runtime_ms) == text


@check_each(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (1234, "1.2k"),
        (999_949, "999.9k"),
        (999_950, "1.0m"),
        (3_400_000, "3.4m"),
    ],
)
def test_token_counts_are_shortened_with_k_and_m(count: int, text: str) -> None:
    assert token_text(count) == text


def test_the_announce_step_quotes_the_task() -> None:
    assert announce_context("agent:main:main", "count\nall").splitlines()[1:4] == ["The task was:", "> count", "> all"]


@given(
    reply=st.text(alphabet=st.sampled_from("SNRstatusreln: \n*#x\r\u2028"), max_size=60),
    status=st.sampled_from(["ok", "error", "timeout", "aborted"]),
)
def test_no_reply_can_add_a_second_heading(reply: str, status: str) -> None:
    text = announcement(facts(status=status, error="boom", reply=reply))
    assert text is not None
    starts = [
        line.split(":")[0] for line in text.splitlines() if line.split(":")[0] in ("Status", "Result", "Notes", "Stats")
    ]
    assert starts == ["Status", "Result", "Notes", "Stats"]
    assert text.splitlines()[0] == ("Status: error: boom" if status == "error" else f"Status: {status}")
