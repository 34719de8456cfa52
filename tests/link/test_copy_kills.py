"""Transcripts grow, are cut and replaced, while links, daemons and the server are killed: every copy is equal to
its original by the byte.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.copied_transcripts import copies_in
from support.nats_machines import LinkedMachine, linked, wait_until_there
from support.nats_server import NatsServer
from support.nats_stream import purge
from support.sampling import amount

pytestmark = pytest.mark.system

EXPORT = {("lap", "mars"): 'export = [{agents = ["*"]}]'}
FILES = amount(20, 8)


class GrowingFiles:
    """Transcripts of lap, to which lines are appended as any program does it."""

    def __init__(self, lap: LinkedMachine, rng: random.Random) -> None:
        self._rng, self._lines = rng, 0
        for number in range(FILES):
            lap.call("sessions.create", key=f"agent:main:dashboard:{number}")
        self.paths = sorted(lap.store.glob("agents/main/sessions/*.jsonl"))
        assert len(self.paths) == FILES

    def grow(self) -> None:
        for path in self.paths:
            with path.open("ab") as file:
                for _ in range(self._rng.randrange(6)):
                    file.write(self._line())

    def change(self) -> None:
        """Cut one, and replace another one."""
        cut, replaced = self._rng.sample(self.paths, 2)
        lines = cut.read_bytes().splitlines(keepends=True)
        with cut.open("r+b") as file:
            file.truncate(sum(map(len, lines[: self._rng.randrange(1, len(lines) + 1)])))
        fresh = replaced.with_suffix(".tmp")
        fresh.write_bytes(replaced.read_bytes().splitlines(keepends=True)[0] + self._line())
        fresh.chmod(0o600)
        fresh.rename(replaced)

    def _line(self) -> bytes:
        self._lines += 1
        size = self._rng.choice([10, 100, 1000, 40_000])
        message = {"role": "user", "content": f"line {self._lines} " + "x" * size}
        record = {"type": "message", "id": f"{self._lines:08x}", "parentId": None, "message": message}
        return json.dumps({**record, "timestamp": "2026-01-01T00:00:00.000Z"}).encode() + b"\n"


@pytest.mark.parametrize("seed", range(amount(2, 1)))
def test_every_copy_is_equal_after_links_daemons_and_the_server_were_killed(
    tmp_path: Path, nats_server: Any, seed: int
) -> None:
    rng = random.Random(seed)
    server: NatsServer = nats_server("open").start()
    with linked(tmp_path, server, ["lap", "mars"], EXPORT) as machines:
        lap, mars = machines["lap"], machines["mars"]
        files = GrowingFiles(lap, rng)
        kills: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (lambda: lap.stop_link(signal.SIGKILL), lap.start_link),
            (lambda: mars.stop_link(signal.SIGKILL), mars.start_link),
            (lap.daemon.kill, lap.daemon.start),
            (mars.daemon.kill, mars.daemon.start),
            (server.kill, server.start),
            (lambda: purge(server), lambda: None),
        ]
        for _ in range(amount(12, 1)):
            for kill, bring_back in rng.sample(kills, len(kills)):
                files.grow()
                kill()
                files.grow()
                if rng.random() < 0.4:
                    files.change()
                bring_back()
                files.grow()
        lap.wait_for(lambda: lap.call("daemon.status")["sessions"] is not None, "the daemon is not there")
        mars.wait_for(lambda: copies_in(mars, "lap") == lap.originals(), "the copies are not the originals by the byte")
        assert len(lap.originals()) == FILES
        wait_until_there(mars, ["lap"])
