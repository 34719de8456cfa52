"""The daemon of the demo: its folder with two agents, and its process. Prints nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from sessiond.cli.frame.failures import CommandFailed
from sessiond.client.blocking import Client
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0

MAIN_AGENT = '''\
"""The agent `main` of the demo: reads the message, prints the reply. That is all an agent has to do."""
import sys

text = sys.stdin.read().strip()
if "Status:" in text:
    print("Thank you. (I was told of a sub-agent's result.)")
else:
    print(f"Yes! I am a script of a few lines. You sent {len(text.split())} words.")
'''

READER_AGENT = '''\
"""The agent `reader` of the demo: measures the files that came with its task."""
import pathlib

for file in sorted(pathlib.Path(".openclaw/attachments").rglob("*")):
    if file.is_file() and file.name != "manifest.json":
        text = file.read_text()
        print(f"{file.name}: {len(text.splitlines())} lines, {len(text.split())} words")
'''

CONFIG = """\
[sources]
enabled = false

[agents.defaults.subagents]
announce = "reply"

[[agents.list]]
id = "main"
default = true
runtime = {{ type = "exec", command = [{python}, "-I", {main}], input = "text", output = "text" }}
subagents = {{ allowAgents = ["reader"] }}

[[agents.list]]
id = "reader"
runtime = {{ type = "exec", command = [{python}, "-I", {reader}], input = "text", output = "text" }}
"""

POEM = """\
Tell all the truth but tell it slant,
Success in circuit lies,
Too bright for our infirm delight
The truth's superb surprise.
"""


def prepare(folder: Path) -> Path:
    """Write the agents, the configuration and the attachment into `folder`."""
    agents = folder / "agents"
    agents.mkdir()
    main, reader = agents / "main.py", agents / "reader.py"
    main.write_text(MAIN_AGENT)
    reader.write_text(READER_AGENT)
    (folder / "poem.txt").write_text(POEM)
    quoted = {name: _toml(path) for name, path in (("python", sys.executable), ("main", main), ("reader", reader))}
    (folder / "config.toml").write_text(CONFIG.format(**quoted))
    return folder


class DemoDaemon:
    """A daemon process: `__enter__` returns when it answers, `__exit__` when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.socket = folder / "s" / "sessiond.sock"
        self.config = folder / "config.toml"
        self.attachment = folder / "poem.txt"
        self._log = folder / "daemon.log"

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSIOND_")}
        self.socket.parent.mkdir(mode=0o700)
        where = ["--store", str(self.store), "--config", str(self.config), "--socket", str(self.socket)]
        command = [*program(), "serve", *where]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        pause = threading.Event()
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with Client(str(self.socket)) as client:
                    client.call("ping", timeout_s=5)
                return
            except ClientError:
                pause.wait(0.02)
        raise CommandFailed(
            "the demo's daemon did not start; it said:\n" + self._log.read_text(errors="replace")[-2000:]
        )

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def program() -> list[str]:
    """The command line that starts this program again: the same executable, or Python with the module."""
    started_as = Path(sys.argv[0])
    if started_as.is_absolute() and started_as.suffix != ".py" and os.access(started_as, os.X_OK):
        return [str(started_as)]
    return [sys.executable, "-m", "sessiond"]


def words_to_type() -> str:
    """What is typed in a shell to start this program again."""
    called = os.environ.get("PEX") or sys.argv[0]  # the single file runs from where it is unpacked
    if Path(called).name == "__main__.py":
        return shlex.join(program())
    found = shutil.which("sessiond")
    return "sessiond" if found and os.path.exists(called) and os.path.samefile(found, called) else shlex.quote(called)


def _toml(value: object) -> str:
    return "'" + str(value) + "'"
