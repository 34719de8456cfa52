"""Format transcript messages for people: text as it is, tool calls and results shortened.

Source: store.md, "Messages".
"""

from __future__ import annotations

import json

from sessiond.cli.terminal.escape import escape, one_line
from sessiond.cli.terminal.screen import Screen, clip, pad
from sessiond.cli.terminal.times import clock, moment_in, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

ROLE_STYLES = {
    "user": "cyan",
    "assistant": "green",
    "toolResult": "yellow",
    "run": "red",
    "question": "yellow",
    "answer": "yellow",
}
ROLE_WIDTH = 9
TOOL_ROLES = ("toolResult", "tool", "bashExecution")
# What is shown of a message that has no other part than the thoughts of a model.
ONLY_THOUGHTS = "(thinking)"
# Characters of other scripts that look like the letters of `from`.
_LOOK_ALIKE = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "MATHEMATICAL", "MODIFIER")
# What `sessions_history` has in place of a message that is longer than a page.
OMITTED = "[sessions_history omitted: message too large]"
# How much of a tool's arguments or result is shown; --json has all of it.
MAX_TOOL_CHARS = 200


def text_of(message: dict[str, Any]) -> str:
    """The text of a message for people, one line per part; not escaped."""
    content = message.get("content")
    if isinstance(content, str):
        return _describe_omitted(message) or content
    if not isinstance(content, list):
        return "" if content is None else json.dumps(content, ensure_ascii=False)
    return "\n".join(part for part in map(_block, content) if part)


def _describe_omitted(message: dict[str, Any]) -> str | None:
    match message:
        case {"content": str(content), "omitted": {"bytes": int(count)}} if content == OMITTED:
            return f'(a message of {size(count)}, too long for this page: "sessiond export" has it)'
    return None


def origin(message: dict[str, Any]) -> str:
    """`[from KEY] ` for a message of another session, else empty; not escaped."""
    match message.get("provenance"):
        case {"kind": "inter_session", "machine": str(machine), "machineSessionKey": str(key)}:
            return f"[from {machine}/{key.replace(']', chr(92) + ']')}] "
        case {"kind": "inter_session", "sourceSessionKey": str(key)}:
            return f"[from {key.replace(']', chr(92) + ']')}] "
        case {"kind": "inter_session"}:
            return "[from another session] "
    return ""


def speaker_and_text(message: dict[str, Any]) -> str:
    """The mark of `origin` and the text without empty lines around it; not escaped.

    Lines of the text that look like the mark get a backslash, so that no message can forge it.
    """
    text = text_of(message).strip("\n")
    lines = (text or (ONLY_THOUGHTS if _has_thoughts(message) else "")).split("\n")
    return origin(message) + "\n".join("\\" + line if _imitates(line) else line for line in lines)


def who_of(message: dict[str, Any]) -> str:
    """The role as people see it, in one word that fits its column; escaped."""
    role = str(message.get("role", "?"))
    return "tool" if role in TOOL_ROLES else one_line(role)


def _has_thoughts(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(one, dict) and one.get("type") == "thinking" for one in content)


def _imitates(line: str) -> bool:
    """Whether a line begins with what looks like the mark of `origin`, in whatever script."""
    start = line[:64]
    if start.isascii():
        return "".join(start.split()).lower().startswith("[from")
    from unicodedata import category, name, normalize

    # Invisible and blank characters are passed over, and compatibility forms are taken as the letters they look like.
    seen = [char for char in normalize("NFKD", start) if category(char)[0] not in "ZMC"]
    if not seen or not (seen[0] == "[" or category(seen[0]) in ("Ps", "Pi")):
        return False
    return len(seen) >= 5 and all(
        char.lower() == wanted or (not char.isascii() and name(char, "").startswith(_LOOK_ALIKE))
        for char, wanted in zip(seen[1:5], "from", strict=False)
    )


def short(message: dict[str, Any]) -> str:
    """A message on one line, escaped."""
    text = speaker_and_text(message)
    if message.get("role") in TOOL_ROLES:
        name = message.get("toolName") or "result"
        text = f"{name}{' failed' if message.get('isError') else ''}: {text[:MAX_TOOL_CHARS]}"
    return one_line(text)


def paragraph(
    message: dict[str, Any], moment_ms: int | None, present_ms: int, screen: Screen, *, beside: Sequence[str] = ()
) -> list[str]:
    """A message as `time role text`, further lines indented, followed by the files that came with it; escaped."""
    role = str(message.get("role", "?"))
    when = clock(moment_ms, present_ms)
    who = pad(clip(who_of(message), ROLE_WIDTH), ROLE_WIDTH)
    lead = f"{screen.paint(when, 'dim')} {screen.paint(who, _style(role))} "
    indent = " " * (len(when) + ROLE_WIDTH + 2)
    if role in TOOL_ROLES:
        return [lead + _clip(short(message), screen, len(indent))]
    first, *rest = escape(speaker_and_text(message), lines=True).split("\n")
    more = [indent + screen.paint(one, "dim") for one in beside]
    return [lead + first, *(indent + line if line else "" for line in rest), *more]


def moment_of(message: dict[str, Any], place: dict[str, Any] | None = None) -> int | None:
    """The time of the message, in milliseconds since 1970: that of its record, as lists and searches have it, else its
    own. `place` is its position in a page, or its event.
    """
    moment: object = moment_in((place or {}).get("timestamp"))
    moment = message.get("timestamp") if moment is None else moment
    return moment if isinstance(moment, int) and not isinstance(moment, bool) else None


def _style(role: str) -> str:
    return ROLE_STYLES.get(role, "magenta")


def _clip(text: str, screen: Screen, indent: int) -> str:
    return text if screen.width is None else clip(text, max(screen.width - indent, 20))


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "thinking"}:
            return ""
        case {"type": "toolCall", "name": str(name)}:
            arguments = json.dumps(block.get("arguments"), ensure_ascii=False)
            return f"→ {name} {arguments[:MAX_TOOL_CHARS]}{'…' if len(arguments) > MAX_TOOL_CHARS else ''}"
        case {"type": "image"}:
            return f"[image {block.get('mimeType', '')}]"
        case {"type": str(kind)}:
            return f"[{kind}]"
        case str():
            return block
    return ""
