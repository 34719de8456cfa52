"""The daemon as its users see it: real processes, real sockets, real files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import PROGRAM, Daemon, Wire
from support.rows import check_each
from support.sampling import amount

GOLDEN = Path(__file__).parent.parent / "golden" / "openclaw-store"


def exec_agent(code: str, *, more: str = "") -> str:
    """A configuration whose agent `main` runs a Python program."""
    return f"""
[[agents.list]]
id = "main"
runtime = {{ type = "exec", command = [{json.dumps(sys.executable)}, "-c", {json.dumps(code)}] }}
{more}
"""


ADDER = "import sys; print(sum(int(word) for word in sys.stdin.read().split()))"


def test_send_prints_the_reply_of_a_program_and_both_are_in_the_transcript(daemon: Daemon) -> None:
    daemon.start(exec_agent(ADDER))
    sent = daemon.cli("send", "main", "20 22")
    assert (sent.returncode, sent.stdout) == (0, "42\n")
    shown = daemon.cli("history", "main", "--json")
    assert [message["role"] for message in json.loads(shown.stdout)["messages"]] == ["user", "assistant"]
    [transcript] = daemon.transcripts()
    lines = [json.loads(line) for line in transcript.read_text().splitlines()]
    assert [line["message"]["role"] for line in lines if line["type"] == "message"] == ["user", "assistant"]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_reads_the_transcript(daemon: Daemon) -> None:
    daemon.start()
    daemon.reply("main", "hello")
    [transcript] = daemon.transcripts()
    query = 'select(.type == "message") | .message.role'
    got = subprocess.run(["jq", "-r", query, str(transcript)], capture_output=True, text=True, check=True)
    assert got.stdout.split() == ["user", "assistant"]


@pytest.mark.skipif(shutil.which("socat") is None, reason="socat is not installed")
def test_a_message_can_be_sent_with_socat(daemon: Daemon) -> None:
    daemon.start()
    request = '{"jsonrpc":"2.0","id":1,"method":"chat.send","params":{"sessionKey":"main","message":"by hand"}}\n'
    got = subprocess.run(
        ["socat", "-t", "10", "-", f"UNIX-CONNECT:{daemon.socket}"],
        input=request,
        capture_output=True,
        text=True,
        check=True,
    )
    run_id = json.loads(got.stdout)["result"]["runId"]
    assert daemon.call("agent.wait", runId=run_id)["reply"] == "by hand"


def test_a_store_of_the_openclaw_gateway_is_listed_and_read(daemon: Daemon) -> None:
    shutil.copytree(GOLDEN, daemon.store)
    before = {path.name: path.read_bytes() for path in daemon.transcripts()}
    daemon.start()
    rows = {row["key"]: row for row in daemon.rows()}
    assert set(rows) == {
        "main",
        "agent:main:dashboard:f034105b-b1bc-4243-8407-fcc314e9dca7",
        "agent:main:telegram:group:-100123",
    }
    assert rows["main"]["status"] == "ok"
    assert rows["main"]["thinkingLevel"] == "low"
    assert rows["main"]["sendPolicy"] == "deny"
    page = daemon.call("sessions_history", sessionKey="main", includeTools=True, limit=100)
    original = before[rows["main"]["sessionId"] + ".jsonl"].splitlines()
    assert page["messages"] == [json.loads(line)["message"] for line in original if b'"type":"message"' in line]
    for path in daemon.transcripts():
        assert path.read_bytes().startswith(before.get(path.name, b""))


def test_rows_are_the_same_after_a_restart_without_the_index(daemon: Daemon) -> None:
    daemon.start()
    for key in ("main", "agent:main:telegram:group:7", "cron:nightly"):
        daemon.reply(key, f"hello {key}")
    daemon.call("sessions.create", label="a label")
    before = daemon.rows()
    assert daemon.stop() == 0
    (daemon.store / "agents/main/sessions/sessions.json").unlink()
    daemon.start()
    assert daemon.rows() == before


def test_a_second_daemon_on_the_store_exits_and_names_the_first(daemon: Daemon) -> None:
    daemon.start()
    assert daemon.process is not None
    daemon.wait_for(lambda: not (daemon.run / "starting").exists(), "it does not get ready")
    # As if the first one were still starting: what it tells waiting commands stays.
    starting, told = daemon.run / "starting", f"{daemon.process.pid}\nreading"
    starting.write_text(told)
    second = daemon.cli(*daemon.command()[len(PROGRAM) :])
    assert starting.read_text() == told
    assert second.returncode == 69
    assert f"in use by process {daemon.process.pid}" in second.stderr
    assert daemon.call("ping") == {}


def test_files_are_private_under_any_umask(daemon: Daemon) -> None:
    daemon.start(umask=0)
    daemon.reply("main", "hello")
    daemon.stop()
    for path in [daemon.store, *daemon.store.rglob("*")]:
        assert path.lstat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("lanes", [2])
def test_every_message_acknowledged_before_kill_9_is_in_the_transcript(tmp_path: Path, lanes: int) -> None:
    """Every round appends from three connections, kills the daemon in the middle, starts it and counts. 200 rounds."""
    with ThreadPoolExecutor(lanes) as pool:
        done = [pool.submit(_kill_and_count, tmp_path / str(lane), amount(100, 6) // lanes) for lane in range(lanes)]
        for lane in done:
            lane.result()


def _kill_and_count(folder: Path, rounds: int) -> None:
    folder.mkdir()
    daemon = Daemon(folder).start()
    acknowledged: list[str] = []
    try:
        daemon.call("sessions.create", key="main")
        for number in range(rounds):
            threads = [threading.Thread(target=_append, args=(daemon, f"{number}-{n}", acknowledged)) for n in range(3)]
            for thread in threads:
                thread.start()
            wanted = len(acknowledged) + 1 + number % 7
            daemon.wait_for(lambda wanted=wanted: len(acknowledged) >= wanted, "nothing is acknowledged")
            daemon.kill()
            for thread in threads:
                thread.join()
            daemon.start()
            assert _texts(daemon) >= set(acknowledged)
        assert daemon.call("daemon.status")["corruptRecords"] == 0
    finally:
        daemon.kill()


def _append(daemon: Daemon, name: str, acknowledged: list[str]) -> None:
    try:
        with daemon.connect() as wire:
            for count in range(10_000):
                text = f"{name}-{count}"
                wire.call("chat.inject", sessionKey="main", messages=[{"role": "user", "content": text}])
                acknowledged.append(text)
    except OSError:
        return


def _texts(daemon: Daemon) -> set[str]:
    [transcript] = daemon.transcripts()
    lines = [json.loads(line) for line in transcript.read_bytes().splitlines()]
    return {line["message"]["content"] for line in lines if line["type"] == "message"}


def test_a_full_disk_refuses_appends_until_there_is_room_again(daemon: Daemon) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    daemon.store.mkdir()
    probe = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(daemon.store)], check=False)
    if probe.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        daemon.start()
        daemon.call("sessions.create", key="main")
        filler = daemon.store / "filler"
        filler.write_bytes(b"x" * (256 * 1024 - 64 * 1024))
        failure = daemon.failure("chat.inject", sessionKey="main", messages=[_message("y" * 100_000)])
        assert (failure["code"], failure["data"]["type"]) == (-32009, "storage")
        before = daemon.call("sessions_history", sessionKey="main")
        assert before["messages"] == []
        filler.unlink()
        daemon.call("chat.inject", sessionKey="main", messages=[_message("y" * 100_000)])
        assert len(daemon.call("sessions_history", sessionKey="main")["messages"]) == 1
        daemon.stop()
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        subprocess.run(["umount", str(daemon.store)], check=True)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_failed_fdatasync_is_an_error_to_its_caller_and_leaves_no_record(daemon: Daemon) -> None:
    tracer = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync")
    inject = (*tracer, "-e", "inject=fdatasync:error=EIO:when=4", "--")
    traced = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True)
    if traced.returncode != 0:
        pytest.skip("strace cannot trace here")
    daemon.start(prefix=inject)
    daemon.call("sessions.create", key="main")
    outcomes: list[str] = []
    # The tracer counts the calls of each thread, and on a busy machine several threads take turns.
    while "storage" not in outcomes[:-2] and len(outcomes) < 100:
        outcomes.append(_inject(daemon, f"m{len(outcomes)}"))
    assert set(outcomes) == {"ok", "storage"}
    kept = [f"m{count}" for count, outcome in enumerate(outcomes) if outcome == "ok"]
    page = daemon.call("sessions_history", sessionKey="main")
    assert [message["content"] for message in page["messages"]] == kept
    assert page["skipped"] == 0


def _inject(daemon: Daemon, text: str) -> str:
    with daemon.connect() as wire:
        answer = wire.ask("chat.inject", sessionKey="main", messages=[_message(text)])
    return "ok" if "result" in answer else str(answer["error"]["data"]["type"])


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    """The daemon, started once for all rows of a table."""
    return daemon.start()


@check_each(
    ("line", "code"),
    [
        (b"{nonsense\n", -32700),
        (b' "a string"\n', -32600),
        (b"[]\n", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100 + b"]" * 100 + b"}\n", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"surplus":1}}\n', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"sessions_list","params":{"limit":"many"}}\n', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"sessions_history","params":{"sessionKey":"agent:main:none"}}\n', -32002),
    ],
)
def test_bad_input_gets_a_clear_error_and_the_connection_goes_on(running: Daemon, line: bytes, code: int) -> None:
    with running.connect() as wire:
        wire.send(line)
        assert wire.receive()["error"]["code"] == code
        assert wire.call("ping") == {}


def test_a_huge_line_ends_its_own_connection_only(daemon: Daemon) -> None:
    daemon.start()
    with daemon.connect() as other, daemon.connect() as wire:
        blob = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"' + b"x" * (17 << 20)
        with pytest.raises(OSError):  # noqa: PT012
            wire.send(blob)
            error = wire.receive()["error"]
            assert (error["code"], error["data"]["limit"]) == (-32005, "limits.maxFrameBytes")
            wire.receive()
        assert other.call("ping") == {}


def test_clients_that_vanish_within_a_message_disturb_no_other(daemon: Daemon) -> None:
    daemon.start()
    with daemon.connect() as other:
        for _ in range(20):
            wire = daemon.connect()
            wire.send(b'{"jsonrpc":"2.0","id":1,"method":"chat.se')
            wire.close()
        assert other.call("ping") == {}


def test_a_run_that_kill_9_cut_off_ends_once_as_interrupted(daemon: Daemon, tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"import pathlib, time; pathlib.Path({str(began)!r}).touch(); time.sleep(60)"
    daemon.start(exec_agent(code))
    run_id = daemon.call("chat.send", sessionKey="main", message="never ends")["runId"]
    queued = daemon.call("chat.send", sessionKey="main", message="waits")["runId"]
    daemon.wait_for(began.exists, "the program was not started")
    daemon.kill()
    daemon.start(exec_agent("print('quick')"))
    waited = daemon.call("agent.wait", runId=run_id)
    assert (waited["status"], waited["error"]) == ("error", "interrupted")
    assert daemon.call("agent.wait", runId=queued)["reply"] == "quick"
    daemon.kill()
    daemon.start()
    assert daemon.call("agent.wait", runId=run_id)["error"] == "interrupted"
    ends = [
        line["data"]["status"]
        for line in daemon.records("main")
        if line.get("customType") == "sessiond/run" and line["data"]["runId"] == run_id
    ]
    assert ends == ["accepted", "running", "error"]


def test_sigterm_interrupts_an_attached_run_and_cancels_it_at_its_agent(daemon: Daemon) -> None:
    daemon.start('[[agents.list]]\nid = "main"\nruntime = { type = "attached" }\n')
    with daemon.connect() as wire:
        wire.call("agents.attach", agentId="main")
        run_id = daemon.call("chat.send", sessionKey="main", message="think")["runId"]
        assert wire.event("run.start")["message"] == "think"
        assert daemon.stop() == 0
        assert "id" in wire.event("$/cancelRequest")
    daemon.start()
    waited = daemon.call("agent.wait", runId=run_id)
    assert (waited["status"], waited["error"]) == ("error", "interrupted")


def test_a_reload_takes_a_good_configuration_and_refuses_a_bad_one(daemon: Daemon) -> None:
    daemon.start(exec_agent("print('old')"))
    assert daemon.reply("main", "x")["reply"] == "old"
    daemon.config.write_text(exec_agent("print('new')"))
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for(lambda: "configuration reloaded" in daemon.log.read_text(), "no reload")
    assert daemon.reply("main", "x")["reply"] == "new"
    daemon.config.write_text("[sesion]\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for(lambda: "not reloaded" in daemon.log.read_text(), "no refusal")
    assert daemon.reply("main", "x")["reply"] == "new"
    assert daemon.stop() == 0
    assert not daemon.socket.exists()


def test_a_bad_configuration_prevents_the_start_and_names_line_and_nearest_key(daemon: Daemon) -> None:
    daemon.config.write_text('\n[session]\nmainKee = "x"\n')
    got = daemon.cli(*daemon.command()[len(PROGRAM) :])
    assert got.returncode == 78
    assert "config.toml:3" in got.stderr
    assert "session.mainKey" in got.stderr


def test_the_agent_socket_requires_a_token_first(daemon: Daemon) -> None:
    daemon.start()
    daemon.reply("main", "hello")
    token = daemon.call("tokens.mint", scopes=["list", "read"], sessionKey="main")["token"]
    with Wire(daemon.agent_socket) as wire:
        assert wire.ask("ping")["error"]["code"] == -32001
        wire.call("initialize", protocol=1, client={"name": "test", "version": "1"}, token=token)
        assert wire.call("sessions_list")["count"] == 1
        assert wire.ask("daemon.status")["error"]["code"] == -32003
