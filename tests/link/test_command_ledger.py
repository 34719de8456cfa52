"""The ledger of commands: each is known once, whole or in parts, before and after a restart."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from support.sampling import amount
from support.shortage import no_room

from sessiond.errors import ConfigError, StorageError
from sessiond.link import command_ledger
from sessiond.link.command_ledger import KEPT_MS, CommandLedger, LedgerEntry, NoRoom
from sessiond.link.database import open_alone
from sessiond.link.ledger_tables import COUNT_ALL, SHORT_ANSWER_BYTES, in_full

PEER = "lap"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[CommandLedger]:
    made = CommandLedger(tmp_path)
    yield made
    made.close()


def test_a_command_is_new_once_and_keeps_its_first_body(ledger: CommandLedger) -> None:
    assert ledger.accept(PEER, "r1", b"first", 1)
    assert not ledger.accept(PEER, "r1", b"second", 2)
    assert ledger.accept("mars", "r1", b"of another machine", 3)
    assert ledger.find(PEER, "r1") == LedgerEntry(PEER, "r1", "waiting", b"first", at_ms=1)
    assert ledger.find(PEER, "r2") is None


def test_what_is_open_and_unsent_is_there_after_a_restart(tmp_path: Path) -> None:
    first = CommandLedger(tmp_path)
    for number, name in enumerate(("waits", "runs", "answered", "sent")):
        assert first.accept(PEER, name, b"body", number)
    assert first.begin(PEER, "runs", "run-1", "agent:ops:main")
    first.answer(PEER, "answered", b"reply")
    first.answer(PEER, "sent", b"reply")
    first.note_sent(PEER, "sent", b"gone")
    first.close()
    second = CommandLedger(tmp_path)
    try:
        assert [(one.id, one.state, one.run_id) for one in second.open_commands()] == [
            ("waits", "waiting", None),
            ("runs", "running", "run-1"),
        ]
        assert [(one.id, one.answer, one.body) for one in second.unsent_answers()] == [("answered", b"reply", None)]
        assert second.counts() == {PEER: {"waiting": 1, "running": 1, "answered": 2}}
    finally:
        second.close()


def test_the_first_answer_stays_and_an_answered_command_begins_no_run(ledger: CommandLedger) -> None:
    ledger.accept(PEER, "r1", b"body", 1)
    ledger.answer(PEER, "r1", b"stopped")
    ledger.answer(PEER, "r1", b"later")
    assert not ledger.begin(PEER, "r1", "run-1", "key")
    found = ledger.find(PEER, "r1")
    assert found is not None and (found.answer, found.run_id) == (b"stopped", None)


def test_parts_make_a_body_in_any_order_and_once(ledger: CommandLedger) -> None:
    assert ledger.put_part(PEER, "r1", 2, 3, b"c") is None
    assert ledger.put_part(PEER, "r1", 0, 3, b"a") is None
    assert ledger.put_part(PEER, "r1", 0, 3, b"forged later") is None
    assert ledger.put_part(PEER, "r1", 1, 3, b"b") == b"abc"
    assert ledger.accept(PEER, "r1", b"abc", 1)
    assert ledger.put_part(PEER, "r1", 1, 3, b"b") is None, "a known command needs no parts"


def test_a_body_cut_otherwise_begins_anew(ledger: CommandLedger) -> None:
    assert ledger.put_part(PEER, "r1", 0, 3, b"a") is None
    assert ledger.put_part(PEER, "r1", 0, 2, b"ab") is None
    assert ledger.put_part(PEER, "r1", 1, 2, b"c") == b"abc"


def test_parts_have_a_limit_and_the_oldest_command_loses_its_own(
    ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_ledger, "MAX_PART_BYTES", 16)
    monkeypatch.setattr(command_ledger, "PART_COST_BYTES", 3)
    assert ledger.put_part(PEER, "old", 0, 2, b"12345") is None
    assert ledger.put_part(PEER, "new", 0, 2, b"12345") is None, "sixteen bytes are allowed"
    assert ledger.put_part(PEER, "new", 1, 2, b"6") == b"123456"
    assert ledger.put_part(PEER, "old", 1, 2, b"6") is None, "its first part went"


def test_a_peer_may_have_so_much_open_and_no_more(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_ledger, "MAX_OPEN", 2)
    assert ledger.accept(PEER, "r1", b"", 1) and ledger.accept(PEER, "r2", b"", 2)
    with pytest.raises(NoRoom):
        ledger.accept(PEER, "r3", b"", 3)
    assert ledger.accept("mars", "r3", b"", 3), "another machine has room of its own"
    ledger.answer(PEER, "r1", b"done")
    with pytest.raises(NoRoom):
        ledger.accept(PEER, "r3", b"", 4)
    ledger.note_sent(PEER, "r1", b"gone")
    assert ledger.accept(PEER, "r3", b"", 5), "an answer that the server has takes no room"


def test_parts_without_a_byte_have_a_limit_too(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_ledger, "MAX_PART_BYTES", 3 * command_ledger.PART_COST_BYTES + 9)
    for name in ("r1", "r2", "r3", "r4"):
        assert ledger.put_part(PEER, name, 0, 2, b"") is None
    assert ledger.put_part(PEER, "r1", 1, 2, b"x") is None, "its first part went"
    assert ledger.put_part(PEER, "r4", 1, 2, b"x") == b"x"


def test_the_bodies_that_wait_for_their_runs_have_a_limit(
    ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_ledger, "MAX_OPEN_BYTES", 4)
    assert ledger.accept(PEER, "r1", b"1234", 1)
    with pytest.raises(NoRoom):
        ledger.accept(PEER, "r2", b"5", 2)
    assert ledger.accept("mars", "r2", b"longer than that", 2), "one is always taken"
    assert ledger.begin(PEER, "r1", "run-1", "agent:ops:main")
    found = ledger.find(PEER, "r1")
    assert found is not None and found.body is None, "a run that has begun needs none"
    assert ledger.accept(PEER, "r2", b"5", 2)
    ledger.answer(PEER, "r1", bytes(SHORT_ANSWER_BYTES + 4))
    with pytest.raises(NoRoom):
        ledger.accept(PEER, "r3", b"6", 3)
    ledger.note_sent(PEER, "r1", b"gone")
    assert ledger.accept(PEER, "r3", b"6", 3), "nor does an answer that was sent"


def keep_answer(ledger: CommandLedger, name: str, at_ms: int, length: int, peer: str = PEER) -> None:
    assert ledger.accept(peer, name, b"", at_ms)
    ledger.answer(peer, name, bytes(length))
    ledger.note_sent(peer, name, b"gone")


def answers_of(ledger: CommandLedger, *names: str) -> list[int | None]:
    found = [ledger.find(PEER, name) for name in names]
    return [None if one is None or one.answer is None else len(one.answer) for one in found]


def test_the_answers_that_were_sent_have_a_limit_and_the_oldest_is_forgotten_and_its_command_known(
    ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_ledger, "MAX_ANSWER_BYTES", 1000)
    keep_answer(ledger, "short", 1, SHORT_ANSWER_BYTES)
    for name, at_ms in (("second", 3), ("first", 2)):
        keep_answer(ledger, name, at_ms, SHORT_ANSWER_BYTES + 400)
    keep_answer(ledger, "other", 0, SHORT_ANSWER_BYTES + 1000, "mars")
    keep_answer(ledger, "third", 4, SHORT_ANSWER_BYTES + 200)
    assert answers_of(ledger, "short", "first", "second", "third") == [512, 912, 912, 712], "as much as is allowed"
    keep_answer(ledger, "fourth", 5, SHORT_ANSWER_BYTES + 1)
    assert answers_of(ledger, "short", "first", "second", "third", "fourth") == [512, 4, 912, 712, 513]
    assert not ledger.accept(PEER, "first", b"again", 6), "it is not executed a second time"
    keep_answer(ledger, "long", 7, SHORT_ANSWER_BYTES + 1000)
    assert answers_of(ledger, "second", "third", "fourth", "long") == [4, 4, 4, 1512]
    assert ledger.counts() == {PEER: {"answered": 6}, "mars": {"answered": 1}}
    keep_answer(ledger, "longer", 8, SHORT_ANSWER_BYTES + 1001)
    assert answers_of(ledger, "long", "longer") == [4, 4], "what is too long for all of them together is not kept"


def test_what_has_no_answer_is_not_noted_as_sent(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_ledger, "MAX_ANSWER_BYTES", 300)
    assert ledger.accept(PEER, "r1", bytes(301), 1)
    ledger.note_sent(PEER, "r1", b"gone")
    assert ledger.counts() == {PEER: {"waiting": 1}}
    found = ledger.find(PEER, "r1")
    assert found is not None and not found.is_sent
    assert [one.id for one in ledger.open_commands()] == ["r1"]


def test_totals_that_a_stranger_has_changed_hold_nothing_up(ledger: CommandLedger) -> None:
    ledger.accept(PEER, "r1", b"", 1)
    ledger.answer(PEER, "r1", b"answer")
    ledger._db.execute("insert into totals values (?, 'answered', 1, ?, ?)", (PEER, 2**40, 2**40))
    ledger._db.execute("insert into part_totals values (?, ?, ?)", (PEER, 2**40, 2**40))
    ledger.note_sent(PEER, "r1", b"gone")
    assert ledger.accept(PEER, "r2", b"", 2)
    assert ledger.put_part(PEER, "r3", 0, 2, b"x") is None
    for _again in range(2):
        ledger._db.execute("delete from part_totals")
        assert ledger.put_part(PEER, "r3", 0, 2, b"x") is None
    assert ledger.put_part(PEER, "r3", 1, 2, b"y") == b"xy"


VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=9), st.text(max_size=9), st.just("\0")
)
ROWS = st.fixed_dictionaries(
    {"peer": VALUES, "id": VALUES, "state": st.one_of(VALUES, st.sampled_from(["waiting", "running", "dead"]))},
    optional=dict.fromkeys(("body", "run_id", "session_key", "tries", "reason", "answer", "is_sent", "at_ms"), VALUES),
)


@given(st.lists(ROWS, max_size=6), st.lists(st.lists(VALUES, min_size=5, max_size=5), max_size=3))
@settings(max_examples=amount(200, 20))
def test_rows_that_a_stranger_wrote_have_the_types_of_the_ledger(
    rows: list[dict[str, Any]], others: list[list[Any]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        CommandLedger(Path(folder)).close()
        strangers = sqlite3.connect(Path(folder) / "commands.db", isolation_level=None)
        for row in rows:
            fields = {"at_ms": 1, **row}
            insert = f"insert into commands ({', '.join(fields)}) values ({', '.join('?' * len(fields))})"
            with suppress(sqlite3.Error):
                strangers.execute(insert, list(fields.values()))
        for table, count in (("totals", 5), ("part_totals", 3), ("children", 3), ("asked", 3), ("refused", 3)):
            for values in others:
                with suppress(sqlite3.Error):
                    strangers.execute(f"insert into {table} values ({', '.join('?' * count)})", values[:count])
        strangers.close()
        ledger = CommandLedger(Path(folder))
        ledger._db.execute("pragma synchronous = off")
        entries = [*ledger.open_commands(), *ledger.unsent_answers(), *ledger.dead_letters()]
        for entry in entries:
            msgspec.convert(asdict(entry) | {"state": "waiting"}, LedgerEntry)
            msgspec.convert(entry.state, str)
        msgspec.convert(ledger.unanswered_commands(), list[tuple[str, str]])
        msgspec.convert(list(ledger.counts().values()), list[dict[str, int]])
        assert ledger.accept(PEER, "new", b"body", 1)
        ledger.answer(PEER, "new", b"answer")
        ledger.note_sent(PEER, "new", b"gone")
        ledger.forget_old(KEPT_MS)
        found = ledger.find(PEER, "new")
        assert found is not None and found.is_sent
        ledger.close()


def test_the_commands_that_were_answered_have_a_limit(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_ledger, "MAX_KEPT", 2)
    ledger.accept(PEER, "open", b"", 0)
    for at_ms, name in enumerate(("first", "second")):
        keep_answer(ledger, name, at_ms, 1)
    assert answers_of(ledger, "first", "second") == [1, 1]
    keep_answer(ledger, "third", 3, 1)
    assert answers_of(ledger, "first", "second", "third") == [None, 1, 1]
    assert ledger.counts() == {PEER: {"waiting": 1, "answered": 2}}


def test_no_call_costs_more_with_a_longer_history(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in steps of SQLite's machine; what grows with the depth of a tree may double."""
    monkeypatch.setattr(command_ledger, "MAX_ANSWER_BYTES", 50)

    def steps(number: int) -> list[int]:
        done: list[int] = []

        def measure(call: Callable[[], object]) -> None:
            count = 0

            def step() -> None:
                nonlocal count
                count += 1

            ledger._db.set_progress_handler(step, 1)
            call()
            ledger._db.set_progress_handler(None, 1)
            done.append(count)

        name = f"measured {number}"
        measure(ledger.counts)
        measure(ledger.dead_letters)
        measure(lambda: ledger.accept(PEER, name, b"", number))
        measure(lambda: ledger.put_part(PEER, f"{name} in parts", 0, 2, b"x"))
        measure(lambda: ledger.answer(PEER, name, bytes(SHORT_ANSWER_BYTES + 50)))
        measure(lambda: ledger.note_sent(PEER, name, b"gone"))
        return done

    def fill(first: int, end: int) -> None:
        for number in range(first, end):
            keep_answer(ledger, f"r{number}", number, SHORT_ANSWER_BYTES + 50)
            ledger.accept(PEER, f"open {number}", b"", number)
            ledger.put_part(PEER, f"part {number}", 0, 2, b"")

    ledger._db.execute("pragma synchronous = off")
    fill(0, 10)
    few = steps(10)
    fill(11, 400)
    many = steps(400)
    assert all(late <= 2 * early for early, late in zip(few, many, strict=True)), (few, many)


NAMES = st.sampled_from(["a", "b", "c", "d"])
TIMES = st.integers(0, 9)
BODIES = st.integers(0, 700).map(bytes)
STEPS = st.one_of(
    st.tuples(st.just("accept"), NAMES, BODIES, TIMES),
    st.tuples(st.just("put_part"), NAMES, st.integers(0, 2), st.just(3), BODIES),
    st.tuples(st.just("begin"), NAMES, st.just("run"), st.just("key")),
    st.tuples(st.just("note_try"), NAMES, st.just("why")),
    st.tuples(st.just("answer"), NAMES, BODIES),
    st.tuples(st.just("note_sent"), NAMES, st.just(b"gone")),
    st.tuples(st.just("forget_old"), st.just(KEPT_MS + 5)),
)


@given(st.lists(st.tuples(st.sampled_from([PEER, "mars"]), STEPS), max_size=40))
@settings(max_examples=amount(60, 8))
def test_the_totals_are_those_of_the_rows_after_whatever_was_done(done: list[tuple[str, tuple[Any, ...]]]) -> None:
    limits = {"MAX_ANSWER_BYTES": 300, "MAX_KEPT": 2, "MAX_OPEN": 3, "MAX_OPEN_BYTES": 900, "MAX_PART_BYTES": 9000}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patching:
        for name, limit in limits.items():
            patching.setattr(command_ledger, name, limit)
        ledger = CommandLedger(Path(folder))
        ledger._db.execute("pragma synchronous = off")
        for peer, (method, *values) in done:
            with suppress(NoRoom):
                getattr(ledger, method)(*([] if method == "forget_old" else [peer]), *values)
        assert totals_of(ledger) == counted_again(ledger)
        ledger.close()


def totals_of(ledger: CommandLedger) -> list[list[tuple[Any, ...]]]:
    return [
        ledger._db.execute("select * from totals where count > 0 order by 1, 2, 3").fetchall(),
        ledger._db.execute("select * from part_totals where count > 0 order by 1").fetchall(),
    ]


def counted_again(ledger: CommandLedger) -> list[list[tuple[Any, ...]]]:
    ledger._db.executescript(in_full(COUNT_ALL))
    return totals_of(ledger)


def test_what_was_there_before_totals_were_kept_is_counted_once(tmp_path: Path) -> None:
    first = CommandLedger(tmp_path)
    keep_answer(first, "r1", 1, 700)
    first.put_part(PEER, "r2", 0, 2, b"abc")
    kept = totals_of(first)
    first._db.executescript("delete from totals; delete from part_totals; pragma user_version = 0")
    first.close()
    second = CommandLedger(tmp_path)
    assert totals_of(second) == kept
    assert kept == [[(PEER, "answered", 1, 1, 700 - SHORT_ANSWER_BYTES)], [(PEER, 1, 3)]]
    second.close()


def test_a_dead_letter_is_kept_with_its_reason_and_its_attempts(ledger: CommandLedger) -> None:
    ledger.accept(PEER, "r1", b"body", 1)
    assert [ledger.note_try(PEER, "r1", "the disk is full") for _ in range(3)] == [1, 2, 3]
    ledger.answer(PEER, "r1", b"refused", is_dead=True)
    assert ledger.dead_letters() == [
        LedgerEntry(PEER, "r1", "dead", None, tries=3, reason="the disk is full", answer=b"refused", at_ms=1)
    ]


def test_only_answers_that_were_sent_long_ago_are_forgotten(ledger: CommandLedger) -> None:
    for name, at_ms in (("old", 0), ("unsent", 0), ("open", 0), ("edge", 1)):
        ledger.accept(PEER, name, b"", at_ms)
    for name in ("old", "unsent", "edge"):
        ledger.answer(PEER, name, b"x")
    ledger.note_sent(PEER, "old", b"gone")
    ledger.note_sent(PEER, "edge", b"gone")
    ledger.forget_old(KEPT_MS + 1)
    assert [name for name in ("old", "unsent", "open", "edge") if ledger.find(PEER, name)] == ["unsent", "open", "edge"]


def test_a_sub_agent_is_found_under_its_name_there(ledger: CommandLedger) -> None:
    ledger.note_child(PEER, "agent:lap:subagent:1", "agent:ops:subagent:9")
    assert ledger.child(PEER, "agent:lap:subagent:1") == "agent:ops:subagent:9"
    assert ledger.child("mars", "agent:lap:subagent:1") is None


def test_a_damaged_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / command_ledger.NAME).write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match=r"commands.db cannot be opened: .*; it has the commands of other machines"):
        CommandLedger(tmp_path)


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    """Whoever moved the file away for it would have lost the answers."""
    with no_room(), pytest.raises(StorageError, match=r"commands.db cannot be opened: disk I/O error$"):
        CommandLedger(tmp_path)
    made = CommandLedger(tmp_path)
    assert made.accept(PEER, "r1", b"body", 1)
    made.close()


def test_a_file_that_another_program_has_is_no_damage(
    ledger: CommandLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_ledger, "open_alone", lambda path: open_alone(path, timeout_s=0))
    with pytest.raises(StorageError, match=r'another program uses it, perhaps a "sessiond link run"; end that one$'):
        CommandLedger(tmp_path)


def test_no_memory_is_shared_with_what_others_may_cut(ledger: CommandLedger, tmp_path: Path) -> None:
    """A process that reads behind the end of a file that it has mapped is killed."""
    assert ledger.accept(PEER, "r1", b"body", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"commands.db", "commands.db-wal"}


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / command_ledger.NAME).symlink_to(other)
    with pytest.raises(ConfigError):
        CommandLedger(tmp_path / "link")


def test_of_what_was_refused_the_newest_is_known(ledger: CommandLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiond.link.command_ledger.MAX_REFUSED", 3)
    for peer, command in [("lap", "a"), ("moon", "a"), ("lap", "b"), ("lap", "a"), ("lap", "c"), ("lap", "d")]:
        ledger.note_refused(peer, command)
    assert [command for command in "abcde" if ledger.was_refused("lap", command)] == ["b", "c", "d"]
    assert [command for command in "ab" if ledger.was_refused("moon", command)] == ["a"]
    assert ledger.counts() == {}
