"""Days of other programs' work in seconds: their files come, grow, are written anew, move and go, and the daemon keeps
no descriptor, watch, thread or memory of what is gone.

SESSIOND_TESTS=whole runs as many rounds as a busy day has, and looks at the memory too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.foreign_corpus import write_corpus
from support.opencode_database import make_database
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import WHOLE, amount

from sessiond.model.keys import is_foreign

pytestmark = pytest.mark.system

# Each is some hundred changes.
ROUNDS = amount(120, 3)
WARM_UP = amount(30, 1)
FILES_A_ROUND = amount(28, 7)
# What the allocator may keep beyond the warm-up; a leak of a kilobyte a change is many times that.
SPARE_MB = 12
# A connection that is being closed, a thread that waits for more work. What a round left behind would be more.
SPARE_HANDLES = 3


class Held(NamedTuple):
    """What the daemon's process holds."""

    descriptors: int
    watches: int
    threads: int
    rss_mb: float


def held_by(pid: int) -> Held:
    proc = Path(f"/proc/{pid}")
    watches = 0
    names = os.listdir(proc / "fdinfo")
    for name in names:
        try:
            watches += (proc / "fdinfo" / name).read_text().count("inotify wd:")
        except OSError:
            continue  # closed meanwhile
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    return Held(len(names), watches, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024)


class BusyPrograms:
    """What the five programs do to their files below a home, round by round."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.rng = random.Random(7)
        path = home / ".local" / "share" / "opencode" / "opencode.db"
        path.parent.mkdir(parents=True)
        self.database = make_database(path)
        self.database.execute("pragma foreign_keys = off")
        self.database.execute("pragma journal_mode = wal")
        self.database.commit()
        # The same files in each round, so that what stays of them shows.
        self.files: list[Path] = []

    @property
    def sessions_kept(self) -> int:
        return int(self.database.execute("select count(*) from session").fetchone()[0])

    def run_round(self, number: int) -> Iterator[str]:
        """One round; between its steps the daemon may be asked whether it has seen them."""
        self.files = write_corpus(self.home, FILES_A_ROUND, 0, first=number * FILES_A_ROUND).files
        yield "created"
        for path in self.files:
            with path.open("ab") as file:
                for line in path.read_bytes().splitlines(keepends=True)[-3:]:
                    file.write(line)
        self._change_database(number)
        yield "appended"
        for place, path in enumerate(self.files):
            self._change(path, place)
        yield "changed"
        for path in self.files:
            path.unlink(missing_ok=True)
        self._delete_from_database(number)

    def _change(self, path: Path, place: int) -> None:
        data = path.read_bytes()
        match place % 5:
            case 0:  # rewritten in place: the same inode, shorter, then longer
                path.write_bytes(data[: data.find(b"\n") + 1])
                path.write_bytes(data + data.splitlines(keepends=True)[-1])
            case 1:  # replaced by another file
                other = path.with_name("written-meanwhile.tmp")
                other.write_bytes(data)
                other.rename(path)
            case 2:  # truncated, and torn
                os.truncate(path, len(data) // 2)
            case 3:  # moved away, to another folder, and back
                folder = path.parent.with_name(path.parent.name + "-moved")
                path.parent.rename(folder)
                folder.rename(path.parent)
            case 4:
                path.unlink()

    def _change_database(self, number: int) -> None:
        query = "select aggregate_id, max(seq), type, data from event group by aggregate_id"
        with self.database:
            for session, seq, kind, data in self.database.execute(query).fetchall():
                self.database.execute(
                    "insert into event (id, aggregate_id, seq, type, data) values (?, ?, ?, ?, ?)",
                    (f"evt_soak_{number}_{session}", session, seq + 1, kind, data),
                )

    def _delete_from_database(self, number: int) -> None:
        with self.database:
            self.database.execute("delete from event where id like ?", (f"evt_soak_{number}_%",))

    def clear(self, *, roots: bool) -> None:
        """Remove every folder that has nothing in it; with `roots` those of the programs too."""
        for name in (".claude", ".codex", ".gemini", ".pi/agent"):
            for folder, _, _ in os.walk(self.home / name, topdown=False):
                if not os.listdir(folder) and (roots or Path(folder) != self.home / name):
                    os.rmdir(folder)


def foreign_rows(daemon: Daemon) -> list[dict[str, Any]]:
    return [row for row in daemon.call("sessions_list", limit=200)["sessions"] if is_foreign(row["key"])]


def wait_settled(daemon: Daemon, count: int) -> None:
    """Wait until the daemon shows so many sessions of other programs, each read whole."""

    def is_settled() -> bool:
        rows = foreign_rows(daemon)
        return len(rows) == count and not any(row.get("partial") for row in rows)

    daemon.wait_for(is_settled, f"there are not {count} sessions of other programs")


def run_rounds(daemon: Daemon, programs: BusyPrograms, first: int, last: int) -> None:
    for number in range(first, last):
        for step in programs.run_round(number):
            if step == "created":
                wait_settled(daemon, len(programs.files) + programs.sessions_kept)
                daemon.call("sessions_search", query="daemon", limit=5)
                daemon.call("sessions_history", sessionKey=foreign_rows(daemon)[0]["key"], limit=5)
        programs.clear(roots=WHOLE and number == last // 2)
        wait_settled(daemon, programs.sessions_kept)


def at_rest(daemon: Daemon, wanted: Held | None = None) -> Held:
    """What the daemon holds when it has done everything; waits for it where it has to become as it was."""
    assert daemon.process is not None
    pid = int((daemon.store / "store.lock").read_text())
    deadline = time.monotonic() + PATIENCE_S
    while True:
        held = held_by(pid)
        is_more = wanted is not None and any(
            now > then + SPARE_HANDLES for now, then in zip(held[:3], wanted[:3], strict=True)
        )
        if not is_more or time.monotonic() > deadline:
            return held
        time.sleep(0.1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at the descriptors of a daemon")
def test_days_of_changes_leave_nothing_behind(daemon: Daemon, tmp_path: Path) -> None:
    programs = BusyPrograms(tmp_path)
    daemon.start()
    run_rounds(daemon, programs, 0, WARM_UP)
    before = at_rest(daemon)
    run_rounds(daemon, programs, WARM_UP, ROUNDS)
    after = at_rest(daemon, before)
    print(f"\n{ROUNDS} rounds of {FILES_A_ROUND} files: {before} -> {after}")
    assert after.descriptors <= before.descriptors + SPARE_HANDLES
    assert after.watches <= before.watches + SPARE_HANDLES
    assert after.threads <= before.threads + SPARE_HANDLES
    if WHOLE:
        assert after.rss_mb <= before.rss_mb + SPARE_MB
    programs.database.close()
