"""Questions on the command line, with a stand-in for the daemon: `questions`, `answer`, and where else they show."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from support.rows import check_each

from sessiond.cli.frame import tree
from sessiond.cli.list import show as show_list
from sessiond.cli.terminal.screen import Screen
from sessiond.cli.watch import line, question_event_lines
from sessiond.client import Event

Sessiond = Callable[..., Any]
MAIN = "agent:main:main"


def question(number: int, **more: Any) -> dict[str, Any]:
    options = [
        {"id": "yes", "label": "Allow once", "kind": "allow_once"},
        {"id": "no", "label": "Deny", "kind": "reject_once"},
    ]
    facts = {"sessionKey": MAIN, "agentId": "main", "title": f"Run {number}?", "options": options, "status": "open"}
    return {"id": f"1a2b3c4d0000000{number}", **facts, "askedAt": number, **more}


FIRST = {"outcome": "answered", "optionId": "no", "by": "owner", "road": "page", "at": 9}
OTHER = question(2, id="ffff3c4d00000002", agentId="bob", sessionKey="agent:bob:main")
CLOSED = question(3, id="cccc3c4d00000003", status="answered", answer=FIRST)


@pytest.fixture
def asking(fake: Any) -> Any:
    """A daemon with two open questions and one that is over; `answered` is what was asked of it."""
    fake.present = [question(1), OTHER, CLOSED]
    fake.answers["questions.list"] = lambda params, _: {
        "questions": [
            one
            for one in fake.present
            if (not params.get("open") or one["status"] == "open")
            and params.get("sessionKey", one["sessionKey"]) == one["sessionKey"]
            and params.get("agentId", one["agentId"]) == one["agentId"]
        ]
    }
    fake.answers["questions.answer"] = lambda params, _: {**params, "status": "answered"}
    return fake


def test_questions_are_listed_for_programs_and_for_people(asking: Any, sessiond: Sessiond) -> None:
    done = sessiond("questions")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "id\tstatus\taskedAt\texpiresAt\tsessionKey\tagentId\ttitle\toptions\tanswer",
        f"{question(1)['id']}\topen\t1\t\t{MAIN}\tmain\tRun 1?\tyes no\t",
        f"{OTHER['id']}\topen\t2\t\tagent:bob:main\tbob\tRun 2?\tyes no\t",
    ]
    assert asking.asked("questions.list") == {"open": True}
    out = sessiond("questions", "--all", "--session", MAIN).out.splitlines()
    assert [line.split("\t")[1::7] for line in out[1:]] == [
        ["open", ""],
        ["answered", "Deny (reject once), by the owner (page)"],
    ]
    assert asking.asked("questions.list") == {"sessionKey": MAIN}
    assert json.loads(sessiond("questions", "--json", "--agent", "bob").out) == {"questions": [OTHER]}
    asking.present = []
    done = sessiond("questions")
    assert (done.status, len(done.out.splitlines()), done.err) == (
        0, 1, "  nobody waits for an answer; what was asked: --all\n",
    )  # fmt: skip


@check_each(
    ("words", "option", "note"),
    [
        (["1a2b3c4d", "yes"], "yes", None),
        (["1A2B3C4D00", "allow ONCE", "--note", "only here"], "yes", "only here"),
        (["ffff3c4d00000002", "Deny"], "no", None),
    ],
)
def test_eight_characters_and_an_id_or_a_label_answer(
    asking: Any, sessiond: Sessiond, words: list[str], option: str, note: str | None
) -> None:
    assert json.loads(sessiond("answer", *words, "--json").out)["status"] == "answered"
    asking.asked("questions.answer")
    done = sessiond("answer", *words)
    asked = asking.asked("questions.answer")
    assert (done.status, done.err, asked["optionId"], asked.get("note")) == (0, "", option, note)
    assert asked["id"].startswith(words[0].lower())
    assert done.out.startswith(f"{words[0][:8].lower()}  Run ")


@check_each(
    ("more", "words", "is_hinted"),
    [
        ({"toolCallId": "c", "kind": "execute"}, ["--note", "use make clean"], True),
        ({"toolCallId": "c", "kind": "execute"}, [], False),
        ({"toolCallId": "c", "kind": "elicitation"}, ["--note", "small"], False),
        ({}, ["--note", "use make clean"], False),  # of hooks and of attached programs, which get the note
    ],
)
def test_a_note_that_a_program_may_drop_comes_with_the_way_to_say_it(
    asking: Any, sessiond: Sessiond, more: dict[str, Any], words: list[str], is_hinted: bool
) -> None:
    asking.present = [question(1, **more)]
    done = sessiond("answer", "1a2b3c4d", "no", *words)
    hint = f'  the agent\'s program may not pass the note on; tell it with: sessiond send {MAIN} "..."\n'
    assert (done.status, done.err) == (0, hint if is_hinted else "")


@check_each(
    ("words", "status", "said"),
    [
        (["99999999", "yes"], 4, ["no question '99999999'", '"sessiond questions"']),
        (["1a2b3c4", "yes"], 4, ["too short: 8 characters"]),
        (
            ["1a2b3c4d", "maybe"],
            4,
            ["no option 'maybe' of 'Run 1?'", "  - Allow once\n      sessiond answer 1a2b3c4d yes\n"],
        ),
        (["cccc3c4d", "yes"], 1, ["cccc3c4d was answered already: Deny (reject once), by the owner (page)"]),
        (["1a2b3c4d"], 2, ["Missing argument 'OPTION'"]),
        (["", "yes"], 2, ["too short"]),
    ],
)
def test_what_cannot_be_answered_is_said_with_its_exit_code(
    asking: Any, sessiond: Sessiond, words: list[str], status: int, said: list[str]
) -> None:
    done = sessiond("answer", *words)
    assert (done.status, done.out) == (status, "")
    assert [text for text in said if text not in done.err] == [], done.err


def test_a_word_for_several_questions_or_options_names_the_candidates(asking: Any, sessiond: Sessiond) -> None:
    asking.present = [question(number) for number in range(1, 8)]
    done = sessiond("answer", "1a2b3c4d", "yes")
    assert (done.status, done.err.count("1a2b3c4d0000000"), "any of 7 questions" in done.err) == (4, 5, True)
    same = [{"id": one, "label": "Go", "kind": "allow_once"} for one in ("a", "b")]
    asking.present = [question(1, options=same), question(2, status="expired")]
    done = sessiond("answer", "1a2b3c4d", "go")
    assert (done.status, done.err.splitlines()[1:]) == (
        4,
        [
            "  - Go (allow once)",
            "      sessiond answer 1a2b3c4d a",
            "  - Go (allow once)",
            "      sessiond answer 1a2b3c4d b",
        ],
    )


def test_a_race_that_is_lost_says_who_was_first(asking: Any, refusal: Any, sessiond: Sessiond) -> None:
    def lose(*_: object) -> None:
        raise refusal(-32004, "conflict", "answered already", answer=FIRST)

    asking.answers["questions.answer"] = lose
    done = sessiond("answer", "1a2b3c4d", "yes")
    said = "sessiond: the question 1a2b3c4d was answered already: Deny (reject once), by the owner (page)\n"
    assert done == (1, "", said)
    asking.present = []  # too long ago to be listed, so the daemon is asked
    assert sessiond("answer", question(1)["id"], "no").err.endswith("already: no, by the owner (page)\n")
    asking.present = [question(1, status="expired", answer={"outcome": "expired", "at": 3})]
    assert sessiond("answer", "1a2b3c4d", "yes").err == "sessiond: the question 1a2b3c4d is over: expired\n"


ROW = {"key": "main", "kind": "main", "sessionId": "s1", "updatedAt": 5, "messageCount": 2, "status": "ok"}
WAITING = {**ROW, "key": "agent:bob:main", "status": "running", "state": "waiting"}


def test_a_list_puts_what_waits_first_and_says_for_what(asking: Any, sessiond: Sessiond) -> None:
    older = {**WAITING, "key": "agent:eve:main", "waiting": {"since": 1, "questions": 2, "title": "Run\x1b[2J it?"}}
    rows = [{**ROW, "state": "done"}, {**WAITING, "waiting": {"since": 2, "questions": 1}}, older]
    asking.answers["sessions_list"] = lambda *_: {"sessions": rows, "hasMore": True, "visibility": "all"}
    done = sessiond("list")
    cells = [line.split("\t") for line in done.out.splitlines()]
    assert [[line[0], line[1], *line[-4:-2]] for line in cells] == [
        ["key", "status", "state", "questions"],
        ["agent:eve:main", "running", "waiting", "2"],
        ["agent:bob:main", "running", "waiting", "1"],
        ["main", "ok", "done", ""],
    ]
    assert "sessiond questions\n" in done.err
    table = show_list([older, {**ROW, "status": None, "state": "running"}], 61_001, Screen(60))
    assert table[1].split()[:2] == ["agent:eve:main", "waiting"]
    assert table[2] == "  ? 1m: Run\\x1b[2J it? (and 1 more)"
    assert table[3].split()[:2] == ["main", "running"]
    rows[:] = [{**ROW, "state": "done"}]
    assert "2 more questions in sessions that are not shown: sessiond questions" in sessiond("list").err


def test_agents_that_wait_come_first_with_their_questions(asking: Any, sessiond: Sessiond) -> None:
    agents = [{"id": name, "runtime": "exec", "sandboxed": False} for name in ("main", "ann", "bob")]
    asking.answers["agents_list"] = lambda *_: {"requester": "main", "agents": agents}
    asking.present = [OTHER, {**OTHER, "id": "0" * 16}, {**OTHER, "agentId": ""}]
    done = sessiond("agents")
    assert [line.split()[::3] for line in done.out.splitlines()] == [
        ["AGENT", "WAITING"],
        ["bob", "2"],
        ["main"],
        ["ann"],
    ]
    assert "1 of other programs' sessions" in done.err
    assert json.loads(sessiond("agents", "--json").out)["agents"] == agents


def test_watch_shows_questions_with_the_lines_that_answer(
    asking: Any, refusal: Any, sessiond: Sessiond, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rounds = iter([1, 2, 3])
    asking.present = [question(1)]

    def subscribe(_params: Any, connection: Any) -> Any:
        match next(rounds):
            case 1:
                connection.push("question.asked", sessionKey=MAIN, question=question(1))  # which the list has, too
                connection.push("question.asked", sessionKey="agent:bob:main", question={**OTHER, "detail": "a\n" * 9})
                connection.push("question.answered", sessionKey="agent:bob:main", id=OTHER["id"], answer=FIRST)
            case 2:
                gone = {"outcome": "withdrawn", "at": 4, "reason": "it ended"}
                asking.present = [question(1, status="withdrawn", answer=gone)]
            case _:
                raise refusal(-32002, "not_found", "the end of this test")
        threading.Timer(0.05, connection.drop).start()
        return {"subscribed": True}

    asking.answers["sessions.subscribe"] = subscribe
    asking.answers["sessions_list"] = lambda *_: {"sessions": [], "hasMore": False}
    done = sessiond("watch")
    assert [line[20:] if line[:2] == "19" else line for line in done.out.splitlines()] == [
        f"{MAIN:24} question  Run 1?",
        "  - Allow once",
        "      sessiond answer 1a2b3c4d yes",
        "  - Deny (reject once)",
        "      sessiond answer 1a2b3c4d no",
        "agent:bob:main           question  Run 2?",
        *["  │ a"] * 5,
        "  │ … 4 more: sessiond questions --json",
        "  - Allow once",
        "      sessiond answer ffff3c4d yes",
        "  - Deny (reject once)",
        "      sessiond answer ffff3c4d no",
        "agent:bob:main           answer    ffff3c4d  Deny (reject once), by the owner (page)",
        f"{MAIN:24} answer    1a2b3c4d  withdrawn: it ended",
    ]


def test_watch_says_what_a_program_in_a_terminal_does() -> None:
    facts = {"sessionKey": MAIN, "phase": "patch", "reason": "hook"}
    shown = line(Event("sessions.changed", {**facts, "row": {"state": "waiting"}}), 0, Screen(None))
    assert shown is not None and shown.endswith("session   is waiting")
    assert line(Event("sessions.changed", facts), 0, Screen(None)) is None
    for reason in ("question", "answer"):  # they have events of their own
        assert line(Event("sessions.changed", {**facts, "reason": reason, "row": {}}), 0, Screen(None)) is None


def test_a_long_title_is_shown_whole_below_its_line() -> None:
    asked = question(1, title="word " * 20)
    shown = question_event_lines(Event("question.asked", {"sessionKey": MAIN}), asked, 0, Screen(60))
    assert shown[0].endswith("…") and len(shown[0]) == 60
    assert "".join(line[4:] for line in shown[1:3]) == ("word " * 20).strip()
    assert question_event_lines(Event("question.asked", {}), None, 0, Screen(60)) == []


def test_history_shows_what_was_asked_between_the_messages(asking: Any, sessiond: Sessiond) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"at {at}", "timestamp": at} for at in (2000, 4000, 6000)
    ]
    positions = [{"id": str(seq), "seq": seq, "cursor": "c"} for seq in (1, 2, 3)]
    page: dict[str, Any] = {
        "sessionKey": MAIN,
        "sessionId": "s",
        "messages": messages,
        "positions": positions,
        "hasMore": False,
    }
    asking.present = [
        question(3, askedAt=3500, runId="other.1"),  # of a session that had the key before
        question(1, askedAt=1000, runId="s.1", status="answered", answer={**FIRST, "at": 3000}),
        question(2, askedAt=7000),
    ]
    asking.answers["sessions_history"] = lambda *_: page

    def shown(*words: str) -> list[str]:
        return [" ".join(line.split()[2:]) for line in sessiond("history", "main", *words).out.splitlines()]

    asked, answered, later = "question Run 1?", "answer Deny (reject once), by the owner (page)", "question Run 2?"
    assert shown() == [asked, "user at 2000", answered, "user at 4000", "user at 6000", later]
    page["hasMore"] = True
    assert shown() == ["user at 2000", answered, "user at 4000", "user at 6000", later]
    assert shown("--before", "c") == ["user at 2000", answered, "user at 4000", "user at 6000"]
    assert "sessiond questions --session agent:main:main" in sessiond("history", "main").err
    # A message with a call is written when it is whole, here after the answer to the question about the call.
    messages[1]["content"] = [{"type": "toolCall", "id": "c", "name": "Bash", "arguments": {}}]
    asking.present[1] |= {"toolCallId": "c"}
    assert shown("--before", "c") == ["user at 2000", "user → Bash {}", answered, "user at 6000"]
    page["hasMore"], messages[1]["content"] = False, "at 4000"
    asking.present[1] |= {"toolCallId": "other"}
    assert shown("--before", "c")[:2] == [asked, "user at 2000"]
    asking.answers.pop("questions.list")
    assert shown() == ["user at 2000", "user at 4000", "user at 6000"], "the caller may not list questions"


def test_status_counts_what_waits(fake: Any, sessiond: Sessiond) -> None:
    facts = {"version": "1", "pid": 7, "uptimeMs": 0, "store": "/s", "sessions": 3, "liveRuns": 1, "queuedRuns": 2}
    more = {"attachedAgents": {}, "subscribers": 0, "deadLetters": 0, "corruptRecords": 0, "lastSaveAt": None}
    fake.answers["daemon.status"] = lambda *_: {**facts, **more, "openQuestions": 2}
    done = sessiond("status")
    assert [line for line in done.out.splitlines() if line.startswith("questions")] == [
        "questions    2 wait for an answer"
    ]
    assert "sessiond questions" in done.err
    fake.answers["daemon.status"] = lambda *_: {**facts, **more, "openQuestions": 0}
    assert "questions" not in sessiond("status").out


def test_ids_and_options_are_completed_unless_a_shell_would_take_them_for_its_own(
    asking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIOND_SOCKET", str(asking.path))
    hostile = ["$(reboot)", "a b", "-rf", "a;b", "\n", "x.y"]
    asking.present = [question(1, options=[{"id": one, "label": one, "kind": "allow_once"} for one in hostile]), OTHER]
    completion = ShellComplete(tree.root(), {}, "sessiond", "_SESSIOND_COMPLETE")

    def offered(words: list[str], incomplete: str) -> list[str]:
        for _ in range(20):  # it gives up after half a second, which a loaded machine may not make
            found = [item.value for item in completion.get_completions(words, incomplete)]
            if found:
                return found
        return []

    assert offered(["answer"], "1a") == [question(1)["id"]]
    assert offered(["answer", "1a2b3c4d"], "") == ["x.y"]
    assert offered(["answer", OTHER["id"]], "y") == ["yes"]
