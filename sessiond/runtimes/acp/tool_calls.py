"""The tool calls of one turn: a call in a message, live events while it goes on, and one result. Sans-io."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from sessiond.runtimes.acp.message_draft import AcpMessageDraft
from sessiond.runtimes.output import Event, MessageOutput, Tool
from sessiond.runtimes.presets.draft import texts
from sessiond.runtimes.presets.fields import array, member, table, text

# More than any agent has open at once. Of calls that have ended as many are remembered, whose late updates are ignored.
_MAX_CALLS = 1000
# What the agent has said of its open calls; then the oldest one is ended.
_MAX_HELD_BYTES = 64 * 1024 * 1024
_MAX_ID_CHARS = 1024
# The title, which may be a whole command, is the name of a call that has none.
_MAX_NAME_CHARS = 1024
_FINAL = ("completed", "failed")
# What a permission request says of its call; its `content` explains the question and is no result.
_ASKED = ("toolCallId", "title", "name", "kind", "rawInput", "locations")
LEFT_OPEN = "(the turn ended before this call had a result)"


class _OpenCall:
    """What is known of a call. `block` is its block in a message."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.fields: dict[str, Any] = {}
        self.block: dict[str, Any] | None = None
        self.sizes: dict[str, int] = {}
        self.denied: str | None = None
        # What it printed to a terminal, as it came.
        self._printed: list[str] = []
        self._printed_chars = 0

    @property
    def printed(self) -> str:
        """What it printed to a terminal."""
        return "".join(self._printed)

    def add_printed(self, printed: str, most_chars: int) -> None:
        """Note what it printed, up to so many characters in all."""
        kept = printed[: most_chars - self._printed_chars]
        if kept:
            self._printed.append(kept)
            self._printed_chars += len(kept)

    def clear_printed(self) -> None:
        """Forget what it printed: it comes once more, whole."""
        self._printed, self._printed_chars = [], 0

    def keep(self, name: str, value: Any) -> None:
        """Keep a member, and how much that is."""
        self.fields[name] = value
        self.sizes[name] = len(msgspec.json.encode(value))

    @property
    def held_bytes(self) -> int:
        return sum(self.sizes.values()) + self._printed_chars

    @property
    def kind(self) -> str:
        return text(self.fields, "kind") or "other"

    @property
    def name(self) -> str:
        kind = "" if self.kind == "other" else self.kind
        return (text(self.fields, "name") or kind or text(self.fields, "title"))[:_MAX_NAME_CHARS] or "other"

    @property
    def arguments(self) -> dict[str, Any]:
        given = self.fields.get("rawInput")
        return given if isinstance(given, dict) else {} if given is None else {"input": given}


class AskedCall(msgspec.Struct, frozen=True):
    """A call for which permission is asked. `fields` are its members in the agent's words."""

    kind: str
    title: str
    fields: dict[str, Any]


class CallLedger:
    """The calls of one turn. `dropped` counts updates that could not be used."""

    def __init__(self, draft: AcpMessageDraft, max_bytes: int) -> None:
        self._draft, self._max_bytes = draft, max_bytes
        self._open: dict[str, _OpenCall] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._held_bytes = 0
        self.dropped = 0

    def describe(self, update: Any) -> AskedCall:
        """The call in a permission request, with all that was said of it before."""
        call = _OpenCall("")
        known = self._open.get(text(update, "toolCallId"))
        call.fields = dict(known.fields) if known is not None else {}
        self._patch(call, update)
        return AskedCall(call.kind, text(call.fields, "title") or call.name, call.fields)

    def begin(self, asked: Any) -> Iterator[Event]:
        """The events of the call in a permission request: Gemini CLI asks before it says anything of a call."""
        call = self._open.get(text(asked, "toolCallId"))
        said = {name: asked[name] for name in _ASKED if name in asked}
        if call is not None and call.block is not None:
            self._patch_open(call, said)
            call.block |= {"name": call.name, "arguments": call.arguments}
            yield from self._end_oldest()
        elif 0 < len(text(asked, "toolCallId")) <= _MAX_ID_CHARS:
            yield from self.take(said)

    def deny(self, update: Any, reason: str) -> None:
        """The call was denied: some agents say nothing more of it."""
        call = self._open.get(text(update, "toolCallId"))
        if call is not None:
            call.denied = f"(permission denied: {reason})"

    def take(self, update: dict[str, Any]) -> Iterator[Event]:
        """The events of a `tool_call` or `tool_call_update`. An update of an unknown call begins it."""
        call_id = text(update, "toolCallId")
        if not 0 < len(call_id) <= _MAX_ID_CHARS:
            self.dropped += 1
            return
        if call_id in self._ended:
            return
        call = self._open.get(call_id)
        if call is None:
            if len(self._open) >= _MAX_CALLS:
                yield from self._finish(next(iter(self._open.values())), LEFT_OPEN)
            call = self._open[call_id] = _OpenCall(call_id)
        self._patch_open(call, update)
        status = text(call.fields, "status")
        if call.block is None:
            call.block = {"type": "toolCall", "id": call_id, "name": call.name, "arguments": call.arguments}
            yield from self._draft.add_block(call.block)
            yield Tool("start", call_id, call.name, {"arguments": call.arguments, **_live(call)})
        elif status not in _FINAL:
            # What the message says of the call may change until it is written.
            call.block |= {"name": call.name, "arguments": call.arguments}
            yield Tool("update", call_id, call.name, {"status": status, **_live(call)})
        if status in _FINAL:
            call.block |= {"name": call.name, "arguments": call.arguments}
            yield from self._finish(call)
        yield from self._end_oldest()

    def end(self) -> Iterator[Event]:
        """Results for the calls that the agent left open."""
        for call in list(self._open.values()):
            yield from self._finish(call, call.denied or LEFT_OPEN)

    def _patch_open(self, call: _OpenCall, update: Any) -> None:
        before = call.held_bytes
        self._patch(call, update)
        self._held_bytes += call.held_bytes - before

    def _end_oldest(self) -> Iterator[Event]:
        """Results for the oldest calls while all hold too much."""
        while self._open and self._held_bytes > _MAX_HELD_BYTES:
            yield from self._finish(next(iter(self._open.values())), LEFT_OPEN)

    def _finish(self, call: _OpenCall, why: str | None = None) -> Iterator[Event]:
        """The result of a call, after the message with the call itself."""
        self._open.pop(call.id, None)
        self._held_bytes -= call.held_bytes
        self._ended[call.id] = None
        if len(self._ended) > _MAX_CALLS:
            self._ended.popitem(last=False)
        if call.block is None:
            return
        yield from self._draft.flush()
        is_error = why is not None or call.fields.get("status") == "failed"
        content = _content(call) if why is None else texts(why)
        yield Tool("end", call.id, call.block["name"], {"isError": is_error})
        message: dict[str, Any] = {
            "role": "toolResult",
            "toolCallId": call.id,
            "toolName": call.block["name"],
            "content": content,
            "isError": is_error,
        }
        if details := _details(call):
            message["details"] = details
        yield MessageOutput(self._fit(message))

    def _fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """The result, cut in words if it is too long for a record."""
        size = len(msgspec.json.encode(message))
        if size <= self._max_bytes:
            return message
        whole = "".join(block.get("text", "") for block in message["content"])
        note = f"\n(cut here: the whole result is {size} bytes, too long for limits.maxRecordBytes)"
        message = {name: value for name, value in message.items() if name != "details"} | {"content": texts(note)}
        room = self._max_bytes - len(msgspec.json.encode(message))
        # JSON escapes make a text up to six times as long.
        return message | {"content": texts(whole[: max(0, room) // 6] + note)}

    def _patch(self, call: _OpenCall, update: Any) -> None:
        """Take over what an update says of a call. Members of another type, and null, say nothing."""
        for name in ("title", "name", "kind", "status"):
            if text(update, name):
                call.keep(name, update[name])
        for name in ("content", "locations"):
            if isinstance(member(update, name), list):
                call.keep(name, update[name])
        for name in ("rawInput", "rawOutput"):
            if member(update, name) is not None:
                call.keep(name, update[name])
        # The convention of Zed for what a command prints, which Codex uses whatever the client has said of terminals.
        if whole := text(update, "_meta", "terminal_output", "data"):
            call.clear_printed()
            call.add_printed(whole, self._max_bytes)
        if more := text(update, "_meta", "terminal_output_delta", "data"):
            call.add_printed(more, self._max_bytes)


def _live(call: _OpenCall) -> dict[str, Any]:
    return {"title": text(call.fields, "title")[:500], "kind": call.kind}


def _content(call: _OpenCall) -> list[dict[str, Any]]:
    """The content of a result: text and images; a diff as its path. Without any, the raw output as text."""
    blocks: list[dict[str, Any]] = []
    for item in array(call.fields, "content"):
        block = table(item, "content")
        match text(item, "type"), text(block, "type"):
            case "content", "text":
                blocks += texts(text(block, "text"))
            case "content", "image" if text(block, "data") and text(block, "mimeType"):
                blocks.append({"type": "image", "data": block["data"], "mimeType": block["mimeType"]})
            case "content", "resource_link":
                blocks += texts(f"[{text(block, 'title') or text(block, 'name')}]({text(block, 'uri')})")
            case "content", "resource":
                blocks += texts(text(block, "resource", "text"))
            case "diff", _:
                blocks += texts(f"(changed {text(item, 'path')})")
            case _:
                pass
    if blocks or (printed := call.printed):
        return blocks or texts(printed)
    output = call.fields.get("rawOutput")
    if output is None:
        return []
    return texts(output if isinstance(output, str) else msgspec.json.encode(output).decode())


def _details(call: _OpenCall) -> dict[str, Any]:
    """What a reader of the transcript may want to know besides."""
    found: dict[str, Any] = {name: call.fields[name] for name in ("title", "kind", "locations") if name in call.fields}
    diffs = [item for item in array(call.fields, "content") if text(item, "type") == "diff"]
    return {**found, "diffs": diffs} if diffs else found
