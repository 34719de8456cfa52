"""Every exit code for a failure, with a real connection or without one."""

from __future__ import annotations

import io
import os
import pwd
import queue
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond import cli
from sessiond.cli.frame.daemon import CommandClient
from sessiond.cli.frame.failures import CommandFailed, describe
from sessiond.client import retry
from sessiond.client.errors import BadEnvironment, CallTimeout, ClientError, NotPermitted


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that stops or dies is asked again for less long than ten seconds."""
    monkeypatch.setattr(retry, "RECONNECT_S", 0.2)


def test_without_a_daemon_the_exit_code_is_3_and_the_error_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.sock"
    assert cli.run(["list", "--socket", str(path)]) == 3
    assert capsys.readouterr() == (
        "",
        f"sessiond: sessiond is not running (no socket at {path})\n"
        "  start it: sessiond serve (or, where it is installed as a service: systemctl --user start sessiond)\n",
    )


def test_a_socket_without_a_listener_gives_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        assert cli.run(["status", "--socket", str(path)]) == 3
    assert f"(nobody listens at {path})" in capsys.readouterr().err


@check_each(
    ("error", "status"),
    [
        ((-32002, "not_found"), 4),
        ((-32003, "forbidden"), 4),
        ((-32001, "unauthenticated"), 77),
        ((-32602, "invalid_params"), 2),
        ((-32601, "method_not_found"), 2),
        ((-32004, "conflict"), 1),
        ((-32005, "limit_exceeded"), 1),
        ((-32008, "stopping"), 1),
        ((-32009, "storage"), 1),
        ((-32603, "internal"), 1),
    ],
)
def test_the_daemons_refusals_have_their_exit_codes(
    fake: Any, refusal: Any, sessiond: Callable[..., Any], error: tuple[int, str], status: int
) -> None:
    def refuse(*_: Any) -> None:
        raise refusal(*error, "that cannot be \x1b[2J")

    fake.answers["ping"] = refuse
    done = sessiond("call", "ping")
    assert (done.status, done.out) == (status, "")
    assert "sessiond: that cannot be \\x1b[2J\n" in done.err


def test_an_unknown_run_is_not_reported_as_an_unknown_session(
    fake: Any, refusal: Any, sessiond: Callable[..., Any]
) -> None:
    sentence = "no run 'x'; a run's id is in the answer that accepted it"

    def refuse(*_: Any) -> None:
        raise refusal(-32002, "not_found", sentence, code="run_not_found")

    fake.answers |= {"ping": lambda *_: {}, "agent.wait": refuse}
    done = sessiond("wait", "x")
    assert (done.status, done.err) == (4, f"sessiond: {sentence}\n")


def test_an_unknown_session_of_a_program_is_reported_with_the_option_and_where_the_ids_are(
    fake: Any, refusal: Any, sessiond: Callable[..., Any]
) -> None:
    def refuse(*_: Any) -> None:
        raise refusal(-32002, "not_found", "$.resumeSessionId 'x' is not there", code="native_session_not_found")

    fake.answers["sessions_spawn"] = refuse
    hint = 'the ids of programs\' own sessions: "sessiond list --json", nativeId'
    done = sessiond("spawn", "--runtime", "acp", "--resume-session", "x", "go")
    assert done == (4, "", f"sessiond: --resume-session 'x' is not there\n  {hint}\n")


class QueuedTexts(io.StringIO):
    """A standard error that a test reads while a thread writes; `capsys` loses what is written while it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue.SimpleQueue[str]()

    def write(self, text: str) -> int:
        self.queue.put(text)
        return len(text)


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Path]:
    """The file of a daemon that is starting, with its process id as the only line."""
    # /proc shows its command line only once it runs.
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "sessiond"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None
        daemon.stdout.readline()
        file = tmp_path / "starting"
        file.write_text(f"{daemon.pid}\n")
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)  # it is not waited for any more, and a test that failed ends
            daemon.stdin.close()


@pytest.mark.parametrize(("told", "shown"), [("", ""), ("reading: 1 of 2", ": reading: 1 of 2")])
def test_the_error_says_how_far_a_starting_daemon_is(starting: Path, told: str, shown: str) -> None:
    starting.write_text(starting.read_text() + told)
    path = starting.with_name("d.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        texts = QueuedTexts()
        with redirect_stderr(texts), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(CommandClient(str(path), name="test", version="0")._show_start)
            text = texts.queue.get(timeout=PATIENCE_S)
            # It listens already, and is waited for until it has read the store.
            assert not waiting.done()
            starting.unlink()
            assert waiting.result(PATIENCE_S)
    assert (text, texts.queue.empty()) == (f"sessiond is starting{shown}\n", True)


def test_whatever_a_command_asks_first_it_waits_for_a_daemon_that_is_starting(fake: Any, starting: Path) -> None:
    """Also what a starting daemon would answer or accept at once: the next call would wait, and nobody know why."""
    fake.answers |= {"daemon.status": lambda *_: {}, "agents_list": lambda *_: {}}

    def status_first(client: CommandClient) -> object:
        client.call("daemon.status")
        return client.call("agents_list")

    firsts: list[Callable[[CommandClient], object]] = [
        lambda client: client.caller,
        lambda client: next(client.subscribe(), None),
        status_first,
    ]
    written = starting.read_text()
    for first in firsts:
        starting.write_text(written)
        texts = QueuedTexts()
        with (
            CommandClient(str(fake.path), name="test", version="0") as client,
            redirect_stderr(texts),
            ThreadPoolExecutor(1) as pool,
        ):
            waiting = pool.submit(first, client)
            text = texts.queue.get(timeout=PATIENCE_S)
            assert (text, waiting.done()) == ("sessiond is starting\n", False)
            starting.unlink()
            client.close()
            waiting.exception(PATIENCE_S)


def test_a_daemon_that_dies_before_it_answers_gives_exit_code_3(fake: Any, sessiond: Callable[..., Any]) -> None:
    fake.answers["ping"] = lambda _, connection: connection.drop()
    done = sessiond("call", "ping")
    assert done.status == 3
    assert "before it answered; what was asked may have been done" in done.err


def test_no_answer_in_time_gives_exit_code_5(fake: Any, sessiond: Callable[..., Any]) -> None:
    fake.answers["ping"] = lambda _, connection: NO_ANSWER
    done = sessiond("call", "ping", "--timeout", "0.05")
    assert (done.status, done.err.splitlines()[0]) == (5, "sessiond: sessiond did not answer ping within 0.05 s")


def test_a_socket_path_that_is_too_long_gives_exit_code_78(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "--socket", "/tmp/" + "x" * 200]) == 78
    assert "205 bytes long, a Unix socket takes 107" in capsys.readouterr().err


@check_each(
    ("error", "status"),
    [(NotPermitted("no"), 77), (BadEnvironment("no"), 78), (CallTimeout("no"), 5), (ClientError("no"), 1)],
)
def test_the_clients_own_errors_have_their_exit_codes(error: ClientError, status: int) -> None:
    failure = describe(error)
    assert isinstance(failure, CommandFailed)
    assert (failure.status, failure.message) == (status, "no")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_socket_of_another_user_gives_exit_code_77() -> None:
    # Not in `tmp_path`: whenever another pytest starts, it closes the folder that all of them share to other users.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "d.sock"
        Path(folder).chmod(0o755)
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        # Imported before the process changes its user, who may not be allowed to read Python's own files.
        code = (
            "import os, sys; from sessiond import cli\n"
            "cli.run(['list', '--socket', '/none'])\n"
            f"os.setuid({pwd.getpwnam('nobody').pw_uid})\n"
            f"sys.exit(cli.run(['list', '--socket', {str(path)!r}]))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stderr.endswith(f"\nsessiond: no permission to connect to {path}: it belongs to another user\n")


def test_a_closed_pipe_ends_the_output_quietly(fake: Any) -> None:
    rows = [{"key": f"agent:main:{n}", "updatedAt": 0, "messageCount": 0, "displayName": "x" * 80} for n in range(5000)]
    fake.answers["sessions_list"] = lambda *_: {"sessions": rows, "hasMore": False, "visibility": "all"}
    command = f"{sys.executable} -m sessiond list --socket {fake.path} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("key\t")


def test_a_call_that_may_have_been_carried_out_is_not_advised_to_be_repeated(
    fake: Any, refusal: Any, sessiond: Callable[..., Any]
) -> None:
    def refuse(*_: Any) -> None:
        raise refusal(-32008, "stopping", "it may have been done or not.", begun=True)

    fake.answers["sessions.reset"] = refuse
    done = sessiond("reset", "x")
    assert (done.status, done.err) == (1, "sessiond: it may have been done or not.\n")
