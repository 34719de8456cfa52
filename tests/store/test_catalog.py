"""The sessions in memory, against a plain list under any sequence of changes."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec.structs import replace
from support.sampling import amount

from sessiond.model.dialects import V3
from sessiond.model.entry import ConversationRef, Entry, FileFacts, LiveRun, Spawn
from sessiond.store.catalog import Catalog, Folder, Session

LIVE, ARCHIVE = Folder("main", -1, dialect=V3), Folder("main", -1, archived=True, dialect=V3)


def session(name: str, key: str = "agent:main:main", folder: Folder = LIVE, **entry: Any) -> Session:
    return Session(key=key, entry=Entry(session_id=name, session_key=key, **entry), folder=folder)


class CatalogChanges(RuleBasedStateMachine):
    """After any sequence of changes, every answer of the catalog agrees with a scan of all sessions."""

    sessions = Bundle("sessions")
    entries = st.fixed_dictionaries(
        {},
        optional={
            "updated_at": st.integers(0, 5),
            "created_at": st.integers(0, 3),
            "label": st.sampled_from(["a", "b"]),
            "spawned_by": st.sampled_from(["agent:main:0", "agent:main:1"]),
            "corrupt_records": st.integers(0, 2),
            "runs": st.just((LiveRun("r", 0),)),
            "talks": st.just((ConversationRef("t", 0),)),
            "spawn": st.just(Spawn()),
        },
    )

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog()
        self.all: list[Session] = []
        self.session_count = 0

    def new_session(self, key: int, folder: Folder, entry: dict[str, Any]) -> Session:
        self.session_count += 1
        one = session(f"s{self.session_count:03d}", f"agent:main:{key}", folder, **entry)
        self.all.append(one)
        return one

    @rule(target=sessions, key=st.integers(0, 3), archived=st.booleans(), entry=entries)
    def add(self, key: int, archived: bool, entry: dict[str, Any]) -> Session:
        one = self.new_session(key, ARCHIVE if archived else LIVE, entry)
        self.catalog.add(one)
        return one

    @rule(many=st.lists(st.tuples(st.integers(0, 3), st.booleans(), entries), max_size=4))
    def load(self, many: list[tuple[int, bool, dict[str, Any]]]) -> None:
        self.catalog.load(
            [self.new_session(key, ARCHIVE if archived else LIVE, entry) for key, archived, entry in many]
        )

    @rule(one=sessions, entry=entries)
    def change(self, one: Session, entry: dict[str, Any]) -> None:
        kept = {"session_id": one.session_id, "session_key": one.key, "created_at": one.entry.created_at}
        self.catalog.replace(one, Entry(**{**entry, **kept}))

    @rule(one=consumes(sessions))
    def remove(self, one: Session) -> None:
        self.catalog.remove(one)
        self.all.remove(one)

    @rule(one=sessions)
    def archive(self, one: Session) -> None:
        self.catalog.remove(one)
        one.folder = ARCHIVE
        self.catalog.add(one)

    def live(self) -> dict[str, Session]:
        newest: dict[str, Session] = {}
        for one in sorted(self.all, key=lambda each: (each.entry.created_at, each.session_id)):
            if one.folder is LIVE:
                newest[one.key] = one
        return newest

    @invariant()
    def agrees_with_a_scan_of_all_sessions(self) -> None:
        live, catalog = self.live(), self.catalog
        assert catalog.by_key == live
        assert len(catalog) == len(live)
        assert catalog.by_id == {one.session_id: one for one in self.all}
        assert {one.session_id for one in self.all if one.archived} == {
            one.session_id for one in self.all if one not in live.values()
        }
        order = sorted(live.values(), key=lambda one: (-one.entry.updated_at, one.key))
        assert list(catalog.newest()) == order
        for after in [(-3, "agent:main:1"), (0, ""), (1, "")]:
            rest = [one for one in order if (-one.entry.updated_at, one.key) >= after]
            assert list(catalog.newest(after)) == rest
        for label in ("a", "b"):
            keys = {one.key for one in live.values() if one.entry.label == label}
            assert set(catalog.keys_with_label("main", label)) == set(catalog.with_label(label)) == keys
            assert catalog.keys_with_label("other", label) == []
        for parent in ("agent:main:0", "agent:main:1"):
            children = [one for one in live.values() if one.entry.spawned_by == parent]
            children.sort(key=lambda one: (one.entry.created_at, one.key))
            assert catalog.children_of(parent) == [one.key for one in children]
        assert catalog.corrupt_records == sum(one.entry.corrupt_records for one in live.values())
        children = {one for one in self.all if one.entry.spawn is not None}
        assert set(catalog.spawned_sessions()) == children
        assert set(catalog.unsettled_sessions()) == children | {
            one for one in self.all if one.entry.runs or one.entry.talks
        }
        assert not catalog.has_twins


TestCatalogChanges = CatalogChanges.TestCase
TestCatalogChanges.settings = settings(max_examples=amount(80, 6), stateful_step_count=25, deadline=None)


def test_the_session_with_the_newest_header_has_the_key_and_the_older_one_gets_it_back():
    catalog = Catalog()
    old, new, oldest = (session(name, created_at=at) for name, at in [("old", 2), ("new", 3), ("oldest", 1)])
    for one in (old, new, oldest):
        catalog.add(one)
    assert (catalog.by_key["agent:main:main"], old.archived, oldest.archived) == (new, True, True)
    catalog.remove(new)
    assert (catalog.by_key["agent:main:main"], old.archived, oldest.archived) == (old, False, True)


def test_the_live_file_is_found_if_an_archived_one_has_the_same_id():
    catalog = Catalog()
    live, archived = session("s"), session("s", folder=ARCHIVE)
    catalog.load([live])
    catalog.load([archived])
    assert catalog.by_id["s"] is live


def test_replacing_an_entry_marks_the_folders_index_as_dirty():
    catalog, folder = Catalog(), Folder("main", -1, dialect=V3)
    one = session("s", folder=folder)
    catalog.add(one)
    assert not folder.dirty
    catalog.replace(one, replace(one.entry, message_count=1))
    assert folder.dirty


def test_the_parent_of_the_next_record_is_the_last_one_written_until_the_fold_has_read_it():
    catalog, one = Catalog(), session("s")
    catalog.add(one)
    assert one.last_id is None
    one.activity.written_id, one.activity.written_end = "w", 100
    assert one.last_id == "w"
    catalog.replace(one, replace(one.entry, file=FileFacts(folded_to=150, last_id="stranger")))
    assert one.last_id == "stranger"
    catalog.replace(one, replace(one.entry, file=FileFacts(folded_to=20, last_id="rewritten")))
    assert one.last_id == "rewritten"


def test_files_with_one_id_in_two_folders_are_both_loaded():
    catalog, other = Catalog(), Folder("other", -1, dialect=V3)
    one, twin = session("s1", "agent:main:x"), session("s1", "agent:other:x", other)
    alone = session("s2", "agent:other:y", other)
    catalog.load([one])
    catalog.load([twin, alone])
    assert catalog.by_key == {"agent:main:x": one, "agent:other:x": twin, "agent:other:y": alone}
    assert catalog.by_id == {"s1": twin, "s2": alone}
    assert list(catalog.newest()) == [one, twin, alone]
    assert catalog.has_twins


CLAUDE = Folder("", -1, dialect=V3, source="claude", path="/home/me/.claude")


def foreign(native: str, place: str = "", **entry: Any) -> Session:
    key = f"claude:{native}"
    made = session(native, key, CLAUDE, **entry)
    made.place = place or f"projects/-x/{native}.jsonl"
    return made


def test_another_programs_session_is_listed_and_never_found_under_an_id_of_ours() -> None:
    catalog, ours, theirs = Catalog(), session("abcdefgh", updated_at=1), foreign("abcdefgh", updated_at=2)
    catalog.load([ours])
    catalog.add(theirs)
    assert list(catalog.newest()) == [theirs, ours]
    assert catalog.by_id == {"abcdefgh": ours}
    assert (catalog.by_key["claude:abcdefgh"], catalog.has(theirs)) == (theirs, True)
    assert set(catalog.every()) == {ours, theirs}
    assert not catalog.has_twins
    assert theirs.path == "/home/me/.claude/projects/-x/abcdefgh.jsonl"
    catalog.replace(theirs, replace(theirs.entry, updated_at=0))
    assert list(catalog.newest()) == [ours, theirs]
    assert not CLAUDE.dirty, "no index is written into another program's folder"
    catalog.remove(theirs)
    assert (list(catalog.newest()), len(catalog.foreign), catalog.has(theirs)) == ([ours], 0, False)


def test_another_programs_session_takes_the_place_of_the_one_with_its_key() -> None:
    catalog, old, new = Catalog(), foreign("a", "one/a.jsonl"), foreign("a", "two/a.jsonl")
    catalog.add(old)
    catalog.add(new)
    catalog.remove(old)
    assert list(catalog.newest()) == [new]


def test_a_key_is_spelled_as_its_session_has_it_where_only_one_fits() -> None:
    catalog = Catalog()
    for native in ("AbC", "abC", "Xyz"):
        catalog.add(foreign(native))
    assert [catalog.foreign.find_spelling(f"claude:{text}") for text in ("AbC", "ABC", "XYZ", "none")] == [
        "claude:AbC",
        "claude:ABC",
        "claude:Xyz",
        "claude:none",
    ]


def test_the_session_of_ours_that_carries_a_native_id_is_known_as_long_as_there_is_one() -> None:
    catalog, changed = Catalog(), list[str]()
    catalog.natives.changed = changed.append
    one = session("s1", "agent:main:a", native_session_id="N1 1234")
    catalog.load([one])
    assert (catalog.carrier_of("N1"), changed) == (one, ["N1"])
    catalog.replace(one, replace(one.entry, native_session_id="N1 5678"))
    assert (catalog.carrier_of("N1"), changed) == (one, ["N1"])
    archived = session("s0", "agent:main:a", ARCHIVE, native_session_id="N1")
    catalog.add(archived)
    assert catalog.carrier_of("N1") is one, "the current session of a key goes before archived ones"
    catalog.replace(one, replace(one.entry, native_session_id="N2"))
    assert (catalog.carrier_of("N1"), catalog.carrier_of("N2")) == (archived, one)
    catalog.remove(archived)
    catalog.remove(one)
    assert (catalog.carrier_of("N1"), catalog.carrier_of("N2")) == (None, None)
    assert changed == ["N1", "N2", "N1", "N2"]


def test_of_copies_of_a_child_under_several_agents_one_is_the_child_and_the_runs_of_all_are_found():
    catalog, other = Catalog(), Folder("other", -1, dialect=V3)
    facts: dict[str, Any] = {"runs": (LiveRun("r", 0),), "spawn": Spawn()}
    one, twin = session("s1", "agent:main:x", **facts), session("s1", "agent:other:x", other, **facts)
    catalog.load([one])
    catalog.load([twin])
    assert (catalog.unsettled_sessions(), catalog.spawned_sessions()) == ([one, twin], [twin])


def test_a_session_that_was_removed_is_not_kept_for_what_is_read_of_it_afterwards():
    catalog, one = Catalog(), session("s")
    catalog.add(one)
    catalog.remove(one)
    catalog.replace(one, replace(one.entry, runs=(LiveRun("r", 0),)))
    assert (catalog.unsettled_sessions(), catalog._unsettled) == ([], {})


def test_the_garbage_collector_does_not_look_at_sessions():
    catalog, many = Catalog(), [session(f"s{number}", f"agent:main:{number}") for number in range(3)]
    catalog.load(many)
    many[0].activity.leaving = trio.Event()
    assert not any(gc.is_tracked(one) for one in many)


def test_a_session_takes_few_bytes_in_the_catalog() -> None:
    catalog = Catalog()
    many = [session(f"s{number}", f"agent:main:{number}", updated_at=10**12 + number) for number in range(10_000)]
    tracemalloc.start()
    try:
        catalog.load(many)
        assert tracemalloc.get_traced_memory()[0] < 80 * len(many), "more than its place in two tables and the order"
    finally:
        tracemalloc.stop()


def test_a_session_to_which_nothing_was_done_takes_few_bytes() -> None:
    one = session("s")
    assert sys.getsizeof(one) <= 96
    assert (one.in_flight, one.leaving, one.epoch, one.parsed, one.last_id) == (0, None, 0, None, None)
    one.forget_written()
    assert one._activity is None
    one.activity.epoch += 1
    assert (one.epoch, one.in_flight) == (1, 0)
