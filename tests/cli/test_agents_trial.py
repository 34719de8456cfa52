"""`sessiond agents test` reports the reply or what is wrong: a real daemon, and programs that fail like real ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import acp_agent_path
from support.real_daemon import Daemon
from support.rows import check_each

from sessiond.cli.agents_trial import diagnose

# What the program does, and the words that the error and the hint must contain.
FAILING = {
    "logged-out": ("echo 'Invalid API key · Please run /login' >&2; exit 1", "Please run /login", "log in"),
    "silent": (":", "said nothing", "by hand"),
    "broken": ("echo 'cannot frobnicate' >&2; exit 3", "cannot frobnicate", "by hand"),
}


@pytest.fixture(scope="module")
def trial_daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tried")
    agents = [("good", ["sh", "-c", "echo ready"]), ("gone", ["/no/such/program"]), ("slow", ["sleep", "60"])]
    agents += [(name, ["sh", "-c", code]) for name, (code, _, _) in FAILING.items()]
    config = "".join(
        f'[[agents.list]]\nid = "{name}"\nruntime = {{ type = "exec", command = {json.dumps(command)} }}\n'
        for name, command in agents
    )
    config += '[[agents.list]]\nid = "far"\nruntime = { type = "attached" }\n'
    by_hand = [sys.executable, "-S", str(acp_agent_path.PATH)]
    for name, command in (
        ("speaks", by_hand),
        ("speaks-to-members", [*by_hand, "refuses=session/new", "auth"]),
        ("speaks-not", ["claude-agent-acp-of-nowhere"]),
    ):
        config += f'[[agents.list]]\nid = "{name}"\nruntime = {{ type = "acp", command = {json.dumps(command)} }}\n'
    daemon = Daemon(folder)
    daemon.start(config)
    yield daemon
    daemon.kill()


def test_an_agent_that_answers_is_reported_as_working(trial_daemon: Daemon) -> None:
    done = trial_daemon.cli("agents", "test", "good")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("good answered after ") and done.stdout.endswith(": ready\n")
    facts = json.loads(trial_daemon.cli("agents", "test", "good", "--json").stdout)
    assert (facts["agent"], facts["works"], facts["reply"]) == ("good", True, "ready")
    assert not [row for row in trial_daemon.rows() if ":test:" in row["key"]]


@pytest.mark.parametrize("name", FAILING)
def test_the_reason_of_a_failure_is_reported_with_a_hint(trial_daemon: Daemon, name: str) -> None:
    _, what, hint = FAILING[name]
    done = trial_daemon.cli("agents", "test", name)
    assert (done.returncode, done.stdout) == (1, "")
    said, todo = done.stderr.splitlines()[:1], "\n".join(done.stderr.splitlines()[1:])
    assert what in done.stderr and said[0].startswith(f"sessiond: {name}: ") and hint in todo, done.stderr
    facts = json.loads(trial_daemon.cli("agents", "test", name, "--json").stdout)
    assert facts["works"] is False and what in facts["problem"] and hint in facts["hint"]


def test_an_agent_that_speaks_acp_is_tried_as_well(trial_daemon: Daemon) -> None:
    done = trial_daemon.cli("agents", "test", "speaks")
    assert (done.returncode, done.stdout.startswith("speaks answered after ")) == (0, True), done.stderr
    done = trial_daemon.cli("agents", "test", "speaks-to-members")
    assert done.returncode == 1 and "Authentication required" in done.stderr
    assert "log in, as the same user" in done.stderr and "runtime.authenticate" in done.stderr
    done = trial_daemon.cli("agents", "test", "speaks-not")
    assert done.returncode == 1 and "runtime.command" in done.stderr, done.stderr


def test_a_missing_program_is_reported(trial_daemon: Daemon) -> None:
    done = trial_daemon.cli("agents", "test", "gone")
    assert done.returncode == 1 and "/no/such/program" in done.stderr and "runtime.command" in done.stderr, done.stderr


@pytest.mark.parametrize(("name", "word"), [("slow", "no reply in time"), ("far", "no program is attached")])
def test_no_reply_in_time_is_reported(trial_daemon: Daemon, name: str, word: str) -> None:
    done = trial_daemon.cli("agents", "test", name, "--timeout", "1")
    assert done.returncode == 1 and word in done.stderr, done.stderr


def test_an_unknown_agent_is_reported_with_the_known_ones(trial_daemon: Daemon) -> None:
    done = trial_daemon.cli("agents", "test", "nobody")
    assert done.returncode == 4 and "good" in done.stderr


# What the programs print when logged out, and what bubblewrap and the daemon print when a sandbox lacks something.
LOGGED_OUT = (
    "exit status 1: Not logged in · Please run /login",
    "Please set an Auth method in your /home/u/.gemini/settings.json or specify one of GEMINI_API_KEY",
    "exit status 1: No API key found for anthropic.",
    "unexpected status 401 Unauthorized: Missing bearer or basic authentication in header",
)
SANDBOXLESS = (
    "this run needs a sandbox, and there is none: bubblewrap (bwrap) is not installed",
    "/x is to be mounted read-only (sandbox.readOnly) and does not exist",
)


@check_each("error", LOGGED_OUT)
def test_a_missing_login_is_recognized_by_its_message(error: str) -> None:
    outside, boxed = ({"id": "a", "runtime": "exec", "sandboxed": boxed} for boxed in (False, True))
    assert "log in" in diagnose(outside, {"status": "error", "error": error})[1]
    assert "docs/sandbox.md" in diagnose(boxed, {"status": "error", "error": error})[1]


@pytest.mark.parametrize("error", SANDBOXLESS)
def test_a_sandbox_problem_is_recognized_by_its_message(error: str) -> None:
    boxed = {"id": "a", "runtime": "exec", "sandboxed": True}
    assert diagnose(boxed, {"status": "error", "error": error}) == (
        error,
        "what a sandbox needs stands in docs/sandbox.md",
    )


def test_the_page_named_in_the_hint_exists() -> None:
    assert (Path(__file__).parents[2] / "docs" / "sandbox.md").is_file()


@given(st.text(), st.sampled_from(["ok", "error", "timeout", "aborted", "running"]), st.booleans())
def test_every_failure_has_a_hint(error: str, status: str, boxed: bool) -> None:
    why, hint = diagnose({"id": "a", "runtime": "exec", "sandboxed": boxed}, {"status": status, "error": error})
    assert why and hint
    _, hint = diagnose({"id": "a", "runtime": "acp", "sandboxed": boxed}, {"status": status, "error": "it broke"})
    assert "by hand" not in hint
