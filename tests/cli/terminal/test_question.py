"""A question on a terminal: hostile text stays behind its mark, and every printed command line answers as it says."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.terminal.question import (
    answer_line,
    answer_text,
    heading,
    options_named,
    question_lines,
)
from sessiond.cli.terminal.screen import Screen, columns_of, fold
from sessiond.model.question import OPTION_KINDS

HOSTILE = "\x00\x07\x08\x0b\x0c\r\n\t\x1b\x7f\x85\x9b\u200e\u202e\u2066\u2028\u2029\ufeff\U000e0041\ud800"
SHELL = "$(rm -rf ~)`;|&<>'\"\\!*?[]{}#=~%- "
words = st.text(st.characters() | st.sampled_from(HOSTILE + SHELL) | st.sampled_from("ab"), max_size=12)
words |= st.sampled_from(["allow", "Deny", "yes", "no"])
options = st.lists(
    st.fixed_dictionaries({"id": words.filter(bool), "label": words, "kind": st.sampled_from(OPTION_KINDS)}),
    min_size=1,
    max_size=6,
    unique_by=lambda option: option["id"],
)
ID = "1a2b3c4d5e6f7a8b"


def question(**more: Any) -> dict[str, Any]:
    asked = {"id": ID, "sessionKey": "agent:main:main", "agentId": "main", "status": "open", "askedAt": 0}
    given_options = [
        {"id": "yes", "label": "Allow once", "kind": "allow_once"},
        {"id": "no", "label": "Deny", "kind": "reject_once"},
    ]
    return {**asked, "title": "Run it?", "options": given_options, **more}


@given(options, st.integers(0, 5))
def test_a_printed_line_is_shell_words_that_mean_this_option_and_no_other(found: list[Any], number: int) -> None:
    option = found[number % len(found)]
    line = answer_line(question(options=found), option)
    assert line.isprintable()
    program, command, *rest = shlex.split(line)
    assert program == "sessiond"
    if command == "answer":
        assert rest[0] == ID[:8]
        assert not rest[1].startswith("-")
        assert options_named(found, rest[1]) == [option]
        assert len(rest) == 2
    else:
        assert (command, rest[0]) == ("call", "questions.answer")
        assert json.loads(rest[1]) == {"id": ID, "optionId": option["id"]}


def test_a_real_shell_reads_a_printed_line_as_it_is_meant() -> None:
    ids = ["$(exit 9)", "a'b", "`exit 9`", "!!", "*", "a b", "~", "=x", "#"]
    asked = question(options=[{"id": one, "label": "", "kind": "allow_once"} for one in ids])
    script = 'sessiond() { printf \'%s\\n\' "$2" "$3"; }\n' + "\n".join(
        answer_line(asked, option) for option in asked["options"]
    )
    done = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines() == [word for one in ids for word in (ID[:8], one)]


@given(words, st.text(st.characters() | st.sampled_from(HOSTILE), max_size=200), options, st.integers(20, 60))
def test_nothing_that_an_agent_wrote_begins_a_line(title: str, detail: str, found: list[Any], width: int) -> None:
    shown = question_lines(question(title=title, detail=detail, options=found), Screen(width))
    lines = [line for line in shown if not line.startswith("      sessiond ")]
    assert len(shown) - len(lines) == len(found)
    assert all(line[:4] in ("  ? ", "  │ ", "  - ") and columns_of(line) <= max(width, 14) for line in lines)
    assert not set("".join(shown)) & set(HOSTILE)


def test_a_question_is_shown_with_the_lines_that_answer_it() -> None:
    asked = question(title="Bash: rm -rf build", detail="rm -rf build\nin /work", expiresAt=60_000, askedAt=1)
    plain = Screen(None)
    assert heading(asked, 180_001, plain).startswith("1a2b3c4d  agent:main:main  asked 3m ago  until ")
    long_key = {**asked, "sessionKey": "agent:main:" + "x" * 90}
    assert columns_of(heading(long_key, 180_001, Screen(60))) <= 60
    assert heading(question(status="expired"), 2**44, plain).endswith("asked 1970-01-01  expired")
    assert question_lines(asked, plain) == [
        "  ? Bash: rm -rf build",
        "  │ rm -rf build",
        "  │ in /work",
        "  - Allow once",
        "      sessiond answer 1a2b3c4d yes",
        "  - Deny (reject once)",
        "      sessiond answer 1a2b3c4d no",
    ]
    asked = question(status="answered", detail="\n".join(map(str, range(9))))
    shown = question_lines(asked, plain, with_title=False, most_detail_lines=5)
    assert shown[4:] == ["  │ 4", "  │ … 4 more: sessiond questions --json", "  - Allow once", "  - Deny (reject once)"]
    assert question_lines(question(title=None), plain)[0] == "  ? (not for this caller)"


OPTIONS = [
    {"id": "deny", "label": "Allow", "kind": "allow_once"},
    {"id": "allow", "label": "Deny", "kind": "reject_once"},
    {"id": "three", "label": " Ask\tme \x1b again", "kind": "reject_once"},
]


@check_each(
    ("text", "ids"),
    [
        ("three", ["three"]),
        ("THREE", []),
        ("ask me \\x1b AGAIN", ["three"]),
        # An agent may call its options so that a word means two of them.
        ("deny", ["deny", "allow", "three"]),
        ("Allow", ["deny"]),
        ("yes", ["deny"]),
        ("no", ["allow", "three"]),
        ("", []),
    ],
)
def test_an_option_is_named_by_its_id_or_its_label(text: str, ids: list[str]) -> None:
    assert [option["id"] for option in options_named(OPTIONS, text)] == ids


# The ids and kinds of real programs. Labels are their own words.
CODEX = [
    {"id": "allow_once", "label": "Yes, proceed", "kind": "allow_once"},
    {"id": "accept_execpolicy_amendment", "label": "Yes, and don't ask again", "kind": "allow_always"},
    {"id": "cancel", "label": "No, and tell it why", "kind": "reject_once"},
]
CLAUDE = [
    {"id": "allow_always", "label": "Always Allow", "kind": "allow_always"},
    {"id": "allow", "label": "Allow", "kind": "allow_once"},
    {"id": "reject", "label": "Reject", "kind": "reject_once"},
]
ALWAYS_FIRST = [{"id": "allow", "label": "Allow", "kind": "allow_always"}, *CODEX]
TWICE = [*CLAUDE, {"id": "here", "label": "Allow here", "kind": "allow_once"}]


@check_each(
    ("options", "text", "ids"),
    [
        (CODEX, "allow", ["allow_once"]),
        (CODEX, "Yes", ["allow_once"]),
        (CODEX, "deny", ["cancel"]),
        (CODEX, "no", ["cancel"]),
        (CLAUDE, "allow", ["allow"]),
        (CLAUDE, "deny", ["reject"]),
        (CLAUDE[:2], "deny", []),
        # An id or a label comes first where the words agree, and where they do not, both are meant.
        (TWICE, "allow", ["allow"]),
        (TWICE, "yes", ["allow", "here"]),
        (ALWAYS_FIRST, "allow", ["allow", "allow_once"]),
    ],
)
def test_allow_and_deny_answer_whatever_a_program_calls_its_options(
    options: list[Any], text: str, ids: list[str]
) -> None:
    assert [option["id"] for option in options_named(options, text)] == ids


def test_a_word_that_means_two_options_is_in_no_printed_line() -> None:
    asked = question(options=OPTIONS)
    assert answer_line(asked, OPTIONS[0]) == "sessiond answer 1a2b3c4d Allow"
    twice = [{"id": "a", "label": "b", "kind": "allow_once"}, {"id": "b", "label": "a", "kind": "allow_once"}]
    params = json.dumps({"id": ID, "optionId": "b"})
    assert answer_line(question(options=twice), twice[1]) == f"sessiond call questions.answer '{params}'"


@check_each(
    ("answer", "said"),
    [
        (
            {"outcome": "answered", "optionId": "three", "by": "owner", "road": "cli", "note": "a\nb"},
            "Ask me \\x1b again (reject once), by the owner (cli): a b",
        ),
        ({"outcome": "answered", "optionId": "gone", "by": "agent:a:main"}, "gone, by agent:a:main"),
        ({"outcome": "expired"}, "expired"),
        ({"outcome": "withdrawn", "reason": "the run ended"}, "withdrawn: the run ended"),
        ({"outcome": "policy", "optionId": "allow"}, "settled by the configuration: Deny (reject once)"),
    ],
)
def test_an_answer_says_what_by_whom_and_over_which_road(answer: dict[str, Any], said: str) -> None:
    assert answer_text(answer, OPTIONS) == said


@given(st.text(max_size=80), st.integers(2, 30))
def test_folded_text_loses_nothing_and_fits(text: str, width: int) -> None:
    pieces = fold(text, width)
    assert "".join(pieces) == text
    assert all(columns_of(piece) <= width for piece in pieces)
