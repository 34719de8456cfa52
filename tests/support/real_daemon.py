"""The real daemon for tests: started as a process on a store of its own, spoken to over its real socket.

Most are forked from a process that has the imports done (`forked_daemon.py`). A whole run (`sampling.py`) starts each
of them as a user does, and so does whatever asks for more than a configuration.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from support.forked_daemon import ForkedProcess, fork_server
from support.patience import PATIENCE_S

PROGRAM = (sys.executable, "-m", "sessiond")


class Daemon:
    """`sessiond serve` on one store. `call` asks as the owner; `start` and `kill` may come again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.run = folder / "run"
        self.config = folder / "config.toml"
        self.log = folder / "log"
        self.environ = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "SESSIOND_STORE": str(self.store),
            "SESSIOND_SOCKET": str(self.socket),
            "LANG": "C.UTF-8",
        }
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        # Where TCP is listened on, for a configuration that says so.
        self.port = 0

    @property
    def socket(self) -> Path:
        return self.run / "sessiond.sock"

    @property
    def agent_socket(self) -> Path:
        return self.run / "agent.sock"

    def command(self, *extra: str) -> list[str]:
        """The daemon's command line."""
        config = ["--config", str(self.config)] if self.config.exists() else []
        return [*PROGRAM, "serve", "--store", str(self.store), *config, *extra]

    def start(
        self,
        config: str | None = None,
        *,
        extra: tuple[str, ...] = (),
        umask: int = -1,
        prefix: tuple[str, ...] = (),
        pass_fds: tuple[int, ...] = (),
        until_loaded: bool = True,
    ) -> Daemon:
        """Start it and wait until it answers; with `until_loaded` until it has read its store, too.

        `extra` are more words of its command line.
        """
        self.run.mkdir(mode=0o700, exist_ok=True)
        if config is not None:
            self.config.write_text(config)
        command = self.command(*extra)
        if self._may_fork and not prefix and not pass_fds:
            words, more = command[len(PROGRAM) :], {"umask": umask} if umask >= 0 else {}
            self.process = fork_server().start(words, self.environ, self.log, **more)
        else:
            self.process = self._run([*prefix, *command], pass_fds, umask)
        self.wait_for(self._answers, "the daemon does not answer")
        if until_loaded:
            self.wait_for(self._has_started, "the daemon does not end its start")
        return self

    @property
    def _may_fork(self) -> bool:
        """Whether it is a plain one: no other command line, nothing in its environment that its interpreter reads."""
        is_plain = type(self).command is Daemon.command
        return is_plain and not any(name.startswith(("PYTHON", "LD_", "MALLOC")) for name in self.environ)

    def _run(self, command: list[str], pass_fds: tuple[int, ...] = (), umask: int = -1) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=self.environ,
                umask=umask,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A group of its own: what ends strace does not end the daemon that it traced.
                process_group=0,
                pass_fds=pass_fds,
            )

    def _has_started(self) -> bool:
        self._expect_alive()
        return not (self.run / "starting").exists()

    def _expect_alive(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log.read_text()}")

    def _answers(self) -> bool:
        self._expect_alive()
        try:
            return self.call("ping") == {}
        except OSError:
            return False

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Look until it is so; for what another process does and nothing announces."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, 0.004
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}:\n{self.log.read_text()}")
            time.sleep(pause_s)
            # Most look by asking the daemon: whoever waits long must not keep it busy.
            pause_s = min(1.2 * pause_s, 0.05)

    def kill(self) -> None:
        """kill -9, of whatever it was started through as well."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)

    def connect(self, path: Path | None = None) -> Wire:
        """A connection to the owner's socket, or another one."""
        return Wire(path or self.socket)

    def call(self, method: str, /, **params: Any) -> Any:
        """The result of one call as the owner. RpcFailure where it is an error."""
        with self.connect() as wire:
            return wire.call(method, **params)

    def failure(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The error of one call that has to fail."""
        with self.connect() as wire:
            answer = wire.ask(method, **params)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    def reply(self, key: str, message: str, **params: Any) -> Any:
        """Send a message and wait for the end of its run."""
        sent = self.call("chat.send", sessionKey=key, message=message, **params)
        return self.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)

    def cli(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """`sessiond ARGS` as a user's shell runs it."""
        if self._may_fork and more.keys() <= {"env", "input"}:
            return fork_server().run(list(args), more.get("env", self.environ), more.get("input", ""))
        command = [*PROGRAM, *args]
        options: dict[str, Any] = {"env": self.environ, "capture_output": True, "text": True, "timeout": PATIENCE_S}
        return subprocess.run(command, check=False, **(options | more))

    def transcripts(self, agent: str = "main") -> list[Path]:
        """The live transcripts of an agent."""
        return sorted((self.store / "agents" / agent / "sessions").glob("*.jsonl"))

    def records(self, key: str) -> list[dict[str, Any]]:
        """Every line of a session's transcript, as JSON."""
        path = next(row["transcriptPath"] for row in self.rows() if row["key"] in (key, _short(key)))
        return [json.loads(line) for line in Path(path).read_text().splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        """The newest 200 rows."""
        rows: list[dict[str, Any]] = self.call("sessions_list", limit=200)["sessions"]
        return rows


def _short(key: str) -> str:
    return "main" if key == "agent:main:main" else key


class RpcFailure(Exception):
    """A JSON-RPC error where a result was wanted."""


class Wire:
    """One NDJSON connection, as any program would write it. Notifications met on the way are kept in `events`."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._file = self.socket.makefile("rb")
        self._next = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, message: Any) -> None:
        """One message on one line; bytes go out as they are."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        """The next message; ConnectionError at the end."""
        line = self._file.readline()
        if not line:
            raise ConnectionError("the daemon closed the connection")
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The whole answer to one request."""
        self._next += 1
        self.send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        while True:
            answer = self.receive()
            if answer.get("id") == self._next and "method" not in answer:
                return answer
            self.events.append(answer)

    def call(self, method: str, /, **params: Any) -> Any:
        """The result of one request."""
        answer = self.ask(method, **params)
        if "error" in answer:
            raise RpcFailure(answer["error"])
        return answer["result"]

    def event(self, method: str) -> dict[str, Any]:
        """The params of the next notification of that name; others before it are passed over."""
        while True:
            message = self.events.pop(0) if self.events else self.receive()
            if message.get("method") == method:
                params: dict[str, Any] = message["params"]
                return params
