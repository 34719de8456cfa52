"""The transcripts of real programs in tests/golden/sources, read line by line by their dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.record import Record
from sessiond.model.source_facts import FoundFacts, SourceFacts

GOLDEN = Path(__file__).parents[1] / "golden" / "sources"
NOTHING_FOUND = FoundFacts()


def golden_lines(path: str) -> list[bytes]:
    """The lines of a file below tests/golden/sources."""
    return (GOLDEN / path).read_bytes().splitlines()


def fold_lines(
    dialect: TranscriptDialect, lines: list[bytes], found: FoundFacts = NOTHING_FOUND
) -> tuple[Entry, list[Record]]:
    """The entry after all lines, and their records."""
    entry = begin_foreign(SourceFacts(name=dialect.name, found=found), "native")
    records, offset = [], 0
    for line in lines:
        record = dialect.parse(line)
        entry = dialect.fold(entry, record, offset, 1)
        records.append(record)
        offset += len(line) + 1
    return entry, records


def describe_message(message: bytes | None) -> str:
    """A message in one line: its role and its blocks, each as its type and what is in it."""
    body = msgspec.json.decode(message or b"{}")
    content = body.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or body.get("output")}]
    return f"{body['role']}: " + " | ".join(_describe_block(block) for block in blocks)


def _describe_block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"]).strip()
        case "thinking":
            return f"({block['thinking'].strip()})"
        case "toolCall":
            return f"{block['name']}{msgspec.json.encode(block['arguments']).decode()}"
        case kind:
            return f"<{kind}>"
