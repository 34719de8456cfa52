"""Usage of sessions of other programs: a message counts once, however many lines and files repeat it."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import msgspec

from sessiond.model.dialects import DIALECTS
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import SourceFacts
from sessiond.sessions.usage import UsageCount, find_used
from sessiond.store import folding
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder

LIMIT = 8 * 2**20


def claude_line(uuid: str, message_id: str, output: int) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": output}
    content = [{"type": "text", "text": "x"}]
    message = {"id": message_id, "role": "assistant", "model": "m", "content": content, "usage": usage}
    body = {"type": "assistant", "uuid": uuid, "timestamp": "2026-01-02T03:04:05.000Z", "message": message}
    return msgspec.json.encode(body) + b"\n"


def codex_line(kind: str, payload: object) -> bytes:
    return msgspec.json.encode({"timestamp": "2026-01-02T03:04:05.000Z", "type": kind, "payload": payload}) + b"\n"


def session_of(tmp_path: Path, source: str, native_id: str, data: bytes) -> Session:
    dialect = DIALECTS[source]
    (tmp_path / f"{native_id}.jsonl").write_bytes(data)
    folder = Folder("", os.open(tmp_path, os.O_RDONLY), dialect)
    entry = begin_foreign(SourceFacts(name=source), native_id)
    entry = folding.advance(folder.fd, entry, f"{native_id}.jsonl", LIMIT, dialect=dialect).entry
    return Session(key=entry.session_key, entry=entry, folder=folder)


def count(*sessions: Session) -> UsageCount:
    found = UsageCount(LIMIT, {})
    for _ in chain(found.steps(find_used(sessions)), found.reading_steps()):
        pass
    for session in sessions:
        os.close(session.folder.fd)
    return found


def test_the_lines_of_a_message_and_its_copy_in_a_fork_count_once(tmp_path: Path):
    lines = claude_line("u1", "a", 1) + claude_line("u2", "a", 5) + claude_line("u3", "b", 7)
    first = session_of(tmp_path, "claude", "one", lines)
    fork = session_of(tmp_path, "claude", "two", lines.replace(b'"uuid":"u', b'"uuid":"v') + claude_line("u4", "c", 2))
    found = count(first, fork)
    assert (found.totals.input_tokens, found.totals.output_tokens) == (30, 14)
    assert (first.entry.output_tokens, fork.entry.output_tokens) == (12, 14)


TOKENS = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


def count_line(total: int) -> bytes:
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": TOKENS}
    return codex_line("event_msg", {"type": "token_count", "info": info})


def record_line(response: str) -> bytes:
    return codex_line("token_usage_record", {"usage": TOKENS, "response_id": response})


def test_usage_that_two_kinds_of_lines_state_counts_once(tmp_path: Path):
    new = session_of(tmp_path, "codex", "one", record_line("r1") + count_line(12) + count_line(12))
    assert (count(new).totals.total_tokens, new.entry.input_tokens) == (12, 10)
    old = session_of(tmp_path, "codex", "two", count_line(12) * 2)
    assert (count(old).totals.total_tokens, old.entry.input_tokens) == (12, 10)
    both = count_line(12) + count_line(24) + record_line("r3") + count_line(36)
    continued = session_of(tmp_path, "codex", "three", both)
    assert (count(continued).totals.total_tokens, continued.entry.input_tokens) == (36, 30)


def test_old_sessions_of_codex_that_used_as_much_both_count_and_copies_of_a_response_do_not(tmp_path: Path):
    old = [session_of(tmp_path, "codex", name, count_line(12)) for name in ("one", "two")]
    assert count(*old).totals.total_tokens == 24
    new = [session_of(tmp_path, "codex", name, record_line("r1")) for name in ("three", "four")]
    assert count(*new).totals.total_tokens == 12
