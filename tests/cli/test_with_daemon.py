"""The command line with the real daemon, which runs as a process on a temporary store."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import pick, spread, whole_only

from sessiond.client import AttachedRun, Client, ClientError

pytestmark = pytest.mark.system

AGENT = """
import sys, time
text = sys.stdin.read().strip()
if text.startswith("slow"):
    time.sleep(float(text.split()[1]))
if text == "half":
    print("first half", flush=True)
    time.sleep(30)
if text == "quiet":
    sys.exit()
if text == "fail":
    sys.exit("out of order")
print("you said: " + text)
"""
CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "exec", command = ['{python}', '-IS', '{agent}'], input = "text", output = "text" }}
subagents = {{ allowAgents = ["*"] }}

[[agents.list]]
id = "alice"
runtime = {{ type = "attached" }}
"""


def run(daemon: Daemon, *words: str, **more: Any) -> tuple[int, str, str]:
    done = daemon.cli(*words, **more)
    return done.returncode, done.stdout, done.stderr


def popen(daemon: Daemon, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sessiond", *words]
    return subprocess.Popen(command, env=daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(daemon: Daemon, is_so: Callable[[], object]) -> None:
    daemon.wait_for(is_so, "it did not come")


def start(daemon: Daemon) -> Daemon:
    agent = daemon.folder / "agent.py"
    agent.write_text(AGENT)
    daemon.environ["COLUMNS"] = "100"
    return daemon.start(CONFIG.format(python=sys.executable, agent=agent))


@pytest.fixture
def started(daemon: Daemon) -> Daemon:
    """For tests that end it, or that want no session before."""
    return start(daemon)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = start(Daemon(tmp_path_factory.mktemp("shared")))
    yield made
    made.kill()


@pytest.fixture
def cleared(shared: Daemon) -> Daemon:
    """A daemon of many tests, which has the empty session `main` alone; its environment is of the test alone."""
    with shared.connect() as wire:
        wire.call("sessions.create", key="main")
        for row in shared.rows():
            wire.call("sessions.reset" if row["key"] == "main" else "sessions.delete", key=row["key"])
    found = copy.copy(shared)
    found.environ = dict(shared.environ)
    return found


def test_send_list_and_history_work_together(cleared: Daemon) -> None:
    assert run(cleared, "send", "main", "hello", "there") == (0, "you said: hello there\n", "")
    assert run(cleared, "send", "main", "-", input="from a pipe\n") == (0, "you said: from a pipe\n", "")
    status, out, _ = run(cleared, "list")
    titles, row = (line.split("\t") for line in out.splitlines())
    assert (status, titles[:4], row[:2], row[3]) == (0, ["key", "status", "updatedAt", "messages"], ["main", "ok"], "4")
    status, out, err = run(cleared, "history", "main", "-n", "3")
    assert [line.split(" ", 1)[1] for line in out.splitlines()] == [
        "assistant you said: hello there",
        "user      from a pipe",
        "assistant you said: from a pipe",
    ]
    cursor = err.strip().rpartition(" ")[2]
    status, out, err = run(cleared, "history", "main", "--before", cursor)
    assert [line.split(" ", 1)[1] for line in out.splitlines()] == ["user      hello there"]


def test_failures_have_their_exit_codes(started: Daemon) -> None:
    status, out, err = run(started, "send", "main", "fail")
    assert (status, out) == (1, "") and "out of order" in err
    assert run(started, "history", "agent:main:nobody")[0] == 4
    assert run(started, "history", "agent:::")[0] == 2
    assert run(started, "send", "agent:nobody:main", "x")[0] == 4
    assert run(started, "call", "no.such.method")[0] == 2
    status, _, err = run(started, "serve", "--store", str(started.store))
    assert status == 69 and str(started.process.pid) in err
    bad = started.config.with_name("bad.toml")
    bad.write_text("[sesion]\n")
    status, _, err = run(started, "serve", "--store", str(started.store) + "2", "--config", str(bad))
    assert status == 78 and "bad.toml:1" in err and "session" in err


def test_a_session_is_found_by_its_label_and_by_the_beginning_of_its_id(cleared: Daemon) -> None:
    run(cleared, "send", "main", "hello")
    cleared.call("sessions.create", key="agent:main:desk", label="research")
    session_id = cleared.call("sessions.resolve", key="agent:main:desk")["sessionId"]
    assert run(cleared, "send", "research", "one") == (0, "you said: one\n", "")
    assert "you said: one" in run(cleared, "history", session_id[:8])[1]
    status, path, _ = run(cleared, "path", "research")
    assert status == 0 and Path(path.strip()).name == f"{session_id}.jsonl"
    assert run(cleared, "history", session_id[:7])[0] == 4
    status, _, err = run(cleared, "history", "reserch")
    assert (status, err.splitlines()) == (4, ["sessiond: no session 'reserch'", "  did you mean research?"])
    assert json.loads(run(cleared, "call", "sessions_list", "limit=1", "search=zzz")[1])["sessions"] == []
    status, _, err = run(cleared, "call", "sessions_lst")
    assert status == 2 and "did you mean sessions_list" in err
    status, _, err = run(cleared, "send", "--agent", "mian", "hello")
    assert status == 4 and "did you mean main" in err


def test_a_session_is_watched_by_its_label(cleared: Daemon) -> None:
    cleared.call("sessions.create", key="agent:main:desk", label="research")
    with popen(cleared, "watch", "research") as process:
        try:
            assert process.stdout is not None
            wait_until(cleared, lambda: json.loads(run(cleared, "status", "--json")[1])["subscribers"] > 0)
            run(cleared, "send", "research", "hello")
            assert "agent:main:desk" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
    assert run(cleared, "watch", "reserch")[::2] == (4, "sessiond: no session 'reserch'\n  did you mean research?\n")


def test_list_shows_all_sessions_over_several_pages(started: Daemon) -> None:
    with started.connect() as wire:
        for number in range(205):
            wire.call("sessions.create", key=f"agent:main:n{number}")
    status, out, err = run(started, "list")
    assert (status, len(out.splitlines())) == (0, 51) and "--all" in err
    status, out, err = run(started, "list", "--all")
    assert (status, len(out.splitlines()), err) == (0, 206, "")


def test_interrupting_a_wait_reports_that_the_run_goes_on(cleared: Daemon) -> None:
    unanswered = "interrupted before the daemon answered: the message to main may have arrived"
    err = unanswered
    while unanswered in err:  # the row says running before the command has its answer
        with popen(cleared, "send", "main", "slow 0.8") as process:
            wait_until(cleared, lambda: "running" in run(cleared, "list")[1])
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    wait = err.split("wait on with: sessiond ")[1].split()
    assert run(cleared, *wait) == (0, "you said: slow 0.8\n", "")


def test_interrupting_a_send_before_its_answer_says_that_it_may_have_arrived(fake: FakeDaemon) -> None:
    fake.answers["chat.send"] = lambda _params, _connection: NO_ANSWER
    command = [sys.executable, "-m", "sessiond", "send", "main", "hello"]
    environ = {**os.environ, "SESSIOND_SOCKET": str(fake.path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        fake.asked("chat.send")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()) == (
        130,
        [
            "sessiond: interrupted before the daemon answered: the message to main may have arrived",
            "  see: sessiond history main",
        ],
    )


@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_is_reported_in_a_sentence(cleared: Daemon, output: str) -> None:
    command = f"{sys.executable} -m sessiond list {output}"
    done = subprocess.run(["sh", "-c", command], env=cleared.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("sessiond: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    spread(
        [
            ("send main $'caf\\xe9'", r"'caf\xe9' is not UTF-8 text"),
            ("create agent:main:x --label $'\\xff'", r"'\xff' is not UTF-8 text"),
            ("history $'\\xff'", r"'\xff' is not UTF-8 text"),
            ("watch $'\\xff'", r"'\xff' is not UTF-8 text"),
            ("search $'a\\xff'", r"'a\xff' is not UTF-8 text"),
            ('call chat.send \'{"sessionKey":"main","message":"\\ud800"}\'', "contains a lone surrogate"),
        ],
        2,
    ),
)
def test_arguments_that_are_not_utf8_are_refused_with_a_sentence(cleared: Daemon, line: str, said: str) -> None:
    command = ["bash", "-c", f"{sys.executable} -m sessiond {line}"]
    done = subprocess.run(command, env={**cleared.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, check=False)
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr


def test_arguments_are_utf8_whatever_the_locale(cleared: Daemon) -> None:
    plain = {**cleared.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(cleared, "send", "main", "größe 日本", env=plain, text=True)  # in its own process, with this locale
    assert done == (0, "you said: gr\\xf6\\xdfe \\u65e5\\u672c\n", "")
    assert "größe 日本" in cleared.call("sessions_history", sessionKey="main")["messages"][0]["content"]


def test_the_timeout_option_limits_the_wait_and_not_the_run(cleared: Daemon) -> None:
    status, out, err = run(cleared, "send", "main", "slow 0.8", "--timeout", "0.1")
    assert (status, out) == (5, "")
    assert "goes on" in err
    wait = err.split("wait on with: sessiond ")[1].split()
    assert run(cleared, *wait) == (0, "you said: slow 0.8\n", "")
    wait_until(cleared, lambda: "you said: slow 0.8" in run(cleared, "history", "main")[1])


def test_a_wait_survives_a_restart_and_reports_that_the_run_was_interrupted(started: Daemon) -> None:
    with popen(started, "send", "main", "slow 30") as process:
        wait_until(started, lambda: "running" in run(started, "list")[1])
        started.kill()
        started.start()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[0] == "reconnecting…" and "interrupted" in err


@pytest.mark.parametrize(
    "words", pick([["watch", "--json"], ["watch", "main", "--json"], ["history", "main", "-f", "--json"]], __name__)
)
def test_following_survives_kill_9_and_misses_nothing(started: Daemon, words: list[str]) -> None:
    run(started, "send", "main", "zero")
    seen: list[str] = []

    def read(stream: Any) -> None:
        for line in stream:
            event = json.loads(line)
            if event["event"] == "session.message" and event["message"]["role"] == "user":
                seen.append(event["message"]["content"])

    with popen(started, *words) as process:
        reader = threading.Thread(target=read, args=(process.stdout,))
        reader.start()

        # The count of subscribers would not do: a client also subscribes for a moment to learn the full key of `main`.
        def is_heard() -> bool:
            run(started, "send", "main", "hear me")
            return "hear me" in seen

        wait_until(started, is_heard)
        for number in range(3):
            run(started, "send", "main", f"before {number}")
            started.kill()
            transcript = next((started.store / "agents" / "main" / "sessions").glob("*.jsonl"))
            stranger = {"type": "message", "id": f"x{number}", "message": {"role": "user", "content": f"away {number}"}}
            with transcript.open("a") as file:
                file.write(json.dumps(stranger) + "\n")
            started.start()
        run(started, "send", "main", "last")
        wait_until(started, lambda: "last" in seen)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        reader.join(PATIENCE_S)
        assert process.stderr is not None
        # Reported once for each outage noticed: a waiting client may see two in a row as one.
        said = process.stderr.read().splitlines()
        assert said == ["reconnecting…", "  connected again"] * (len(said) // 2) and said
    expected = [f"{word} {number}" for number in range(3) for word in ("before", "away")] + ["last"]
    told = [text for text in seen if text != "hear me"]
    assert told == (["zero", *expected] if words[0] == "history" else expected)


@pytest.mark.parametrize(
    ("words", "failed", "aborted"),
    spread(
        [
            (["watch", "main"], "run       failed (error", "run       ended (aborted"),
            (["history", "main", "-f"], "run       failed: ", "run       was aborted"),
            (["watch", "main", "--json"], '"phase":"error"', '"phase":"end","reason":"aborted"'),
            (["history", "main", "-f", "--json"], '"phase":"error"', '"phase":"end","reason":"aborted"'),
        ],
        2,
    ),
)
def test_following_a_session_shows_live_how_its_runs_end(
    cleared: Daemon, words: list[str], failed: str, aborted: str
) -> None:
    run(cleared, "send", "main", "fail")  # ended before: not shown again
    run(cleared, "create", "agent:main:other")
    lines: list[str] = []
    with popen(cleared, *words) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
        reader.start()
        try:
            wait_until(cleared, lambda: json.loads(run(cleared, "status", "--json")[1])["subscribers"] > 0)
            before = len(lines)

            def fails_visibly() -> bool:
                run(cleared, "send", "main", "fail")
                return any(failed in line for line in lines[before:])

            wait_until(cleared, fails_visibly)
            run(cleared, "send", "agent:main:other", "fail")  # runs of other sessions are not shown
            run(cleared, "send", "main", "slow 30", "--no-wait")
            wait_until(cleared, lambda: "running" in run(cleared, "list")[1])
            run(cleared, "abort", "main")
            wait_until(cleared, lambda: any(aborted in line for line in lines))
        finally:
            process.send_signal(signal.SIGINT)
        reader.join(PATIENCE_S)
    assert sum(aborted in line for line in lines) == 1, lines
    asked = sum("user      " in line or '"role":"user"' in line for line in lines[before:])
    assert sum(failed in line for line in lines[before:]) < asked, lines  # each is shown once; one of them was aborted
    assert not any("agent:main:other" in line for line in lines)


def test_sessions_can_be_created_changed_reset_and_deleted(cleared: Daemon) -> None:
    assert run(cleared, "create", "agent:main:notes", "--label", "notes")[:2] == (0, "agent:main:notes\n")
    assert run(cleared, "send", "--label", "notes", "remember the milk")[1] == "you said: remember the milk\n"
    assert run(cleared, "patch", "agent:main:notes", "--display-name", "Notes", "--clear", "label")[0] == 0
    assert "remember the milk" in run(cleared, "search", "milk", "--since", "1h")[1]
    assert run(cleared, "search", "milk", "--role", "toolResult")[1] == ""
    assert run(cleared, "reset", "agent:main:notes")[0] == 0
    assert run(cleared, "delete", "agent:main:notes")[0] == 0
    assert run(cleared, "delete", "main")[0] != 0


def test_a_token_narrows_what_the_command_line_may_do(cleared: Daemon, tmp_path: Path) -> None:
    run(cleared, "send", "main", "x")
    status, token, err = run(cleared, "token", "mint", "--scope", "list", "--session", "main")
    assert status == 0
    file = tmp_path / "token"
    file.write_text(token)
    cleared.environ["SESSIOND_TOKEN_FILE"] = str(file)
    assert run(cleared, "list")[0] == 0
    assert run(cleared, "history", "main")[0] == 4
    assert run(cleared, "status")[0] == 4
    del cleared.environ["SESSIOND_TOKEN_FILE"]
    token_id = err.split()[1].rstrip(",")
    assert run(cleared, "token", "revoke", token_id)[0] == 0
    assert "revoked" in run(cleared, "token", "list", "--all")[1]
    cleared.environ["SESSIOND_TOKEN_FILE"] = str(file)
    assert run(cleared, "list")[0] == 77


def test_runs_are_stopped_and_steered(cleared: Daemon) -> None:
    for words in (["abort", "main"], ["kill", "main"]):
        run_id = run(cleared, "send", "main", "slow 30", "--no-wait")[1].strip()
        wait_until(cleared, lambda: "running" in run(cleared, "list")[1])
        status, out, _ = run(cleared, *words)
        assert (status, out.split()[1]) == (0, run_id)
    run(cleared, "send", "main", "slow 30", "--no-wait")
    wait_until(cleared, lambda: "running" in run(cleared, "list")[1])
    status, steered, err = run(cleared, "steer", "main", "go left")
    assert status == 0 and "interrupted" in err
    assert json.loads(run(cleared, "call", "agent.wait", json.dumps({"runId": steered.strip()}))[1])["status"] == "ok"


def test_a_spawned_sub_agent_gets_its_file_and_its_reply_is_printed(cleared: Daemon, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("contents")
    status, out, err = run(cleared, "spawn", "--attach", str(tmp_path / "a.txt"), "--wait", "look")
    assert status == 0 and "look" in out and "a.txt" in err


def test_a_ten_line_attached_agent_answers(started: Daemon) -> None:
    client = Client(str(started.socket))

    def answer(run: AttachedRun) -> str:
        return f"alice heard {run.message}"

    thread = threading.Thread(target=lambda: client.attach("alice", answer))
    thread.start()
    wait_until(started, lambda: json.loads(run(started, "status", "--json")[1])["attachedAgents"] != {})
    assert run(started, "send", "agent:alice:main", "hi")[:2] == (0, "alice heard hi\n")
    assert "alice" in run(started, "agents")[1]
    started.kill()
    started.start()
    assert run(started, "send", "agent:alice:main", "again")[:2] == (0, "alice heard again\n")
    client.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_demo_runs_through_and_leaves_nothing_behind(short_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(short_path)}
    command = [sys.executable, "-m", "sessiond", "demo"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    for said in (
        "$ sessiond send main",
        "You sent 4 words",
        "$ sessiond list",
        "$ cat ",
        "poem.txt: 4 lines, 22 words",
        "[from agent:reader:subagent:",
        "Thank you.",
        "removed",
    ):
        assert said in done.stdout
    assert list(short_path.iterdir()) == []


@whole_only("test_the_demo_runs_through_and_leaves_nothing_behind")
def test_the_demo_can_be_kept(short_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(short_path)}
    command = [sys.executable, "-m", "sessiond", "demo", "--keep", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    facts = json.loads(done.stdout)
    assert facts["reply"]["reply"].startswith("Yes!")
    assert Path(facts["sessions"][0]["transcriptPath"]).is_file()
    with pytest.raises(ClientError):
        Client(facts["socket"]).call("ping")


def test_history_shows_how_runs_ended(cleared: Daemon) -> None:
    run(cleared, "send", "main", "fail")
    run(cleared, "send", "main", "hello")
    out = run(cleared, "history", "main")[1]
    lines = [line.split(" ", 1)[1] for line in out.splitlines()]
    assert lines[0] == "user      fail"
    assert lines[1].startswith("run       failed: ") and "out of order" in lines[1]
    assert lines[-2:] == ["user      hello", "assistant you said: hello"]
    assert "--:--:--" not in out
    # A run end before the first message of a page belongs to the previous page.
    assert "failed" not in run(cleared, "history", "main", "-n", "2")[1]


def test_an_empty_reply_is_reported_as_empty(cleared: Daemon) -> None:
    assert run(cleared, "send", "main", "quiet") == (0, "", "  main is done and replied nothing\n")
    lines = [line.split(" ", 1)[1] for line in run(cleared, "history", "main")[1].splitlines()]
    assert lines == ["user      quiet", "run       done, without a reply"]


def test_history_shows_the_output_of_a_run_that_was_ended(started: Daemon) -> None:
    def has_printed() -> bool:
        return "first half" in str(events)

    events: list[Any] = []
    with Client(str(started.socket)) as client:
        started.call("sessions.create", key="main")
        reader = threading.Thread(target=lambda: events.extend(iter_until_closed(client)))
        reader.start()
        wait_until(started, lambda: started.call("daemon.status")["subscribers"])
        run(started, "send", "main", "half", "--no-wait")
        wait_until(started, has_printed)
        run(started, "abort", "main")
        events.clear()
        for limit_s in (1, 4, 16, 64):  # wait until the program has printed, however slow the machine is
            sent = started.call("chat.send", sessionKey="main", message="half", timeoutSeconds=limit_s)
            assert client.wait(sent["runId"])["status"] == "timeout"
            if has_printed():
                break
        events.clear()
        run(started, "send", "main", "half", "--no-wait")
        wait_until(started, has_printed)
        started.stop()
        client.close()
        reader.join(PATIENCE_S)
    started.start()
    run(started, "send", "main", "fail")
    lines = [line[9:].strip() for line in run(started, "history", "main")[1].splitlines()]
    for end in ("was aborted", "met its time limit", "was interrupted: the daemon stopped"):
        assert lines[lines.index(f"run       {end}; it had printed:") + 1] == "first half"
    assert any(line.startswith("run       failed: ") and "out of order" in line for line in lines)


def iter_until_closed(client: Client) -> Any:
    with suppress(ClientError):
        yield from client.subscribe("main")


def test_unread_inbox_messages_are_shown_once(started: Daemon) -> None:
    status, out, err = run(started, "inbox")
    assert (status, out) == (0, "key\tunread\tmore\toldest\n") and "no program has an inbox yet" in err
    started.call("sessions.create", key="mcp:reader")
    for text in ("one", "two\nlines"):
        run(started, "send", "mcp:reader", text)
    assert run(started, "inbox")[1].splitlines()[1].split("\t")[:3] == ["agent:main:mcp:reader", "2", "0"]
    assert json.loads(run(started, "inbox", "--json")[1])["inboxes"][0]["unread"] == 2
    for _ in range(2):
        peeked = json.loads(run(started, "inbox", "mcp:reader", "--peek", "--json")[1])
        assert [message["text"] for message in peeked["messages"]] == ["one", "two\nlines"]
    out = run(started, "inbox", "mcp:reader")[1]
    assert [line.split("\t")[1:3] for line in out.splitlines()] == [["from", "text"], ["", "one"], ["", "two lines"]]
    status, out, err = run(started, "inbox", "mcp:reader", "--wait", "0")
    assert (status, len(out.splitlines())) == (0, 1) and "nothing unread" in err
    status, out, err = run(started, "inbox", "main")
    assert (status, out) == (4, "") and "no session 'main'" in err
    run(started, "send", "main", "hello")
    status, out, err = run(started, "inbox", "main")
    assert (status, out) == (2, "") and 'an agent runs on its messages; "sessiond history" reads them' in err


def test_inbox_messages_stay_unread_if_the_output_fails(cleared: Daemon) -> None:
    cleared.call("sessions.create", key="mcp:reader")
    run(cleared, "send", "mcp:reader", "hello")
    command = [sys.executable, "-m", "sessiond", "inbox", "mcp:reader"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, env=cleared.environ, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert "hello" in run(cleared, "inbox", "mcp:reader")[1]


def test_the_token_of_a_program_reads_its_own_inbox(cleared: Daemon, tmp_path: Path) -> None:
    cleared.call("sessions.create", key="mcp:reader")
    run(cleared, "send", "mcp:reader", "hello")
    minted = cleared.call("tokens.mint", sessionKey="mcp:reader", scopes=["list", "read"])
    file = tmp_path / "token"
    file.write_text(minted["token"])
    cleared.environ["SESSIOND_TOKEN_FILE"] = str(file)
    assert run(cleared, "inbox")[1].splitlines()[1].split("\t")[2] == "hello"
    assert len(run(cleared, "inbox")[1].splitlines()) == 1


def test_history_shows_the_files_sent_with_a_message(cleared: Daemon, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("one,two\n")
    run(cleared, "send", "main", "plain")
    run(cleared, "send", "main", "--attach", str(table), "see this")
    shown = [line.strip() for line in run(cleared, "history", "main")[1].splitlines()]
    asked = next(number for number, line in enumerate(shown) if line.endswith("user      see this"))
    assert shown[asked + 1] == "[attached: table.csv (8 B)]"
    assert sum("[attached" in line for line in shown) == 1
    files = cleared.call("sessions_history", sessionKey="main", includeRuns=True)["attachments"]
    assert files == [{"seq": 3, "files": [{"name": "table.csv", "bytes": 8}]}]
    assert "attachments" not in cleared.call("sessions_history", sessionKey="main")


def test_without_a_daemon_a_command_fails_at_once(daemon: Daemon) -> None:
    for words in (["wait", "x"], ["inbox"], ["history", "main"], ["call", "ping"]):
        status, out, err = run(daemon, *words)
        assert (status, out, err.count("not running")) == (3, "", 1), err


def test_an_invalid_token_is_reported_in_the_words_of_the_command_line(cleared: Daemon) -> None:
    status, _, err = run(cleared, "token", "revoke", "zzz")
    assert status == 2 and err.startswith("sessiond: ID is no token id")


def test_the_path_of_a_transcript_is_found_without_a_daemon(started: Daemon) -> None:
    del started.environ["SESSIOND_SOCKET"]
    started.environ["SESSIOND_CONFIG"] = str(started.config)
    started.environ["XDG_RUNTIME_DIR"] = str(started.folder)
    started.reply("main", "hello")
    started.call("sessions.create", key="agent:main:notes", label="my notes")
    started.kill()  # the index is out of date
    (main, notes) = sorted(started.transcripts(), key=lambda path: path.stat().st_size, reverse=True)
    for words in ("main", "agent:main:main", main.stem, main.stem[:8]):
        assert run(started, "path", words) == (0, f"{main}\n", ""), words
    assert run(started, "path", "my notes") == (0, f"{notes}\n", "")
    told = {"key": "agent:main:notes", "sessionId": notes.stem, "transcriptPath": str(notes)}
    assert json.loads(run(started, "path", "agent:main:notes", "--json")[1]) == told
    status, out, err = run(started, "path", "nothing")
    assert (status, out) == (4, "") and "no session 'nothing'" in err and str(started.store) in err
    status, out, err = run(started, "path", "claude:0e821bfa-1111")
    assert (status, out) == (3, "") and "sessions of other programs" in err and "sessiond serve" in err
    assert run(started, "path", "main", "--socket", str(started.socket))[0] == 3
    started.environ["SESSIOND_STORE"] = str(started.folder / "nowhere")
    status, _, err = run(started, "path", "main")
    assert status == 3 and "nowhere cannot be read" in err
