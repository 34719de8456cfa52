"""Spawns as their users see them: real agents in real sandboxes, a killed daemon, and announcements."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support.announcements import wait_for_announcement
from support.patience import PATIENCE_S
from support.real_daemon import Daemon, Wire
from support.sampling import spread, whole_only

from sessiond.runtimes.sandbox import Bubblewrap

pytestmark = pytest.mark.system

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")
# A path that exists inside a sandbox as well as outside.
PYTHON = "/usr/bin/python3"
NO_FILE = "No such file or directory"
READ_ONLY = "Read-only file system"

# The program of a sandboxed agent: it tries to read, write and call, and its reply is the outcomes as JSON.
PROBE = """
import json, os, socket, sys
words = sys.stdin.read().splitlines()[-1].split()
def attempt(action):
    try:
        return action()
    except OSError as error:
        return os.strerror(error.errno)
def call(path, *messages):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        with sock.makefile('rwb') as file:
            for number, (method, params) in enumerate(messages):
                file.write(json.dumps({'jsonrpc': '2.0', 'id': number, 'method': method, 'params': params}).encode())
                file.write(b'\\n')
            file.flush()
            answers = [json.loads(file.readline()) for _ in messages]
    return [answer['error']['code'] if 'error' in answer else answer['result'] for answer in answers]
def write(path):
    with open(path, 'w') as file:
        file.write('x')
    return 'written'
store, run, home, other = words
folder = '.openclaw/attachments'
mine = os.path.join(folder, sorted(os.listdir(folder))[0])
token = open(os.environ['SESSIOND_TOKEN_FILE']).read().strip()
hello = ('initialize', {'protocol': 1, 'client': {'name': 'probe', 'version': '1'}, 'token': token})
answers = call(os.environ['SESSIOND_SOCKET'], hello, ('ping', {}), ('sessions_list', {}),
               ('sessions_spawn', {'task': 'x'}), ('sessions_history', {'sessionKey': 'current'}))
print(json.dumps({
    'read': open(os.path.join(mine, 'notes.txt')).read(),
    'read where it is mounted': open('/mnt/files/notes.txt').read(),
    'write': attempt(lambda: write(os.path.join(mine, 'notes.txt'))),
    'write where it is mounted': attempt(lambda: write('/mnt/files/new')),
    'folders of attachments': len(os.listdir(folder)),
    'the other one': attempt(lambda: os.listdir(os.path.join(folder, other))),
    'transcripts': attempt(lambda: os.listdir(store + '/agents/sandboxed/sessions')),
    'keys': attempt(lambda: os.listdir(store + '/keys')),
    'sessiond.sock': attempt(lambda: call(run + '/sessiond.sock', ('ping', {}))),
    'home': attempt(lambda: os.listdir(home)),
    'caller': {name: answers[0]['caller'][name] for name in ('sandboxed', 'scopes')},
    'calls': answers[1:],
    'key': answers[0]['caller']['sessionKey'] == os.environ['SESSIOND_SESSION_KEY'],
}))
"""


def sandbox_config(*, sandbox: str = "", more: str = "") -> str:
    """A configuration: `main` echoes, and its sub-agents of the agent `sandboxed` run the probe in a sandbox."""
    command = json.dumps([PYTHON, "-I", "-c", PROBE])
    return f"""
[agents.defaults.subagents]
announce = "reply"
wakeRequester = false

[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
subagents = {{ allowAgents = ["*"] }}

[[agents.list]]
id = "sandboxed"
runtime = {{ type = "exec", command = {command} }}
sandbox = {{ mode = "all"{sandbox} }}
{more}
"""


@pytest.fixture(scope="module")
def no_sandbox() -> str | None:
    """Why no sandbox can be used on this machine; None if one can."""
    return trio.run(Bubblewrap(private=()).find_problem)


class NobodysDaemon(Daemon):
    """The daemon as an ordinary user, started and called by root."""

    def command(self, *extra: str) -> list[str]:
        # The interpreter of the tests may be where only root can read; the system's can use the same packages.
        return [*AS_NOBODY, PYTHON, *super().command(*extra)[1:]]

    def connect(self, path: Path | None = None) -> Wire:
        os.seteuid(NOBODY)  # the daemon asks the kernel for the user who opened the connection
        try:
            return super().connect(path)
        finally:
            os.seteuid(0)


@pytest.fixture(params=["as the tests' user", "as an ordinary user"])
def users_daemon(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Daemon]:
    """A daemon as the user of the tests, or as `nobody` if that is root; not started yet."""
    if request.param == "as the tests' user":
        yield daemon
        return
    if os.geteuid() != 0:
        pytest.skip("the tests' user is an ordinary user")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    python_path = os.pathsep.join([str(Path(__file__).parent.parent.parent), *packages])
    probe = [*AS_NOBODY, PYTHON, "-c", "import sessiond.daemon.lifecycle, trio, msgspec, cbor2, cryptography"]
    if subprocess.run(probe, env={"PYTHONPATH": python_path}, capture_output=True, check=False).returncode != 0:
        pytest.skip("no interpreter here can run the daemon as an ordinary user")
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory(prefix="sessiond-nobody-") as name:
        made = NobodysDaemon(Path(name))
        made.environ["PYTHONPATH"] = python_path
        made.run.mkdir(mode=0o700)
        for path in (made.folder, made.run):
            os.chown(path, NOBODY, NOBODY)
        try:
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.process.kill()
                made.process.wait()


def test_a_sandboxed_agent_reaches_its_files_and_its_socket_only(users_daemon: Daemon, no_sandbox: str | None) -> None:
    if no_sandbox is not None:
        pytest.skip(no_sandbox)
    daemon = users_daemon.start(sandbox_config())
    other = daemon.call(
        "sessions_spawn", task="x", agentId="sandboxed", attachments=[{"name": "secret", "content": "s"}]
    )
    other_id = other["childSessionKey"].rpartition(":")[2]
    task = f"{daemon.store} {daemon.run} {daemon.folder} {other_id}"
    files = [{"name": "notes.txt", "content": "from afar"}]
    params = {"agentId": "sandboxed", "sandbox": "require", "attachAs": {"mountPath": "/mnt/files"}}
    spawned = daemon.call("sessions_spawn", task=task, attachments=files, **params)
    text = wait_for_announcement(daemon, spawned["childSessionKey"])
    status, result, *_ = text.splitlines()
    assert status == "Status: ok", text
    assert json.loads(result.removeprefix("Result: ")) == {
        "read": "from afar",
        "read where it is mounted": "from afar",
        "write": READ_ONLY,
        "write where it is mounted": READ_ONLY,
        "folders of attachments": 1,
        "the other one": NO_FILE,
        "transcripts": NO_FILE,
        "keys": NO_FILE,
        "sessiond.sock": NO_FILE,
        # The store is the path to the workspace; the configuration and the log beside it are hidden.
        "home": ["store"],
        "caller": {"sandboxed": True, "scopes": []},
        # Everybody may ping; a sub-agent may not use the session tools.
        "calls": [{}, -32003, -32003, -32003],
        "key": True,
    }


LIMITED = """
import sys
sys.stdin.read()
try:
    bytearray(512 << 20)
    print('all of it')
except MemoryError:
    print('not so much')
"""


def test_the_memory_limit_of_a_sandbox_holds(daemon: Daemon, no_sandbox: str | None) -> None:
    if no_sandbox is not None:
        pytest.skip(no_sandbox)
    config = sandbox_config(sandbox=f", memoryMaxBytes = {256 << 20}").replace(json.dumps(PROBE), json.dumps(LIMITED))
    daemon.start(config)
    spawned = daemon.call("sessions_spawn", task="x", agentId="sandboxed")
    assert "\nResult: not so much\n" in wait_for_announcement(daemon, spawned["childSessionKey"])


NETWORKED = """
import socket, sys
text, port = [], int(sys.stdin.read().split()[-1])
try:
    socket.create_connection(('127.0.0.1', port), timeout=30).close()
    text.append('connected')
except OSError:
    text.append('no connection')
for name in ('/etc/hosts', '/etc/nsswitch.conf', '/etc/resolv.conf'):
    try:
        text.append(str(len(open(name).read())))
    except FileNotFoundError:
        text.append('none')
print(*text)
"""


@pytest.mark.parametrize(
    ("sandbox", "expected"),
    spread([("", "connected"), (", network = true", "connected"), (", network = false", "no connection")], 2),
)
def test_the_network_is_shared_with_a_sandbox_unless_the_configuration_says_otherwise(
    daemon: Daemon, no_sandbox: str | None, sandbox: str, expected: str
) -> None:
    """With the files by which a program finds the addresses of names. Source: security.md, "The sandbox"."""
    if no_sandbox is not None:
        pytest.skip(no_sandbox)
    daemon.start(sandbox_config(sandbox=sandbox).replace(json.dumps(PROBE), json.dumps(NETWORKED)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        spawned = daemon.call("sessions_spawn", task=str(server.getsockname()[1]), agentId="sandboxed")
        text = wait_for_announcement(daemon, spawned["childSessionKey"])
    files = [Path("/etc", name) for name in ("hosts", "nsswitch.conf", "resolv.conf")]
    sizes = [str(len(file.read_text())) if file.exists() else "none" for file in files]
    assert f"\nResult: {' '.join([expected, *sizes])}\n" in text


def test_a_run_whose_required_sandbox_is_missing_fails_and_does_not_start(daemon: Daemon, tmp_path: Path) -> None:
    # An empty PATH: there is no bwrap.
    (tmp_path / "bin").mkdir()
    daemon.environ["PATH"] = str(tmp_path / "bin")
    marker = tmp_path / "ran"
    command = json.dumps([PYTHON, "-c", f"open({str(marker)!r}, 'w')"])
    daemon.start(sandbox_config().replace(json.dumps([PYTHON, "-I", "-c", PROBE]), command))
    spawned = daemon.call("sessions_spawn", task="x", agentId="sandboxed", sandbox="require")
    text = wait_for_announcement(daemon, spawned["childSessionKey"])
    assert text.startswith("Status: error: this run needs a sandbox, and there is none: bubblewrap (bwrap) is not")
    assert not marker.exists()


def test_the_error_of_an_agent_that_cannot_be_started_is_announced(daemon: Daemon) -> None:
    config = (
        sandbox_config()
        + '\n[[agents.list]]\nid = "lost"\nruntime = { type = "exec", command = ["no-such-program"] }\n'
    )
    daemon.start(config)
    spawned = daemon.call("sessions_spawn", task="x", agentId="lost")
    assert wait_for_announcement(daemon, spawned["childSessionKey"]).startswith("Status: error: ")


TOOL_CALLER = """
import json, os, socket, sys
sys.stdin.read()
token = open(os.environ['SESSIOND_TOKEN_FILE']).read().strip()
answers = []
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(os.environ['SESSIOND_SOCKET'])
    with sock.makefile('rwb') as file:
        for number, (method, params) in enumerate([
            ('initialize', {'protocol': 1, 'client': {'name': 'x', 'version': '1'}, 'token': token}),
            ('sessions_list', {}),
            ('sessions_history', {'sessionKey': 'current'}),
            ('sessions_spawn', {'task': 'deeper'}),
            ('sessions_send', {'sessionKey': 'main', 'message': 'x'}),
            ('sessions.kill', {'key': 'current'}),
        ]):
            file.write(json.dumps({'jsonrpc': '2.0', 'id': number, 'method': method, 'params': params}).encode())
            file.write(b'\\n')
            file.flush()
            while (answer := json.loads(file.readline())).get('id') != number:
                pass
            answers.append(answer.get('error', {}).get('code', 'ok'))
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    ("allow", "answers"),
    spread(
        [
            (["sessions_list", "sessions_history"], ["ok", "ok", "ok", -32003, -32003, -32003]),
            ([], ["ok", -32003, -32003, -32003, -32003, -32003]),
        ],
        1,
    ),
)
def test_a_sub_agent_may_use_exactly_the_session_tools_that_the_configuration_allows(
    daemon: Daemon, allow: list[str], answers: list[Any]
) -> None:
    command = json.dumps([sys.executable, "-c", TOOL_CALLER])
    daemon.start(
        sandbox_config() + f'\n[[agents.list]]\nid = "free"\nruntime = {{ type = "exec", command = {command} }}\n'
        f"\n[tools.subagents.tools]\nallow = {json.dumps(allow)}\n"
    )
    spawned = daemon.call("sessions_spawn", task="x", agentId="free")
    text = wait_for_announcement(daemon, spawned["childSessionKey"])
    assert json.loads(text.splitlines()[1].removeprefix("Result: ")) == answers, text


def test_subscribers_get_events_of_the_child_and_of_its_announcement(daemon: Daemon) -> None:
    daemon.start(sandbox_config())
    with daemon.connect() as wire:
        wire.call("sessions.subscribe")
        child = wire.call("sessions_spawn", task="x", label="helper")["childSessionKey"]
        created = wire.event("sessions.changed")
        while created["sessionKey"] != child:
            created = wire.event("sessions.changed")
        assert (created["phase"], created["reason"]) == ("create", "create")
        row = created["row"]
        assert (row["key"], row["spawnedBy"], row["label"]) == (child, "agent:main:main", "helper")
        message = wire.event("session.message")
        while message["sessionKey"] != "agent:main:main":
            message = wire.event("session.message")
        assert message["message"]["provenance"]["sourceSessionKey"] == child


def test_the_spawn_command_shows_the_attached_files_and_waits_for_the_reply(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(sandbox_config())
    (tmp_path / "poem.txt").write_text("truth")
    shown = daemon.cli("spawn", "--attach", str(tmp_path / "poem.txt"), "--wait", "read it")
    assert (shown.returncode, shown.stdout) == (0, "read it\n")
    assert "poem.txt" in shown.stderr and ".openclaw/attachments/" in shown.stderr
    got = json.loads(daemon.cli("spawn", "--json", "--cleanup", "delete", "go").stdout)
    assert wait_for_announcement(daemon, got["childSessionKey"]).startswith("Status: ok\nResult: go\n")
    refused = daemon.cli("spawn", "--agent", "nobody", "go")
    assert refused.returncode == 4 and "not allowed" in refused.stderr


FILES = [{"name": "a", "content": "x" * 1000}, {"name": "b", "content": "y" * 1000}]
SLOW = """
import os, sys, time
task = sys.stdin.read().split()[-1]
if task != 'quick':
    # The deadline ends this program if the test run was killed and nobody creates the file.
    deadline = time.monotonic() + 180
    while not os.path.exists(task) and time.monotonic() < deadline:
        time.sleep(0.01)
print('done')
"""


def slow_child_config(more: str = "") -> str:
    """A configuration: sub-agents of the agent `slow` end when the file that their task names exists."""
    command = json.dumps([sys.executable, "-c", SLOW])
    return f"""
[agents.defaults.subagents]
announce = "reply"
archiveAfterMinutes = 0.005
{more}

[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
subagents = {{ allowAgents = ["slow"] }}

[[agents.list]]
id = "slow"
runtime = {{ type = "exec", command = {command} }}
"""


def test_children_with_cleanup_delete_are_archived_and_their_attachments_removed(daemon: Daemon) -> None:
    daemon.start(slow_child_config())
    got = {
        cleanup: daemon.call("sessions_spawn", task="quick", agentId="slow", cleanup=cleanup, attachments=FILES)
        for cleanup in ("delete", "keep")
    }
    texts = {cleanup: wait_for_announcement(daemon, one["childSessionKey"]) for cleanup, one in got.items()}
    sessions = daemon.store / "agents/slow/sessions"
    daemon.wait_for(lambda: len(list((sessions / "archive").glob("*.jsonl"))) == 1, "the child is not archived")
    # The file moves first; the list changes a moment later.
    deleted = got["delete"]["childSessionKey"]
    daemon.wait_for(lambda: deleted not in {row["key"] for row in daemon.rows()}, "the child stays in the list")
    assert got["keep"]["childSessionKey"] in {row["key"] for row in daemon.rows()}
    attachments = daemon.store / "agents/slow/workspace/.openclaw/attachments"
    daemon.wait_for(lambda: list(attachments.iterdir()) == [], "attachments stay")
    # The path of the transcript in the announcement exists for both.
    for text in texts.values():
        assert Path(text.rpartition("• transcript ")[2]).exists()
    # The parent's row names only the children that are not archived.
    [main] = [row for row in daemon.rows() if row["key"] == "main"]
    assert main["childSessions"] == [got["keep"]["childSessionKey"]]


def test_retain_on_session_keep_keeps_the_attachments_of_a_kept_child(daemon: Daemon) -> None:
    daemon.start(slow_child_config() + "\n[tools.sessions_spawn.attachments]\nretainOnSessionKeep = true\n")
    kept = daemon.call("sessions_spawn", task="quick", agentId="slow", attachments=FILES)
    deleted = daemon.call("sessions_spawn", task="quick", agentId="slow", attachments=FILES, cleanup="delete")
    for one in (kept, deleted):
        wait_for_announcement(daemon, one["childSessionKey"])
    workspace = daemon.store / "agents/slow/workspace"
    daemon.wait_for(lambda: not (workspace / deleted["attachments"]["relDir"]).exists(), "attachments stay")
    assert (workspace / kept["attachments"]["relDir"] / "a").exists()


def test_a_child_is_not_archived_while_its_run_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(slow_child_config())
    gate = tmp_path / "gate"
    child = daemon.call("sessions_spawn", task=str(gate), agentId="slow", cleanup="delete")["childSessionKey"]
    # Wait three times archiveAfterMinutes, while another child ends and is archived.
    quick = daemon.call("sessions_spawn", task="quick", agentId="slow", cleanup="delete")["childSessionKey"]
    wait_for_announcement(daemon, quick)
    started = time.monotonic()
    daemon.wait_for(lambda: time.monotonic() - started > 1, "time stands still")
    assert child in {row["key"] for row in daemon.rows()}
    gate.touch()
    assert wait_for_announcement(daemon, child).startswith("Status: ok\nResult: done\n")
    daemon.wait_for(lambda: child not in {row["key"] for row in daemon.rows()}, "the child is not archived")


def test_a_run_timeout_ends_the_child_and_is_announced(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(slow_child_config("runTimeoutSeconds = 0.3"))
    never = str(tmp_path / "never")
    by_default = daemon.call("sessions_spawn", task=never, agentId="slow")
    by_param = daemon.call("sessions_spawn", task=never, agentId="slow", runTimeoutSeconds=0.2)
    unbounded = daemon.call("sessions_spawn", task=never, agentId="slow", runTimeoutSeconds=0)
    for one in (by_default, by_param):
        assert wait_for_announcement(daemon, one["childSessionKey"]).startswith("Status: timeout\n")
    ended = daemon.call("agent.wait", runId=unbounded["runId"], timeoutMs=1)
    assert ended["status"] == "running"


def test_a_child_cut_off_by_a_crash_is_announced_as_interrupted_once(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(slow_child_config())
    spawned = daemon.call("sessions_spawn", task=str(tmp_path / "never"), agentId="slow", attachments=FILES)
    child = spawned["childSessionKey"]
    for _ in range(2):
        daemon.kill()
        daemon.start()
        assert wait_for_announcement(daemon, child).startswith("Status: error: interrupted\n")
    attachments = daemon.store / "agents/slow/workspace/.openclaw/attachments"
    daemon.wait_for(lambda: list(attachments.iterdir()) == [], "attachments stay")


@whole_only("test_the_demo_runs_through_and_leaves_nothing_behind")
def test_the_demo_shows_a_spawn_with_a_file_and_its_announcement(daemon: Daemon) -> None:
    shown = daemon.cli("demo", timeout=PATIENCE_S)
    assert shown.returncode == 0, shown.stderr
    assert "poem.txt: 4 lines, 22 words" in shown.stdout
    history = shown.stdout.partition("The main session was told")[2]
    assert "Status: ok" in history and "Result: poem.txt: 4 lines" in history and "Thank you." in history


class Adapter:
    """The adapter of a channel with threads: answers all requests, and keeps them."""

    def __init__(self, daemon: Daemon, channel: str) -> None:
        self.wire = daemon.connect()
        self.wire.call("channels.attach", channel=channel, threads=True)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.wire.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.wire.close()

    def _serve(self) -> None:
        while True:
            try:
                message = self.wire.receive()
            except (OSError, ValueError):
                return
            self.requests.append((message["method"], message["params"]))
            result = {"threadId": "t-9"} if message["method"] == "channel.bindThread" else {}
            self.wire.send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def texts(self) -> list[str]:
        return [params["text"] for method, params in self.requests if method == "channel.deliver"]


GROUP = "agent:main:telegram:group:-100123"


def mint_group_token(daemon: Daemon) -> str:
    """Create a group's session; returns a token for it."""
    daemon.call("sessions.create", key=GROUP)
    token: str = daemon.call("tokens.mint", sessionKey=GROUP, scopes=["spawn", "send", "read", "list"])["token"]
    return token


def test_a_child_bound_to_a_thread_takes_later_messages_from_it(daemon: Daemon) -> None:
    daemon.start(sandbox_config())
    token = mint_group_token(daemon)
    with daemon.connect() as wire:
        wire.call("initialize", protocol=1, client={"name": "test", "version": "1"}, token=token)
        refused = wire.ask("sessions_spawn", task="x", thread=True)
        assert refused["error"]["data"]["code"] == "thread_unsupported"
        adapter = Adapter(daemon, "telegram")
        got = wire.call("sessions_spawn", task="talk to me", thread=True, label="helper", cleanup="delete")
    child = got["childSessionKey"]
    assert got["mode"] == "session"
    assert adapter.requests[0] == ("channel.bindThread", {"sessionKey": child, "label": "helper", "to": "-100123"})
    assert wait_for_announcement(daemon, child, GROUP).startswith("Status: ok\nResult: talk to me\n")
    daemon.wait_for(lambda: len(adapter.texts()) == 1, "the announcement does not reach the channel")
    # The child's session stays open for messages of the thread, also after a restart.
    assert daemon.reply(child, "and now?")["reply"] == "and now?"
    adapter.close()
    daemon.kill()
    daemon.start()
    assert daemon.reply(child, "still there?")["reply"] == "still there?"
    [row] = daemon.call("sessions_list", search=child)["sessions"]
    assert row["deliveryContext"] == {"channel": "telegram", "to": "-100123", "threadId": "t-9"}


def test_the_announcement_reaches_the_requesters_channel_once_over_restarts(daemon: Daemon) -> None:
    daemon.start(sandbox_config())
    token = mint_group_token(daemon)
    with daemon.connect() as wire:
        wire.call("initialize", protocol=1, client={"name": "test", "version": "1"}, token=token)
        child = wire.call("sessions_spawn", task="x")["childSessionKey"]
    text = wait_for_announcement(daemon, child, GROUP)
    for _ in range(2):
        daemon.kill()
        daemon.start()
    adapter = Adapter(daemon, "telegram")
    daemon.wait_for(lambda: adapter.texts() == [text], "the announcement does not reach the channel")
    daemon.wait_for(lambda: not list((daemon.store / "outbox").iterdir()), "the outbox keeps it")
    adapter.close()
    daemon.kill()
    daemon.start()
    again = Adapter(daemon, "telegram")
    assert daemon.reply(GROUP, "hello")["reply"] == "hello"
    assert again.texts() == []
    again.close()
