"""The dialect of pi: session files of version 3 (and older), as our own transcripts have, with what only pi writes.

As its page session-format.md (1.5.2) says. Its tree of branches is read in the order of the file.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sessiond.clock import parse_iso_ms
from sessiond.model import lax
from sessiond.model.dialects.foreign_line import known_text
from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.line_facts import GIVEN, LineFacts
from sessiond.model.message import UNKNOWN_MODEL
from sessiond.model.record import Record
from sessiond.model.record import parse as parse_v3
from sessiond.model.usage import usage_id_of, usage_in

# What extensions put into the context, and summaries: nobody said it.
_INJECTED_ROLES = frozenset({"custom", "hookMessage", "branchSummary", "compactionSummary"})
_SILENT_TYPES = frozenset({"thinking_level_change", "custom", "custom_message", "label", "context_edit"})


def parse(line: bytes) -> Record:
    """The record in a line of pi. Raises BadLine."""
    record = parse_v3(line)
    if record.message is not None:
        return _message_record(record)
    if record.hidden is not None or record.type in _SILENT_TYPES:
        return record
    body = record.body()
    match record.type:
        case "session":
            return replace(record, facts=_header_facts(body))
        case "session_info":
            return replace(record, facts=LineFacts(title=known_text(body.get("name")), title_rank=GIVEN))
        case "model_change":
            facts = LineFacts(model=known_text(body.get("modelId")), provider=known_text(body.get("provider")))
            return replace(record, facts=facts)
        case "compaction" | "branch_summary" | "usage":
            # The branch that was left stays where it is in the file.
            return replace(record, facts=_usage_facts(record, body))
        case "message":
            return record  # without a message object
        case _:
            return replace(record, facts=LineFacts(unknown_type=record.type))


def _message_record(record: Record) -> Record:
    if record.role in _INJECTED_ROLES:
        return replace(record, message=None)
    if record.role == "user":
        return replace(record, is_typed=True)
    message = record.decoded
    if message is None:
        return record
    model = known_text(message.get("model"))
    facts = LineFacts(
        model=model if model != UNKNOWN_MODEL else None,
        provider=known_text(message.get("provider")),
        usage=usage_in(message.get("usage")),
        usage_id=usage_id_of(message, record.id, record.timestamp_ms),
    )
    return replace(record, facts=facts)


def _header_facts(body: dict[str, Any]) -> LineFacts:
    stamp = body.get("timestamp")
    return LineFacts(
        native_id=known_text(body.get("id")),
        cwd=known_text(body.get("cwd")),
        created_ms=lax.whole_ms(parse_iso_ms(stamp)) if type(stamp) is str else None,
        forked_from=native_id_in(known_text(body.get("parentSession")) or ""),
    )


def native_id_in(path: str) -> str | None:
    """The native id in the path of a session file: `.../<time>_<id>.jsonl`."""
    name = path.replace("\\", "/").rpartition("/")[2]
    found = name.removesuffix(".jsonl").partition("_")[2]
    return found if found and name.endswith(".jsonl") else None


def _usage_facts(record: Record, body: dict[str, Any]) -> LineFacts | None:
    usage = usage_in(body.get("usage"))
    usage_id = usage_id_of({}, record.id, record.timestamp_ms)
    return LineFacts(usage=usage, usage_id=usage_id) if usage is not None else None


DIALECT = foreign_dialect("pi", parse, usage_signs=(b"model_change",))
