"""Answers on the wire and records on disk do not change unintentionally: those of a fixed story are compared.

Refactoring must not change them. If an answer is meant to change, write the golden files anew with
`SESSIOND_GOLDEN=write`, and say in the commit what changes for clients.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon, Wire

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"
OPENCLAW = Path(__file__).parents[1] / "golden" / "openclaw-store"
CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["sh", "-c", "echo heard; cat"] }
subagents = { allowAgents = ["*"] }

[[agents.list]]
id = "silent"
runtime = { type = "exec", command = ["sh", "-c", "exit 3"] }

[tools.sessions]
visibility = "all"

[tools.sessions_spawn.attachments]
enabled = true

[tools.agentToAgent]
enabled = true
allow = ["*"]

[session.agentToAgent]
maxPingPongTurns = 1
"""
# Values that differ in each run, in the order in which they are replaced.
VOLATILE = [
    (re.compile(r"\b[0-9a-f]{8} \(\d{4}-\d\d-\d\d\)"), "title"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "uuid"),
    # Offsets depend on how long the names of folders are. After the uuids: a part of one can look like a cursor.
    (re.compile(r"\b\d+-\d+-[0-9a-f]{12,}\b"), "cursor"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?"), "time"),
    (re.compile(r"\b[A-Za-z0-9_-]{40,}\b"), "opaque"),
    (re.compile(r"\b[0-9a-f]{16,32}\b"), "hex"),
]
WRONG: list[Any] = [None, -1, 1e300, "", "a\0b", ["x"], {"x": 1}]


class Normaliser:
    """Replaces values that differ in each run by names; equal uuids get equal names, numbered by first occurrence."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        text = text.replace(self._folder, "FOLDER")
        for pattern, kind in VOLATILE:
            text = pattern.sub(lambda found, kind=kind: self._name(kind, found[0]), text)
        return text

    def value(self, value: Any, field: str = "") -> Any:
        match value:
            case dict():
                return {self.text(name): self.value(member, name) for name, member in value.items()}
            case list():
                return [self.value(member, field) for member in value]
            case str():
                return self.text(value)
            case bool():
                return value
            case int() | float() if value > 1e12 or re.search(r"(Ms|At|pid|inode|since|bytes|Bytes)$", field):
                return "number"
            case _:
                return value

    def _name(self, kind: str, text: str) -> str:
        if kind != "uuid":
            return f"<{kind}>"
        return self._names.setdefault(text, f"<{kind} {len(self._names) + 1}>")


def is_settled(daemon: Daemon) -> bool:
    """Whether no run goes on and every conversation is closed."""
    status = daemon.call("daemon.status")
    try:
        texts = [path.read_text() for path in daemon.store.rglob("*.jsonl")]
    except FileNotFoundError:  # moved to the archive meanwhile
        return False
    # The last piece is not a complete line.
    lines = [line for text in texts for line in text.split("\n")[:-1]]
    talks = [json.loads(line)["data"] for line in lines if '"sessiond/talk"' in line]
    ended = {talk["talkId"] for talk in talks if talk["status"] == "closed"}
    return not status["liveRuns"] + status["queuedRuns"] and {talk["talkId"] for talk in talks} <= ended


def story(daemon: Daemon, wire: Wire) -> Iterator[tuple[str, Any]]:
    """A fixed sequence of calls, and their answers."""

    def ask(method: str, /, **params: Any) -> tuple[str, Any]:
        answer = wire.ask(method, **params)
        seen.append(answer)
        if method not in ("chat.send", "sessions.create"):
            daemon.wait_for(lambda: is_settled(daemon), "runs go on")
        return f"{method} {json.dumps(params, ensure_ascii=False)}", answer

    def run_of(key: str, message: str, **params: Any) -> Iterator[tuple[str, Any]]:
        yield ask("chat.send", sessionKey=key, message=message, **params)
        yield ask("agent.wait", runId=seen[-1]["result"]["runId"], timeoutMs=60_000)

    seen: list[dict[str, Any]] = []
    yield ask("ping")
    yield ask("initialize", protocol=1, client={"name": "golden", "version": "1"})
    yield ask("sessions_list")
    yield ask("sessions.create", key="agent:main:one", label="first")
    yield ask("sessions.create", key="agent:main:one")
    yield ask("sessions.create", agentId="silent", message="fail, please")
    yield ask("agent.wait", runId=seen[-1]["result"]["runId"], timeoutMs=60_000)
    yield from run_of("main", "hello")
    yield from run_of("main", "hello", idempotencyKey="k")
    yield from run_of("main", "hello", idempotencyKey="k")
    yield ask("chat.send", sessionKey="main", message="another", idempotencyKey="k")
    yield from run_of("agent:silent:main", "fail")
    yield ask("sessions_send", sessionKey="agent:main:one", message="from the owner", timeoutSeconds=60)
    yield ask("sessions_send", label="first", message="by label", timeoutSeconds=60)
    yield ask("sessions.create", key="agent:main:mcp:x")
    yield ask("sessions_send", sessionKey="agent:main:mcp:x", message="kept")
    yield ask("sessions_inbox", sessionKey="agent:main:mcp:x")
    yield ask("chat.inject", sessionKey="agent:main:one", messages=[{"role": "user", "content": "injected"}])
    yield ask("sessions.patch", key="agent:main:one", label="renamed", thinkingLevel="low", model=None)
    yield ask("sessions_history", sessionKey="agent:main:one", includeTools=True, includeRuns=True, limit=3)
    yield ask("chat.history", sessionKey="main")
    yield ask("sessions_list", limit=10, messageLimit=2, includeArchived=True)
    yield ask("sessions.list", limit=10)
    yield ask("sessions_search", query="injected")
    yield ask("sessions.preview", keys=["main", "agent:main:one", "agent:main:none"])
    yield ask("sessions.resolve", label="renamed")
    yield ask("sessions.usage")
    yield ask("agents_list")
    yield ask("sessions.reset", key="agent:main:one")
    yield ask("sessions.delete", key="agent:main:one")
    yield ask("sessions_history", sessionKey="agent:main:one")
    yield ask("sessions.prune", olderThanMs=0)
    yield ask("tokens.mint", scopes=["read"], sessionKey="main", ttlSeconds=60)
    yield ask("tokens.list")
    yield ask("tokens.revoke", id=seen[-2]["result"]["id"])
    yield ask("sessions.import", path=str(OPENCLAW))


def wrong_calls(wire: Wire, document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Calls of each method with invalid values of each parameter, and their errors."""
    right = {
        "sessionKey": "agent:main:none",
        "key": "agent:main:none",
        "message": "x",
        "runId": "none",
        "query": "none",
    }
    for method in document["methods"]:
        names = [param["name"] for param in method["params"]]
        for name in names:
            for wrong in WRONG:
                params = {other: right[other] for other in names if other in right} | {name: wrong}
                answer = wire.ask(method["name"], **params)
                if "error" in answer:
                    yield f"{method['name']} {json.dumps(params)}", answer["error"]
        yield f"{method['name']} + unknown", wire.ask(method["name"], noSuchParam=1).get("error")


def shape(schema: Any, components: dict[str, Any]) -> Any:
    """A schema without the names of sessiond's types, titles and descriptions."""
    if isinstance(schema, list):
        return [shape(one, components) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return shape(components[name], components) if name in components else name
    return {
        name: shape(member, components)
        for name, member in schema.items()
        if not (isinstance(member, str) and name in ("title", "description"))
    }


def compare(name: str, made: list[Any]) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("SESSIOND_GOLDEN") == "write":
        path.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in made) + "\n]\n")
    assert made == json.loads(path.read_text())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    daemon.start(CONFIG)
    try:
        yield daemon
    finally:
        daemon.kill()


def test_answers_and_records_of_a_fixed_story_are_unchanged(running: Daemon) -> None:
    normaliser = Normaliser(running.folder)
    with running.connect() as wire:
        answers = [[call, normaliser.value(answer)] for call, answer in story(running, wire)]
    for pair in answers:
        pair[0] = normaliser.text(pair[0].replace(str(OPENCLAW), "OPENCLAW"))
        pair[1].pop("id", None)
    compare("story", answers)
    assert running.stop() == 0
    records = {}
    for path in sorted(running.store.rglob("*.jsonl")):
        name = normaliser.text(str(path.relative_to(running.store)))
        lines = [normaliser.value(json.loads(line)) for line in path.read_text().splitlines()]
        records[name] = lines
    compare("records", [[name, line] for name, lines in sorted(records.items()) for line in lines])


def test_refusals_of_invalid_params_are_unchanged(running: Daemon) -> None:
    normaliser = Normaliser(running.folder)
    with running.connect() as wire:
        document = wire.call("rpc.discover")
        compare("refusals", [[call, normaliser.value(error)] for call, error in wrong_calls(wire, document)])


def test_the_schemas_of_rpc_discover_are_unchanged(running: Daemon) -> None:
    document = running.call("rpc.discover")
    components = document.get("components", {}).get("schemas", {})
    compare(
        "shapes",
        [
            shape({k: v for k, v in one.items() if k not in ("summary", "description", "errors")}, components)
            for one in document["methods"]
        ],
    )
