"""Daemons with the fault shim loaded before libc, forked from one process; otherwise like `real_daemon.Daemon`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from faults.shim import Control, shim_server
from support.forked_daemon import DaemonForkServer
from support.real_daemon import PROGRAM, Daemon


class FaultyDaemon(Daemon):
    """A daemon on `folder/store`; `control` counts its calls that change files below that folder."""

    process: Any

    def __init__(self, folder: Path, server: DaemonForkServer) -> None:
        super().__init__(folder)
        self.server = server
        self.run.mkdir(mode=0o700)
        # Files that an operation needs outside the store; copied along with it.
        self.extra_files = folder / "extra"
        self.extra_files.mkdir()
        # The path may contain a symlink, and the shim compares resolved paths.
        self.control = Control(self.run, (folder / "store").resolve())

    def start(self, config: str | None = None, **_: Any) -> Self:
        if config is not None:
            self.config.write_text(config)
        words = self.command()[len(PROGRAM) :]
        attach = [str(self.control.path), str(self.control.log_path)]
        self.process = self.server.start(words, self.environ, self.log, attach=attach)
        self.wait_for(self._answers, "the daemon does not answer")
        # Before that it makes calls of its own, which would be counted with those of an operation.
        self.wait_for(self._has_started, "the daemon does not end its start")
        return self

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.control.close()


class FaultyDaemons:
    """Creates daemons, each on a store of its own or on a copy of another's."""

    def __init__(self, folder: Path, server: DaemonForkServer, templates: ExitStack) -> None:
        self._folder, self._server, self._templates = folder, server, templates
        self._known: dict[object, FaultyDaemon] = {}

    def template(self, name: object, prepare: Callable[[FaultyDaemon], None]) -> FaultyDaemon:
        """A daemon on a store that was prepared once for all that ask for this name, and that is not running."""
        if name not in self._known:
            made = self._templates.enter_context(self.create())
            prepare(made)
            self._known[name] = made
        return self._known[name]

    @contextmanager
    def create(self, template: FaultyDaemon | None = None) -> Iterator[FaultyDaemon]:
        """A daemon that is not started yet, on a copy of the template's store. Its folder is removed afterwards."""
        # A short path, because sockets are created in it.
        folder = Path(tempfile.mkdtemp(prefix="f-", dir=self._folder))
        daemon = FaultyDaemon(folder, self._server)
        try:
            if template is not None:
                shutil.copytree(template.store, daemon.store, symlinks=True)
                shutil.copytree(template.extra_files, daemon.extra_files, dirs_exist_ok=True)
            yield daemon
        finally:
            daemon.close()
            shutil.rmtree(folder)


@contextmanager
def open_faulty_daemons() -> Iterator[FaultyDaemons | None]:
    """Provide daemons for the block; None if the shim cannot be compiled."""
    server = shim_server()
    if server is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sessiond-") as name, ExitStack() as templates:
        yield FaultyDaemons(Path(name), server, templates)
