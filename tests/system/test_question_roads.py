"""A question is asked, listed and answered, and both are told, over every road there is; on one daemon."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.rows import check_each
from support.single_calls import SINGLE_CALLS
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS, Refused, SubscribedConnection, curl

from sessiond.client import AttachedRun, Client, ClientError

pytestmark = pytest.mark.system

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "alice"
runtime = { type = "attached" }

[tools.sessions]
visibility = "all"

[tools.agentToAgent]
enabled = true
allow = ["*"]
"""
KEY = "agent:alice:main"
SUPERVISOR = "agent:main:mcp:boss"
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
OPTIONS = [
    {"id": "yes", "label": "Allow once", "kind": "allow_once"},
    {"id": "no", "label": "Deny", "kind": "reject_once"},
]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with an agent that asks whatever it is sent, and replies with what it was answered."""
    daemon = Daemon(tmp_path_factory.mktemp("asking"))
    daemon.start(CONFIG)
    daemon.call("sessions.create", key=KEY)
    daemon.call("sessions.create", key=SUPERVISOR)
    client = Client(str(daemon.socket))

    def answer(run: AttachedRun) -> str:
        asked = {"runId": run.run_id, "title": run.message, "detail": f"with {SECRET}", "options": OPTIONS}
        said = client.call("agents.ask", asked)
        return f"{said['outcome']} {said.get('optionId')} {said.get('note')} {said.get('answeredBy')}"

    def attach() -> None:
        with suppress(ClientError):
            client.attach("alice", answer)

    thread = threading.Thread(target=attach, daemon=True)
    thread.start()
    daemon.wait_for(lambda: _is_attached(daemon), "no agent")
    yield daemon
    client.close()
    daemon.kill()
    thread.join(PATIENCE_S)


def _is_attached(daemon: Daemon) -> bool:
    return any(agent["id"] == "alice" and agent.get("attached") for agent in daemon.call("agents_list")["agents"])


def ask(daemon: Daemon, title: str) -> str:
    """Let the agent ask; the id of its run."""
    run_id: str = daemon.call("chat.send", sessionKey=KEY, message=title)["runId"]
    return run_id


def find_open(daemon: Daemon, title: str) -> dict[str, Any]:
    """The open question of that title, once it is asked."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        listed = daemon.call("questions.list", open=True)["questions"]
        found[:] = [question for question in listed if question["title"] == title]
        return bool(found)

    daemon.wait_for(look, "no question")
    (question,) = found
    return question


def ending(daemon: Daemon, run_id: str) -> tuple[str, dict[str, Any]]:
    """What the agent was answered, and the answer on record."""
    reply = daemon.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)["reply"]
    return reply, daemon.call("questions.list", sessionKey=KEY, open=False)["questions"][-1]["answer"]


def next_event(receive: Callable[[], tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    while True:
        found, params = receive()
        if found == name:
            return params


def refusal_of(connection: SubscribedConnection, **answer: Any) -> dict[str, Any]:
    with pytest.raises(Refused) as refused:
        connection.call("questions.answer", **answer)
    return refused.value.error


@check_each(
    ("kind", "road"), [("ndjson", "socket"), ("cbor", "socket"), ("ws-text", "websocket"), ("ws-binary", "websocket")]
)
@check_each("all_sessions", [True, False])
def test_over_a_connection(asking: Daemon, kind: str, road: str, all_sessions: bool) -> None:
    with SUBSCRIBED_CONNECTIONS[kind](asking) as connection:
        if all_sessions:
            connection.call("sessions.subscribe")
        else:
            connection.call("sessions.messages.subscribe", key=KEY)
        run_id = ask(asking, f"over {kind}?")
        asked = next_event(connection.event, "question.asked")
        question = asked["question"]
        assert (asked["sessionKey"], question["title"], question["options"]) == (KEY, f"over {kind}?", OPTIONS)
        assert connection.call("questions.list", open=True, agentId="alice") == {"questions": [question]}
        if all_sessions:
            row = next_event(connection.event, "sessions.changed")["row"]
            waiting = {"since": question["askedAt"], "questions": 1, "title": f"over {kind}?"}
            assert (row["state"], row["waiting"]) == ("waiting", waiting)
        for wrong, code in (({"optionId": "maybe"}, -32602), ({"id": "0" * 16, "optionId": "yes"}, -32002)):
            assert refusal_of(connection, **{"id": question["id"], **wrong})["code"] == code
        done = connection.call("questions.answer", id=question["id"], optionId="yes", note="go")
        assert done == {"id": question["id"], "optionId": "yes", "status": "answered"}
        answered = next_event(connection.event, "question.answered")
        reply, answer = ending(asking, run_id)
        assert reply == "answered yes go owner"
        assert (answer["by"], answer["road"]) == ("owner", road)
        assert answered == {"sessionKey": KEY, "id": question["id"], "answer": answer}
        late = refusal_of(connection, id=question["id"], optionId="no")
        assert (late["code"], late["data"]["answer"]) == (-32004, answer)


@check_each("kind", ["http-json", "http-cbor"])
@check_each("path", ["/events", f"/sessions/{KEY}/history?follow=1"])
def test_over_http_and_server_sent_events(asking: Daemon, kind: str, path: str) -> None:
    def call(method: str, **params: Any) -> Any:
        return SINGLE_CALLS[kind](asking, "sessiond", None, method, params)["result"]

    with curl(asking, path, "Accept: text/event-stream") as stream:
        stream.next()  # it is followed from here on
        run_id = ask(asking, "over HTTP?")
        seen: list[str | None] = []

        def receive() -> tuple[str, dict[str, Any]]:
            name, event_id, params = stream.next()
            seen.append(event_id if name.startswith("question") else None)
            return name, params

        question = next_event(receive, "question.asked")["question"]
        assert call("questions.list", sessionKey=KEY, open=True) == {"questions": [question]}
        call("questions.answer", id=question["id"], optionId="no")
        answered = next_event(receive, "question.answered")
        reply, answer = ending(asking, run_id)
        late = SINGLE_CALLS[kind](
            asking, "sessiond", None, "questions.answer", {"id": question["id"], "optionId": "yes"}
        )
        assert (late["error"]["code"], late["error"]["data"]["answer"]) == (-32004, answer)
        assert reply == "answered no None owner"
        assert (answered["id"], answered["answer"], answer["road"]) == (question["id"], answer, "http")
        assert set(seen) == {None}, "they are not replayed, so they have no id"


def test_on_the_command_line(asking: Daemon) -> None:
    run_id = ask(asking, "in a \x1b[2J shell?")
    question = find_open(asking, "in a [2J shell?")
    assert json.loads(asking.cli("questions", "--json").stdout)["questions"] == [question]
    (row,) = asking.cli("questions", "--session", "agent:alice:main").stdout.splitlines()[1:]
    assert row.split("\t")[:2] == [question["id"], "open"] and "\x1b" not in row
    head, listed, *_ = (line.split("\t") for line in asking.cli("list").stdout.splitlines())
    shown = dict(zip(head, listed, strict=True))
    assert (shown["key"], shown["state"], shown["questions"]) == (KEY, "waiting", "1")
    agents = asking.cli("agents").stdout.splitlines()
    assert agents[1].split()[0] == "alice" and agents[1].split()[-1] == "1"
    assert "questions    1 waits for an answer\n" in asking.cli("status").stdout
    history = asking.cli("history", KEY)
    assert "question  in a [2J shell?" in history.stdout and "sessiond questions --session" in history.stderr
    done = asking.cli("answer", question["id"][:8], "maybe")
    assert (done.returncode, f"sessiond answer {question['id'][:8]} yes" in done.stderr) == (4, True)
    done = asking.cli("answer", question["id"][:8], "deny", "--note", "not now")
    assert (done.returncode, done.stdout) == (0, f"{question['id'][:8]}  in a [2J shell?: Deny (reject once)\n")
    reply, answer = ending(asking, run_id)
    assert (reply, answer["road"]) == ("answered no not now owner", "cli")
    for option in ("yes", "no"):
        done = asking.cli("answer", question["id"], option)
        assert (
            done.returncode == 1 and "answered already: Deny (reject once), by the owner (cli): not now" in done.stderr
        )
    done = asking.cli("answer", "0123456789abcdef", "yes")
    assert (done.returncode, '"sessiond questions"' in done.stderr, "sessiond list" in done.stderr) == (4, True, False)
    assert "answer    Deny (reject once), by the owner (cli): not now" in asking.cli("history", KEY).stdout
    for form in ("--md", "--html"):
        text = asking.cli("export", KEY, form).stdout
        assert "shell?" in text and "by the owner" in text
    assert "questions" not in asking.cli("status").stdout
    assert asking.cli("questions").stdout.count("\n") == 1
    put_away = next(row["sessionId"] for row in asking.rows() if row["key"] == KEY)
    asking.call("sessions.reset", key=KEY)
    run_id = ask(asking, "of the new session?")
    asking.call("questions.answer", id=find_open(asking, "of the new session?")["id"], optionId="no")
    ending(asking, run_id)
    for session, says_so in ((KEY, True), (put_away, False)):
        for command in (("history", session), ("export", session)):
            shown = asking.cli(*command)
            assert (shown.returncode, "of the new session" in shown.stdout) == (0, says_so), (command, shown)


def test_the_line_that_watch_shows_answers(asking: Daemon) -> None:
    asking.call("sessions.patch", key=KEY, label="desk")
    command = [sys.executable, "-m", "sessiond", "watch", "desk"]
    run_id = ask(asking, "as shown?")
    find_open(asking, "as shown?")
    with subprocess.Popen(command, env=asking.environ, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        # A watch that shows less than that is ended, and so are the lines.
        overdue = threading.Timer(PATIENCE_S, watch.kill)
        overdue.start()
        try:
            seen = list(itertools.islice(iter(watch.stdout.readline, ""), 6))
            assert "question  as shown?" in seen[0]  # it was open when watching began
            words = shlex.split(seen[3])
            assert words[:2] == ["sessiond", "answer"]
            assert asking.cli(*words[1:]).returncode == 0
            assert ending(asking, run_id)[0] == "answered yes None owner"
            rest = itertools.takewhile(lambda line: "assistant" not in line, iter(watch.stdout.readline, ""))
            assert [line for line in rest if "answer    " in line and "Allow once, by the owner (cli)" in line]
        finally:
            overdue.cancel()
            watch.kill()


def test_by_a_supervisor_over_mcp(asking: Daemon) -> None:
    def use(scopes: list[str], *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        token = asking.call("tokens.mint", sessionKey=SUPERVISOR, scopes=scopes)["token"]
        file = asking.folder / "token"
        file.write_text(token)
        file.chmod(0o600)
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            for number, (method, params) in enumerate(calls)
        ]
        done = asking.cli(
            "mcp",
            env={**asking.environ, "SESSIOND_TOKEN_FILE": str(file)},
            input="".join(line + "\n" for line in lines),
        )
        answers = sorted(map(json.loads, done.stdout.splitlines()), key=lambda answer: answer["id"])
        return [answer["result"] for answer in answers]

    def call_tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return "tools/call", {"name": name, "arguments": arguments}

    run_id = ask(asking, "by an agent?")
    question = find_open(asking, "by an agent?")
    (listed, refused) = use(["list", "read", "admin"], ("tools/list", {}), call_tool("questions_list"))
    assert not [tool for tool in listed["tools"] if tool["name"].startswith("questions")]
    assert refused["isError"] and "there is no tool questions_list" in refused["content"][0]["text"]
    may = ["list", "answer"]
    (listed, found) = use(may, ("tools/list", {}), call_tool("questions_list", open=True))
    assert [tool["name"] for tool in listed["tools"]][-2:] == ["questions_list", "questions_answer"]
    (seen,) = found["structuredContent"]["questions"]
    assert (seen["id"], seen["title"]) == (question["id"], "by an agent?")
    assert SECRET not in json.dumps(found) and SECRET in question["detail"], "secrets are masked for tokens"
    (wrong, done, late) = [
        use(may, call_tool("questions_answer", id=question["id"], optionId=option))[0] for option in ("?", "yes", "no")
    ]
    assert [one["isError"] for one in (wrong, done, late)] == [True, False, True]
    assert late["_meta"]["sessiond/error"]["data"]["answer"]["by"] == SUPERVISOR
    assert "answered already" in late["content"][0]["text"]
    assert done["structuredContent"] == {"id": question["id"], "optionId": "yes", "status": "answered"}
    reply, answer = ending(asking, run_id)
    assert (reply, answer["by"], answer["road"]) == (f"answered yes None {SUPERVISOR}", SUPERVISOR, "mcp")
