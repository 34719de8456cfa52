"""agentsview, a program that shows the same sessions out of a database of its own: installed, started and asked."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

_ALL = "include_one_shot=true&include_automated=true&include_children=true"


@contextmanager
def installed_agentsview() -> Iterator[str | None]:
    """The path of the program, installed from PyPI for as long as it is needed; None where that cannot be done."""
    if given := os.environ.get("AGENTSVIEW"):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="bars-") as name:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", name, "agentsview"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        binaries = [path for path in Path(name).glob("agentsview/bin/agentsview*") if os.access(path, os.X_OK)]
        yield str(binaries[0]) if done.returncode == 0 and binaries else None


class Agentsview:
    """Its server on a home, with its data in a folder."""

    def __init__(self, program: str, home: Path, data: Path, port: int) -> None:
        self._program, self._home, self.data, self._port = program, home, data, port
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environ = {"HOME": str(self._home), "PATH": os.environ["PATH"], "AGENTSVIEW_DATA_DIR": str(self.data)}
        options = ["--no-browser", "--no-update-check", "--port", str(self._port), "--events-coalesce-interval", "0"]
        self.process = subprocess.Popen(
            [self._program, "serve", *options],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def count_sessions(self) -> int:
        """How many sessions it shows; none while it does not answer."""
        try:
            answer = self._get(f"sessions?limit=1&{_ALL}")
        except (OSError, urllib.error.URLError):
            return 0
        return int(json.load(answer)["total"])

    def search(self, word: str) -> tuple[float, int]:
        """How long one search for a word took in seconds, and how many results it gave."""
        began = time.perf_counter()
        answer = json.load(self._get(f"search?limit=50&q={word}"))
        took = time.perf_counter() - began
        results = answer.get("results") or answer.get("items") or []
        return took, len(results)

    @contextmanager
    def watch(self, session: str) -> Iterator[queue.Queue[float]]:
        """The moments at which it says that a session has changed."""
        stream = self._get(f"sessions/{session}/watch")
        moments: queue.Queue[float] = queue.Queue()

        def read() -> None:
            try:
                for line in stream:
                    if line.startswith(b"event: session_updated"):
                        moments.put(time.perf_counter())
            except (OSError, ValueError, AttributeError):
                return  # closed

        threading.Thread(target=read, daemon=True).start()
        yield moments

    def _get(self, path: str) -> Any:
        return urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=30)
