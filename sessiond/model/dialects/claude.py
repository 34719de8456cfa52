"""The dialect of Claude Code. Nine tenths of its files are bookkeeping, of which only the type is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sessiond.model.dialects.claude_content import (
    assistant_blocks,
    is_typed,
    stop_reason,
    tool_results,
    usage_of,
    user_content,
)
from sessiond.model.dialects.foreign_line import (
    ABSENT,
    JsonObject,
    Service,
    assistant_message,
    iso_or_none,
    known_text,
    message_bytes,
    open_line,
    open_mended,
    open_part,
    unknown_record,
)
from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.lax import amount, decoder_of
from sessiond.model.line_facts import CHOSEN, GIVEN, SUMMARY, LineFacts
from sessiond.model.message import UNKNOWN_MODEL
from sessiond.model.record import Record
from sessiond.model.usage import Usage

# The types of lines that say nothing about the conversation. Any other is counted and shown by `doctor`.
_BOOKKEEPING = frozenset(
    {
        *("agent-color", "agent-setting", "api-request", "api-request-blob", "api-request-shape", "atis-latch"),
        *("attachment", "bridge-session", "content-replacement", "continued-in", "file-history-delta"),
        *("file-history-snapshot", "fork-context-ref", "frame-link", "isolation-latch", "last-prompt", "mode"),
        *("permission-mode", "pr-link", "progress", "queue-operation", "relocated", "result", "session-owner"),
        *("speculation-accept", "started", "tag", "tombstone", "tools-used", "worktree-state"),
    }
)
# The model in messages that the program wrote itself, as for errors of the service.
_SYNTHETIC = "<synthetic>"
# It stands between a command and what was typed next.
_NO_ANSWER = [{"type": "text", "text": "No response requested."}]
_SERVICE = Service("anthropic-messages", "anthropic")
_QUEUED = b'"queued_command"'


class _LineType(msgspec.Struct, frozen=True, gc=False):
    type: object = None


class _Attachment(msgspec.Struct, frozen=True, rename="camel", gc=False):
    type: object = None
    prompt: msgspec.Raw = ABSENT
    command_mode: object = None


class _Origin(msgspec.Struct, frozen=True, gc=False):
    kind: object = None


class _ForkedFrom(msgspec.Struct, frozen=True, rename="camel", gc=False):
    session_id: object = None


class _ClaudeLine(msgspec.Struct, frozen=True, rename="camel", gc=False):
    # `object`, because a value of a wrong type must not spoil the line; parts that are opened later are Raw.
    uuid: object = None
    timestamp: object = None
    cwd: object = None
    session_id: object = None
    agent_id: object = None
    is_sidechain: object = None
    is_meta: object = None
    is_compact_summary: object = None
    is_visible_in_transcript_only: object = None
    is_api_error_message: object = None
    is_aborted_mid_stream: object = None
    request_id: object = None
    request_session_id: object = None
    forked_from: msgspec.Raw = ABSENT
    origin: msgspec.Raw = ABSENT
    attachment: msgspec.Raw = ABSENT
    subtype: object = None
    message: msgspec.Raw = ABSENT
    custom_title: object = None
    ai_title: object = None
    agent_name: object = None
    summary: object = None
    leaf_uuid: object = None
    total_cost: object = msgspec.field(default=None, name="totalCostUSD")
    model_usage: msgspec.Raw = ABSENT


class _ModelCost(msgspec.Struct, frozen=True, gc=False):
    cost: object = msgspec.field(default=None, name="costUSD")


class _ClaudeMessage(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    model: object = None
    content: msgspec.Raw = ABSENT
    stop_reason: object = None
    usage: msgspec.Raw = ABSENT


_decode_type = decoder_of(_LineType).decode
_decode_attachment = decoder_of(_Attachment).decode
_decode_line = decoder_of(_ClaudeLine).decode
_decode_message = decoder_of(_ClaudeMessage).decode
_decode_costs = decoder_of(dict[str, _ModelCost]).decode
_decode_origin = decoder_of(_Origin).decode
_decode_fork = decoder_of(_ForkedFrom).decode


def parse(line: bytes) -> Record:
    """The record in a line (without newline). Raises BadLine where it is no JSON object."""
    head, text = open_mended(_decode_type, line)
    kind = head.type
    if not isinstance(kind, str):
        return unknown_record("", line)
    # Few attachments are messages, and most are large.
    if kind in _BOOKKEEPING and (kind != "attachment" or _QUEUED not in line):
        return Record(kind, line)
    read = _READERS.get(kind)
    if read is None:
        return unknown_record(kind, line)
    return read(kind, open_line(_decode_line, text), line)


def _session_record(kind: str, opened: _ClaudeLine, line: bytes) -> Record:
    return Record(kind, line, facts=_session_facts(kind, opened))


def _session_facts(kind: str, opened: _ClaudeLine) -> LineFacts | None:
    match kind:
        case "custom-title":
            return LineFacts(title=known_text(opened.custom_title), title_rank=GIVEN)
        case "cost-state":
            # 0 is also written where nothing was asked for yet, or the price is not known.
            costs = open_part(_decode_costs, opened.model_usage) or {}
            by_model = {model: amount(one.cost) or 0.0 for model, one in costs.items()}
            return LineFacts(total_cost_usd=amount(opened.total_cost) or None, model_costs=by_model)
        case "summary":
            leaf = known_text(opened.leaf_uuid)
            return LineFacts(title=known_text(opened.summary), title_rank=SUMMARY, title_of=leaf) if leaf else None
    # In a team of agents the name of one is its leader's choice, otherwise it repeats the title that a person gave.
    title = opened.ai_title if kind == "ai-title" else opened.agent_name
    return LineFacts(title=known_text(title), title_rank=CHOSEN)


def _system_record(kind: str, opened: _ClaudeLine, line: bytes) -> Record:
    is_boundary = known_text(opened.subtype) == "compact_boundary" and not _is_left_out(opened)
    return _plain_record(kind, opened, line, marker="compaction" if is_boundary else None)


def _attachment_record(kind: str, opened: _ClaudeLine, line: bytes) -> Record:
    """What a person typed while the agent was at work is written as an attachment."""
    queued = open_part(_decode_attachment, opened.attachment)
    if queued is None or queued.type != "queued_command" or known_text(queued.command_mode) not in (None, "prompt"):
        return _plain_record(kind, opened, line)
    return _said_record(kind, opened, queued.prompt, line)


def _user_record(kind: str, opened: _ClaudeLine, line: bytes) -> Record:
    message = open_part(_decode_message, opened.message)
    if message is None:
        return _plain_record(kind, opened, line)
    results = None if _is_left_out(opened) else tool_results(message.content)
    if results is None:
        return _said_record(kind, opened, message.content, line)
    ours: JsonObject = {
        "role": "toolResult",
        "toolCallId": results.call_ids[0],
        "toolName": "",  # known only from the line with the call
        "content": results.content,
        "isError": results.is_error,
    }
    if len(results.call_ids) > 1:
        ours["details"] = {"toolCallIds": results.call_ids}
    return _plain_record(kind, opened, line, message=ours, facts=_line_facts(opened))


def _said_record(kind: str, opened: _ClaudeLine, content: msgspec.Raw, line: bytes) -> Record:
    said = None if _is_left_out(opened) else user_content(content)
    if said is None:
        return _plain_record(kind, opened, line)
    origin = open_part(_decode_origin, opened.origin)
    is_human = opened.is_sidechain is not True and (origin is None or origin.kind in (None, "human"))
    message: JsonObject = {"role": "user", "content": said}
    return _plain_record(
        kind, opened, line, message=message, facts=_line_facts(opened), is_typed=is_human and is_typed(said)
    )


def _assistant_record(kind: str, opened: _ClaudeLine, line: bytes) -> Record:
    message = open_part(_decode_message, opened.message)
    if message is None:
        return _plain_record(kind, opened, line)
    model, usage = known_text(message.model), usage_of(message.usage)
    if _is_left_out(opened):
        # It is no part of the conversation, but it was asked for.
        aside = LineFacts(usage=usage, usage_model=model or UNKNOWN_MODEL) if usage is not None else None
        return _plain_record(kind, opened, line, facts=aside, message_id=_message_id(message, opened))
    blocks = assistant_blocks(message.content)
    if model == _SYNTHETIC:
        model, usage = None, None
        blocks = [] if blocks == _NO_ANSWER else blocks
    reason = stop_reason(message.stop_reason, blocks)
    if opened.is_aborted_mid_stream is True:
        reason = "aborted"
    elif opened.is_api_error_message is True:
        reason = "error"
    return _plain_record(
        kind,
        opened,
        line,
        message=assistant_message(_SERVICE, blocks, reason, model, usage) if blocks else None,
        message_id=_message_id(message, opened),
        facts=_line_facts(opened, model, usage),
    )


def _message_id(message: _ClaudeMessage, opened: _ClaudeLine) -> str | None:
    return known_text(message.id) or known_text(opened.request_id)


def _plain_record(
    kind: str, opened: _ClaudeLine, line: bytes, message: JsonObject | None = None, **fields: Any
) -> Record:
    stamp = iso_or_none(opened.timestamp)
    return Record(
        kind,
        line,
        known_text(opened.uuid),
        stamp,
        role=message["role"] if message is not None else None,
        message=message_bytes(message, stamp) if message is not None else None,
        **fields,
    )


def _line_facts(opened: _ClaudeLine, model: str | None = None, usage: Usage | None = None) -> LineFacts:
    native = known_text(opened.session_id)
    agent = known_text(opened.agent_id) if opened.is_sidechain is True else None
    copied_from = None
    if agent is None:
        # Lines that a fork copied say whose request they were.
        forked = open_part(_decode_fork, opened.forked_from)
        copied_from = known_text((opened.request_session_id) or (forked.session_id if forked else None))
    return LineFacts(
        native_id=native if agent is None else f"agent-{agent}",
        cwd=known_text(opened.cwd),
        model=model,
        provider=_SERVICE.provider if model is not None else None,
        forked_from=copied_from if copied_from != native else None,
        spawned_by=native if agent is not None else None,
        usage=usage,
    )


def _is_left_out(opened: _ClaudeLine) -> bool:
    """Whether a line is no part of the conversation. Sub-agents have files of their own, where each line names the
    agent; once their lines stood among their parent's, without a name.
    """
    if opened.is_sidechain is True and not known_text(opened.agent_id):
        return True
    return True in (opened.is_meta, opened.is_compact_summary, opened.is_visible_in_transcript_only)


_READERS: dict[str, Callable[[str, _ClaudeLine, bytes], Record]] = {
    "user": _user_record,
    "assistant": _assistant_record,
    "attachment": _attachment_record,
    "system": _system_record,
    **dict.fromkeys(("custom-title", "ai-title", "agent-name", "summary", "cost-state"), _session_record),
}

DIALECT = foreign_dialect("claude", parse, joins=True, usage_signs=(b"cost-state",))
