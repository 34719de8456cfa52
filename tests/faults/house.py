"""Daemons forked from a warm process, each with the shim in front of its libc; otherwise like `real_daemon.Daemon`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from faults.shim import Control, compile_shim
from support.real_daemon import PATIENCE_S, Daemon

WARM = Path(__file__).with_name("warm.py")


class Warm:
    """The process that forks daemons."""

    def __init__(self, shim: Path) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        environ = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": paths}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, str(WARM)], env=environ, text=True, **pipes)

    def ask(self, message: Any) -> Any:
        """The answer to one line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and with it the daemons that still go on."""
        self._process.communicate(timeout=PATIENCE_S)


class Forked:
    """A daemon process, as far as `real_daemon.Daemon` uses a `subprocess.Popen`."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self._warm, self.pid = warm, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0, check=False)

    def wait(self, timeout: float = PATIENCE_S, *, check: bool = True) -> int | None:
        """As Popen: the exit code, or minus the signal."""
        if self.returncode is None:
            status = self._warm.ask([self.pid, timeout])
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
        if check and self.returncode is None:
            raise subprocess.TimeoutExpired("sessiond", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class FaultyDaemon(Daemon):
    """A daemon on `folder/store` whose calls below it are counted by `control`."""

    process: Any

    def __init__(self, folder: Path, warm: Warm) -> None:
        super().__init__(folder)
        self.warm = warm
        self.run.mkdir(mode=0o700)
        # What an operation needs beside the store; copied along with it.
        self.beside = folder / "beside"
        self.beside.mkdir()
        # Where the store lies may be given through a symlink; the shim sees what the kernel says.
        self.control = Control(self.run, (folder / "store").resolve())

    def start(self, config: str | None = None, **_: Any) -> Self:
        if config is not None:
            self.config.write_text(config)
        asked = {
            "environ": self.environ,
            "store": str(self.store),
            "config": str(self.config) if self.config.exists() else None,
            "socket": str(self.socket),
            "log": str(self.log),
            "control": str(self.control.path),
            "calls": str(self.control.log_path),
        }
        self.process = Forked(self.warm, self.warm.ask(asked))
        self.wait_for(self._answers, "the daemon does not answer")
        return self

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.control.close()


class House:
    """Makes daemons on stores of their own, and copies of stores."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self._folder, self._warm = folder, warm

    @contextmanager
    def daemon(self, template: FaultyDaemon | None = None) -> Iterator[FaultyDaemon]:
        """A daemon that is not started yet, on a copy of another's store; its folder goes afterwards."""
        # A short path: it holds sockets.
        folder = Path(tempfile.mkdtemp(prefix="f-", dir=self._folder))
        daemon = FaultyDaemon(folder, self._warm)
        try:
            if template is not None:
                shutil.copytree(template.store, daemon.store, symlinks=True)
                shutil.copytree(template.beside, daemon.beside, dirs_exist_ok=True)
            yield daemon
        finally:
            daemon.close()
            shutil.rmtree(folder)


@contextmanager
def open_house() -> Iterator[House | None]:
    """None where the shim cannot be compiled."""
    with tempfile.TemporaryDirectory(prefix="sessiond-") as name:
        shim = compile_shim(Path(name))
        if shim is None:
            yield None
            return
        warm = Warm(shim)
        try:
            yield House(Path(name), warm)
        finally:
            warm.close()
