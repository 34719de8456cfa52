"""Notifications of the real daemon: by command and by URL, over reloads, and over random kills.

A few kills by default, 300 with SESSIOND_TESTS=whole, any number with `SESSIOND_NOTIFY_KILLS=100`.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.notified import AskingAgent, NotifiedServer
from support.real_daemon import Daemon, RpcFailure
from support.sampling import amount

pytestmark = pytest.mark.system

KILLS = int(os.environ.get("SESSIOND_NOTIFY_KILLS", amount(300, 1)))
# Of a life behind its start: most are short, so that the first deliveries are cut off, and some get through them all.
MEAN_LIFE_S, LONGEST_LIFE_S = 0.2, 1.0
AGENTS = """
[agents.defaults]
queueTtlSeconds = 1

[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "bad"
runtime = { type = "exec", command = ["sh", "-c", "echo SECRETWORD >&2; exit 3"] }

[[agents.list]]
id = "asks"
runtime = { type = "attached" }

[delivery]
retrySeconds = [0.05]
"""
# One line in one write. The variable has a name that is passed on to commands.
TOLD = 'printf "%s\\t%s\\t%s\\t%s\\n" "$LC_GENERATION" "$1" "$2" "$3" >> "$0"'


@pytest.fixture
def server() -> Iterator[NotifiedServer]:
    with NotifiedServer() as found:
        yield found


def command_rule(folder: Path, *words: str, more: str = "") -> str:
    """A rule whose command leaves a line with the life of its daemon and up to three words."""
    command = ["sh", "-c", TOLD, str(folder / "told"), *words]
    return f"[[notify]]\ncommand = {json.dumps(command)}\n{more}\n"


def told_by_command(folder: Path) -> list[list[str]]:
    """What the command left: a life and three words each."""
    path = folder / "told"
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []


def url_rule(server: NotifiedServer, more: str = "") -> str:
    return f'[[notify]]\nurl = "{server.url}/topic"\n{more}\n'


def outbox(daemon: Daemon) -> list[Path]:
    return list((daemon.store / "outbox").iterdir())


def test_a_question_an_error_and_a_marked_session_are_told_by_command_and_url(
    daemon: Daemon, server: NotifiedServer, tmp_path: Path
) -> None:
    daemon.start(AGENTS + command_rule(tmp_path, "{when}", "{title}", "{text}") + url_rule(server))
    title = "\u202eMay \x1b[31mI\x07 {title} $(id) \u2066?"
    with AskingAgent(daemon, "asks") as agent:
        run = agent.start("agent:asks:work")
        call = agent.ask(run, title=title, detail="SECRETWORD")
        asked = server.wait_for(1)[0].fields
        at, question_id = asked.pop("at"), asked["questionId"]
        assert asked == {
            "id": question_id,
            "when": "waiting",
            "title": "agent:asks:work needs you",
            "text": "May [31mI {title} $(id) ?",
            "sessionKey": "agent:asks:work",
            "agentId": "asks",
            "questionId": question_id,
        }
        assert at > 1_700_000_000_000
        daemon.call("questions.answer", id=question_id, optionId="yes")
        assert agent.wait_for_answer(call)["optionId"] == "yes"
        agent.end(run)
    assert daemon.reply("agent:bad:main", "SECRETWORD")["status"] == "error"
    assert daemon.reply("main", "unmarked")["status"] == "ok"
    daemon.call("sessions.patch", key="main", notify=True)
    marked = daemon.reply("main", "SECRETWORD")
    told = [one.fields for one in server.wait_for(3)]
    assert [(one["when"], one["title"], one["text"]) for one in told[1:]] == [
        ("error", "agent:bad:main failed", "the run ended with an error"),
        ("done", "main is done", "after 0 s"),
    ]
    assert told[2]["id"] == f"{marked['runId']}.done"
    assert not any(b"SECRETWORD" in one.content for one in server.arrivals)
    daemon.wait_for(lambda: not outbox(daemon), "the outbox is not empty")
    said = sorted(lines[1:] for lines in told_by_command(tmp_path))
    assert said == sorted([one["when"], one["title"], one["text"]] for one in told)


def test_a_reload_takes_rules_over_and_a_bad_one_changes_nothing(
    daemon: Daemon, server: NotifiedServer, tmp_path: Path
) -> None:
    daemon.start(AGENTS + '[[notify]]\ncommand = ["notify-sned"]\nwhen = ["waiting"]\n')
    found = [one for one in daemon.call("daemon.doctor")["findings"] if one["thing"] == "notifications"]
    assert [one["what"] for one in found] == ["notify[0]: the program notify-sned is not there"]
    daemon.reply("agent:bad:main", "x")
    daemon.config.write_text(AGENTS + url_rule(server, 'agents = ["b*"]\nbody = true'))
    assert daemon.cli("config", "reload").returncode == 0
    daemon.reply("agent:bad:main", "x")
    assert server.wait_for(1)[0].fields["body"].endswith("SECRETWORD")
    daemon.config.write_text(AGENTS + url_rule(server, 'when = ["never"]'))
    assert daemon.cli("config", "reload").returncode == 78
    assert "notify[0].when[0] must be one of" in daemon.call("daemon.status")["reloadProblem"]
    daemon.reply("agent:bad:main", "x")
    assert len(server.wait_for(2)) == 2


class KilledDaemon(Daemon):
    """A daemon that is killed again and again. Its commands and its POSTs say in which life they were made."""

    generation = 0

    @property
    def _may_fork(self) -> bool:
        return True  # also in a whole run, which would start a thousand interpreters

    def live(self, rng: random.Random, act: Callable[[], None], end: Callable[[], object]) -> None:
        """Start it, let it work, and end it at a random moment."""
        self.be_born()
        self.start(until_loaded=rng.random() < 0.7)
        killer = threading.Timer(min(rng.expovariate(1 / MEAN_LIFE_S), LONGEST_LIFE_S), end)
        killer.start()
        with suppress(OSError, RpcFailure):  # it is gone, or stops
            act()
        killer.join()

    def be_born(self) -> None:
        self.generation += 1
        self.environ["LC_GENERATION"] = str(self.generation)
        headers = self.folder / "headers"
        headers.write_text(f"X-Generation: {self.generation}\n")
        headers.chmod(0o600)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[KilledDaemon]:
    daemon = KilledDaemon(tmp_path)
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.kill()


def test_over_random_kills_nothing_is_told_twice_and_nothing_is_lost(
    mortal: KilledDaemon, server: NotifiedServer, tmp_path: Path
) -> None:
    rng, act = random.Random(18), lambda: act_once(mortal, server, rng)
    url = url_rule(server, f'headersFile = "{tmp_path}/headers"')
    mortal.config.write_text(AGENTS + command_rule(tmp_path, "{id}") + url)
    mortal.be_born()
    mortal.start()
    for key in ("main", "agent:asks:main"):
        mortal.call("sessions.create", key=key)
        mortal.call("sessions.patch", key=key, notify=True)
    mortal.kill()
    for _ in range(KILLS):
        if rng.random() < 0.2:
            mortal.live(rng, act, mortal.stop)
        mortal.live(rng, act, mortal.kill)
    mortal.be_born()
    mortal.start()
    mortal.wait_for(lambda: not mortal.call("daemon.status")["liveRuns"], "runs do not end")
    mortal.wait_for(lambda: not mortal.call("daemon.status")["queuedRuns"], "runs are queued")
    mortal.wait_for(lambda: not outbox(mortal), "the outbox is not empty")
    posted = Counter((one.fields["id"], one.headers["X-Generation"]) for one in server.arrivals)
    said = Counter((words[1], words[0]) for words in told_by_command(tmp_path))
    ends, asked = facts_in_transcripts(mortal)
    for road, told in (("url", posted), ("command", said)):
        twice = [one for one, count in told.items() if count > 1]
        assert not twice, f"{road}: told twice in one life: {twice}"
        ids = Counter(fact for fact, _ in told)
        assert set(ids) - asked == ends, f"{road}: {sorted((set(ids) - asked) ^ ends)}"
        # What an end of the daemon, a stop as well, cut off before its acknowledgement was noted: one for each target.
        again = sum(count - 1 for count in ids.values())
        assert again < mortal.generation, f"{road}: {again} came again"
        assert all(ids[question] <= 1 for question in asked)
    print(f"{KILLS} kills, {len(ends)} ends, {len(asked)} questions; again: {again}")


def act_once(daemon: Daemon, server: NotifiedServer, rng: random.Random) -> None:
    """What is done in one life, until it ends: messages to a marked session and to one that fails, or a question."""
    if rng.random() < 0.5:
        for _ in range(rng.randrange(4)):
            daemon.call("chat.send", sessionKey="main", message="x")
        daemon.call("chat.send", sessionKey="agent:bad:main", message="x")
        return
    with AskingAgent(daemon, "asks") as agent:
        run = agent.start("agent:asks:main")
        known = len(server.arrivals)
        call = agent.ask(run)
        asked = [one.fields for one in server.wait_for(known + 1, MEAN_LIFE_S)[known:]]
        for question in asked:
            if question["when"] == "waiting":
                daemon.call("questions.answer", id=question["id"], optionId="yes")
                agent.wait_for_answer(call)
                agent.end(run)
        while True:
            agent.wire.receive()  # until it is killed


def facts_in_transcripts(daemon: Daemon) -> tuple[set[str], set[str]]:
    """The ends that are facts, and the questions, by the records of all transcripts."""
    ends: set[str] = set()
    asked: set[str] = set()
    for path in (daemon.store / "agents").glob("*/sessions/*.jsonl"):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                record = json.loads(line)
                data = record.get("data") or {}
                if record.get("customType") == "sessiond/question":
                    asked.add(data["id"])
                elif record.get("customType") == "sessiond/run" and data["status"] in ("error", "timeout", "ok"):
                    ends.add(f"{data['runId']}.{'done' if data['status'] == 'ok' else 'error'}")
    return ends, asked
