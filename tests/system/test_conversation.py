"""Two real programs hold a conversation through a real daemon, which is killed at every step of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon, Wire
from support.sampling import spread

pytestmark = pytest.mark.system

CONFIG = """
[tools.sessions]
visibility = "all"
[tools.agentToAgent]
enabled = true
allow = ["*"]
[delivery]
retrySeconds = [0.05]
[[agents.list]]
id = "alice"
default = true
runtime = { type = "attached" }
[[agents.list]]
id = "bob"
runtime = { type = "attached" }
"""
TALKER = Path(__file__).parents[1] / "support" / "sample_program.py"
FINAL = {"ok", "error", "timeout", "aborted"}


class Programs:
    """A daemon, Alice, Bob, and Telegram; what each was asked."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.programs: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, name: str) -> None:
        """A program at work; it waits for the daemon where that is away."""
        command = [sys.executable, str(TALKER), kind, name, str(self.daemon.folder / name)]
        environ = {**self.daemon.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.programs.append(subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL))

    def asked(self, name: str) -> list[dict[str, Any]]:
        """What a program was asked, oldest first."""
        path = self.daemon.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def delivered(self, to: str) -> list[dict[str, Any]]:
        return [one for one in self.asked("telegram") if one["to"] == to]

    def open(self, name: str) -> OpenConversation:
        """A fresh session for each of the two, and Alice's token."""
        alice, bob = f"agent:alice:{name}", f"agent:bob:telegram:group:{name}"
        ids = [self.daemon.call("sessions.create", key=key)["sessionId"] for key in (alice, bob)]
        token = self.daemon.call("tokens.mint", sessionKey=alice, scopes=["send", "read"])["token"]
        return OpenConversation(self.daemon, name, (alice, bob), ids, token)

    def end(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()


class OpenConversation:
    """One conversation: its two transcripts, as they are on disk."""

    def __init__(self, daemon: Daemon, name: str, keys: tuple[str, str], ids: list[str], token: str) -> None:
        self.daemon, self.name, self.token = daemon, name, token
        self.alice, self.bob = keys
        agents = daemon.store / "agents"
        self.paths = [agents / agent / "sessions" / f"{ids[n]}.jsonl" for n, agent in enumerate(("alice", "bob"))]

    def begin(self, message: str = "please", **params: Any) -> Any:
        """Alice's session sends to Bob's."""
        with self.daemon.connect() as wire:
            greet(wire, self.token)
            return wire.call("sessions_send", sessionKey=self.bob, message=message, **params)

    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in self.paths:
            for line in path.read_bytes().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # torn by the crash; every reader passes over it
        return found

    def events(self) -> int:
        """How far it is: lines of the transcripts, deliveries on disk, and deliveries that are over."""
        lines = sum(path.read_bytes().count(b"\n") for path in self.paths) - 2
        closed = any(b'"closed"' in path.read_bytes() for path in self.paths)
        waits = any(f'"{self.name}"'.encode() in delivery for delivery in self.deliveries())
        return lines + (waits or closed) + (closed and not waits)

    def deliveries(self) -> list[bytes]:
        """The outbox. One that is delivered while this looks is not in it."""
        found = []
        for path in sorted((self.daemon.store / "outbox").glob("*.json")):
            with suppress(FileNotFoundError):
                found.append(path.read_bytes())
        return found

    def runs(self) -> dict[str, list[str]]:
        """The statuses of every run, in the order in which they were written."""
        found: dict[str, list[str]] = defaultdict(list)
        for record in self.records():
            if record.get("customType") == "sessiond/run":
                found[record["data"]["runId"]].append(record["data"]["status"])
        return found

    def is_over(self) -> bool:
        talks = Counter(
            record["data"]["status"] for record in self.records() if record.get("customType") == "sessiond/talk"
        )
        ended = all(FINAL & set(statuses) for statuses in self.runs().values())
        return ended and talks["open"] == talks["closed"] and not self.deliveries()

    def said(self, index: int) -> list[str]:
        """The messages of one of the two transcripts."""
        records = [json.loads(line) for line in self.paths[index].read_text().splitlines()]
        messages = [record["message"] for record in records if record["type"] == "message"]
        return [f"{message['role']}: {text(message['content'])}" for message in messages]


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def greet(wire: Wire, token: str) -> None:
    wire.call("initialize", protocol=1, client={"name": "test"}, token=token)


@pytest.fixture
def troupe(daemon: Daemon) -> Iterator[Programs]:
    daemon.start(CONFIG)
    made = Programs(daemon)
    try:
        for kind, name in (("agent", "alice"), ("agent", "bob"), ("channel", "telegram")):
            made.start(kind, name)
        daemon.wait_for(lambda: len(daemon.call("daemon.status")["attachedAgents"]) == 2, "nobody attaches")
        yield made
    finally:
        made.end()


def test_turns_alternate_up_to_the_maximum_and_the_announcement_reaches_the_channel(troupe: Programs) -> None:
    talk = troupe.open("long")
    assert talk.begin()["reply"] == "bob0"
    troupe.daemon.wait_for(talk.is_over, "the conversation does not end")
    assert talk.said(0) == [
        "user: bob0",
        "assistant: alice1",
        "user: bob2",
        "assistant: alice3",
        "user: bob4",
        "assistant: alice5",
    ]
    assert talk.said(1) == [
        "user: please",
        "assistant: bob0",
        "user: alice1",
        "assistant: bob2",
        "user: alice3",
        "assistant: bob4",
        "user: Agent-to-agent announce step.",
        f"assistant: the outcome of {talk.bob}",
    ]
    [delivery] = troupe.delivered("long")
    assert delivery["text"] == f"the outcome of {talk.bob}"


def test_reply_skip_ends_the_turns(troupe: Programs) -> None:
    talk = troupe.open("short")
    talk.begin(timeoutSeconds=0)
    troupe.daemon.wait_for(talk.is_over, "the conversation does not end")
    assert [line for line in talk.said(0) if line.startswith("assistant")] == [
        "assistant: alice1",
        "assistant: REPLY_SKIP",
    ]
    steps = [(one["step"], one["turn"]) for one in troupe.asked("bob")]
    assert steps == [("primary", 0), ("reply", 2), ("announce", 0)]
    assert len(troupe.delivered("short")) == 1


def test_an_agent_that_dies_in_its_turn_ends_it_and_its_session_goes_on(troupe: Programs) -> None:
    talk = troupe.open("deadly")
    got = talk.begin("die")
    assert (got["status"], got["error"]) == ("error", "agent bob lost its connection during the run")
    troupe.start("agent", "bob")
    assert talk.begin("live")["reply"] == "bob0"
    troupe.daemon.wait_for(talk.is_over, "the conversation does not end")
    assert [one["step"] for one in troupe.asked("bob") if one["message"] == "die"] == ["primary"]


def test_killed_at_every_step_each_run_ends_once_and_the_announcement_has_one_id(troupe: Programs) -> None:
    """At each event of a conversation, by the transcripts and the outbox, the daemon is killed and started again."""
    daemon = troupe.daemon
    whole = troupe.open("whole")
    whole.begin()
    daemon.wait_for(whole.is_over, "the conversation does not end")
    points = whole.events()
    assert points >= 30
    announced = []
    for point in spread(range(1, points + 1), 6):
        talk = troupe.open(f"k{point}")
        talk.begin(timeoutSeconds=0)
        # A little later every other time: in the middle of a turn as well as right after a write.
        kill_at(talk, point, later_s=0.002 * (point % 3))
        daemon.start()
        daemon.wait_for(talk.is_over, f"the conversation killed at {point} does not end")
        announced.append(check(troupe, talk))
    # Killed late enough it is announced, whatever was cut off on the way; killed in the first run it is not.
    assert announced[-1] and not announced[0]
    assert Counter(one["runId"] for name in ("alice", "bob") for one in troupe.asked(name)).most_common(1)[0][1] == 1


def kill_at(talk: OpenConversation, point: int, *, later_s: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while talk.events() < point and not talk.is_over():
        assert time.monotonic() < deadline, f"the conversation never came to {point}"
    time.sleep(later_s)
    talk.daemon.kill()


def check(troupe: Programs, talk: OpenConversation) -> bool:
    """Every run in exactly one final state; the announcement under one id. Whether there was one."""
    runs = talk.runs()
    for run_id, statuses in runs.items():
        assert len([status for status in statuses if status in FINAL]) == 1, (run_id, statuses)
        assert statuses.count("accepted") == 1
        assert statuses.count("running") <= 1
    primary = next(iter(statuses for run_id, statuses in runs.items() if run_id.startswith(talk.paths[1].stem)))
    deliveries = troupe.delivered(talk.name)
    assert len({one["deliveryId"] for one in deliveries}) <= 1
    assert bool(deliveries) == (primary[-1] == "ok"), (talk.name, runs, deliveries)
    return bool(deliveries)
