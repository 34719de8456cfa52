"""Our hooks in the settings of a program: added to their text, and taken out of it again. Pure.

Every other byte stays as it is. Standard library only.
"""

from __future__ import annotations

import json
import os
import shlex

from sessiond.cli.hooks.json_text import Container, Part, UnknownForm, open_inner, open_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What a hook takes whose daemon does not answer, and room for a busy machine.
_QUICK_S = 5
# So long a question waits at most: until tomorrow. Codex does not show its own prompt meanwhile.
_ASKING_S, _ASKING_ALONE_S = 86_400, 600


class HookedProgram:
    """A program with hooks: `file` in the folder that the variable names, else in `folder`, and how long (in seconds)
    each of its hooks may take. `note` is what a person has to do as well.
    """

    def __init__(self, variable: str, folder: str, file: str, timeouts: Mapping[str, int], note: str = "") -> None:
        self.variable, self.folder, self.file = variable, folder, file
        self.timeouts, self.note = timeouts, note

    def path(self, environ: Mapping[str, str]) -> str:
        """The absolute path of its settings."""
        folder = environ.get(self.variable) or self.folder
        return os.path.join(os.path.abspath(os.path.expanduser(folder)), self.file)


_TIMEOUTS = {
    "SessionStart": _QUICK_S,
    "UserPromptSubmit": _QUICK_S,
    "PermissionRequest": _ASKING_S,
    "Notification": _QUICK_S,
    "Stop": _QUICK_S,
    "SessionEnd": _QUICK_S,
}
PROGRAMS = {
    "claude": HookedProgram("CLAUDE_CONFIG_DIR", "~/.claude", "settings.json", _TIMEOUTS),
    "codex": HookedProgram(
        "CODEX_HOME",
        "~/.codex",
        "hooks.json",
        # It has no notifications, and lets a session's last hook take three seconds.
        {event: limit for event, limit in _TIMEOUTS.items() if event != "Notification"}
        | {"PermissionRequest": _ASKING_ALONE_S, "SessionEnd": 3},
        "Codex asks once whether it may run them, when it starts next; until then it does not",
    ),
}


def handler_of(command: str, timeout_s: int) -> dict[str, Any]:
    """The group of hooks of one event, as both programs write it."""
    return {"hooks": [{"type": "command", "command": command, "timeout": timeout_s}]}


def is_ours(handler: object) -> bool:
    """Whether a hook is `sessiond hook`, wherever the program lies."""
    if not isinstance(handler, dict) or not isinstance(handler.get("command"), str):
        return False
    try:
        words = shlex.split(handler["command"])
    except ValueError:
        return False
    if "hook" not in words[1:]:
        return False
    place = words.index("hook", 1)
    rest = words[place + 1 :]
    if rest[:1] == ["--socket"]:
        rest = rest[2:]
    return os.path.basename(words[place - 1]) == "sessiond" and rest in ([], ["||", "true"])


def add_hooks(text: str, command: str, timeouts: Mapping[str, int]) -> str:
    """The settings with our hook at each event; `text` is empty where there are none yet. UnknownForm."""
    text = text if text.strip() else "{}\n"
    wanted = {event: handler_of(command, limit) for event, limit in timeouts.items()}
    found = find_ours(text)
    if all(found.get(event) == [group] for event, group in wanted.items()) and len(found) == len(wanted):
        return text
    if found:
        text = remove_hooks(text, kept=None)
    for event, group in wanted.items():
        text = _add_group(text, event, json.dumps(group, ensure_ascii=False))
    return text


def remove_hooks(text: str, kept: Mapping[str, Any] | None) -> str:
    """The settings without our hooks, and without what was made for them: `kept` are the settings from before. None:
    whatever held them stays, empty. UnknownForm.
    """
    while True:
        place = _first_of_ours(text)
        if place is None:
            return text
        event, group, handler = place
        text = (group if handler is None else handler[0]).remove(event if handler is None else handler[1])
        text = _remove_empty(text, kept)


def take_out(text: str, before: str | None, timeouts: Mapping[str, int]) -> tuple[str | None, bool]:
    """The settings without our hooks, and whether they are byte for byte as `before` the hooks were added. None: there
    was no file. UnknownForm.
    """
    group = next(iter(find_ours(text).values()))[0]
    command = group["hooks"][_handlers_of_ours(group)[0]]["command"]
    try:
        if add_hooks(before or "", command, timeouts) == text:
            return before, True
        kept = json.loads(before) if before is not None and before.strip() else {}
    except (UnknownForm, ValueError):
        kept = {}
    return remove_hooks(text, kept=kept), False


def find_ours(text: str) -> dict[str, list[Any]]:
    """Our groups by their event. UnknownForm."""
    found: dict[str, list[Any]] = {}
    if not text.strip():
        return found
    for member, array in _events(text):
        for item in array.parts:
            group = _value(array, item)
            if _handlers_of_ours(group):
                found.setdefault(str(member.key), []).append(group)
    return found


def find_socket(text: str) -> str | None:
    """The socket that our hooks in the settings name, None where they name none. UnknownForm."""
    for groups in find_ours(text).values():
        for group in groups:
            words = shlex.split(group["hooks"][_handlers_of_ours(group)[0]]["command"])
            if "--socket" in words[:-1]:
                return words[words.index("--socket") + 1]
    return None


def _hooks(text: str) -> tuple[Container, Container | None]:
    root = open_root(text)
    member = root.find("hooks")
    return root, open_inner(root, member, "{") if member is not None else None


def _events(text: str) -> list[tuple[Part, Container]]:
    hooks = _hooks(text)[1]
    return [(member, open_inner(hooks, member, "[")) for member in hooks.parts] if hooks is not None else []


def _value(container: Container, part: Part) -> Any:
    return json.loads(container.text[part.value_at : part.end])


def _handlers_of_ours(group: object) -> list[int]:
    """Which of the group's hooks are ours."""
    handlers = group.get("hooks") if isinstance(group, dict) else None
    return [place for place, one in enumerate(handlers) if is_ours(one)] if isinstance(handlers, list) else []


def _first_of_ours(text: str) -> tuple[Part, Container, tuple[Container, Part] | None] | None:
    """A group of ours with the array that holds it; and where others are in the group, our hook with its array."""
    for _, array in _events(text):
        for item in array.parts:
            group = _value(array, item)
            ours = _handlers_of_ours(group)
            if not ours:
                continue
            if len(ours) == len(group["hooks"]):
                return item, array, None
            inner = Container(text, item.value_at)
            member = inner.find("hooks")
            handlers = open_inner(inner, member, "[") if member is not None else inner
            return item, array, (handlers, handlers.parts[ours[0]])
    return None


def _remove_empty(text: str, kept: Mapping[str, Any] | None) -> str:
    """The text without the containers that are empty now and were not there before."""
    if kept is None:
        return text
    before = kept.get("hooks")
    root, hooks = _hooks(text)
    if hooks is not None:
        for member in hooks.parts:
            was_there = isinstance(before, dict) and member.key in before
            if not was_there and not open_inner(hooks, member, "[").parts:
                return _remove_empty(hooks.remove(member), kept)
        if not hooks.parts and "hooks" not in kept:
            return root.remove(next(part for part in root.parts if part.key == "hooks"))
    return text


def _add_group(text: str, event: str, group: str) -> str:
    root, hooks = _hooks(text)
    outer = root.separator or ("" if root.parts else "\n  ")
    # One level further in than the members of the root.
    inner = outer + (outer.lstrip("\r\n") or "  ") if "\n" in outer else outer
    if hooks is None:
        member = f'"hooks": {{{inner}{json.dumps(event)}: [{group}]{outer if inner else ""}}}'
        return root.append(member, outer or " ", outer[: outer.index("\n") + 1] if "\n" in outer else "")
    found = hooks.find(event)
    if found is None:
        return hooks.append(f"{json.dumps(event)}: [{group}]", hooks.separator or inner or " ", outer)
    array = open_inner(hooks, found, "[")
    return array.append(group, array.separator or (" " if array.parts else ""), "")
