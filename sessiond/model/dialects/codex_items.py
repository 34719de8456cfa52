"""The items of Codex's transcripts (`response_item`), as messages of ours. Pure."""

from __future__ import annotations

import re

import msgspec

from sessiond.model import lax
from sessiond.model.dialects.foreign_line import (
    ABSENT,
    JsonObject,
    Service,
    assistant_message,
    items_in,
    known_text,
    object_in,
    open_part,
    text_block,
    text_in,
    type_in,
)
from sessiond.model.lax import decoder_of

# Texts in the role of the user that the program adds itself. Newer versions say so in `content_item_kinds`.
_INJECTED = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<permissions instructions>",
    "<skills_instructions>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<model_switch>",
    "<collaboration_mode>",
    "<skill>",
)
_SERVICE = Service("openai-responses", "openai")
_TYPED_KIND = "user."
_IMAGE_FRAME = re.compile(r"\s*(?:<image(?: [^>]*)?>|</image>)\s*")
_IMAGE_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,")
_EXIT_CODE = re.compile(r"(?:.*\n){0,6}?Process exited with code (-?\d+)\n")
_HEAD_CHARS = 400


class CodexItem(msgspec.Struct, frozen=True, gc=False):
    """The fields of any item; which of them an item has depends on its type."""

    type: object = None
    id: object = None
    role: object = None
    content: msgspec.Raw = ABSENT
    summary: msgspec.Raw = ABSENT
    name: object = None
    call_id: object = None
    arguments: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    action: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT
    passthrough: msgspec.Raw = msgspec.field(default=ABSENT, name="internal_chat_message_metadata_passthrough")


class _Passthrough(msgspec.Struct, frozen=True, gc=False):
    content_item_kinds: msgspec.Raw = ABSENT


class _ContentPart(msgspec.Struct, frozen=True, gc=False):
    type: object = None
    text: object = None
    image_url: object = None


class _OldOutput(msgspec.Struct, frozen=True, gc=False):
    """The output of a tool as older versions write it."""

    output: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    success: object = None
    metadata: msgspec.Raw = ABSENT


class _OutputMetadata(msgspec.Struct, frozen=True, gc=False):
    exit_code: object = None


_decode_passthrough = decoder_of(_Passthrough).decode
_decode_part = decoder_of(_ContentPart).decode
_decode_output = decoder_of(_OldOutput).decode
_decode_metadata = decoder_of(_OutputMetadata).decode


def message_of(item: CodexItem) -> JsonObject | None:
    """The message in an item, None where there is nothing to show."""
    kind = type_in(item.type)
    if kind == "message":
        return _spoken_message(item)
    if kind == "reasoning":
        thought = _thinking_text(item)
        return _answer_message([{"type": "thinking", "thinking": thought}]) if thought else None
    if kind.endswith("_call"):
        return _answer_message([_tool_call(kind, item)], "toolUse")
    return _result(item) if kind.endswith("_output") else None


def _spoken_message(item: CodexItem) -> JsonObject | None:
    role = known_text(item.role)
    if role == "user":
        blocks = _typed_blocks(item)
        return {"role": "user", "content": blocks} if blocks else None
    blocks = _blocks(item.content)
    return _answer_message(blocks) if role == "assistant" and blocks else None


def _answer_message(blocks: list[JsonObject], reason: str = "stop") -> JsonObject:
    return assistant_message(_SERVICE, blocks, reason)


def _typed_blocks(item: CodexItem) -> list[JsonObject]:
    """What a person typed or attached, without what the program added."""
    passthrough = open_part(_decode_passthrough, item.passthrough)
    kinds = [text_in(kind) or "" for kind in items_in(passthrough.content_item_kinds)] if passthrough else []
    blocks = []
    for number, part in enumerate(items_in(item.content)):
        if kinds and not (number < len(kinds) and kinds[number].startswith(_TYPED_KIND)):
            continue
        block = _block(part)
        if block is None or ("text" in block and _is_added(block["text"], bool(kinds))):
            continue
        blocks.append(block)
    return blocks


def _is_added(text: str, has_kinds: bool) -> bool:
    if not text.strip() or _IMAGE_FRAME.fullmatch(text[:_HEAD_CHARS]):
        return True
    return not has_kinds and text[:_HEAD_CHARS].lstrip().startswith(_INJECTED)


def _blocks(content: msgspec.Raw) -> list[JsonObject]:
    text = text_in(content)
    if text is not None:
        return [text_block(text)] if text else []
    return [block for part in items_in(content) if (block := _block(part)) is not None]


def _block(part: msgspec.Raw) -> JsonObject | None:
    opened = open_part(_decode_part, part)
    if opened is None:
        return None
    text = known_text(opened.text)
    if text:
        return text_block(text)
    url = known_text(opened.image_url)
    found = _IMAGE_URL.match(url[:_HEAD_CHARS]) if url else None
    if url is None or found is None:
        return None
    return {"type": "image", "data": url[found.end() :], "mimeType": found[1]}


def _thinking_text(item: CodexItem) -> str:
    """The summary of a thought, else the thought itself where the file has it."""
    for part in (item.summary, item.content):
        texts = [block["text"] for block in _blocks(part) if "text" in block]
        if texts:
            return "\n\n".join(texts)
    return ""


def _tool_call(kind: str, item: CodexItem) -> JsonObject:
    # Calls of tools that the service runs itself (`web_search_call`) have no name and no output.
    name = known_text(item.name) or kind.removesuffix("_call")
    call_id = known_text(item.call_id) or known_text(item.id) or ""
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": _arguments(item)}


def _arguments(item: CodexItem) -> msgspec.Raw | JsonObject:
    text = text_in(item.arguments)
    if text is not None:
        try:
            given = text.encode()
        except UnicodeEncodeError:
            return {}
        own = object_in(msgspec.Raw(given.strip()))
        return own if bytes(own) != b"{}" or given.strip() in (b"", b"{}") else {"input": text}
    text = text_in(item.input)
    if text is not None:
        return {"input": text}
    return object_in(item.arguments if bytes(item.arguments) else item.action)


def _result(item: CodexItem) -> JsonObject:
    content, failed = _output(item.output)
    call_id = known_text(item.call_id) or known_text(item.id) or ""
    return {"role": "toolResult", "toolCallId": call_id, "toolName": "", "content": content, "isError": failed}


def _output(output: msgspec.Raw) -> tuple[list[JsonObject], bool]:
    """The content of a result, and whether it is an error."""
    text = text_in(output)
    if text is None:
        opened = open_part(_decode_output, output)
        if opened is None:
            return _blocks(output), False
        return _blocks(opened.content), opened.success is False
    if text.startswith("{") and '"metadata"' in text:
        # Older versions write what a command printed as JSON in a string.
        old = open_part(_decode_output, msgspec.Raw(text.encode("utf-8", "replace")))
        printed = text_in(old.output) if old is not None else None
        if old is not None and printed is not None:
            metadata = open_part(_decode_metadata, old.metadata)
            code = lax.amount(metadata.exit_code) if metadata is not None else None
            failed = metadata is not None and metadata.exit_code is not None and code != 0
            return [text_block(printed)], failed
    found = _EXIT_CODE.match(text[:_HEAD_CHARS])
    return [text_block(text)], found is not None and found[1] != "0"
