"""A process that has imported the daemon and forks one whenever it is told to: a start without the imports.

    python sessiond_fork_server.py

Nine tenths of what a start costs are imports: 0.4 s of a processor, some hundred times. A line of JSON on standard
input is a command line to run: {"words", "environ", "stdin", "stdout", "stderr"} (paths) and, if wanted, a "umask", the
"code" of a script whose arguments the words are, and for the shim of `tests/faults` before its libc
{"attach": [control, calls]}; the answer is its pid. A number is a pid to look after, and the answer its exit status (as
in waitpid), null while it goes on. It ends with its input, and what it started ends with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

# Everything that a start, a token, a run or a reload imports later.
import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
import platformdirs.unix  # noqa: F401

import sessiond
import sessiond.auth.keyring
import sessiond.auth.tokenlog
import sessiond.auth.tokens
import sessiond.cli.frame.quick
import sessiond.cli.frame.registry
import sessiond.cli.history
import sessiond.cli.list
import sessiond.cli.send
import sessiond.cli.serve
import sessiond.daemon.lifecycle
import sessiond.events.inotify
import sessiond.methods.table
import sessiond.store.repair
import sessiond.transports.http_context
from sessiond import cli
from sessiond.config import settings

PR_SET_PDEATHSIG = 1
# How `python -m sessiond` is called.
AS_MODULE = os.path.join(os.path.dirname(sessiond.__file__), "__main__.py")


def start(asked: dict[str, Any]) -> int:
    """Fork a process that runs the command line; its pid."""
    if asked["words"][:2] == ["link", "run"]:
        # Few need it, and it brings the library of another network.
        importlib.import_module("sessiond.cli.link_verbs.running")
        importlib.import_module("sessiond.link.running")
    # Opened here, so that whoever asked may close or remove them at once.
    opened = [_open(asked[name], writes=name != "stdin") for name in ("stdin", "stdout", "stderr")]
    pid = os.fork()
    if pid:
        for fd in opened:
            os.close(fd)
        return pid
    code = 1
    try:
        code = _run(asked, opened)
    except BaseException:  # noqa: BLE001  # said in the log, as an interpreter does it
        traceback.print_exc()
    finally:
        # Whoever reads the log finds all of it; what else an interpreter does at its end is of this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _open(path: str, *, writes: bool) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT if writes else os.O_RDONLY
    return os.open(path, flags | os.O_NOCTTY, 0o600)


def _run(asked: dict[str, Any], opened: list[int]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    for target, fd in enumerate(opened):
        os.dup2(fd, target)
        os.close(fd)
    # Those of this process know what the server's were: pipes, or files in which one can seek.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    if asked.get("umask") is not None:
        os.umask(asked["umask"])
    sys.argv = ["-c" if "code" in asked else AS_MODULE, *asked["words"]]
    if "attach" in asked and libc.faults_attach(*map(os.fsencode, asked["attach"])):
        raise RuntimeError("the shim is not there")
    try:
        if "code" in asked:
            exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
            return 0
        cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def look(pid: int) -> int | None:
    """The status of a process that ended; None where it goes on."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def main() -> None:
    # What is found out once in each process, for whatever reads a configuration.
    settings.parse("")
    # What is there is shared by all that are forked: no collection touches, and so copies, it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        # Nothing is asked to learn that it is there.
        answer = start(asked) if isinstance(asked, dict) else asked and look(asked)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
