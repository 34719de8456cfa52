"""Daemons and commands forked from a process that has them imported.

As far as `real_daemon.Daemon` uses a `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S

SERVER = Path(__file__).with_name("sessiond_fork_server.py")


class DaemonForkServer:
    """The process that forks daemons; threads may share it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            env={**environ, "PYTHONPATH": paths},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What is pressed at a terminal is for pytest, which then ends it.
            process_group=0,
        )
        self._turn = threading.Lock()

    def start(self, words: list[str], environ: Mapping[str, str], log: Path, **more: Any) -> ForkedProcess:
        """`sessiond WORDS`, with its output in the log and a process group of its own."""
        files = {"stdin": os.devnull, "stdout": str(log), "stderr": str(log)}
        return ForkedProcess(self, self.ask({"words": words, "environ": dict(environ), **files, **more}))

    def run(
        self, words: list[str], environ: Mapping[str, str], given: str | bytes = "", **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """`sessiond WORDS` from its beginning to its end, with a text to read; with `code` a script instead."""
        with tempfile.TemporaryDirectory() as name:
            files = {stream: Path(name, stream) for stream in ("stdin", "stdout", "stderr")}
            files["stdin"].write_bytes(given.encode() if isinstance(given, str) else given)
            paths = {stream: str(files[stream]) for stream in files}
            asked = {"words": words, "environ": dict(environ), **paths, **more}
            status = ForkedProcess(self, self.ask(asked)).wait(PATIENCE_S)
            return subprocess.CompletedProcess(words, status, *(files[it].read_text() for it in ("stdout", "stderr")))

    def ask(self, message: Any) -> Any:
        """The answer to one line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and with it the daemons that still go on."""
        self._process.communicate(timeout=PATIENCE_S)


class ForkedProcess:
    """One of them. Its number is nobody else's until `poll` or `wait` has told that it ended."""

    def __init__(self, server: DaemonForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """As Popen: the exit code, or minus the signal; None while it goes on."""
        if self.returncode is None:
            status = self._server.ask(self.pid)
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As Popen."""
        if self.poll() is None:
            watched = os.pidfd_open(self.pid)
            try:
                poller = select.poll()
                poller.register(watched, select.POLLIN)
                poller.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(watched)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("sessiond", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """As Popen."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@functools.cache
def fork_server() -> DaemonForkServer:
    """This process's own; it ends with it."""
    made = DaemonForkServer({"PATH": os.environ["PATH"], "LANG": "C.UTF-8"})
    atexit.register(made.close)
    return made
