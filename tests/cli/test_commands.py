"""Each command with a stand-in for the daemon: its calls, its output, its exit code."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rows import check_each

from sessiond.cli.list import show as show_list
from sessiond.cli.terminal.screen import Screen
from sessiond.cli.watch import line
from sessiond.client import Event

Sessiond = Callable[..., Any]
MAIN = "agent:main:main"


def answer_with(fake: Any, **results: Any) -> None:
    """`answer_with(fake, sessions_list={...})`; a dot in a method's name is `__`."""
    fake.answers |= {name.replace("__", "."): (lambda *_, result=result: result) for name, result in results.items()}


def without_key(params: dict[str, Any]) -> dict[str, Any]:
    """The params of a call without the idempotency key that the client added."""
    assert params["idempotencyKey"].startswith("client-")
    return {name: value for name, value in params.items() if name != "idempotencyKey"}


ROW = {"key": "main", "kind": "main", "sessionId": "s1", "updatedAt": 0, "messageCount": 2, "status": "ok"}


FOREIGN = {
    "key": "claude:0e821bfa-1111-4222-8333-012345678901",
    "kind": "other",
    "sessionId": "0e821bfa-1111-4222-8333-012345678901",
    "updatedAt": 0,
    "source": "claude",
    "readOnly": True,
}


def test_a_list_is_readable_on_80_columns() -> None:
    title = "Find out why the parser is slow on files with very long lines, and mend it"
    used = {"inputTokens": 123456, "outputTokens": 789, "estimatedCostUsd": 12.34, "model": "claude-opus-4-5-20251101"}
    rows = [
        {**FOREIGN, **used, "title": title, "messageCount": 1234},
        {**FOREIGN, "key": "opencode:ses_0123456789abcdef", "title": "two", "partial": True},
        {**ROW, "title": "hello", "label": "home"},
    ]
    titles, first, second, third = show_list(rows, 0, Screen(80))
    assert all(len(line) <= 80 for line in (titles, first, second, third))
    assert titles.split()[:1] + titles.split()[-1:] == ["KEY", "TITLE"]
    assert first.startswith("claude:0e821bfa")
    assert "Find out why the parser" in first
    assert second.startswith("opencode:ses_0123")
    assert second.split()[-1] == "two"
    assert "0 " not in second.partition("two")[0].split("1970")[-1], "a count that is not known is not shown"
    assert third.split()[-1] == "home", "what a person called it comes first"
    begun, titled = ({**ROW, "task": "count", **more} for more in ({}, {"title": "hello"}))
    assert [line.split()[-1] for line in show_list([begun, titled], 0, Screen(80))] == ["TITLE", "count", "hello"]


def test_sessions_are_chosen_by_program_and_folder(
    fake: Any, sessiond: Sessiond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer_with(fake, sessions_list={"sessions": [], "hasMore": False, "visibility": "all", "partial": 2})
    done = sessiond("list", "--source", "claude", "--source", "sessiond", "--here")
    assert fake.asked("sessions_list") == {"sources": ["claude", "sessiond"], "cwd": os.getcwd()}
    assert done.err.splitlines() == [
        "  no session fits",
        "  2 sessions not read whole yet may be missing: try again in a moment",
    ]
    assert sessiond("list", "--source", "nobody").status == 2
    answer_with(fake, sessions_search={"matches": [], "hasMore": False, "partial": 1})
    done = sessiond("search", "x", "--source", "pi", "--here", "--since", "2d", "--until", "1d", "--role", "user")
    asked = fake.asked("sessions_search")
    assert (asked["sources"], asked["cwd"], asked["role"]) == (["pi"], os.getcwd(), "user")
    assert "machine" not in asked
    assert 86_390_000 < asked["until"] - asked["since"] < 86_410_000
    assert done.err.splitlines() == ["  nothing found", "  1 session not read whole yet: search again in a moment"]
    assert sessiond("search", "x", "--machine", "mars").status == 0
    assert fake.asked("sessions_search")["machine"] == "mars"


def found(number: int, **more: Any) -> dict[str, Any]:
    return {"sessionKey": "k", "cursor": "c", "timestamp": "t", "role": "user", "snippet": f"{number} words", **more}


SHORT = {"hasMore": True, "contentRedacted": False, "progress": {"lookedAt": 1024, "total": 4096}}


def answer_with_pages(fake: Any, *pages: dict[str, Any]) -> None:
    """Each page but the last has the cursor of the next."""

    def answer(params: dict[str, Any], _connection: Any) -> dict[str, Any]:
        number = int(params.get("cursor", "0"))
        more = {"nextCursor": str(number + 1)} if number + 1 < len(pages) else {}
        return {"hasMore": bool(more), **pages[number], **more}

    fake.answers["sessions_search"] = answer


def test_a_search_asks_on_until_it_has_enough(fake: Any, sessiond: Sessiond) -> None:
    pages = [{"matches": [found(1)], **SHORT}, {"matches": [], **SHORT}, {"matches": [found(200), found(3)]}]
    answer_with_pages(fake, *pages, {"matches": [found(4)]})
    done = sessiond("search", "words", "-n", "3", "--archived")
    assert done.out.splitlines() == [
        "TIME  SESSION  ROLE  TEXT",
        "t     k        user  1 words",
        "t     k        user  200 words",
        "t     k        user  3 words",
    ]
    assert done.err == "  there are more: --limit\n"
    same = {"query": "words", "withinMs": 300, "includeArchived": True}
    assert fake.asked("sessions_search") == {**same, "limit": 3}
    assert fake.asked("sessions_search") == {**same, "limit": 2, "cursor": "1"}
    assert fake.asked("sessions_search") == {**same, "limit": 2, "cursor": "2"}
    answer_with_pages(fake, {"matches": [found(2)]})
    sessiond("search", "two", "words", "--role", "user")
    assert fake.asked("sessions_search") == {"query": "two words", "role": "user", "withinMs": 300, "limit": 50}
    answer_with_pages(fake, *pages, {"matches": [found(4)]})
    done = sessiond("search", "words", "--json")
    assert [json.loads(line) for line in done.out.splitlines()] == [found(1), found(200), found(3), found(4)]
    assert done.err == ""
    fake.calls.queue.clear()
    answer_with_pages(fake, {"matches": [found(place) for place in range(200)]}, {"matches": []})
    assert len(sessiond("search", "words", "-n", "300", "--json").out.splitlines()) == 200
    assert [fake.asked("sessions_search")["limit"] for _ in range(2)] == [200, 100]


def test_an_archived_match_is_named_by_the_id_of_its_session(fake: Any, sessiond: Sessiond) -> None:
    answer_with_pages(fake, {"matches": [found(1, sessionId="s1")]})
    assert sessiond("search", "words", "--archived").out.splitlines()[1].split()[:2] == ["t", "s1"]


def test_raw_history_is_one_line_of_json_for_each_line_of_the_file(fake: Any, sessiond: Sessiond) -> None:
    lines = [{"type": "user", "n": 1}, {"type": "system", "text": "a\nb"}]
    page = {"messages": lines, "positions": [], "hasMore": True, "nextCursor": "lines:1-1-a"}
    answer_with(fake, sessions_history=page)
    done = sessiond("history", "claude:abc", "--raw", "-n", "2")
    assert [json.loads(line) for line in done.out.splitlines()] == lines
    assert fake.asked("sessions_history") == {"sessionKey": "claude:abc", "limit": 2, "raw": True}
    assert done.err == "  older ones: sessiond history claude:abc --raw --before lines:1-1-a\n"
    assert sessiond("history", "claude:abc", "--raw", "-f").status == 2


def test_markers_stand_between_the_messages(fake: Any, sessiond: Sessiond) -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    positions = [{"id": "a", "seq": 1, "cursor": "c"}, {"id": "b", "seq": 2, "cursor": "c"}]
    page = {"sessionKey": MAIN, "sessionId": "s", "messages": messages, "positions": positions, "hasMore": False}
    answer_with(fake, sessions_history={**page, "markers": [{"kind": "compaction", "seq": 2, "cursor": "c"}]})
    first, marker, second = sessiond("history", "main", "--system").out.splitlines()
    assert ("one" in first, "summed up" in marker, "two" in second) == (True, True, True)
    assert fake.asked("sessions_history")["includeSystem"] is True


@check_each(
    ("text", "found"),
    [
        ("claude:0e821bfa", True),
        ("CLAUDE:0E821BFA", True),
        ("0e821bfa", True),
        ("0E821BFA-11", True),
        ("claude:0e821bf", False),
        ("0e821bf", False),
        ("codex:0e821bfa", False),
    ],
)
def test_eight_characters_of_a_native_id_name_a_session(fake: Any, sessiond: Sessiond, text: str, found: bool) -> None:
    from sessiond.cli.frame.failures import CommandFailed
    from sessiond.cli.frame.names import find_meant_session

    def call(method: str, params: dict[str, Any]) -> Any:
        wanted = params.get("search", "").lower()
        return {"sessions": [row for row in (FOREIGN, ROW) if wanted in str(row["key"]) or wanted in row["sessionId"]]}

    if found:
        assert find_meant_session(call, text) == FOREIGN["key"]
    else:
        with pytest.raises(CommandFailed) as failed:
            find_meant_session(call, text)
        assert failed.value.status == 4


def test_at_most_five_candidates_are_shown_for_an_ambiguous_beginning() -> None:
    from sessiond.cli.frame.failures import CommandFailed
    from sessiond.cli.frame.names import find_meant_session

    rows = [{**FOREIGN, "key": f"pi:abcdefgh{n}", "sessionId": f"abcdefgh{n}"} for n in range(7)]
    with pytest.raises(CommandFailed) as failed:
        find_meant_session(lambda *_: {"sessions": rows}, "pi:abcdefgh")
    assert failed.value.status == 4
    assert failed.value.message.count("pi:abcdefgh") == 1 + 5
    assert "7 sessions" in failed.value.message


@pytest.mark.parametrize("text", ["pi:abcd", "abcd", "pi:", "PI:ABCDEFG…"])
def test_too_few_characters_of_a_native_id_are_said_to_be_too_few(text: str) -> None:
    from sessiond.cli.frame.failures import CommandFailed
    from sessiond.cli.frame.names import find_meant_session

    rows = [{"key": "pi:abcdefgh1", "readOnly": True}]
    with pytest.raises(CommandFailed) as failed:
        find_meant_session(lambda *_: {"sessions": rows}, text)
    assert failed.value.hint == "too short: at least 8 characters of the id, as pi:abcdefgh"
    with pytest.raises(CommandFailed) as failed:
        find_meant_session(lambda *_: {"sessions": rows}, "pi:xyz")
    assert "too short" not in str(failed.value.hint)


def test_the_name_of_a_machine_alone_is_said_to_need_a_session() -> None:
    from sessiond.cli.frame.failures import CommandFailed
    from sessiond.cli.frame.names import find_meant_session

    rows = [{"key": "mars/agent:main:main", "machine": "mars", "readOnly": True}]
    answers = {"sessions_list": {"sessions": rows}, "agents_list": {"agents": [{"id": "mars", "machine": True}]}}
    for text, hint in (
        ("mars", "mars is another machine: name a session there, as mars/main"),
        ("mar", "see what there is: sessiond list"),
    ):
        with pytest.raises(CommandFailed) as failed:
            find_meant_session(lambda method, _: answers[method], text)
        assert failed.value.hint == hint


AWAY = {"id": "mars", "runtime": "attached", "machine": True, "attached": 1, "awaySince": 1_700_000_000_000}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (AWAY, r"  mars is away since [-0-9: ]+: it gets it when it is back \(sessiond link status\)\n"),
        ({**AWAY, "attached": 0}, r"  no link runs here: mars gets it when one does \(sessiond link run\)\n"),
        ({**AWAY, "awaySince": None}, ""),
        ({**AWAY, "id": "venus"}, ""),
        ({**AWAY, "machine": None}, ""),
        (
            {**AWAY, "machine": None, "attached": 0},
            r"  no program is attached as mars: .*\n",
        ),
    ],
)
def test_a_message_to_a_machine_that_is_not_reached_says_so_at_once(
    fake: Any, sessiond: Sessiond, agent: dict[str, Any], said: str
) -> None:
    answer_with(
        fake,
        agents_list={"requester": "main", "agents": [agent]},
        chat__send={"runId": "r", "status": "accepted"},
        sessions_spawn={"runId": "r", "childSessionKey": "agent:mars:subagent:x", "status": "accepted"},
    )
    for key in ("mars/main", "agent:mars:mars/main", "agent:mars:subagent:x", " MARS/x"):
        done = sessiond("send", "--no-wait", key, "hello")
        assert (done.out, re.fullmatch(said, done.err) is not None) == ("r\n", True), done.err
    done = sessiond("spawn", "--agent", "mars/ops", "hello")
    first = done.err.partition("\n")[0] + "\n"
    assert (re.fullmatch(said, first) is not None) == bool(said), done.err
    assert sessiond("send", "--no-wait", "main", "hello").err == ""


@pytest.mark.parametrize(
    ("key", "is_told"), [("main", True), ("agent:ops:x", True), ("claude:x", False), ("agent:b:x", False)]
)
def test_a_message_to_an_agent_for_which_no_program_is_attached_says_so_at_once(
    fake: Any, sessiond: Sessiond, key: str, *, is_told: bool
) -> None:
    answer_with(
        fake,
        agents_list={
            "requester": "ops",
            "agents": [{"id": "ops", "runtime": "attached"}, {"id": "b", "runtime": "echo"}],
        },
        chat__send={"runId": "r", "status": "accepted"},
    )
    said = "  no program is attached as ops: the message waits some minutes for one (sessiond agents)\n"
    assert sessiond("send", "--no-wait", key, "hello").err == (said if is_told else "")


def test_an_unknown_machine_is_named_where_its_sessions_are_listed(fake: Any, sessiond: Sessiond) -> None:
    nothing = {"sessions": [], "hasMore": False, "visibility": "all"}
    answer_with(fake, sessions_list=nothing, agents_list={"agents": [AWAY]})
    words = "there is no machine venus in the configuration: sessiond link peer lists them"
    assert words in sessiond("list", "--machine", "venus").err
    assert "there is no machine" not in sessiond("list", "--machine", "mars").err


def test_list_shows_a_table_and_sends_only_the_given_params(fake: Any, sessiond: Sessiond) -> None:
    rows = [{**ROW, "label": "home\x1b[2J"}, {**ROW, "key": "agent:b:main", "status": "running", "queuedRuns": 2}]
    # One of another program without messages.
    rows.append({"key": "claude:x", "updatedAt": 0, "createdAt": 1_700_000_000_000, "messageCount": 0})
    answer_with(fake, sessions_list={"sessions": rows, "hasMore": True, "visibility": "tree"})
    done = sessiond("list")
    assert done.out.splitlines() == [
        "key\tstatus\tupdatedAt\tmessages\ttokens\tcostUsd\tmodel\tname\tsessionId\ttitle\tsource\tcwd\tstate\tquestions"
        "\tmachine\tawaySince",
        "main\tok\t0\t2\t\t\t\thome\\x1b[2J\ts1\t\t\t\t\t\t\t",
        "agent:b:main\trunning +2\t0\t2\t\t\t\t\ts1\t\t\t\t\t\t\t",
        "claude:x\t\t1700000000000\t0\t\t\t\t\t\t\t\t\t\t\t\t",
    ]
    assert "1m" in show_list(rows[2:], 1_700_000_060_000, Screen(80))[1]
    assert done.err.splitlines() == [
        "  there are more: --all, or --search",
        "  only what this caller may see is shown (visibility: tree)",
    ]
    assert fake.asked("sessions_list") == {}
    sessiond("list", "--kind", "main", "--kind", "cron", "--active", "60", "-n", "3", "--search", "x", "--archived")
    assert fake.asked("sessions_list") == {
        "kinds": ["main", "cron"],
        "activeMinutes": 60,
        "limit": 3,
        "search": "x",
        "includeArchived": True,
    }


def test_list_says_which_machines_are_away(fake: Any, sessiond: Sessiond) -> None:
    there = {**ROW, "key": "mars/agent:ops:main", "machine": "mars", "awaySince": 1_700_000_000_000}
    rows = [there, {**there, "key": "mars/agent:ops:two"}, {**there, "key": "venus/agent:a:b", "machine": "venus"}]
    del rows[2]["awaySince"]
    answer_with(fake, sessions_list={"sessions": rows, "hasMore": False, "visibility": "all"})
    done = sessiond("list", "--machine", "mars")
    assert [line.split("\t")[-2:] for line in done.out.splitlines()] == [
        ["machine", "awaySince"],
        ["mars", "1700000000000"],
        ["mars", "1700000000000"],
        ["venus", ""],
    ]
    assert re.fullmatch(r"  mars is away since [-0-9: ]+: what is shown of it may be old\n", done.err)
    assert fake.asked("sessions_list") == {"machine": "mars"}


def test_the_tokens_of_a_row_are_input_plus_output(fake: Any, sessiond: Sessiond) -> None:
    counts = {
        "inputTokens": 1200,
        "outputTokens": 34,
        "totalTokens": 999,
        "contextTokens": 5,
        "estimatedCostUsd": 0.1 + 0.2,
    }
    answer_with(fake, sessions_list={"sessions": [{**ROW, **counts}], "hasMore": False, "visibility": "all"})
    row = dict(zip(*(line.split("\t") for line in sessiond("list").out.splitlines()), strict=True))
    assert (row["tokens"], row["costUsd"]) == ("1234", "0.3")
    (titles, shown) = show_list([{**ROW, **counts}], 0, Screen(120))
    assert titles.split()[-2:] == ["TOKENS", "COST"] and shown.split()[-2:] == ["1.2k", "$0.30"]


def test_list_prints_json_unchanged_and_helps_if_there_are_no_sessions(fake: Any, sessiond: Sessiond) -> None:
    result = {"count": 0, "sessions": [], "visibility": "all", "hasMore": False}
    answer_with(fake, sessions_list=result)
    assert json.loads(sessiond("list", "--json").out) == result
    assert sessiond("list").err == '  no sessions yet; send a first message: sessiond send main "hello"\n'
    assert sessiond("list", "--search", "x").err == "  no session fits\n"


def test_list_shows_messages_under_their_session(fake: Any, sessiond: Sessiond) -> None:
    row = {**ROW, "messages": [{"role": "user", "content": "hi"}]}
    answer_with(fake, sessions_list={"sessions": [row], "hasMore": False, "visibility": "all"})
    assert sessiond("list", "--messages", "1").out.splitlines()[1:] == [
        "main  ok      1970-01-01     2",
        "  --:--:-- user      hi",
    ]


def page(*texts: str, **more: Any) -> dict[str, Any]:
    return {
        "sessionKey": MAIN,
        "sessionId": "s1",
        "messages": [{"role": "user", "content": text} for text in texts],
        "positions": [
            {"id": f"m{seq}", "seq": seq, "cursor": f"c{seq}", "timestamp": "x"} for seq, _ in enumerate(texts, 1)
        ],
        "hasMore": False,
        "cursor": f"c{len(texts)}",
        "skipped": 0,
        "contentRedacted": False,
        **more,
    }


def test_history_shows_messages_and_marks_omissions(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, sessions_history=page("one\ntwo", hasMore=True, nextCursor="c0", skipped=2, contentRedacted=True))
    done = sessiond("history", "main", "--tools", "-n", "1", "--before", "c9")
    assert done.out == "--:--:-- user      one\n                   two\n"
    assert done.err.splitlines() == [
        "  older ones: sessiond history main --before c0",
        "  skipped 2 bad lines; see: sessiond doctor",
        "  secrets are masked for this caller",
    ]
    assert fake.asked("sessions_history") == {
        "sessionKey": "main",
        "limit": 1,
        "includeTools": True,
        "cursor": "c9",
        "includeRuns": True,
    }


def event(seq: int, role: str = "user", **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": f"text {seq}"}
    where = {"sessionKey": MAIN, "sessionId": "s1", "messageId": f"m{seq}", "seq": seq, "cursor": f"c{seq}"}
    return {**where, "message": message, **more}


def answer_two_subscriptions(fake: Any, refusal: Any, *events: dict[str, Any]) -> None:
    """Let the first subscription get `events` and lose its connection; refuse the second, which ends the command."""
    rounds = iter([True, False])

    def subscribe(_params: Any, connection: Any) -> Any:
        if not next(rounds):
            raise refusal(-32002, "not_found", "gone")
        for event in events:
            connection.push("session.message", **event)
        threading.Timer(0.05, connection.drop).start()
        return {"subscribed": True, "key": MAIN, "cursor": "c1"}

    fake.answers["sessions.messages.subscribe"] = subscribe
    fake.answers["sessions.subscribe"] = lambda *_: {"subscribed": True}


def test_history_follows_from_the_end_of_the_page(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    answer_with(fake, sessions_history=page("text 1"))
    answer_two_subscriptions(fake, refusal, event(2), event(3, "toolResult"), event(4))
    done = sessiond("history", "main", "-f")
    assert done.out.splitlines() == [f"--:--:-- user      text {seq}" for seq in (1, 2, 4)]
    assert done.err.splitlines()[0] == "reconnecting…"
    assert (done.status, done.err.splitlines()[1]) == (4, "sessiond: gone")
    assert fake.asked("sessions.messages.subscribe") == {"key": MAIN, "cursor": "c1"}
    assert fake.asked("sessions.messages.subscribe") == {"key": MAIN, "cursor": "c4"}


def test_history_follows_in_json_with_one_event_per_line(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    answer_with(fake, sessions_history=page("text 1"))
    answer_two_subscriptions(fake, refusal, event(2))
    lines = [json.loads(line) for line in sessiond("history", "main", "-f", "--json").out.splitlines()]
    first, second = ({"event": "session.message", **event(seq)} for seq in (1, 2))
    assert lines == [{**first, "timestamp": "x"}, second]


def test_watch_shows_each_message_on_one_line(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    answer_two_subscriptions(fake, refusal, event(1, message={"role": "assistant", "content": "two\nlines \x1b[2J"}))
    done = sessiond("watch", "main", "--after", "c0")
    assert done.out.split(" ", 1)[1] == "agent:main:main          assistant two lines \\x1b[2J\n"
    assert fake.asked("sessions.messages.subscribe") == {"key": "main", "cursor": "c0"}


def test_send_waits_and_prints_the_reply(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, chat__send={"runId": "r1", "status": "accepted", "cursor": "c"})
    waits = iter(["running", "ok"])
    fake.answers["agent.wait"] = lambda *_: {"runId": "r1", "status": next(waits), "reply": "hi\n\x1bthere"}
    done = sessiond("send", "main", "hello", "you", "--model", "m", "--idempotency-key", "k")
    assert done == (0, "hi\n\\x1bthere\n", "")
    assert fake.asked("chat.send") == {
        "sessionKey": "main",
        "message": "hello you",
        "model": "m",
        "idempotencyKey": "k",
    }
    assert fake.asked("agent.wait") == {"runId": "r1", "timeoutMs": 30_000}


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ({"status": "error", "error": "exit status 3"}, 1, "sessiond: main: exit status 3"),
        ({"status": "timeout"}, 1, "sessiond: main: the run met its time limit"),
        ({"status": "aborted"}, 1, "sessiond: main: the run was aborted"),
        ({"status": "running"}, 5, "sessiond: no reply from main yet; the run r1 goes on"),
    ],
)
def test_send_reports_how_the_run_ended(fake: Any, sessiond: Sessiond, ending: Any, status: int, said: str) -> None:
    answer_with(fake, chat__send={"runId": "r1", "status": "accepted"}, agent__wait={"runId": "r1", **ending})
    done = sessiond("send", "main", "x", "--timeout", "0")
    assert (done.status, done.out, done.err.splitlines()[0]) == (status, "", said)
    assert ("sessiond wait r1" if status == 5 else "sessiond history main") in done.err.splitlines()[1]


def test_send_does_not_wait_with_no_wait_or_for_a_command(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, chat__send={"runId": "r1", "status": "accepted"})
    assert sessiond("send", "main", "x", "--no-wait") == (0, "r1\n", "")
    answer_with(fake, chat__send={"status": "handled", "command": "/send", "reply": "sending is off"})
    assert sessiond("send", "main", "/send off") == (0, "sending is off\n", "")
    assert "agent.wait" not in [method for method, _ in list(fake.calls.queue)]


def test_a_message_to_a_session_in_a_terminal_says_when_it_is_read_and_where_it_waits(
    fake: Any, sessiond: Sessiond
) -> None:
    sent = {"runId": "r1", "status": "accepted", "reason": "inbox", "cursor": "c"}
    answer_with(fake, chat__send={**sent, "sessionKey": "claude:b7"})
    done = sessiond("send", "claude:b7", "x")
    assert (done.status, done.out) == (0, "")
    assert "with the next prompt that is typed there" in done.err and "sessiond inbox claude:b7 --peek" in done.err


def test_send_finds_a_label_and_an_agent(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, chat__send={"runId": "r1", "status": "accepted"}, sessions__resolve={"key": "agent:a:x"})
    for words, key in (
        (["--label", "L", "hi"], "agent:a:x"),
        (["--agent", "bob", "hi"], "agent:bob:main"),
        (["--agent", "bob", "notes", "hi"], "agent:bob:notes"),
        (["--agent", "bob", "agent:bob:notes", "hi"], "agent:bob:notes"),
    ):
        assert sessiond("send", "--no-wait", *words).status == 0
        assert without_key(fake.asked("chat.send")) == {"sessionKey": key, "message": "hi"}
    assert sessiond("send", "--agent", "bob", "agent:eve:main", "hi").status == 2


@check_each("words", [[], ["main"], ["--label", "L"], ["--agent", "b"], ["main", ""], ["main", " "]])
def test_sending_an_empty_message_is_a_usage_error(sessiond: Sessiond, words: list[str]) -> None:
    assert sessiond("send", *words).status == 2


def test_a_caller_with_a_session_speaks_as_that_session(fake: Any, sessiond: Sessiond) -> None:
    answer_with(
        fake,
        initialize={"caller": {"sessionKey": MAIN, "scopes": ["send"]}},
        sessions_send={"runId": "r1", "status": "accepted", "reason": "ancestor_busy"},
    )
    done = sessiond("send", "agent:b:main", "x")
    assert done == (0, "r1\n", "  not waiting: agent:b:main waits for this very run\n")
    asked = without_key(fake.asked("sessions_send"))
    assert asked == {"sessionKey": "agent:b:main", "message": "x", "timeoutSeconds": 0}


@pytest.mark.parametrize("caller", [{}, {"sessionKey": MAIN, "scopes": ["send"]}])
def test_send_reads_the_attached_files(fake: Any, sessiond: Sessiond, tmp_path: Path, caller: Any) -> None:
    (tmp_path / "a.txt").write_bytes(b"\x00\xff!")
    answer_with(fake, initialize={"caller": caller}, chat__send={"runId": "r1", "status": "accepted"})
    assert sessiond("send", "main", "read it", "--attach", str(tmp_path / "a.txt"), "--no-wait").status == 0
    content = base64.b64encode(b"\x00\xff!").decode()
    asked = fake.asked("chat.send")
    assert (asked["sessionKey"], asked["message"]) == ("main", "read it")
    assert asked["attachments"] == [{"name": "a.txt", "content": content, "encoding": "base64"}]


def test_send_names_a_file_that_cannot_be_read_and_sends_nothing(fake: Any, sessiond: Sessiond) -> None:
    done = sessiond("send", "main", "x", "--attach", "/no/such")
    assert (done.status, done.err) == (1, "sessiond: cannot read /no/such: No such file or directory\n")
    assert fake.calls.empty()


class Input:
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_send_reads_standard_input_for_a_dash(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, chat__send={"runId": "r1", "status": "accepted"})
    before = sys.stdin
    try:
        sys.stdin = Input("Grüße\nzwei\n".encode())  # type: ignore[assignment]
        assert sessiond("send", "main", "-", "--no-wait").status == 0
        sys.stdin = Input(b"\xff")  # type: ignore[assignment]
        refused = sessiond("send", "main", "-")
    finally:
        sys.stdin = before
    assert fake.asked("chat.send")["message"] == "Grüße\nzwei"
    assert (refused.status, refused.err.splitlines()[0]) == (2, "sessiond: standard input is not UTF-8 text (byte 0)")


RECEIPT = {
    "relDir": ".openclaw/attachments/u",
    "count": 1,
    "totalBytes": 3,
    "files": [{"name": "a.txt", "bytes": 3, "sha256": "ab" * 32}],
}
SPAWNED = {"status": "accepted", "runId": "r1", "childSessionKey": "agent:main:subagent:1", "mode": "run"}


def test_spawn_sends_files_and_shows_the_receipt(fake: Any, sessiond: Sessiond, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\x00\xff!")
    answer_with(fake, sessions_spawn={**SPAWNED, "attachments": RECEIPT})
    done = sessiond("spawn", "do it", "--attach", str(tmp_path / "a.txt"), "--sandbox", "require", "--timeout", "1m")
    assert done.out.splitlines() == [
        "session  agent:main:subagent:1",
        "run      r1",
        "files    1 (3 B) in .openclaw/attachments/u",
        "FILE   SIZE  SHA-256",
        f"a.txt   3 B  {'ab' * 32}",
    ]
    assert done.err == "  follow it: sessiond history agent:main:subagent:1 -f\n"
    content = base64.b64encode(b"\x00\xff!").decode()
    assert without_key(fake.asked("sessions_spawn")) == {
        "task": "do it",
        "attachments": [{"name": "a.txt", "content": content, "encoding": "base64"}],
        "sandbox": "require",
        "runTimeoutSeconds": 60,
    }


def test_spawn_waits_and_prints_only_the_reply(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, sessions_spawn=SPAWNED, agent__wait={"runId": "r1", "status": "ok", "reply": "42"})
    done = sessiond("spawn", "compute", "--wait")
    assert (done.status, done.out) == (0, "42\n")
    assert done.err.splitlines() == ["session  agent:main:subagent:1", "run      r1"]
    assert json.loads(sessiond("spawn", "compute", "--wait", "--json").out)["reply"] == "42"


def test_spawn_names_a_file_that_cannot_be_read(sessiond: Sessiond) -> None:
    done = sessiond("spawn", "x", "--attach", "/no/such")
    assert (done.status, done.err) == (1, "sessiond: cannot read /no/such: No such file or directory\n")


STATUS = {
    "version": "1.2", "pid": 7, "uptimeMs": 3_600_000, "store": "/s", "sessions": 3, "liveRuns": 1, "queuedRuns": 2,
    "attachedAgents": {"alice": 1}, "subscribers": 0, "deadLetters": 1, "corruptRecords": 0, "lastSaveAt": None,
    "watcher": "inotify",
}  # fmt: skip


def test_status_shows_the_counts_and_the_problems(fake: Any, sessiond: Sessiond) -> None:
    answer_with(fake, daemon__status=STATUS)
    done = sessiond("status")
    assert done.out.splitlines() == [
        "sessiond      1.2, running for 1h 00m (pid 7)",
        "store         /s",
        f"socket        {fake.path}",
        "sessions      3",
        "runs          1 live, 2 queued",
        "agents        alice attached",
        "subscribers   0",
        "watcher       inotify",
        "index saved   not yet",
        "dead letters  1",
    ]
    assert "  what they are: sessiond doctor\n" in done.err
    assert json.loads(sessiond("status", "--json").out) == STATUS


def test_status_waits_until_all_sessions_are_listed(fake: Any, sessiond: Sessiond) -> None:
    answers = iter([{**STATUS, "sessions": 0, "loading": True}, {**STATUS, "sessions": 3, "listing": True}])
    fake.answers |= {"ping": lambda *_: {}, "daemon.status": lambda *_: next(answers, {**STATUS, "sessions": 2000})}
    assert "sessions      2000\n" in sessiond("status", "--wait", "60").out
    answer_with(fake, daemon__status={**STATUS, "listing": True})
    for options in ((), ("--wait", "0")):
        assert "sessions      3, more are being listed\n" in sessiond("status", *options).out


def test_agents_shows_attached_agents_and_running_runs(fake: Any, sessiond: Sessiond) -> None:
    agents = [
        {"id": "main", "configured": True, "runtime": "exec", "sandboxed": False, "liveRuns": 2},
        {"id": "bob", "name": "Bob", "configured": True, "runtime": "attached", "sandboxed": True},
        {"id": "eve", "configured": True, "runtime": "attached", "sandboxed": False, "attached": 1},
        {"id": "mars", "machine": True, "configured": True, "runtime": "attached", "sandboxed": False, "attached": 1},
        {
            "id": "venus",
            "machine": True,
            "awaySince": 5,
            "configured": True,
            "runtime": "attached",
            "sandboxed": False,
            "attached": 1,
        },
    ]
    answer_with(fake, agents_list={"requester": "main", "allowAny": False, "agents": agents})
    done = sessiond("agents")
    assert done.out.splitlines() == [
        "AGENT  NAME  RUNTIME   SANDBOX  ATTACHED  RUNNING",
        "main         exec      no                       2",
        "bob    Bob   attached  yes      no",
        "eve          attached  no       1",
        "mars         machine   no       1",
        "venus        machine   no       away",
    ]
    assert "until it does, messages to it wait, some minutes" in done.err


CASES: list[tuple[list[str], str, dict[str, Any], dict[str, Any], str | None]] = [
    (["create", "agent:b:x", "--label", "L"], "sessions.create", {"key": "agent:b:x", "label": "L"},
     {"key": "agent:b:x", "sessionId": "s", "created": True}, "agent:b:x\n"),
    (["patch", "main", "--model", "m", "--clear", "label", "--clear", "delivery-context"], "sessions.patch",
     {"key": "main", "model": "m", "label": None, "deliveryContext": None}, {"key": MAIN, "row": {"model": "m"}},
     f"session          {MAIN}\nmodel            m\nlabel            (cleared)\ndeliveryContext  (cleared)\n"),
    (["patch", "main", "--notify", "yes"], "sessions.patch", {"key": "main", "notify": True},
     {"key": MAIN, "row": {"notify": True}}, f"session  {MAIN}\nnotify   yes\n"),
    (["patch", "main", "--notify", "no", "--clear", "model"], "sessions.patch",
     {"key": "main", "notify": False, "model": None}, {"key": MAIN, "row": {"notify": False}},
     f"session  {MAIN}\nnotify   no\nmodel    (cleared)\n"),
    (["reset", "main"], "sessions.reset", {"key": "main"}, {"key": MAIN, "sessionId": "s2", "archived": True},
     f"{MAIN} begins anew as s2; the old transcript is in the archive\n"),
    (["delete", "k"], "sessions.delete", {"key": "k"}, {"key": "k", "deleted": True, "archived": True},
     "k is deleted; its transcript is in the archive\n"),
    (["abort", "k", "--run", "r"], "chat.abort", {"sessionKey": "k", "runId": "r"},
     {"aborted": True, "runIds": ["r"]}, "aborted r\n"),
    (["abort", "k"], "chat.abort", {"sessionKey": "k"}, {"aborted": False, "runIds": []},
     "nothing was running in k\n"),
    (["steer", "k", "go", "left"], "sessions.steer", {"key": "k", "message": "go left"},
     {"runId": "r2", "status": "accepted", "interrupted": ["r1"]}, "r2\n"),
    (["kill", "k"], "sessions.kill", {"key": "k"}, {"killed": True, "runIds": ["a", "b"]}, "killed a\nkilled b\n"),
    (["call", "m", '{"a": 1}'], "m", {"a": 1}, {"b": 2}, '{"b":2}\n'),
    (["token", "mint", "--scope", "list", "--scope", "read", "--ttl", "1h"], "tokens.mint",
     {"scopes": ["list", "read"], "ttlSeconds": 3600}, {"token": "TTT", "id": "i", "expiresAt": 0}, "TTT\n"),
    (["token", "revoke", "i"], "tokens.revoke", {"id": "i"}, {"revoked": True}, "i is revoked\n"),
    (["token", "list"], "tokens.list", {},
     {"tokens": [{"id": "i", "scopes": ["list"], "sandboxed": False, "issuedAt": 0, "expiresAt": 2**45,
                  "revoked": True}]}, None),
    (["prune", "--older-than", "1d"], "sessions.prune", {"olderThanMs": 86_400_000, "confirm": False},
     {"removed": ["a.jsonl", {"path": "b.jsonl"}]}, "a.jsonl\nb.jsonl\n"),
    (["import", "openclaw", "/tmp"], "sessions.import", {"path": "/tmp"}, {"imported": [{"key": "k"}, "l"]},
     "k\nl\n"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[" ".join(case[0]) for case in CASES])
def test_a_command_makes_one_call_and_prints_the_answer(fake: Any, sessiond: Sessiond, case: Any) -> None:
    words, method, params, result, out = case
    fake.answers[method] = lambda *_: result
    done = sessiond(*words)
    assert done.status == 0
    assert out is None or done.out == out
    assert fake.asked(method) == params
    assert json.loads(sessiond(*words, "--json").out) == result


@check_each(
    "words",
    [["prune"], ["token", "mint"], ["patch", "main"], ["call", "m", "[1]"], ["call", "m", "{"], ["steer", "k", ""]],
)
def test_missing_arguments_give_exit_code_2(sessiond: Sessiond, words: list[str]) -> None:
    done = sessiond(*words)
    assert (done.status, done.out) == (2, "")


def test_nothing_to_do_gives_exit_code_1(fake: Any, sessiond: Sessiond) -> None:
    answer_with(
        fake,
        sessions__delete={"key": "k", "deleted": False, "archived": False},
        tokens__revoke={"revoked": False},
    )
    assert sessiond("delete", "k")[:2] == (1, "k was not deleted\n")
    assert sessiond("token", "revoke", "i")[:2] == (1, "i was no valid token\n")
    assert sessiond("import", "openclaw", "/no/such")[:2] == (1, "")


def test_doctor_shows_findings_and_fails_for_errors(fake: Any, sessiond: Sessiond) -> None:
    findings = [{"level": "error", "what": "bad line 3", "thing": "s1.jsonl", "hint": "look at it"}]
    answer_with(fake, daemon__status=STATUS, daemon__doctor={"findings": findings})
    done = sessiond("doctor", "--fix")
    assert done.status == 1
    assert done.out.splitlines()[:4] == [
        "ok       sessiond: 1.2 is running (pid 7) on /s, 3 sessions",
        "warning  deliveries: given up after many attempts: 1 delivery",
        "         → they are in the store's outbox folder",
        "error    s1.jsonl: bad line 3",
    ]
    assert fake.asked("daemon.doctor") == {"fix": True}
    assert json.loads(sessiond("doctor", "--json").out)["findings"][2] == findings[0]


def test_sockname_prints_only_the_path(fake: Any, sessiond: Sessiond) -> None:
    assert sessiond("sockname") == (0, f"{fake.path}\n", "")
    assert json.loads(sessiond("sockname", "--json").out) == {"socket": str(fake.path), "exists": True}


def test_watch_shows_what_happened_to_runs_and_sessions() -> None:
    def watch_line(name: str, /, **params: Any) -> str | None:
        text = line(Event(name, {"sessionKey": MAIN, **params}), 0, Screen(None))
        return text and " ".join(text.split()[1:])

    changed = "sessions.changed"
    assert watch_line(changed, phase="start", row={}) == f"{MAIN} run started"
    assert watch_line(changed, phase="end", row={"status": "ok", "runtimeMs": 1500}, reason="ok") == (
        f"{MAIN} run ended (1.5s)"
    )
    assert watch_line(changed, phase="error", row={"status": "aborted"}) == f"{MAIN} run failed (aborted)"
    assert watch_line(changed, phase="error", row={"status": "error"}, reason="error") == f"{MAIN} run failed (error)"
    assert watch_line(changed, phase="create", reason="spawn\x1b") == f"{MAIN} session created (spawn\\x1b)"
    assert watch_line(changed, phase="message", row={}) is None
    assert watch_line("session.tool", phase="start", name="bash") == f"{MAIN} tool bash start"
    assert watch_line("session.tool", phase="update", name="bash") is None
    assert watch_line("session.delta", text="x") is None
    assert watch_line("session.resync", reason="lagged") == f"{MAIN} resync read again (lagged)"
    assert watch_line("machine.changed", machine="mars", awaySince=5) == "mars machine is away"
    assert watch_line("machine.changed", machine="mars") == "mars machine is reached"
    assert watch_line("something.new") is None


def test_watch_shows_a_changed_setting_once_and_no_internal_changes() -> None:
    known: dict[str, dict[str, Any]] = {}

    def watch_line(**row: Any) -> str | None:
        event = Event("sessions.changed", {"sessionKey": MAIN, "phase": "patch", "row": row})
        text = line(event, 0, Screen(None), known)
        return text and " ".join(text.split()[2:])

    assert watch_line(messageCount=1) is None
    assert watch_line(messageCount=2, label="build") == "session changed (label: build)"
    assert watch_line(messageCount=3, label="build") is None
    assert watch_line(label="build", model="m\x1b") == "session changed (model: m\\x1b)"
    assert watch_line(model="other") == "session changed (model: other, no label)"
    assert watch_line(messageCount=4) == "session changed (no model)"
    assert known == {}
    queued = Event("sessions.changed", {"sessionKey": MAIN, "phase": "patch", "reason": "queued", "row": {}})
    assert (line(queued, 0, Screen(None), known) or "").endswith("session   changed (queued)")


@check_each(
    ("width", "shown"),
    [
        (80, "agent:reader:subagent:8… run"),
        (99, "agent:reader:subagent:8… run"),
        (100, "agent:reader:subagent:861bbe0e…  run"),
        (None, "agent:reader:subagent:861bbe0e-9190-52b8-891f-3668796163b8 run"),
    ],
)
def test_watch_clips_keys_to_the_available_width(width: int | None, shown: str) -> None:
    key = "agent:reader:subagent:861bbe0e-9190-52b8-891f-3668796163b8"
    text = line(Event("sessions.changed", {"sessionKey": key, "phase": "start", "row": {}}), 0, Screen(width))
    assert text is not None and shown in text


def test_token_list_shows_only_valid_tokens_unless_all_are_requested(fake: Any, sessiond: Sessiond) -> None:
    token = {"id": "new", "scopes": ["list"], "sandboxed": False, "issuedAt": 0, "expiresAt": 2**45, "revoked": False}
    ended = [{**token, "id": "old", "revoked": True}, {**token, "id": "late", "expiresAt": 1}]
    answer_with(fake, tokens__list={"tokens": [token, *ended]})
    done = sessiond("token", "list")
    assert ([row.split()[0] for row in done.out.splitlines()], done.err) == (
        ["ID", "new"],
        "  beside 2 tokens revoked or expired: sessiond token list --all\n",
    )
    every = sessiond("token", "list", "--all").out.splitlines()
    assert [row.split()[0] for row in every] == ["ID", "new", "old", "late"]
    answer_with(fake, tokens__list={"tokens": ended[:1]})
    done = sessiond("token", "list")
    assert (done.out, done.err.splitlines()) == (
        "",
        ["  no valid tokens", "  beside 1 token revoked or expired: sessiond token list --all"],
    )


@check_each(
    ("named", "status"),
    [
        ("agent:reader:subagent:861bbe0e…", 0),
        ("agent:reader:subagent:861b", 0),
        ("agent:reader:subagent:861", 4),
        ("agent:reader:subagent:", 4),
        ("agent:reader:group:8123", 4),
    ],
)
def test_a_key_that_ends_in_a_uuid_can_be_abbreviated(
    fake: Any, refusal: Any, sessiond: Sessiond, named: str, status: int
) -> None:
    key = "agent:reader:subagent:861bbe0e-9190-52b8-891f-3668796163b8"

    def delete(params: dict[str, Any], _connection: object) -> dict[str, Any]:
        if params["key"] != key:
            raise refusal(-32002, "not_found", "no session", code="session_not_found")
        return {"key": key, "deleted": True, "archived": True}

    rows = [{**ROW, "key": key}, {**ROW, "key": "agent:reader:group:812345"}]
    answer_with(fake, sessions_list={"sessions": rows, "hasMore": False})
    fake.answers["sessions.delete"] = delete
    done = sessiond("delete", named)
    assert (done.status, key in done.out) == (status, status == 0)


def test_a_line_of_watch_fits_the_screen_and_only_parts_are_coloured() -> None:
    message = {"role": "user", "content": "x" * 200}
    event = Event("session.message", {"sessionKey": "agent:main:discord:group:1234567", "message": message})
    narrow = line(event, 0, Screen(70))
    assert narrow is not None and len(narrow) == 70 and narrow.endswith("…")
    coloured = line(event, 0, Screen(70, colour=True))
    assert coloured is not None
    assert coloured.replace("\x1b[2m", "").replace("\x1b[36m", "").replace("\x1b[0m", "") == narrow


def session_refusal(refusal: Any, text: str, key: str | None = None) -> Callable[..., Any]:
    def refuse(*_: Any) -> None:
        more = {"sessionKey": key} if key else {}
        sentence = f"no session '{text}'; `sessions_list` shows the sessions there are"
        raise refusal(-32002, "not_found", sentence, code="session_not_found", **more)

    return refuse


def test_the_error_for_an_invalid_key_says_what_a_key_looks_like(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    fake.answers["sessions.create"] = session_refusal(refusal, "bad key:")
    done = sessiond("create", "bad key:")
    assert (done.status, done.err.splitlines()) == (
        2,
        [
            "sessiond: 'bad key:' is no session key",
            "  a key is agent:AGENT:NAME, as agent:main:research; what agents there are: sessiond agents",
        ],
    )
    # A key that this caller may not see is reported like one that does not exist.
    fake.answers["sessions.create"] = session_refusal(refusal, "agent:other:x")
    done = sessiond("create", "agent:other:x")
    assert (done.status, done.err.splitlines()[0]) == (
        4,
        "sessiond: no session 'agent:other:x'; \"sessiond list\" shows the sessions there are",
    )


def test_the_parent_of_a_new_session_may_be_a_label(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    def create(params: dict[str, Any], connection: Any) -> Any:
        if params["parentSessionKey"] != "agent:main:desk":
            session_refusal(refusal, params["parentSessionKey"])()
        return {"key": params["key"], "sessionId": "s", "created": True}

    fake.answers["sessions.create"] = create
    rows = [{"key": "agent:main:desk", "label": "desk", "sessionId": "s1"}]
    answer_with(fake, sessions_list={"sessions": rows, "hasMore": False, "visibility": "all"})
    assert sessiond("create", "agent:main:x", "--parent", "desk").out == "agent:main:x\n"
    done = sessiond("create", "agent:main:x", "--parent", "dsk")
    assert (done.status, done.err.splitlines()) == (4, ["sessiond: no session 'dsk'", "  did you mean desk?"])


def test_sending_as_a_session_to_an_unknown_session_explains_how_to_create_it(
    fake: Any, refusal: Any, sessiond: Sessiond
) -> None:
    caller = {"caller": {"sessionKey": "agent:helper:main", "scopes": ["send"]}}
    answer_with(fake, initialize=caller, sessions_list={"sessions": [], "hasMore": False, "visibility": "all"})
    fake.answers["sessions_send"] = session_refusal(refusal, "main", "agent:helper:main")
    done = sessiond("send", "main", "hello")
    assert (done.status, done.err.splitlines()[2:]) == (
        4,
        [
            "  nobody has written to it yet? the owner makes it: sessiond create agent:helper:main"
            " (or: spawn --agent helper TASK)"
        ],
    )
    fake.answers["sessions_send"] = session_refusal(refusal, "nowhere")
    assert len(sessiond("send", "nowhere", "hello").err.splitlines()) == 2


def test_an_unknown_role_is_refused_with_the_known_ones(fake: Any, sessiond: Sessiond) -> None:
    done = sessiond("search", "hello", "--role", "foo")
    assert done.status == 2
    assert "'foo' is not one of user, assistant, toolResult, tool, bashExecution" in done.err


@check_each("words", [["list", "-n"], ["search", "x", "-n"], ["list", "--active"]])
@check_each("count", ["0", "-3", "x"])
def test_a_count_must_be_at_least_one(sessiond: Sessiond, words: list[str], count: str) -> None:
    done = sessiond(*words, count)
    assert (done.status, f"'{count}' is not a whole number of at least 1" in done.err) == (2, True)


def test_a_history_of_zero_messages_shows_none(fake: Any, refusal: Any, sessiond: Sessiond) -> None:
    answer_with(fake, sessions_history=page("one", hasMore=True, nextCursor="c0"))
    assert sessiond("history", "main", "-n", "0")[:2] == (0, "")
    assert fake.asked("sessions_history")["limit"] == 1
    assert "at least 0" in sessiond("history", "main", "-n", "-1").err
    answer_two_subscriptions(fake, refusal, event(2))
    assert sessiond("history", "main", "-n", "0", "-f").out == "--:--:-- user      text 2\n"


@pytest.mark.parametrize(("ttl", "status"), [("0", 2), ("0.9", 2), ("1", 0)])
def test_the_lifetime_of_a_token_must_be_at_least_a_second(
    fake: Any, sessiond: Sessiond, ttl: str, status: int
) -> None:
    answer_with(fake, tokens__mint={"token": "t", "id": "i", "expiresAt": 0})
    done = sessiond("token", "mint", "--scope", "list", "--ttl", ttl)
    assert done.status == status
    assert ("a token is valid for a second at least" in done.err) == (status == 2)
