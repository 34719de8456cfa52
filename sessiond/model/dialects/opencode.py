"""The dialect of opencode, which keeps its sessions in SQLite: rows of its table `event` as lines.

A line is `{"seq", "type", "role"?, "data"}`: `data` as the program wrote it, and for a part of a message the role of
the message, which only the message's row has. A message is what its events made of it, part by part. Knows the
program's JSON. Does not know SQLite.
"""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.dialects.foreign_line import (
    ABSENT,
    JsonObject,
    Service,
    assistant_message,
    known_text,
    message_bytes,
    object_in,
    open_line,
    open_part,
    text_block,
    text_in,
    token_count,
    type_in,
    unknown_record,
)
from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.lax import decoder_of
from sessiond.model.line_facts import CHOSEN, LineFacts
from sessiond.model.record import Record
from sessiond.model.usage import Usage

# The title of a session to which none was given yet.
_NO_TITLE = re.compile(r"(?:New|Child) session - \d{4}-")
_STOP_REASONS = {"tool-calls": "toolUse", "length": "length", "error": "error"}
_API = "opencode"


class _EventLine(msgspec.Struct, frozen=True, gc=False):
    type: object = None
    role: object = None
    data: msgspec.Raw = ABSENT


class _EventData(msgspec.Struct, frozen=True, gc=False):
    info: msgspec.Raw = ABSENT
    part: msgspec.Raw = ABSENT
    message_id: object = msgspec.field(name="messageID", default=None)
    time: object = None


class _SessionInfo(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    parent_id: object = msgspec.field(name="parentID", default=None)
    directory: object = None
    title: object = None
    time: msgspec.Raw = ABSENT


class _Times(msgspec.Struct, frozen=True, gc=False):
    created: object = None
    start: object = None
    end: object = None


class _MessageInfo(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    role: object = None
    time: msgspec.Raw = ABSENT
    model_id: object = msgspec.field(name="modelID", default=None)
    provider_id: object = msgspec.field(name="providerID", default=None)
    tokens: msgspec.Raw = ABSENT
    cost: object = None
    finish: object = None
    error: msgspec.Raw = ABSENT


class _CacheCounts(msgspec.Struct, frozen=True, gc=False):
    read: object = 0
    write: object = 0


class _SpentTokens(msgspec.Struct, frozen=True, gc=False):
    input: object = 0
    output: object = 0
    reasoning: object = 0
    cache: msgspec.Raw = ABSENT


class _MessagePart(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    message_id: object = msgspec.field(name="messageID", default=None)
    type: object = None
    text: object = None
    synthetic: object = None
    ignored: object = None
    call_id: object = msgspec.field(name="callID", default=None)
    tool: object = None
    state: msgspec.Raw = ABSENT
    mime: object = None
    url: object = None
    time: msgspec.Raw = ABSENT


class _ToolState(msgspec.Struct, frozen=True, gc=False):
    status: object = None
    input: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    time: msgspec.Raw = ABSENT


_decode_line = decoder_of(_EventLine).decode
_decode_data = decoder_of(_EventData).decode
_decode_session = decoder_of(_SessionInfo).decode
_decode_times = decoder_of(_Times).decode
_decode_info = decoder_of(_MessageInfo).decode
_decode_tokens = decoder_of(_SpentTokens).decode
_decode_cache = decoder_of(_CacheCounts).decode
_decode_part = decoder_of(_MessagePart).decode
_decode_state = decoder_of(_ToolState).decode


def parse(line: bytes) -> Record:
    """The record in a line (without newline). Raises BadLine where it is no JSON object."""
    opened = open_line(_decode_line, line)
    kind = type_in(opened.type)
    data = open_part(_decode_data, opened.data) or _EventData()
    # The number at the end is the version of the event's form.
    match kind.rpartition(".")[0] or kind:
        case "session.created" | "session.updated":
            session = open_part(_decode_session, data.info)
            return Record(kind, line, facts=_session_facts(session) if session is not None else None)
        case "message.updated":
            return _info_record(kind, line, data)
        case "message.part.updated":
            return _part_record(kind, line, opened.role, data)
        case "message.removed":
            gone = known_text(data.message_id)
            if gone is None:
                return Record(kind, line)
            return Record(kind, line, marker="rewind", rewind_to=gone, is_addition=True)
        case "session.deleted" | "message.part.removed":
            return Record(kind, line)
        case _:
            return unknown_record(kind, line)


def _info_record(kind: str, line: bytes, data: _EventData) -> Record:
    """What is known of an answer besides its parts. It is added to the message when there is a part of it."""
    info = open_part(_decode_info, data.info)
    key = known_text(info.id) if info is not None else None
    if info is None or key is None or info.role != "assistant":
        return Record(kind, line)
    usage, stamp = _usage_of(info), _times_of(info.time)[0]
    model, provider = known_text(info.model_id), known_text(info.provider_id)
    message = assistant_message(Service(_API, provider or _API), [], _stop_reason(info), model, usage)
    facts = LineFacts(model=model, provider=provider, usage=usage, usage_id=_request_id(key, stamp, provider, model))
    record = _record_of("assistant", key, message_bytes(message, stamp), stamp)
    return replace(record, type=kind, raw=line, facts=facts, part_key="", is_addition=True)


def _part_record(kind: str, line: bytes, role: object, data: _EventData) -> Record:
    part = open_part(_decode_part, data.part)
    if part is None or role not in ("user", "assistant"):
        return Record(kind, line)
    key, part_key = known_text(part.message_id), known_text(part.id)
    if key is None or part_key is None:
        return Record(kind, line)
    if part.type == "compaction":
        return Record(kind, line, marker="compaction")
    block = _user_block(part) if role == "user" else _answer_block(part)
    if block is None:
        return Record(kind, line)
    # What a person says has only the time of the event.
    stamp = _times_of(part.time)[0] or lax.whole_ms(data.time)
    message = message_bytes({"role": role, "content": [block]}, stamp)
    record = _record_of(str(role), key, message, stamp, is_typed=role == "user" and "text" in block)
    result = _tool_result(part, stamp)
    return replace(record, type=kind, raw=line, part_key=part_key, more=() if result is None else (result,))


def _session_facts(session: _SessionInfo) -> LineFacts:
    title = known_text(session.title)
    return LineFacts(
        native_id=known_text(session.id),
        cwd=known_text(session.directory),
        created_ms=_times_of(session.time)[0],
        title=title if title is not None and not _NO_TITLE.match(title) else None,
        title_rank=CHOSEN,
        spawned_by=known_text(session.parent_id),
    )


def _user_block(part: _MessagePart) -> JsonObject | None:
    """What a person said or showed; what the program added says that it is synthetic."""
    if part.type == "text" and not part.synthetic and not part.ignored:
        text = known_text(part.text)
        return text_block(text) if text is not None and text.strip() else None
    url = known_text(part.url)
    if part.type != "file" or url is None or not str(part.mime).startswith("image/"):
        return None
    head, comma, data = url.partition(";base64,")
    return {"type": "image", "data": data, "mimeType": part.mime} if comma and head.startswith("data:") else None


def _answer_block(part: _MessagePart) -> JsonObject | None:
    text = known_text(part.text)
    if part.type == "text" and text is not None and not part.ignored:
        return text_block(text)
    if part.type == "reasoning" and text is not None:
        return {"type": "thinking", "thinking": text}
    if part.type != "tool":
        return None
    state = open_part(_decode_state, part.state) or _ToolState()
    if state.status == "pending":
        return None  # its arguments are still being written
    call_id, name = known_text(part.call_id) or "", known_text(part.tool) or ""
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": object_in(state.input)}


def _tool_result(part: _MessagePart, stamp: int | None) -> Record | None:
    state = open_part(_decode_state, part.state) if part.type == "tool" else None
    call_id = known_text(part.call_id)
    if state is None or call_id is None or state.status not in ("completed", "error"):
        return None
    is_error = state.status == "error"
    message = {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": known_text(part.tool) or "",
        "content": [text_block(text_in(state.error if is_error else state.output) or "")],
        "isError": is_error,
    }
    ended = _times_of(state.time)[1] or stamp
    return _record_of("toolResult", call_id, message_bytes(message, ended), ended)


def _record_of(role: str, key: str, body: bytes, stamp: int | None, *, is_typed: bool = False) -> Record:
    return Record(role, body, key, timestamp_ms=stamp, role=role, message=body, message_id=key, is_typed=is_typed)


def _stop_reason(info: _MessageInfo) -> str:
    if bytes(info.error)[:1] == b"{":
        return "aborted" if b'"MessageAbortedError"' in bytes(info.error) else "error"
    return _STOP_REASONS.get(info.finish, "stop") if isinstance(info.finish, str) else "stop"


def _times_of(raw: msgspec.Raw) -> tuple[int | None, int | None]:
    """When something was created, and when it ended."""
    times = open_part(_decode_times, raw) or _Times()
    return lax.whole_ms(times.created), lax.whole_ms(times.end)


def _request_id(key: str, created_ms: int | None, provider: str | None, model: str | None) -> str:
    # A fork gives new ids to the messages that it copies. When they were begun stays.
    return key if created_ms is None else f"{created_ms}/{provider}/{model}"


def _usage_of(info: _MessageInfo) -> Usage | None:
    tokens = open_part(_decode_tokens, info.tokens)
    if tokens is None:
        return None
    cache = open_part(_decode_cache, tokens.cache) or _CacheCounts()
    spent = token_count(tokens.output) + token_count(tokens.reasoning)
    counts = token_count(tokens.input), spent, token_count(cache.read), token_count(cache.write)
    return Usage(*counts, sum(counts), lax.amount(info.cost)) if any(counts) else None


DIALECT = foreign_dialect("opencode", parse, lists=True, usage_sign=b'"tokens"')
