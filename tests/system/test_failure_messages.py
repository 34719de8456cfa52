"""The messages about failed runs and refused commands, in the log and on the command line."""

from __future__ import annotations

import sys

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.system

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}

[[agents.list]]
id = "broken"
runtime = {{ type = "exec", command = ["sh", "-c", "{broken}"] }}

[[agents.list]]
id = "asker"
runtime = {{ type = "exec", command = ["sh", "-c", "{python} -m sessiond send main hello 2>&1; exit 0"] }}

[[agents.list]]
id = "self"
runtime = {{ type = "exec", command = ["sh", "-c", "{python} -m sessiond history agent:self:nobody 2>&1; {main}"] }}
"""


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    broken = "cat > /dev/null; echo api_key=sk-abcdefghijklmnopqrstuvwxyz is wrong >&2; echo more >&2; exit 3"
    main = f"{sys.executable} -m sessiond history main --limit 1 2>&1; exit 0"
    return daemon.start(CONFIG.format(broken=broken, python=sys.executable, main=main))


def test_a_failed_run_is_one_line_in_the_log_without_messages_and_secrets(running: Daemon) -> None:
    sent = running.call("chat.send", sessionKey="agent:broken:main", message="a private message")
    assert running.call("agent.wait", runId=sent["runId"])["status"] == "error"
    assert running.reply("main", "all is well")["status"] == "ok"
    log = running.log.read_text()
    [line] = [line for line in log.splitlines() if "run failed" in line]
    assert "warning" in line
    for part in (sent["runId"], "session_key=agent:broken:main", "agent=broken", "status=error"):
        assert part in line
    assert "is wrong" not in log and "abcdefghijklmnopqrstuvwxyz" not in log and "a private message" not in log


def test_a_refused_spawn_names_the_setting_that_would_allow_it(running: Daemon) -> None:
    done = running.cli("spawn", "--agent", "broken", "a task")
    assert done.returncode == 4
    assert "by agent main, which may spawn main; to allow it, write in the [[agents.list]] entry of main" in done.stderr
    assert 'subagents = { allowAgents = ["broken"] }' in done.stderr


def test_inside_a_run_messages_name_the_main_session_in_full(running: Daemon) -> None:
    own = running.reply("agent:asker:main", "go")["reply"]
    assert "not waiting: agent:asker:main waits for this very run" in own
    running.call("sessions.create", key="agent:self:desk")
    other = running.reply("agent:self:desk", "go")["reply"]
    assert "no session 'agent:self:nobody'\n" in other
    assert "no session 'main', which is agent:self:main here" in other
    help_text = " ".join(running.cli("send", "--help").stdout.split())
    assert "Inside a run `main` is the agent's own main session" in help_text
