"""What a message consists of, for a document: text, code, thoughts, tool calls and their results, images, files.

Total: any JSON object is a message, and what is not known is shown as JSON.
"""

from __future__ import annotations

import json
import re
from types import MappingProxyType

from sessiond.cli.terminal.message import TOOL_ROLES, who_of
from sessiond.cli.terminal.times import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

TEXT, CODE, THOUGHTS, CALL, RESULT, IMAGE, NOTE = "text", "code", "thoughts", "call", "result", "image", "note"
# As browsers show them. No SVG, which is a document of its own.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([^`\n]*)$")
_SUMMARY_CHARS = 100
# Fields of a tool's arguments that say by themselves what is done, the most telling first.
_TELLING = (
    *("command", "cmd", "file_path", "path", "filePath", "pattern", "query", "url", "description", "task", "prompt"),
)


class ShownPart:
    """One piece of a message. `label`: the language of code, the tool of a call, the media type of an image."""

    def __init__(self, kind: str, text: str, label: str = "", *, failed: bool = False) -> None:
        self.kind, self.text, self.label, self.failed = kind, text, label, failed

    def summary(self) -> str:
        """The line that stands for thoughts, a call or a result until it is opened."""
        if self.kind == RESULT:
            return f"{self.label}{' failed' if self.failed else ''}: result"
        return "thinking" if self.kind == THOUGHTS else self.label


class ShownMessage:
    """A message as it stands in a document. `sender` is the key of the session that sent it; `moment_ms` since 1970."""

    def __init__(self, who: str, sender: str, moment_ms: int | None, parts: list[ShownPart]) -> None:
        self.who, self.sender, self.moment_ms, self.parts = who, sender, moment_ms, parts


def message_entry(
    message: dict[str, Any],
    moment_ms: int | None,
    files: Sequence[dict[str, Any]],
    calls: Mapping[str, str] = MappingProxyType({}),
) -> ShownMessage:
    """`files` came with the message; `calls` has the names of tools by the id of their call, for results that do not
    say theirs.
    """
    parts = list(_parts(message, calls))
    parts += [ShownPart(NOTE, f"attached: {file.get('name')} ({size(int(file.get('bytes') or 0))})") for file in files]
    return ShownMessage(who_of(message), _sender(message), moment_ms, parts)


def run_end_entry(run_end: dict[str, Any], words: dict[str, str], moment_ms: int | None) -> ShownMessage:
    """The end of a run as an entry. `words` has a sentence for each status."""
    status, error = str(run_end.get("status")), run_end.get("error")
    interrupted = status == "error" and error == "interrupted"
    text = words["interrupted" if interrupted else status] if (interrupted or status in words) else status
    parts = [ShownPart(NOTE, f"{text}: {error}" if error and not interrupted else text)]
    if run_end.get("printed"):
        parts.append(ShownPart(CODE, str(run_end["printed"]).rstrip("\n")))
    return ShownMessage("run", "", moment_ms, parts)


def note_entry(text: str, moment_ms: int | None) -> ShownMessage:
    """What stands between messages and is none."""
    return ShownMessage("note", "", moment_ms, [ShownPart(NOTE, text)])


def fact_entry(who: str, text: str, moment_ms: int | None) -> ShownMessage:
    """What was asked or answered at this time."""
    return ShownMessage(who, "", moment_ms, [ShownPart(NOTE, text)])


def text_and_code(text: str) -> Iterator[ShownPart]:
    """The text with its fenced blocks of code apart. A fence that is not closed ends with the text."""
    gathered: list[str] = []
    fence, language = "", ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if not fence and found:
            yield from _nonempty_part(TEXT, gathered)
            fence, language = found[1], found[2].strip().split(" ")[0]
        elif fence and found and found[1].startswith(fence) and not found[2].strip():
            yield ShownPart(CODE, "\n".join(gathered), language)
            gathered, fence = [], ""
        else:
            gathered.append(line)
            continue
        gathered = []
    if fence:
        yield ShownPart(CODE, "\n".join(gathered), language)
    else:
        yield from _nonempty_part(TEXT, gathered)


def _nonempty_part(kind: str, lines: list[str]) -> Iterator[ShownPart]:
    text = "\n".join(lines).strip("\n")
    if text.strip():
        yield ShownPart(kind, text)


def _sender(message: dict[str, Any]) -> str:
    match message.get("provenance"):
        case {"kind": "inter_session", "machine": str(machine), "machineSessionKey": str(key)}:
            return f"{machine}/{key}"
        case {"kind": "inter_session", "sourceSessionKey": str(key)}:
            return key
        case {"kind": "inter_session"}:
            return "another session"
    return ""


def names_of_calls(messages: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The name of each tool by the id of its call."""
    names = {}
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            match block:
                case {"type": "toolCall", "id": str(call), "name": str(name)}:
                    names[call] = name
    return names


def _parts(message: dict[str, Any], calls: Mapping[str, str]) -> Iterator[ShownPart]:
    content = message.get("content")
    if message.get("role") in TOOL_ROLES:
        yield from _result_parts(message, calls)
        return
    for block in content if isinstance(content, list) else [content]:
        yield from _block_parts(block)


def _result_parts(message: dict[str, Any], calls: Mapping[str, str]) -> Iterator[ShownPart]:
    content = message.get("content", message.get("output"))
    parts = [part for block in (content if isinstance(content, list) else [content]) for part in _block_parts(block)]
    call = message.get("toolCallId")
    known = calls.get(call) if isinstance(call, str) else None
    name = str(message.get("toolName") or known or message.get("command") or "result")
    text = "\n".join(part.text for part in parts if part.kind != IMAGE)
    yield ShownPart(RESULT, text, _one_line(name), failed=message.get("isError") is True)
    yield from (part for part in parts if part.kind == IMAGE)


def _block_parts(block: Any) -> Iterator[ShownPart]:
    match block:
        case None | "":
            return
        case str(text) | {"type": "text", "text": str(text)}:
            yield from text_and_code(text)
        case {"type": "thinking"}:
            yield from _nonempty_part(THOUGHTS, [str(block.get("thinking") or "")])
        case {"type": "toolCall", "name": str(name)}:
            arguments = block.get("arguments")
            label = f"{_one_line(name)} {summary_of(arguments)}".strip()
            yield ShownPart(CALL, arguments if isinstance(arguments, str) else _as_json(arguments), label)
        case {"type": "image"}:
            yield _image(block)
        case _:
            yield ShownPart(CODE, _as_json(block), "json")


def _image(block: dict[str, Any]) -> ShownPart:
    kind, data = block.get("mimeType"), block.get("data")
    if kind in IMAGE_TYPES and isinstance(data, str) and _BASE64.fullmatch(data):
        return ShownPart(IMAGE, data, str(kind))
    return ShownPart(NOTE, f"image {_one_line(str(kind or ''))}".strip())


def summary_of(arguments: Any) -> str:
    """The argument that says most of a call, on one line."""
    if not isinstance(arguments, dict):
        return ""
    for name in _TELLING:
        value = arguments.get(name)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            value = " ".join(value)
        if isinstance(value, str) and value.strip():
            return _one_line(value)
    return ""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_CHARS else line[: _SUMMARY_CHARS - 1] + "…"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
