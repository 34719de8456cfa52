"""The token of each run, in a file of mode 0600 that exists while the run does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sessiond.errors import StorageError, reason_of
from sessiond.runs.run import Run
from sessiond.runtimes.runtime import raise_shortage
from sessiond.sessions.tokens import Tokens


class RunCredentials:
    """Writes and removes the token files. `folder` is next to agent.sock. Source: security.md, "Callers"."""

    def __init__(self, tokens: Tokens, folder: Path, scopes: Callable[[str], frozenset[str]]) -> None:
        self._tokens, self._folder, self._scopes = tokens, folder, scopes
        self._files: dict[str, Path] = {}

    def clear(self) -> None:
        """Remove the files that a killed daemon left; its runs have ended."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                # Folders were not created by a daemon.
                with contextlib.suppress(OSError):
                    os.unlink(self._folder / name)

    def issue(self, run: Run, *, sandboxed: bool) -> Path:
        """The path of a new file with the run's token. StorageError if it cannot be written; Shortage if it can later.

        Replaces the file of an earlier attempt to start the same run, which reached no agent.
        """
        self._remove(run)
        text = self._tokens.mint_for_run(
            run_id=run.run_id, session_key=run.key, scopes=self._scopes(run.key), sandboxed=sandboxed
        )
        path = self._folder / f"{run.run_id}.token"
        try:
            self._files[run.run_id] = path  # also one that was half written: another attempt removes it
            with raise_shortage("the run's token cannot be written"):
                self._write(path, text)
        except OSError as error:
            reason = reason_of(error)
            raise StorageError(
                f"the run's token cannot be written beside the daemon's sockets: {reason}; the run was not started"
            ) from None
        return path

    def _write(self, path: Path, text: str) -> None:
        # Under socket activation the folder of the sockets may not exist, or be removed at any time.
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            os.fchmod(fd, 0o600)
            file.write(text)

    def retire(self, run: Run) -> None:
        """Remove the token file of a run that has ended, and end what is connected with its token."""
        if self._remove(run):
            self._tokens.run_ended(run.run_id)

    def _remove(self, run: Run) -> bool:
        """Remove the run's file; whether there was one."""
        path = self._files.pop(run.run_id, None)
        if path is not None:
            # If a folder was put in its place it stays; the token is invalid either way.
            with contextlib.suppress(OSError):
                path.unlink()
        return path is not None
