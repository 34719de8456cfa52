"""The ledger of commands: each is known once, whole or in parts, before and after a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.errors import ConfigError
from sessiond.link import command_ledger
from sessiond.link.command_ledger import KEPT_MS, CommandLedger, LedgerEntry, NoRoom

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
    first.note_sent(PEER, "sent")
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
    assert ledger.accept(PEER, "r3", b"", 4)


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
    ledger.note_sent(PEER, "old")
    ledger.note_sent(PEER, "edge")
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


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / command_ledger.NAME).symlink_to(other)
    with pytest.raises(ConfigError):
        CommandLedger(tmp_path / "link")
