"""What is told of a fact: that a question waits for a person, or how a run ended. Pure; tells nobody.

Agents write these texts. So they are on one line without control and bidi characters, secrets in them are masked, and
what a message says is only told by rules with `body = true`. Source: runs.md, "Notifications".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec

from sessiond.config.notify import Occasion
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules, agent_of, display_key, source_of
from sessiond.model.lax import Milliseconds
from sessiond.model.question import Question, clean_line, clean_text, cut_bytes
from sessiond.runs.run import INTERRUPTED, Run

# A run that took longer is one whose end a person waits for.
LONG_RUN_MS = 30_000
MAX_TITLE_CHARS = 100
MAX_TEXT_CHARS = 300
# What services for phones take, and short enough to be masked at once: no text of 8 KiB takes 5 ms.
MAX_BODY_BYTES = 4 * 1024
# Secrets are looked for in more than is told: one that is cut in two is not recognized.
_LOOKED_AT_CHARS = 2 * MAX_BODY_BYTES

Mask = Callable[[str], str]


class Notification(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a delivery has besides its title and text where it is a notification.

    `fact_id` is the same over retries and restarts. `rule` is that by which it is delivered. `at` is when it happened.
    """

    fact_id: str
    rule: str
    when: Occasion
    agent_id: str
    at: Milliseconds
    question_id: str | None = None
    run_id: str | None = None
    body: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, in words. `agent_id` is the program's name where the session is another program's.

    `body` is what the agent wrote, as it wrote it; the other texts have none of a message, and are fit to be shown.
    """

    id: str
    when: Occasion
    session_key: str
    agent_id: str
    at: int
    title: str
    text: str
    body: str | None = None
    question_id: str | None = None
    run_id: str | None = None


def fact_of_question(key: str, entry: Entry, question: Question, rules: KeyRules, mask: Mask) -> Fact:
    """The fact that a question of session `key` waits for a person."""
    return Fact(
        id=question.id,
        when="waiting",
        session_key=key,
        agent_id=_agent_of(key),
        at=question.asked_at,
        title=_title(key, entry, rules, "needs you", mask),
        text=clean_line(mask(question.title), MAX_TEXT_CHARS),
        body=question.detail,
        question_id=question.id,
    )


def fact_of_end(run: Run, rules: KeyRules, mask: Mask) -> Fact | None:
    """The fact that a run ended so that a person should know; None for any other end."""
    entry = run.session.entry
    match run.status:
        # The announce step of a child is no run of its own to anybody.
        case "error" | "timeout" if run.request.step != "announce":
            when: Occasion = "error"
            title, text, body = "failed", _describe_failure(run), run.error
        case "ok" if run.request.step == "primary" and (entry.notify or _took_ms(run) > LONG_RUN_MS):
            when = "done"
            title, text, body = "is done", f"after {_describe_duration(_took_ms(run))}", run.reply
        case _:
            return None
    return Fact(
        id=f"{run.run_id}.{when}",
        when=when,
        session_key=run.key,
        agent_id=_agent_of(run.key),
        at=run.ended_at or 0,
        title=_title(run.key, entry, rules, title, mask),
        text=clean_line(text, MAX_TEXT_CHARS),
        body=body,
        run_id=run.run_id,
    )


def shown_body(fact: Fact, mask: Mask) -> str | None:
    """What the agent wrote, as far as it is told by rules with `body = true`."""
    return cut_bytes(clean_text(mask((fact.body or "")[:_LOOKED_AT_CHARS])), MAX_BODY_BYTES) or None


def fields_of(notification: Notification, *, title: str, text: str, session_key: str) -> dict[str, Any]:
    """The notification as receivers get it, in the order of the documentation."""
    fields = {
        "id": notification.fact_id,
        "when": notification.when,
        "title": title,
        "text": text,
        "sessionKey": session_key,
        "agentId": notification.agent_id,
        "questionId": notification.question_id,
        "at": notification.at,
        "body": notification.body,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _agent_of(key: str) -> str:
    return source_of(key) or agent_of(key)


def _title(key: str, entry: Entry, rules: KeyRules, what: str, mask: Mask) -> str:
    """Which session, and what of it. Not by its first words, which are a message's."""
    name = entry.display_name or entry.label or ""
    program = source_of(key)
    if program is not None:
        folder = PurePath(entry.cwd or "").name
        name = f"{program} in {folder}" if folder else program
    shown = clean_line(mask(name), MAX_TITLE_CHARS) or display_key(key, rules, None)
    return f"{shown} {what}"


def _describe_failure(run: Run) -> str:
    """Why a run failed, where the daemon knows it of itself: what programs print may repeat any message."""
    if run.error == INTERRUPTED:
        return "interrupted: sessiond ended while the run was going on"
    return run.error if run.status == "timeout" and run.error else "the run ended with an error"


def _took_ms(run: Run) -> int:
    if run.started_at is None or run.ended_at is None:
        return 0
    return max(0, run.ended_at - run.started_at)


def _describe_duration(duration_ms: int) -> str:
    seconds = duration_ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
