"""`sessiond mcp`, handed to an agent as its MCP server: how it is started, and the token files of the sessions.

A process has many sessions, and its tool servers live as long as it does. So each session has one file, which holds the
token of the session's run while that goes on and is empty otherwise: the server reads it again when it is refused.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sessiond
from sessiond.errors import StorageError, reason_of
from sessiond.runtimes.mounts import SOCKET, TOKEN_FILE
from sessiond.runtimes.runtime import RunSpec, raise_shortage

# Needs the standard library only, and starts quicker without the packages of the environment.
_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sessiond.cli import main; main()"
_PACKAGE = Path(sessiond.__file__).resolve().parent
_FOLDER = "acp"
_SYSTEM = Path("/usr")
_NOBODY = "nobody"


def clear_token_folders(sockets: Path) -> None:
    """Remove what a killed daemon left beside its sockets; its agents have ended."""
    shutil.rmtree(sockets / _FOLDER, ignore_errors=True)


def files_for_sandbox() -> tuple[Path, ...]:
    """The files that a sandbox has to show, so that the tool server can be started in it."""
    needed = [_PACKAGE]
    python = Path(sys.base_prefix).resolve()
    if not python.is_relative_to(_SYSTEM):
        needed.append(python)
    return tuple(needed)


class TokenFolder:
    """The token files of one process, in a folder of their own beside `socket`."""

    def __init__(self, socket: Path) -> None:
        parent = socket.parent / _FOLDER
        try:
            with raise_shortage("the folder for tokens cannot be made"):
                # Under socket activation the folder of the sockets may not exist, or be removed at any time.
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path = Path(tempfile.mkdtemp(dir=parent))
        except OSError as error:
            reason = reason_of(error)
            raise StorageError(
                f"no folder for tokens can be made beside the daemon's sockets: {reason}; the agent was not started"
            ) from None

    def no_token(self, *, sandboxed: bool) -> str:
        """The path of a token file that stays empty, as the agent sees it."""
        file = self.path / _NOBODY
        file.touch(mode=0o600)
        return str((TOKEN_FILE if sandboxed else self.path) / file.name)

    def remove(self) -> None:
        """Remove the folder, after the end of its process."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def hold_token(self, spec: RunSpec) -> Iterator[None]:
        """Keep the token of the run in the file of its session while the context lasts."""
        file = self.path / spec.session_id
        try:
            with raise_shortage("the run's token cannot be written"):
                self._write(file, spec.token_file.read_bytes() if spec.token_file is not None else b"")
        except OSError as error:
            raise StorageError(f"the run's token cannot be written for its agent: {reason_of(error)}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                os.truncate(file, 0)

    def _write(self, file: Path, token: bytes) -> None:
        # In place, since it was empty: a server that reads it at any time gets nothing or the whole.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, token)
        finally:
            os.close(fd)

    def server(self, spec: RunSpec) -> dict[str, Any]:
        """The tool server of a session, as an entry of `mcpServers`."""
        folder, socket = (TOKEN_FILE, SOCKET) if spec.sandboxed else (self.path, spec.socket)
        env = {"SESSIOND_SOCKET": str(socket), "SESSIOND_TOKEN_FILE": str(folder / spec.session_id)}
        return {
            "name": "sessiond",
            "command": os.path.realpath(sys.executable),
            "args": ["-I", "-S", "-B", "-X", "utf8", "-c", _CODE, str(_PACKAGE.parent), "mcp"],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }
