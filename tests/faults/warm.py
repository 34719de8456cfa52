"""A process that has imported the daemon and forks one whenever it is told to: a start without the imports.

    LD_PRELOAD=shim.so python warm.py

A line of JSON on its standard input is a daemon to start: {"environ", "store", "config", "socket", "log", "control",
"calls"}; the answer is its pid. A number is a pid to wait for, and the answer its exit status (as in waitpid), null
where it goes on after the number of seconds that follows. It ends with its input, and its daemons end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

# Everything that a start, a token, a run or a reload imports later.
import sessiond.auth.keyring
import sessiond.auth.tokenlog
import sessiond.auth.tokens
import sessiond.methods.table
import sessiond.store.repair  # noqa: F401
from sessiond.daemon import lifecycle

PR_SET_PDEATHSIG = 1


def start(asked: dict[str, Any]) -> int:
    """Fork a daemon; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _serve(asked)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _serve(asked: dict[str, Any]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(asked["environ"])
    if libc.faults_attach(os.fsencode(asked["control"]), os.fsencode(asked["calls"])):
        raise SystemExit("the shim is not there")
    config = Path(asked["config"]) if asked["config"] else None
    return lifecycle.run(Path(asked["store"]), config, Path(asked["socket"]))


def wait(pid: int, seconds: float) -> int | None:
    """The status of a daemon that ended; None where it goes on."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        answer = start(asked) if isinstance(asked, dict) else wait(*asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
