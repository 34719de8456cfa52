"""The tool calls of a session as updates for an editor: live events, stored calls and stored results. Sans-io.

An id that a program uses again gets a number, because ids have to be unique within a session of the editor.
"""

from __future__ import annotations

import re
from typing import Any

Update = dict[str, Any]

# Of so many calls it is known that they were called, and of so many ids how often they were used.
MAX_KNOWN, MAX_IDS = 1000, 5000
MAX_TITLE_CHARS = 120
KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
# Words in the names of tools, of several programs; the first that is found decides.
_KIND_WORDS = (
    ("think", {"think", "todo", "plan", "task"}),
    ("execute", {"bash", "shell", "exec", "run", "command", "terminal"}),
    ("fetch", {"fetch", "web", "http", "browse"}),
    ("edit", {"edit", "editor", "write", "patch", "replace", "insert"}),
    ("delete", {"delete", "remove", "rm"}),
    ("move", {"move", "rename", "mv"}),
    ("search", {"grep", "glob", "search", "find", "list", "ls"}),
    ("read", {"read", "view", "cat", "history"}),
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of webFetch, web_fetch, WEB_FETCH
# Arguments that say what a call is about, in the order in which they are looked for.
_PATHS = ("file_path", "filePath", "absolute_path", "path")
_TELLING = ("command", "cmd", *_PATHS, "pattern", "query", "url", "description")


class _KnownCall:
    __slots__ = ("acp_id", "facts", "is_over", "is_stored", "said", "shown_end")

    def __init__(self, acp_id: str) -> None:
        self.acp_id = acp_id
        self.said: Update = {}  # what it is about, as it was shown
        self.facts: Update = {}  # of that, what the agent has said in the protocol's own words
        self.is_stored = False  # its message has come
        self.is_over = False  # its stored result has come
        self.shown_end: Update | None = None  # how its end was shown last


class ToolCalls:
    """What an editor was told of the calls of one session."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownCall] = {}
        self._open: dict[str, _KnownCall] = {}  # those whose end was not shown, by the ids of the protocol
        self._times_used: dict[str, int] = {}

    def acp_id_of(self, call_id: str) -> str:
        """The id under which the editor knows a call, or will."""
        known = self._known.get(call_id)
        return known.acp_id if known is not None else call_id

    def take_call(self, block: dict[str, Any]) -> list[Update]:
        """A `toolCall` block of a message."""
        call_id, name, arguments = _text(block.get("id")), _text(block.get("name")), block.get("arguments")
        known = self._known.get(call_id)
        if known is not None and not known.is_stored:  # it was shown when it began
            known.is_stored = True
            # What the agent itself has called it, it is called.
            said = {**_describe(name, arguments, block), **known.facts}
            new = {field: value for field, value in said.items() if known.said.get(field) != value}
            return [{"sessionUpdate": "tool_call_update", "toolCallId": known.acp_id, **new}] if new else []
        known = self._begin(call_id)
        known.is_stored = True
        return [self._show_call(known, _describe(name, arguments, block), "pending")]

    def take_result(self, message: dict[str, Any], content: list[Update], *, again: bool = False) -> list[Update]:
        """A `toolResult` message, whose content is `content`. `again`: it came before, and has grown."""
        call_id = _text(message.get("toolCallId")) or _text(message.get("tool_call_id"))
        details = message.get("details")
        facts = details if isinstance(details, dict) else {}
        end: Update = {"status": "failed" if message.get("isError") is True else "completed"}
        shown = [{"type": "content", "content": block} for block in content] + _diffs(facts.get("diffs"))
        if shown:
            end["content"] = shown
        end |= _known_facts(facts)
        known = self._known.get(call_id)
        if known is None or (known.is_over and not again):
            known = self._begin(call_id)
            known.is_over = known.is_stored = True
            known.shown_end = end
            del self._open[known.acp_id]
            return [{**self._show_call(known, _describe(_text(message.get("toolName")), None, facts), ""), **end}]
        known.is_over = True
        return self._show_end(known, end)

    def take_live(self, event: dict[str, Any]) -> list[Update]:
        """A `session.tool` event."""
        call_id, name, phase = _text(event.get("toolCallId")), _text(event.get("name")), event.get("phase")
        known = self._known.get(call_id)
        updates: list[Update] = []
        has_ended = known is not None and (known.is_over or known.shown_end is not None)
        if has_ended and phase != "start":
            return []
        if known is None or has_ended:
            known = self._begin(call_id)
            known.facts = _known_facts(event)
            arguments = event.get("args", event.get("arguments"))
            updates = [self._show_call(known, _describe(name, arguments, event), "in_progress")]
        elif phase == "start":
            updates = [{"sessionUpdate": "tool_call_update", "toolCallId": known.acp_id, "status": "in_progress"}]
        elif phase == "update":
            updates = self._show_facts(known, _known_facts(event))
        result = event.get("result")
        content = [{"type": "content", "content": {"type": "text", "text": result}}] if _text(result) else None
        if phase == "end":
            end: Update = {"status": "failed" if event.get("isError") is True else "completed"}
            return [*updates, *self._show_end(known, {**end, "content": content} if content else end)]
        if content:
            updates.append({"sessionUpdate": "tool_call_update", "toolCallId": known.acp_id, "content": content})
        return updates

    def fail_open(self) -> list[Update]:
        """The ends of calls that have none: what called them is over."""
        return [update for known in list(self._open.values()) for update in self._show_end(known, {"status": "failed"})]

    def _begin(self, call_id: str) -> _KnownCall:
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        if len(self._times_used) >= MAX_IDS:
            del self._times_used[next(iter(self._times_used))]
        self._known.pop(call_id, None)  # the newest stands last
        times = self._times_used[call_id] = self._times_used.get(call_id, 0) + 1
        known = _KnownCall(call_id if times == 1 and call_id else f"{call_id}#{times}")
        self._known[call_id] = self._open[known.acp_id] = known
        return known

    def _show_call(self, known: _KnownCall, said: Update, status: str) -> Update:
        known.said = said
        return {"sessionUpdate": "tool_call", "toolCallId": known.acp_id, **said, "status": status}

    def _show_facts(self, known: _KnownCall, facts: Update) -> list[Update]:
        """What an agent says of a call only after it has begun, such as its title."""
        new = {field: value for field, value in facts.items() if known.said.get(field) != value}
        if not new:
            return []
        known.facts |= new
        known.said |= new
        return [{"sessionUpdate": "tool_call_update", "toolCallId": known.acp_id, **new}]

    def _show_end(self, known: _KnownCall, end: Update) -> list[Update]:
        if known.shown_end == end:
            return []
        known.shown_end = end
        self._open.pop(known.acp_id, None)
        return [{"sessionUpdate": "tool_call_update", "toolCallId": known.acp_id, **end}]


def _describe(name: str, arguments: Any, facts: dict[str, Any]) -> Update:
    """What a call is about."""
    update: Update = {"title": _title(name, arguments), "kind": _kind(name)}
    if name:
        update["name"] = name
    if arguments is not None:
        update["rawInput"] = arguments
    locations = _locations(arguments)
    if locations:
        update["locations"] = locations
    return update | _known_facts(facts)


def _known_facts(facts: dict[str, Any]) -> Update:
    """Title, kind and locations as an agent that speaks this protocol has said them."""
    found: Update = {}
    if _text(facts.get("title")):
        found["title"] = facts["title"]
    if facts.get("kind") in KINDS:
        found["kind"] = facts["kind"]
    locations = facts.get("locations")
    if isinstance(locations, list):
        paths = [place["path"] for place in locations if isinstance(place, dict) and _text(place.get("path"))]
        found |= {"locations": [{"path": path} for path in paths]} if paths else {}
    return found


def _diffs(diffs: Any) -> list[Update]:
    """The changes of files in the details of a result."""
    shown: list[Update] = []
    for one in diffs if isinstance(diffs, list) else ():
        if isinstance(one, dict) and _text(one.get("path")) and isinstance(one.get("newText"), str):
            old = one.get("oldText")
            diff = {"type": "diff", "path": one["path"], "newText": one["newText"]}
            shown.append({**diff, "oldText": old} if isinstance(old, str) else diff)
    return shown


def _title(name: str, arguments: Any) -> str:
    shown = name or "tool"
    if isinstance(arguments, dict):
        telling = next((arguments[field] for field in _TELLING if _text(arguments.get(field))), "")
        line = " ".join(str(telling).split())
        shown = f"{shown} {line}" if line else shown
    return shown if len(shown) <= MAX_TITLE_CHARS else shown[: MAX_TITLE_CHARS - 1] + "…"


def _kind(name: str) -> str:
    if name in KINDS:
        return name
    found = {word.lower() for word in _WORD.findall(name[:MAX_TITLE_CHARS])}
    return next((kind for kind, words in _KIND_WORDS if found & words), "other")


def _locations(arguments: Any) -> list[Update]:
    given = arguments if isinstance(arguments, dict) else {}
    path = next((given[field] for field in _PATHS if _text(given.get(field)).startswith("/")), None)
    return [{"path": path}] if path is not None else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
