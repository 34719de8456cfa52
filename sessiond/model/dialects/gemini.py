"""The dialect of Gemini CLI: a log of changes to a list of messages.

A line is a message of the list (in full each time it changes), metadata, a change of metadata (`$set`), which may
replace the whole list, or a rewind. An answer and the results of its tools stand in one line. Sans-io; what the list is
after several lines is decided by `model.message_list`.
"""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from sessiond.model.dialects.foreign_line import (
    ABSENT,
    JsonObject,
    Service,
    assistant_message,
    iso_or_none,
    items_in,
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
from sessiond.model.line_facts import SUMMARY, LineFacts
from sessiond.model.record import Record
from sessiond.model.usage import Usage

_SERVICE = Service("google-generative-ai", "google")
_SILENT_TYPES = frozenset({"info", "error", "warning"})
# What the program puts into the conversation, by its first words.
_INJECTED = ("<session_context>", "<hook_context>")
# A line that it writes after every message; nothing of it is shown.
_NOTED = re.compile(rb'\{"\$set":\{"lastUpdated":"[0-9TZ:.+-]*"\}\}')
# Its own commands; they are shown, but say nothing of what the session is about.
_COMMANDS = ("/", "?")


class _Line(msgspec.Struct, frozen=True, gc=False):
    """The fields of every kind of line."""

    id: object = None
    type: object = None
    timestamp: object = None
    content: msgspec.Raw = ABSENT
    display: msgspec.Raw = msgspec.field(name="displayContent", default=ABSENT)
    thoughts: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = msgspec.field(name="toolCalls", default=ABSENT)
    tokens: msgspec.Raw = ABSENT
    model: object = None
    changes: msgspec.Raw = msgspec.field(name="$set", default=ABSENT)
    rewind_to: object = msgspec.field(name="$rewindTo", default=None)
    session_id: object = msgspec.field(name="sessionId", default=None)
    start_time: object = msgspec.field(name="startTime", default=None)
    summary: object = None
    directories: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT


class _Changes(msgspec.Struct, frozen=True, gc=False):
    messages: msgspec.Raw = ABSENT
    summary: object = None
    directories: msgspec.Raw = ABSENT


class _Thought(msgspec.Struct, frozen=True, gc=False):
    subject: object = None
    description: object = None


class _TokenCounts(msgspec.Struct, frozen=True, gc=False):
    input: object = 0
    output: object = 0
    cached: object = 0
    thoughts: object = 0
    total: object = 0


class _ToolUse(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    name: object = None
    args: msgspec.Raw = ABSENT
    status: object = None
    timestamp: object = None
    result: msgspec.Raw = ABSENT
    display: msgspec.Raw = msgspec.field(name="resultDisplay", default=ABSENT)


class _Blob(msgspec.Struct, frozen=True, gc=False):
    mime_type: object = msgspec.field(name="mimeType", default=None)
    data: object = None


class _Response(msgspec.Struct, frozen=True, gc=False):
    """What a tool returned."""

    id: object = None
    name: object = None
    response: msgspec.Raw = ABSENT
    parts: msgspec.Raw = ABSENT


class _Output(msgspec.Struct, frozen=True, gc=False):
    output: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _Part(msgspec.Struct, frozen=True, gc=False):
    """One part of a content, as the program's API has them."""

    text: object = None
    thought: object = None
    call: msgspec.Raw = msgspec.field(name="functionCall", default=ABSENT)
    response: msgspec.Raw = msgspec.field(name="functionResponse", default=ABSENT)
    blob: msgspec.Raw = msgspec.field(name="inlineData", default=ABSENT)


_decode_line = decoder_of(_Line).decode
_decode_changes = decoder_of(_Changes).decode
_decode_thought = decoder_of(_Thought).decode
_decode_tokens = decoder_of(_TokenCounts).decode
_decode_call = decoder_of(_ToolUse).decode
_decode_blob = decoder_of(_Blob).decode
_decode_response = decoder_of(_Response).decode
_decode_output = decoder_of(_Output).decode
_decode_part = decoder_of(_Part).decode


def parse(line: bytes) -> Record:
    """The record in a line (without newline). Raises BadLine where it is no JSON object."""
    if _NOTED.fullmatch(line):
        return Record("$set", line)
    opened = open_line(_decode_line, line)
    rewind_to = known_text(opened.rewind_to)
    if rewind_to is not None:
        return Record("$rewindTo", line, marker="rewind", rewind_to=rewind_to)
    message_id = known_text(opened.id)
    if message_id is not None:
        return _message_line(opened, message_id, line)
    if bytes(opened.changes)[:1] == b"{":
        return _changes_line(opened.changes, line)
    if known_text(opened.session_id) is not None:
        return _metadata_line(opened, line)
    return unknown_record(type_in(opened.type), line)


def _message_line(opened: _Line, message_id: str, line: bytes) -> Record:
    kind = type_in(opened.type)
    usage = _usage_in(opened.tokens)
    shown = _messages_in(opened, message_id, usage)
    stamp = iso_or_none(opened.timestamp)
    if not shown:
        is_known = kind in _SILENT_TYPES or kind in ("user", "gemini")
        facts = None if is_known else LineFacts(unknown_type=kind)
        return Record(kind, line, message_id, stamp, facts=facts)
    facts = None
    if kind == "gemini":
        facts = LineFacts(model=known_text(opened.model), usage=usage, usage_id=message_id)
    return replace(shown[0], type=kind, raw=line, id=message_id, more=tuple(shown[1:]), facts=facts)


def _changes_line(raw: msgspec.Raw, line: bytes) -> Record:
    changes = open_part(_decode_changes, raw)
    if changes is None:
        return Record("$set", line)
    facts = None
    summary, cwd = known_text(changes.summary), _first_folder(changes.directories)
    if summary is not None or cwd is not None:
        facts = LineFacts(title=summary, title_rank=SUMMARY, cwd=cwd)
    members = _members(changes.messages)
    if members is None:
        return Record("$set", line, facts=facts)
    return Record("$set", line, facts=facts, more=members, replaces=True)


def _metadata_line(opened: _Line, line: bytes) -> Record:
    facts = LineFacts(
        native_id=known_text(opened.session_id),
        created_ms=iso_or_none(opened.start_time),
        cwd=_first_folder(opened.directories),
        title=known_text(opened.summary),
        title_rank=SUMMARY,
    )
    return Record("metadata", line, facts=facts, more=_members(opened.messages) or ())


def _members(messages: msgspec.Raw) -> tuple[Record, ...] | None:
    """The messages of a whole list, None where there is no list or an empty one, which changes nothing."""
    parts = items_in(messages)
    if not parts:
        return None
    shown: list[Record] = []
    for part in parts:
        opened = open_part(_decode_line, part)
        message_id = known_text(opened.id) if opened is not None else None
        if opened is not None and message_id is not None:
            shown += _messages_in(opened, message_id, _usage_in(opened.tokens))
    return tuple(shown)


def _messages_in(opened: _Line, message_id: str, usage: Usage | None) -> list[Record]:
    """What a message of the list shows: itself, and the results of tools."""
    stamp = iso_or_none(opened.timestamp)
    if opened.type == "user":
        return _user_messages(opened, message_id, stamp)
    return _answer(opened, message_id, stamp, usage) if opened.type == "gemini" else []


def _user_messages(opened: _Line, message_id: str, stamp: int | None) -> list[Record]:
    parts = _parts(opened.content)
    results = [result for part in parts if (result := _echoed_result(part, stamp)) is not None]
    shown = _parts(opened.display) if bytes(opened.display) else parts
    blocks = [block for part in shown if (block := _shown_block(part)) is not None]
    if not blocks:
        return results
    words = next((block["text"].lstrip() for block in blocks if "text" in block), "")
    if words.startswith(_INJECTED):
        return results
    body = message_bytes({"role": "user", "content": blocks}, stamp)
    is_typed = bool(words) and not results and not words.startswith(_COMMANDS)
    return [*results, _record_of("user", message_id, body, stamp, is_typed=is_typed)]


def _answer(opened: _Line, message_id: str, stamp: int | None, usage: Usage | None) -> list[Record]:
    parts = _parts(opened.content)
    calls = [call for raw in items_in(opened.tool_calls) if (call := open_part(_decode_call, raw)) is not None]
    blocks: list[JsonObject] = [{"type": "thinking", "thinking": text} for text in _thoughts(opened, parts)]
    blocks += [block for part in parts if not part.thought and (block := _shown_block(part)) is not None]
    # After a resume the calls stand in the content.
    called = calls or [call for part in parts if (call := open_part(_decode_call, part.call)) is not None]
    blocks += [
        {
            "type": "toolCall",
            "id": known_text(call.id) or "",
            "name": known_text(call.name) or "",
            "arguments": object_in(call.args),
        }
        for call in called
    ]
    if not blocks:
        return []
    reason = "toolUse" if called else "stop"
    message = assistant_message(_SERVICE, blocks, reason, known_text(opened.model), usage)
    answer = _record_of("assistant", message_id, message_bytes(message, stamp), stamp)
    return [answer, *(result for call in calls if (result := _result(call, stamp)) is not None)]


def _thoughts(opened: _Line, parts: list[_Part]) -> list[str]:
    texts = []
    for raw in items_in(opened.thoughts):
        thought = open_part(_decode_thought, raw)
        if thought is not None:
            subject, description = known_text(thought.subject), known_text(thought.description)
            texts.append(" ".join(text for text in (subject and f"**{subject}**", description) if text))
    found = [text for text in texts if text]
    return found or [text for part in parts if part.thought and (text := known_text(part.text))]


def _result(call: _ToolUse, stamp: int | None) -> Record | None:
    """The result of a call that stands beside it."""
    call_id, parts = known_text(call.id), _parts(call.result)
    if call_id is None or not parts:
        return None
    stamp = iso_or_none(call.timestamp) or stamp
    is_error = call.status in ("error", "cancelled")
    blocks: list[JsonObject] = []
    for part in parts:
        blocks += (
            _output_blocks(part)[0] if bytes(part.response) else [b for b in [_shown_block(part)] if b is not None]
        )
    return _tool_result(call_id, known_text(call.name) or "", blocks, is_error, stamp)


def _echoed_result(part: _Part, stamp: int | None) -> Record | None:
    """The result of a call as the program tells it to the model, which may stand beside the call as well."""
    response = open_part(_decode_response, part.response)
    call_id = known_text(response.id) if response is not None else None
    if response is None or call_id is None:
        return None
    blocks, is_error = _output_blocks(part)
    return replace(_tool_result(call_id, known_text(response.name) or "", blocks, is_error, stamp), is_echo=True)


def _output_blocks(part: _Part) -> tuple[list[JsonObject], bool]:
    response = open_part(_decode_response, part.response)
    if response is None:
        return [], False
    opened = open_part(_decode_output, response.response) or _Output()
    output, error = text_in(opened.output), text_in(opened.error)
    text = output if output is not None else error
    if text is None:
        text = bytes(response.response).decode("utf-8", "replace")
    blocks = [text_block(text)]
    blocks += [block for one in _parts(response.parts) if (block := _shown_block(one)) is not None]
    return blocks, output is None and error is not None


def _tool_result(call_id: str, name: str, blocks: list[JsonObject], is_error: bool, stamp: int | None) -> Record:
    message = {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": name,
        "content": blocks,
        "isError": is_error,
    }
    return _record_of("toolResult", call_id, message_bytes(message, stamp), stamp)


def _record_of(role: str, key: str, body: bytes, stamp: int | None, *, is_typed: bool = False) -> Record:
    return Record(role, body, key, timestamp_ms=stamp, role=role, message=body, message_id=key, is_typed=is_typed)


def _parts(content: msgspec.Raw) -> list[_Part]:
    """A content as parts: it is a text, a part, or a list of both."""
    data = bytes(content)
    raws = items_in(content) if data[:1] == b"[" else [content] if data else []
    parts = []
    for raw in raws:
        text = text_in(raw)
        part = _Part(text=text) if text is not None else open_part(_decode_part, raw)
        if part is not None:
            parts.append(part)
    return parts


def _shown_block(part: _Part) -> JsonObject | None:
    """The text or picture in a part."""
    text = known_text(part.text)
    if text is not None:
        return text_block(text) if text.strip() else None
    blob = open_part(_decode_blob, part.blob)
    if blob is None or known_text(blob.data) is None or not str(blob.mime_type).startswith("image/"):
        return None
    return {"type": "image", "data": blob.data, "mimeType": blob.mime_type}


def _usage_in(raw: msgspec.Raw) -> Usage | None:
    tokens = open_part(_decode_tokens, raw)
    if tokens is None:
        return None
    given, cached = token_count(tokens.input), token_count(tokens.cached)
    total = token_count(tokens.total)
    spent = total - given if total >= given else token_count(tokens.output) + token_count(tokens.thoughts)
    if not (given or spent):
        return None
    return Usage(max(0, given - cached), spent, min(cached, given), 0, max(total, given + spent))


def _first_folder(directories: msgspec.Raw) -> str | None:
    return next((known_text(text_in(raw)) for raw in items_in(directories)), None)


DIALECT = foreign_dialect("gemini", parse, lists=True, usage_sign=b'"tokens"')
