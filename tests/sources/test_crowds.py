"""Thousands of replicas that appear at once, as when another machine is linked: all are shown, and the loop goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.budget_attacks import TimedDaemon
from support.replicas import header, line, replica_path, write_replica
from support.sampling import amount

from sessiond.events.watch_backend import NameChanged, NameGone, WatchEvent
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.sources import machines
from sessiond.sources.crowds import LEAST_CROWD, look_at_crowd
from sessiond.sources.first_reading import read_known
from sessiond.sources.reading import ListedFile
from sessiond.sources.root import OpenRoot
from sessiond.store.catalog import Session

# Processor time of a step of the event loop, scaled to a quiet machine (`loop_stopwatch`). The goal is 10; one after
# the other in one step they took 570.
STEP_MS = 20
CONFIG = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'


def session_id(number: int) -> str:
    return f"1e821bfa-1111-4222-8333-{number:012x}"


def write_crowd(store: Path, count: int) -> None:
    """Replicas as the link makes them: under a temporary name, then under their own."""
    for number in range(count):
        path = replica_path(store, session_id(number))
        fresh = path.with_name(f".{path.stem}")
        said = (line(f"message {number} {place} {'x' * 300}", at_s=number + place) for place in range(3))
        os.replace(write_replica(fresh, header(session_id(number), f"agent:ops:s{number}"), *said), path)


def shown_after_s(daemon: TimedDaemon, count: int) -> float:
    began = time.perf_counter()
    daemon.wait_for(lambda: daemon.call("daemon.status")["sessions"] == count, f"there are no {count} sessions")
    return time.perf_counter() - began


def check_steps(daemon: TimedDaemon) -> dict[str, Any]:
    steps = daemon.steps()
    assert steps["slowest_ms"] < STEP_MS, steps
    return steps


@pytest.mark.system
@pytest.mark.parametrize("count", [amount(1500, 300), pytest.param(10_000, marks=pytest.mark.benchmark)])
def test_a_machine_with_thousands_of_sessions_is_shown_and_no_step_takes_long(tmp_path: Path, count: int) -> None:
    daemon = TimedDaemon(tmp_path).start(CONFIG)
    try:
        daemon.steps()
        write_crowd(tmp_path, count)
        (tmp_path / "machines").rename(daemon.store / "machines")
        moved_s = shown_after_s(daemon, count)
        moved = check_steps(daemon)
        (daemon.store / "machines" / "mars").rename(tmp_path / "gone")
        shown_after_s(daemon, 0)
        check_steps(daemon)
        began = time.perf_counter()
        write_crowd(daemon.store, count)
        shown_after_s(daemon, count)
        written_s, written = time.perf_counter() - began, check_steps(daemon)
        (daemon.store / "machines").rename(tmp_path / "all gone")
        shown_after_s(daemon, 0)
        check_steps(daemon)
        print(f"\n{count} moved there: {moved_s:.2f} s, {moved['slowest_ms']:.1f} ms a step at most", end="")
        print(f"; written one by one: {written_s:.2f} s, {written['slowest_ms']:.1f} ms")
    finally:
        daemon.stop()


def test_a_file_that_was_read_as_it_is_is_not_looked_at_again(tmp_path: Path) -> None:
    write_crowd(tmp_path, 1)
    root = OpenRoot(machines.find_root(tmp_path), DIALECTS["machine"], 8 << 20)
    place = f"mars/agents/ops/sessions/{session_id(0)}.jsonl"

    def listed() -> ListedFile:
        file = root.look_at(place)
        assert file is not None
        return file

    first = listed()
    assert not root.has_read(first), "no session is known"
    entry = read_known(root, first, None)
    assert isinstance(entry, Entry)
    session = root.sessions[place] = Session(key=entry.session_key, entry=entry, folder=root.folder, place=place)
    assert root.has_read(first)
    path = Path(root.path, place)
    with path.open("ab") as file:
        file.write(line("more"))
    assert not root.has_read(listed()), "it has grown"
    session.entry = entry = read_known(root, listed(), None)
    assert root.has_read(listed())
    os.utime(path, ns=(1, 1))
    assert not root.has_read(listed()), "it was written in place"
    os.utime(path, ns=(entry.file.mtime_ns,) * 2)
    assert root.has_read(listed())
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(entry.file.mtime_ns,) * 2)
    copy.rename(path)
    assert not root.has_read(listed()), "it is another file"
    root.close()


@pytest.mark.parametrize("count", [LEAST_CROWD, LEAST_CROWD + 1])
def test_only_many_new_files_are_a_crowd(tmp_path: Path, count: int) -> None:
    write_crowd(tmp_path, count)
    root = OpenRoot(machines.find_root(tmp_path), DIALECTS["machine"], 8 << 20)
    session = Session(key="mars/agent:ops:s0", entry=Entry(session_id=session_id(0)), folder=root.folder)
    folder = str(replica_path(Path(root.path).parent, "x").parent)
    events: list[WatchEvent] = []
    for number in range(count):
        events += [NameChanged(folder, f".{session_id(number)}"), NameGone(folder, f".{session_id(number)}")]
        events += [NameChanged(folder, f"{session_id(number)}.jsonl")] * 2
    events.append(NameChanged("/elsewhere", f"{session_id(0)}.jsonl"))
    found = look_at_crowd([root], events)
    assert len(found) == (count if count > LEAST_CROWD else 0)
    # A file of which a session is known is not new.
    root.sessions = {f"mars/agents/ops/sessions/{session_id(0)}.jsonl": session}
    assert look_at_crowd([root], events) == []
    root.close()
