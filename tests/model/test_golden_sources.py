"""Transcripts that Claude Code and Codex wrote, message by message, against lists that were read by a person.

The lists are tests/golden/sources/<program>/messages.txt: per file each message (its number, the line's id, the message
id of parts, what it says), the markers, and what the file says of its session. `SESSIOND_GOLDEN=write` writes them
anew: read the difference. The files are made by tests/agents/record_versions.py.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from support.source_files import GOLDEN, describe_message, fold_lines, golden_lines

from sessiond.model.dialects import DIALECTS
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.record import Record
from sessiond.model.source_facts import SourceFacts

PROGRAMS = ("claude", "codex")
ENTRY_FIELDS = (
    *("message_count", "created_at", "updated_at", "cwd", "model", "model_provider", "spawned_by", "input_tokens"),
    *("output_tokens", "cache_read", "cache_write", "total_tokens", "estimated_cost_usd"),
)
SOURCE_FIELDS = ("title", "title_rank", "forked_from", "markers", "unknown")


def list_messages(program: str) -> str:
    """What `messages.txt` of a program should say."""
    listing: list[str] = []
    for path in sorted((GOLDEN / program).glob("*/*.jsonl")):
        lines = golden_lines(str(path.relative_to(GOLDEN)))
        listing += [f"== {path.relative_to(GOLDEN / program)}", *describe_file(program, lines), ""]
    return "\n".join(listing)


def describe_file(program: str, lines: list[bytes]) -> list[str]:
    described: list[str] = []
    entry = begin_foreign(SourceFacts(name=program), "native")
    offset = 0
    for line in lines:
        record = DIALECTS[program].parse(line)
        entry = DIALECTS[program].fold(entry, record, offset, 1)
        offset += len(line) + 1
        described += [f"  -- {record.marker}"] if record.marker is not None else []
        described += [describe_record(entry.message_count, record)] if record.message is not None else []
    facts = {name: getattr(entry, name) for name in ENTRY_FIELDS if getattr(entry, name)}
    assert entry.source is not None
    facts |= {name: getattr(entry.source, name) for name in SOURCE_FIELDS if getattr(entry.source, name)}
    return [*described, f"  {msgspec.json.encode(facts).decode()}"]


def describe_record(seq: int, record: Record) -> str:
    body: dict[str, Any] = msgspec.json.decode(record.message or b"{}")
    signs = [
        "typed" if record.is_typed else "",
        f"part of {record.message_id}" if record.message_id else "",
        f"of {body['toolCallId']}" if "toolCallId" in body else "",
        "error" if body.get("isError") else "",
        body.get("stopReason", ""),
    ]
    return f"  {seq} [{record.id}] ({', '.join(filter(None, signs))}) {describe_message(record.message)[:200]!r}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_message_of_the_real_programs_is_read_as_the_list_says(program: str) -> None:
    path = GOLDEN / program / "messages.txt"
    found = list_messages(program)
    if os.environ.get("SESSIOND_GOLDEN") == "write":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_line_of_the_real_programs_is_of_an_unknown_type(program: str) -> None:
    for path in sorted((GOLDEN / program).glob("*/*.jsonl")):
        entry, _ = fold_lines(DIALECTS[program], golden_lines(str(path.relative_to(GOLDEN))))
        assert entry.source is not None and not entry.source.unknown, path


@pytest.mark.parametrize("program", PROGRAMS)
def test_golden_files_name_nothing_of_the_machine_that_recorded_them(program: str) -> None:
    for path in (GOLDEN / program).glob("*/*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert "/var/tmp" not in text and "-var-tmp" not in text and "/root/" not in text, path
        assert path.stat().st_size < 150_000, path
