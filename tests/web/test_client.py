"""The page's client, under Node: its own unit tests, and the real daemon, which is killed while messages arrive."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.owner_page import open_page
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import WHOLE

NODE = shutil.which("node")
HERE = Path(__file__).parent
MESSAGES, KILLS = (1000, 20) if WHOLE else (80, 2)
KEY = "agent:main:test:followed"

needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed: the page's client was not tested")


# Each test of a file reports to Node, whether it is started for one file or reads many.
READ_ALL = "for (const name of process.argv.slice(1)) await import(`./${name}`)"


def run_node(*files: str, **environ: str) -> None:
    """Run the tests with Node's own test runner; what it says is the failure. By default in one process."""
    one = ["--test-reporter=spec", "--input-type=module", "--eval", READ_ALL, "--", *files]
    each = ["--test", "--test-reporter=spec", "--test-timeout=60000", *files]
    command = [NODE or "", *(each if WHOLE else one)]
    env = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run(command, check=False, env=env, cwd=HERE, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?m)^. pass [1-9]", done.stdout), done.stdout


@needs_node
def test_its_parts_pass_their_unit_tests() -> None:
    alone = sorted(path.name for path in HERE.glob("*.test.js") if path.name != "client.test.js")
    assert alone
    run_node(*alone)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path).start()
    yield made
    made.stop()


def open_code(daemon: Daemon, *scopes: str) -> tuple[str, str]:
    """The address without its slash at the end, and a code."""
    opened = daemon.call("http.open", scopes=list(scopes))
    return opened["address"].rstrip("/"), opened["code"]


@needs_node
@pytest.mark.system
def test_it_calls_and_follows_the_real_daemon(daemon: Daemon) -> None:
    daemon.reply("agent:main:test:page", "first")
    scopes = ("list", "read", "send")
    tokens = [open_page(daemon, *scopes).token for _ in range(12)]
    base, code = open_code(daemon, *scopes)
    run_node("client.test.js", SESSIOND_PAGE=base, SESSIOND_CODE=code, SESSIOND_TOKENS=json.dumps(tokens))


@needs_node
@pytest.mark.system
def test_a_daemon_killed_while_messages_arrive_loses_and_doubles_none(daemon: Daemon) -> None:
    """kill -9 again and again on the port that the page opened; every message arrives once and in order."""
    daemon.reply(KEY, "before")
    base, code = open_code(daemon, "list", "read")
    command = [NODE or "", str(HERE / "follow.js"), base, code, KEY, str(MESSAGES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        lines = _read_lines(follower)
        assert next(line for line in lines if "fresh" in line)
        for number in range(MESSAGES):
            messages = [{"role": "user", "content": f"message {number}"}]
            daemon.call("chat.inject", sessionKey=KEY, messages=messages)
            if number % (MESSAGES // KILLS) == MESSAGES // KILLS // 2:
                daemon.kill()
                daemon.start()
        rest = list(lines)
    said = [line for line in rest if "seq" in line]
    assert [line["text"] for line in said] == [f"message {number}" for number in range(MESSAGES)]
    assert [line["seq"] for line in said] == list(range(3, MESSAGES + 3))
    assert not any(line["grown"] for line in said)
    assert [line for line in rest if "resync" in line or "error" in line] == []
    # The daemon was seen to go and to come again, with a list that is made anew. A slow start is `away` in between.
    states = [line["state"] for line in rest if "state" in line]
    assert {"reconnecting", "live"} <= set(states) <= {"reconnecting", "live", "away"}
    assert [line for line in rest if "fresh" in line]


def _read_lines(follower: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert follower.stdout is not None
    for line in follower.stdout:
        yield json.loads(line)
