"""Sessions of other programs on every road: hidden from who may not see them, changed by nobody, no secret for tokens.

One daemon; each method that names a session is asked for one of pi's and for one that does not exist.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.foreign_sessions import key_of, pi_file, pi_line
from support.lasting_connections import LASTING_CONNECTIONS, Answer, HttpJson, Ndjson, free_port
from support.real_daemon import PROGRAM, Daemon
from support.sampling import spread

from sessiond.methods.table import METHODS

pytestmark = pytest.mark.system

KEY, MISSING, OWN = key_of(1), key_of(2), "agent:main:main"
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
CONFIG = """
[http]
listen = "127.0.0.1:{port}"

[tools.sessions]
visibility = "{level}"
"""
MESSAGES = [{"role": "user", "content": "x"}]
SESSION_FIELDS = {"sessionKey", "key", "keys", "parentSessionKey"}

# What is asked beside the session. Who may see it reads it, is refused (`read_only`), or goes on with it, for which
# there is no agent here.
READS: dict[str, dict[str, Any]] = {
    "sessions_history": {"includeTools": True},
    "chat.history": {"raw": True},
    "sessions.resolve": {},
    "sessions.preview": {},
    "sessions_search": {"query": "heron"},
    "sessions.usage": {},
    "sessions.messages.subscribe": {},
    "sessions.messages.unsubscribe": {},
}
CHANGES: dict[str, dict[str, Any]] = {
    "chat.inject": {"messages": MESSAGES},
    "sessions.append": {"messages": MESSAGES},
    "chat.abort": {},
    "sessions.abort": {},
    "sessions.kill": {},
    "sessions.patch": {"label": "x"},
    "sessions.reset": {},
    "sessions.delete": {},
    "sessions.create": {},
}
SENDS: dict[str, dict[str, Any]] = {
    "sessions_send": {"message": "go on", "timeoutSeconds": 0},
    "chat.send": {"message": "go on"},
    "sessions.send": {"message": "go on"},
    "agent": {"message": "go on"},
    "sessions.steer": {"message": "go on"},
}
# Methods that are not in these tables are asked with the session alone.
MORE = READS | CHANGES | SENDS | {"tokens.mint": {"scopes": ["read"]}}


# What each method answers is decided once for all transports, which `test_matrix.py` goes through.
TRANSPORTS = spread(list(LASTING_CONNECTIONS), 2)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("foreign"))
    made.port = free_port()
    pi_file(made.folder, 1, f"the heron has {SECRET}")
    made.start(CONFIG.format(port=made.port, level="all"))
    made.reply(OWN, "hello")
    made.wait_for(lambda: made.call("sessions_list", sources=["pi"])["count"], "the session of pi is not listed")
    yield made
    made.stop()


def mint(daemon: Daemon, **more: Any) -> str:
    token: str = daemon.call("tokens.mint", scopes=["list", "read", "send", "admin"], sessionKey=OWN, **more)["token"]
    return token


def calls_for(key: str) -> list[tuple[str, dict[str, Any]]]:
    """Every method that takes a session, with this one."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for method in METHODS:
        fields = sorted(SESSION_FIELDS & {one.encode_name for one in msgspec.structs.fields(method.params)})
        for field in fields:
            for name in (method.name, *method.aliases):
                given = {"key": "agent:main:child"} if field == "parentSessionKey" else {}
                calls.append((name, {**MORE.get(name, {}), **given, field: [key] if field == "keys" else key}))
    return calls


def ask_all(daemon: Daemon, transport: str, token: str | None, key: str) -> list[Answer]:
    connection = LASTING_CONNECTIONS[transport](daemon, "agent" if token else "sessiond", token)
    try:
        return connection.ask(calls_for(key))
    finally:
        connection.close()


def without_key(answer: Answer, key: str) -> str:
    return json.dumps(answer, sort_keys=True).replace(key, "KEY").replace(key.partition(":")[2], "ID")


def file_of(daemon: Daemon) -> Path:
    return pi_file(daemon.folder, 1, header=False)


def check_hidden(daemon: Daemon, token: str) -> None:
    """No road tells the session from one that does not exist."""
    told: dict[str, tuple[str, str]] = {}
    for transport in TRANSPORTS:
        both = zip(ask_all(daemon, transport, token, KEY), ask_all(daemon, transport, token, MISSING), strict=True)
        for (name, _), (answer, other) in zip(calls_for(KEY), both, strict=True):
            texts = without_key(answer, KEY), without_key(other, MISSING)
            if texts[0] != texts[1]:
                told[f"{transport} {name}"] = texts
    client = HttpJson(daemon, "agent", token).client
    with client:
        for method, path in (("GET", "history"), ("GET", "history?follow=1"), ("POST", "kill")):
            got, other = (client.request(method, f"/sessions/{key}/{path}") for key in (KEY, MISSING))
            texts = without_key(got.json(), KEY), without_key(other.json(), MISSING)
            if got.status_code != 404 or other.status_code != 404 or texts[0] != texts[1]:
                told[f"{method} {path}"] = texts
    assert told == {}
    with Ndjson(daemon, "agent", token) as wire:
        answers = wire.ask([("sessions_list", {}), ("sessions_search", {"query": "heron"}), ("sessions.usage", {})])
    assert KEY not in json.dumps(answers)


def check_seen(daemon: Daemon, token: str | None) -> None:
    """It is read on every road and changed on none, and a token is shown no secret."""
    wrong: dict[str, Answer] = {}
    for transport in TRANSPORTS:
        answers = ask_all(daemon, transport, token, KEY)
        for (name, _), answer in zip(calls_for(KEY), answers, strict=True):
            lasts = transport.startswith("http") and name.startswith("sessions.messages.")
            code = answer.get("error", {}).get("data", {}).get("code")
            is_right = (
                (name not in READS or "result" in answer or lasts)
                and (name not in CHANGES or code == "read_only")
                and (name not in SENDS or code == "no_agent_for_source")
                and (token is None or SECRET not in json.dumps(answer))
            )
            if not is_right:
                wrong[f"{transport} {name}"] = answer
        if token is None:
            assert SECRET in json.dumps(answers), "the owner reads what stands there"
    assert wrong == {}
    client = HttpJson(daemon, "agent" if token else "sessiond", token).client
    with client:
        got = client.get(f"/sessions/{KEY}/history")
        assert (got.status_code, SECRET in got.text) == (200, token is None)
        refused = client.post(f"/sessions/{KEY}/kill")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")


def test_every_road_answers_for_another_programs_session_as_its_caller_may_see_it(daemon: Daemon) -> None:
    assert {*READS, *CHANGES, *SENDS} <= {name for name, _ in calls_for(KEY)}
    before = file_of(daemon).read_bytes(), file_of(daemon).stat().st_mtime_ns
    seeing, sandboxed = mint(daemon), mint(daemon, sandboxed=True)
    check_seen(daemon, None)
    check_seen(daemon, seeing)
    check_hidden(daemon, sandboxed)
    try:
        daemon.config.write_text(CONFIG.format(port=daemon.port, level="tree"))
        assert daemon.cli("config", "reload").returncode == 0
        check_hidden(daemon, seeing)
    finally:
        daemon.config.write_text(CONFIG.format(port=daemon.port, level="all"))
        assert daemon.cli("config", "reload").returncode == 0
    assert (file_of(daemon).read_bytes(), file_of(daemon).stat().st_mtime_ns) == before
    assert daemon.call("sessions_list", sources=["sessiond"])["count"] == 1, "nothing was made either"


def test_who_follows_everything_gets_no_secret_and_who_may_not_see_it_no_line(daemon: Daemon, tmp_path: Path) -> None:
    seeing, sandboxed = mint(daemon), mint(daemon, sandboxed=True)
    token_file = tmp_path / "token"
    token_file.write_text(seeing)
    token_file.chmod(0o600)
    environ = {**daemon.environ, "SESSIOND_TOKEN_FILE": str(token_file), "SESSIOND_SOCKET": str(daemon.agent_socket)}
    command = [*PROGRAM, "watch", KEY]
    with (
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watch,
        Ndjson(daemon, "agent", seeing) as wire,
        Ndjson(daemon, "agent", sandboxed) as hidden,
        HttpJson(daemon, "agent", seeing).client as client,
        client.stream("GET", f"/sessions/{KEY}/history?follow=1&limit=1") as sse,
    ):
        try:
            for one in (wire, hidden):
                one.ask([("sessions.subscribe", {})])
            wire.ask([("sessions.messages.subscribe", {"key": KEY})])
            daemon.wait_for(lambda: daemon.call("daemon.status")["subscribers"] >= 4, "nobody follows")
            with file_of(daemon).open("ab") as file:
                file.write(pi_line(f"the wren has {SECRET}, too"))
            assert watch.stdout is not None
            lines = [next(line for line in watch.stdout if "wren" in line)]
            lines.append(next(line for line in sse.iter_lines() if "wren" in line))
            lines += [json.dumps(message) for message in until_said(wire)]
        finally:
            watch.kill()
        daemon.reply(OWN, "the last word")
        seen = until_said(hidden, OWN)
    assert [line for line in lines if SECRET in line or "wren" not in line] == []
    assert KEY not in json.dumps(seen)


def until_said(wire: Ndjson, key: str = KEY) -> list[dict[str, Any]]:
    """The message of a session that comes next, or what comes until its row changes."""
    seen: list[dict[str, Any]] = []
    while True:
        message = wire.decode()
        seen.append(message)
        if key == KEY and message.get("method") == "session.message":
            return seen[-1:]
        if message.get("method") == "sessions.changed" and message["params"]["sessionKey"] == key == OWN:
            return seen
