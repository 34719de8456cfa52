"""Copies of other machines' sessions: whatever comes in whatever order, a copy is an exact prefix of its original."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from faults.record import record
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import StorageError
from sessiond.events.inotify import IN_MOVED_TO, InotifyBackend, parse
from sessiond.link.copy_states import CopyStates
from sessiond.link.failures import LinkError
from sessiond.link.ranges import ByteSpan, CopyState, judge, make_generation
from sessiond.link.replica import Applied, MachineFolder

G1, G2, G3 = "0" * 15 + "1", "0" * 15 + "2", "0" * 15 + "3"


class World:
    """One machine's folder in a store, which may be closed and opened again."""

    def __init__(self, store: Path, **limits: Any) -> None:
        self.store, self.limits = store, {"free_bytes": 0, **limits}
        self.open()

    def open(self) -> None:
        self.states = CopyStates(self.store)
        self.folder = MachineFolder(self.store, "mars", self.states, **self.limits)

    def restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.folder.close()
        self.states.close()

    def path(self, session: str = "s", agent: str = "ops") -> Path:
        return self.store / "machines" / "mars" / "agents" / agent / "sessions" / f"{session}.jsonl"

    def put(self, data: bytes, begin: int = 0, generation: str = G1, session: str = "s", agent: str = "ops") -> Applied:
        [applied] = self.folder.apply([ByteSpan(session, agent, generation, begin, data)])
        return applied


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.close()


BEGUN, FRESH = CopyState("ops", G2), CopyState("ops", G2, is_begun=False)
GONE = CopyState("ops", G2, is_gone=True)


@check_each(
    ("state", "size", "begin", "generation", "verdict"),
    [
        (None, 0, 0, G1, "replace"),
        (None, 0, 1, G1, "gap"),
        (BEGUN, 10, 10, G2, "append"),
        (BEGUN, 10, 0, G2, "append"),
        (BEGUN, 10, 11, G2, "gap"),
        (BEGUN, 10, 10, G1, "ended"),
        (BEGUN, 10, 0, G3, "replace"),
        (BEGUN, 10, 10, G3, "gap"),
        (FRESH, 0, 0, G2, "replace"),
        (FRESH, 0, 1, G2, "gap"),
        (GONE, 0, 0, G2, "ended"),
        (GONE, 0, 0, G3, "replace"),
        (GONE, 0, 0, G1, "ended"),
    ],
)
def test_what_a_copy_does_with_a_range(
    state: CopyState | None, size: int, begin: int, generation: str, verdict: str
) -> None:
    assert judge(state, size, ByteSpan("s", "ops", generation, begin, b"x")) == verdict


def test_generations_are_in_order_whatever_the_clock_says() -> None:
    first = make_generation("", 1_700_000_000_000, 5)
    later = make_generation(first, 1_700_000_000_000, 5)
    earlier_clock = make_generation(later, 3, 7)
    assert first < later < earlier_clock < make_generation(earlier_clock, 1_700_000_000_001, 0)
    assert len(make_generation("f" * 16, 0, 0)) == 16


def test_a_range_is_written_once_and_what_is_missing_is_reported(world: World) -> None:
    assert world.put(b"abc", 3) == Applied("gap", 0)
    assert not world.path().exists()
    assert world.put(b"abc") == Applied("written", 3)
    assert world.put(b"abc") == Applied("known", 3)
    assert world.put(b"bcde", 1) == Applied("written", 5)
    assert world.put(b"x", 6) == Applied("gap", 5)
    assert world.put(b"bXd", 1) == Applied("differs", 5)
    assert world.path().read_bytes() == b"abcde"
    assert world.folder.bytes == 5
    assert world.path().stat().st_mode & 0o777 == 0o600


def test_a_new_generation_replaces_the_file_and_an_old_one_never_comes_back(world: World) -> None:
    world.put(b"abcdef")
    with world.path().open("rb") as reader:
        assert world.put(b"def", 3, G2) == Applied("gap", 6)
        assert world.path().read_bytes() == b"abcdef"
        assert world.put(b"new", 0, G2) == Applied("written", 3)
        assert reader.read() == b"abcdef", "who reads the old one reads it to its end"
    assert world.put(b"abcdef") == Applied("ended", 3)
    world.restart()
    assert world.put(b"abcdef") == Applied("ended", 3)
    assert world.put(b"er", 3, G2) == Applied("written", 5)
    assert world.path().read_bytes() == b"newer"
    assert world.folder.bytes == 5


def test_a_session_that_is_gone_comes_back_with_a_newer_generation_only(world: World) -> None:
    world.put(b"abc")
    world.folder.remove("s", "ops")
    world.folder.remove("never", "ops")
    world.folder.note_rows([("s", CopyState("ops", G1, is_gone=True, counter=7))])
    assert not world.path().exists() and world.folder.bytes == 0
    world.restart()
    assert world.put(b"abc") == Applied("ended", 0)
    assert world.put(b"new", 0, G2) == Applied("written", 3)
    assert world.folder.state("s") == CopyState("ops", G2, counter=7)


def test_another_agent_needs_another_generation(world: World) -> None:
    world.put(b"abc")
    assert world.put(b"def", 3, agent="dev") == Applied("ended", 3)
    assert world.put(b"new", 0, G2, agent="dev") == Applied("written", 3)
    assert not world.path().exists()
    assert world.path(agent="dev").read_bytes() == b"new"
    assert world.folder.bytes == 3


def test_a_batch_is_as_one_after_the_other(world: World) -> None:
    spans = [
        ByteSpan("s", "ops", G1, 0, b"ab"),
        ByteSpan("t", "ops", G1, 0, b"t"),
        ByteSpan("s", "ops", G1, 2, b"cd"),
        ByteSpan("s", "ops", G1, 9, b"x"),
        ByteSpan("s", "ops", G2, 0, b"n"),
        ByteSpan("s", "ops", G1, 4, b"e"),
        ByteSpan("s", "ops", G2, 1, b"ew"),
        *(ByteSpan(f"many{n}", "ops", G1, 0, b"head", mtime_ms=1_000 * n) for n in range(20)),
    ]
    applied = world.folder.apply(spans)
    assert [one.outcome for one in applied[:7]] == [
        "written",
        "written",
        "written",
        "gap",
        "written",
        "ended",
        "written",
    ]
    assert world.path().read_bytes() == b"new"
    assert world.path("many7").stat().st_mtime == 7.0
    assert world.folder.bytes == 3 + 1 + 80
    assert sorted(path.name for path in world.path().parent.glob(".*")) == []


def test_a_machine_fills_no_more_than_its_part_and_leaves_room_on_the_disk(tmp_path: Path) -> None:
    world = World(tmp_path, max_bytes=10, max_sessions=2)
    assert world.put(b"12345678") == Applied("written", 8)
    assert world.put(b"abc", 8) == Applied("full", 8)
    assert "mars have reached 10 bytes" in world.folder.trouble
    assert world.put(b"ab", 8) == Applied("written", 10)
    assert world.put(b"12345678", 0) == Applied("known", 10)
    assert world.put(b"", 0, session="t") == Applied("written", 0)
    assert world.put(b"", 0, session="u") == Applied("full", 0)
    assert "more than 2 sessions" in world.folder.trouble
    world.close()
    small = World(tmp_path, free_bytes=1 << 62)
    assert small.folder.bytes == 10
    assert small.put(b"z", 10) == Applied("full", 10)
    assert "the disk has less than" in small.folder.trouble
    small.close()


def test_sessions_that_are_gone_give_way_to_new_ones_the_oldest_first(tmp_path: Path) -> None:
    world = World(tmp_path, max_sessions=3)
    for name in ("s", "t", "u"):
        world.put(b"abc", session=name)
    assert world.put(b"", session="v") == Applied("full", 0)
    for counter, name in enumerate(("t", "s")):
        world.folder.remove(name, "ops")
        world.folder.note_rows([(name, CopyState("ops", G1, is_gone=True, counter=counter))])
    assert world.folder.has_place and not world.folder.may_know_more
    assert world.put(b"abc", session="v") == Applied("written", 3)
    world.restart()
    assert world.folder.state("t") is None
    assert world.put(b"abc", session="s").outcome == "ended", "it is still known to be gone"
    assert world.put(b"abc", session="w") == Applied("written", 3)
    assert not world.folder.has_place
    assert world.put(b"abc", session="x") == Applied("full", 0)
    assert world.states.count_gone("mars") == 0
    assert sorted(path.stem for path in world.path().parent.iterdir()) == ["u", "v", "w"]
    world.close()


@pytest.mark.parametrize("place", ["machines", "machines/mars", "machines/mars/agents", "machines/mars/agents/ops"])
def test_a_link_in_the_way_is_never_followed(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    if place.count("/") < 2:
        sentence = r"^machines/mars in the store .* cannot be used: a symbolic link .*; a folder has to be there$"
        with pytest.raises(LinkError, match=sentence):
            World(tmp_path)
    else:
        world = World(tmp_path)
        assert world.put(b"abc").outcome == "failed"
        assert "cannot be written" in world.folder.trouble
        world.close()
    assert list(outside.iterdir()) == []


def test_a_link_as_a_transcript_is_replaced_or_left_alone(world: World, tmp_path: Path) -> None:
    world.put(b"abc")
    target = tmp_path / "target"
    target.write_bytes(b"abc")
    world.path().unlink()
    world.path().symlink_to(target)
    assert world.put(b"d", 3).outcome in ("gap", "failed")
    assert world.put(b"new", 0, G2).outcome == "written"
    assert target.read_bytes() == b"abc"
    assert not world.path().is_symlink()


_REPLACE = """
from pathlib import Path
from sessiond.link.copy_states import CopyStates
from sessiond.link.ranges import ByteSpan
from sessiond.link.replica import MachineFolder
folder = MachineFolder(Path(root), "mars", CopyStates(Path(root)), free_bytes=0)
spans = [ByteSpan(name, "ops", "0" * 15 + "1", 0, b"abc") for name in ("s", "t")]
assert [one.outcome for one in folder.apply(spans)] == ["written", "written"]
"""


def test_a_new_copy_has_its_name_on_disk_before_it_is_noted_that_it_is_there(tmp_path: Path) -> None:
    calls = [call for call in record(tmp_path / "shim", tmp_path, _REPLACE) if "-shm" not in call.path]
    last = max(number for number, call in enumerate(calls) if call.name == "rename")
    steps = [(call.name, Path(call.path).name) for call in calls[last + 1 :]]
    assert steps[0] == ("sync", "sessions"), steps
    assert ("write", "copies.db-wal") in steps


def test_what_a_crash_left_half_made_is_removed(world: World) -> None:
    world.put(b"abc")
    incoming = world.store / "machines" / "mars" / "incoming"
    for folder in (world.path().parent, incoming):
        (folder / ".tmp-0123").write_bytes(b"half")
    world.restart()
    assert [path.name for path in world.path().parent.iterdir()] == ["s.jsonl"]
    assert list(incoming.iterdir()) == []
    assert world.folder.bytes == 3


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
async def test_who_watches_the_folder_is_told_once_of_a_copy_that_appears_or_is_replaced(world: World) -> None:
    world.put(b"first", session="t")
    folder = world.path().parent
    watch = InotifyBackend()
    watch.add(str(folder))
    try:
        for generation in (G1, G2):
            world.put(b"abc", 0, generation)
            data = os.read(watch._fd, 65_536)
            assert [(event.mask, event.name) for event in parse(data)] == [(IN_MOVED_TO, b"s.jsonl")]
    finally:
        watch.close()


def test_many_new_copies_need_no_more_descriptors_than_there_are_copies(world: World) -> None:
    count = 400
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, before[1]))
    try:
        applied = world.folder.apply([ByteSpan(f"s{number}", "ops", G1, 0, b"abc") for number in range(count)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert applied == [Applied("written", 3)] * count


def test_in_one_batch_a_session_may_leave_an_agent_and_another_one_come_to_it(world: World) -> None:
    world.put(b"abc")
    agents = world.store / "machines" / "mars" / "agents"
    spans = [ByteSpan("s", "main", G2, 0, b"moved"), ByteSpan("t", "ops", G1, 0, b"came")]
    assert [one.outcome for one in world.folder.apply(spans)] == ["written", "written"]
    assert {path.name: path.read_bytes() for path in agents.rglob("*.jsonl")} == {
        "s.jsonl": b"moved",
        "t.jsonl": b"came",
    }
    assert world.folder.sizes(["s", "t", "never"]) == {"s": 5, "t": 4}
    world.folder.apply([ByteSpan("t", "main", G2, 0, b"too")])
    assert sorted(path.name for path in agents.iterdir()) == ["main"]


def test_a_damaged_database_is_begun_again_and_the_copies_too(world: World) -> None:
    world.put(b"abc")
    world.close()
    (world.store / "link" / "copies.db").write_bytes(b"no database " * 400)
    world.open()
    assert world.put(b"d", 3) == Applied("gap", 0)
    assert world.put(b"abc") == Applied("written", 3)


def test_a_database_that_is_damaged_anywhere_is_begun_again(world: World) -> None:
    world.states.write([("mars", f"session-{number:04}", BEGUN) for number in range(2000)])
    world.close()
    path = world.store / "link" / "copies.db"
    data = bytearray(path.read_bytes())
    data[8 * 4096 : 9 * 4096] = bytes(range(256)) * 16
    path.write_bytes(data)
    world.open()
    assert world.folder.state("session-0000") is None
    assert world.put(b"abc") == Applied("written", 3)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE copy RENAME counter TO times",
        "UPDATE copy SET agent = x'00ff'",
        "UPDATE copy SET agent = '../..'",
        "UPDATE copy SET session = '../other'",
        "UPDATE copy SET counter = 'many'",
    ],
)
def test_a_database_with_other_columns_or_values_is_begun_again(world: World, change: str) -> None:
    world.put(b"abc")
    world.close()
    with contextlib.closing(sqlite3.connect(world.store / "link" / "copies.db")) as other, other:
        other.execute(change)
    world.open()
    assert world.folder.state("s") is None
    assert world.put(b"abc") == Applied("written", 3)


def test_a_database_that_finds_no_room_fails_the_range_and_a_later_one_is_written(world: World) -> None:
    database = world.states._database
    database.execute(f"pragma max_page_count = {database.execute('pragma page_count').fetchone()[0]}")
    names = [f"{number:060}" for number in range(300)]
    outcomes = [world.put(b"abc", session=name).outcome for name in names]
    full = outcomes.index("failed")
    assert set(outcomes[full:]) == {"failed"}
    assert world.folder.trouble.endswith("link/copies.db cannot be written: database or disk is full")
    assert world.folder.bytes == 3 * full
    with pytest.raises(StorageError, match=r"^link/copies.db cannot be written: database or disk is full$"):
        world.folder.note_rows((name, BEGUN) for name in names)
    database.execute("pragma max_page_count = 10000")
    for _ in range(2):
        assert [world.put(b"abc", session=name) for name in names[:full]] == [Applied("known", 3)] * full
        assert {world.put(b"abcd", session=name).size for name in names[full:]} == {4}
        world.restart()
    assert {world.path(name).read_bytes() for name in names[full:]} == {b"abcd"}


def test_one_link_at_a_time_has_the_copies(world: World) -> None:
    with pytest.raises(LinkError, match='another "sessiond link run" uses the store'):
        CopyStates(world.store)


Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "grow", "renew", "restart", "batch"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_a_copy_is_always_an_exact_prefix_and_whole_in_the_end(steps: list[Step]) -> None:
    """Ranges of every generation so far come cut anywhere, twice, late or never."""
    with tempfile.TemporaryDirectory() as place:
        world = World(Path(place))
        originals = {G1: b"original of one"}
        newest, content = G1, random_bytes(7)

        def span_of(a: int, b: int, c: int) -> ByteSpan:
            generation = sorted(originals)[a % len(originals)]
            whole = originals[generation]
            begin = b % (len(whole) + 1)
            return ByteSpan("s", "ops", generation, begin, whole[begin : begin + c % 12])

        seen = ""
        for step, a, b, c in steps:
            if step == "grow":
                originals[newest] += content[a % 50 : a % 50 + b % 9]
            elif step == "renew":
                newest = make_generation(newest, a, b)
                originals[newest] = content[c % 50 : c % 50 + b % 20]
            elif step == "restart":
                world.restart()
            else:
                world.folder.apply([span_of(a + n, b * (n + 1), c + n) for n in range(1 if step == "send" else 4)])
            state = world.folder.state("s")
            if state is not None:
                assert state.generation >= seen
                seen = state.generation
                copy = world.path().read_bytes() if world.path().exists() else b""
                assert originals[seen].startswith(copy)
                assert world.folder.bytes == len(copy)
        # What is asked for in the end: all that is missing.
        size = world.folder.size("s") if seen == newest else 0
        whole = originals[newest]
        for begin in range(size, len(whole) + 1, 5):
            world.put(whole[begin : begin + 5], begin, newest)
        assert world.path().read_bytes() == whole
        world.close()


def random_bytes(seed: int) -> bytes:
    return bytes((seed * n * n + n) % 251 for n in range(80))


def test_no_descriptor_is_left_open(world: World) -> None:
    world.put(b"abc")
    before = len(os.listdir("/proc/self/fd"))
    for n in range(10):
        world.put(b"x", 3 + n)
        world.put(b"y", 0, make_generation("", n, 0), session="t")
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_folder_of_an_agent_stays_without_a_copy(world: World) -> None:
    for number in range(20):
        assert world.put(b"x", generation=f"{number:016x}", agent=f"a{number}").outcome == "written"
    assert world.put(b"y", session="other", agent="a19").outcome == "written"
    agents = world.store / "machines" / "mars" / "agents"
    assert [path.name for path in agents.iterdir()] == ["a19"]
    world.folder.remove("s", "a19")
    assert [path.name for path in agents.rglob("*.jsonl")] == ["other.jsonl"]
    world.folder.remove("other", "a19")
    assert list(agents.iterdir()) == []
    assert world.put(b"z", session="new", agent="a19").outcome == "written"
    assert world.path("new", "a19").read_bytes() == b"z"
