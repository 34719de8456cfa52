"""What is told of a fact: which ends are facts, in which words, and nothing of a message in them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.rows import check_each

from sessiond.config.notify import NotifyRule
from sessiond.delivery.notification import MAX_BODY_BYTES, Fact, fact_of_end, fact_of_question, shown_body
from sessiond.delivery.notify_rules import describe_target, is_concerned, rules_by_name
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules
from sessiond.model.question import Question, QuestionOption
from sessiond.model.title import UNSHOWN
from sessiond.policy.secrets import mask_secrets
from sessiond.runs.run import Run, RunRequest
from sessiond.store.catalog import Session

KEY = "agent:main:main"
QUESTION = Question(
    id="0123456789abcdef",
    title="Run rm -rf build?",
    detail="rm -rf build\n--password hunter2hunter2",
    options=(QuestionOption("y", "Yes", "allow_once"),),
    asked_at=7,
)


def plain(text: str) -> str:
    return text


def masked(text: str) -> str:
    return mask_secrets(text)[0]


def entry(**fields: Any) -> Entry:
    return Entry(session_id="s1", **fields)


def ended(status: str, took_ms: int = 1000, *, key: str = KEY, step: str = "primary", **fields: Any) -> Run:
    """A run that has ended so."""
    known = entry(title="the first words", **{name: fields.pop(name) for name in ("notify", "label") if name in fields})
    session = cast(Session, SimpleNamespace(key=key, entry=known, session_id="s1"))
    run = Run("s1.r1", session, RunRequest(text="", message={}, step=cast(Any, step)), 0)
    run.status, run.started_at, run.ended_at = cast(Any, status), 1_000, 1_000 + took_ms
    run.reply, run.error = fields.get("reply"), fields.get("error")
    return run


def fact(run: Run) -> Fact | None:
    return fact_of_end(run, KeyRules(), plain)


def told(run: Run) -> tuple[str, str, str]:
    found = fact(run)
    assert found is not None
    return found.when, found.title, found.text


@check_each(
    ("run", "expected"),
    [
        (ended("error", error="x"), ("error", "main failed", "the run ended with an error")),
        (ended("error", error="x", step="reply"), ("error", "main failed", "the run ended with an error")),
        (
            ended("error", error="interrupted"),
            ("error", "main failed", "interrupted: sessiond ended while the run was going on"),
        ),
        (
            ended("timeout", error="the run met its limit of 5 s"),
            ("error", "main failed", "the run met its limit of 5 s"),
        ),
        (ended("ok", 30_001), ("done", "main is done", "after 30 s")),
        (ended("ok", 83_000, label="the build"), ("done", "the build is done", "after 1 min 23 s")),
        (ended("ok", 3_660_000, key="agent:b:x"), ("done", "agent:b:x is done", "after 1 h 1 min")),
        (ended("ok", 5, notify=True), ("done", "main is done", "after 0 s")),
        (ended("ok", 30_000), None),
        (ended("ok", 90_000, step="announce"), None),
        (ended("ok", 90_000, step="reply", notify=True), None),
        (ended("error", 90_000, step="announce", error="x"), None),
        (ended("aborted", 90_000, notify=True), None),
    ],
)
def test_which_ends_are_facts_and_in_which_words(run: Run, expected: tuple[str, str, str] | None) -> None:
    if expected is None:
        assert fact(run) is None
    else:
        assert told(run) == expected


def test_the_words_of_a_fact_have_nothing_of_a_message_and_its_body_has() -> None:
    run = ended("error", error="command exited with status 1: you said HELLO")
    found = fact(run)
    assert found is not None
    assert "HELLO" not in found.title + found.text
    assert "first words" not in found.title + found.text
    assert shown_body(found, plain) == "command exited with status 1: you said HELLO"
    assert (found.id, found.run_id, found.session_key, found.agent_id) == ("s1.r1.error", "s1.r1", KEY, "main")


def test_a_question_is_told_by_its_title_and_its_detail_is_its_body() -> None:
    found = fact_of_question(KEY, entry(display_name="Home"), QUESTION, KeyRules(), masked)
    assert (found.id, found.question_id, found.run_id) == (QUESTION.id, QUESTION.id, None)
    assert (found.when, found.title, found.text, found.at) == ("waiting", "Home needs you", "Run rm -rf build?", 7)
    assert shown_body(found, masked) == "rm -rf build\n--password ***"


def test_a_session_of_another_program_has_the_name_of_its_folder() -> None:
    key = "claude:0b1c"
    found = fact_of_question(key, entry(cwd="/srv/shop"), QUESTION, KeyRules(), plain)
    assert (found.title, found.agent_id, found.session_key) == ("claude in shop needs you", "claude", key)
    assert fact_of_question(key, entry(), QUESTION, KeyRules(), plain).title == "claude needs you"


@given(st.text(), st.text(), st.text())
def test_whatever_an_agent_writes_no_text_has_control_or_bidi_characters(name: str, title: str, detail: str) -> None:
    question = replace(QUESTION, title=title, detail=detail)
    found = fact_of_question(KEY, entry(display_name=name), question, KeyRules(), masked)
    body = shown_body(found, masked) or ""
    assert not UNSHOWN.search(found.title + found.text + body.replace("\n", ""))
    assert len(found.title) < 120 and len(found.text) <= 300 and len(body.encode("utf-8", "replace")) <= MAX_BODY_BYTES


def test_a_long_body_is_cut_after_its_secrets_are_masked() -> None:
    secret = "sk-" + "a" * 40
    run = ended("ok", 40_000, reply="x" * (MAX_BODY_BYTES - 10) + " " + secret + "y" * 1_000_000)
    found = fact(run)
    assert found is not None
    body = shown_body(found, masked) or ""
    assert len(body.encode()) <= MAX_BODY_BYTES
    assert "aaaa" not in body


def test_rules_are_known_by_their_targets_whatever_else_changes() -> None:
    first, second = NotifyRule(command=("a", "{text}")), NotifyRule(url="http://x/")
    names = {rule: name for name, rule in rules_by_name((first, second)).items()}
    assert len(set(names.values())) == 2
    changed = replace(second, when=("error",), headers_file=Path("/h"), format="text")
    assert set(rules_by_name((changed, first))) == set(names.values())
    # The same target under two conditions is told by each.
    twice = rules_by_name((first, replace(first, when=("done",))))
    assert list(twice) == [names[first], f"{names[first]}-2"]


def test_a_rule_is_about_its_occasions_and_agents() -> None:
    found = fact(ended("error", error="x", key="agent:code-review:main"))
    assert found is not None
    rule = NotifyRule(command=("a",))
    assert is_concerned(rule, found)
    assert is_concerned(replace(rule, agents=("code-*",)), found)
    assert not is_concerned(replace(rule, agents=("main", "claude")), found)
    assert not is_concerned(replace(rule, when=("waiting", "done")), found)


def test_a_target_is_called_by_its_program_or_host() -> None:
    assert describe_target(NotifyRule(command=("/usr/bin/notify-send", "{text}"))) == "notify-send"
    assert describe_target(NotifyRule(url="https://ntfy.example:8443/secret-topic")) == "ntfy.example:8443"
