"""What a program tells its hook, and the question that it asks with it. Total: any bytes may come. Pure.

Source: hooks.md, "What happens". Standard library only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PATH_CHARS = 4096
MAX_ID_CHARS = 200
# The daemon cuts to its own limits; these only keep a file of megabytes out of the message.
MAX_TITLE_CHARS = 1000
MAX_DETAIL_CHARS = 16_000
MAX_LABEL_CHARS = 200
MAX_USE_CHARS = 64_000
# So many of the rules that a program offers to remember are offered.
MAX_SUGGESTIONS = 4
ALLOW, DENY = "allow", "deny"
# Tools that ask the person something themselves: allowing them would be no answer.
INTERACTIVE = ("AskUserQuestion",)


class HookEvent:
    """A hook's name, the session that it is about, and everything that the program said (`body`)."""

    def __init__(self, name: str, session_id: str, transcript: str, body: dict[str, Any]) -> None:
        self.name, self.session_id, self.transcript, self.body = name, session_id, transcript, body

    def params(self) -> dict[str, Any]:
        """The params that every call about it has."""
        return {"event": self.name, "sessionId": self.session_id, "transcriptPath": self.transcript}


class Permission:
    """The question whether a tool may run. `rules` are what the program would remember, by the id of their option;
    `use` is the call as the daemon may find it in the program's transcript, empty where it is too long.
    """

    def __init__(
        self, title: str, detail: str, options: list[dict[str, str]], rules: dict[str, Any], use: dict[str, Any]
    ) -> None:
        self.title, self.detail, self.options, self.rules, self.use = title, detail, options, rules, use


def read_event(data: bytes) -> HookEvent | None:
    """The event in what a program wrote to its hook; None for anything else."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    texts = [body.get(name) for name in ("hook_event_name", "session_id", "transcript_path")]
    name, session_id, transcript = (text if isinstance(text, str) else "" for text in texts)
    if not (0 < len(name) <= MAX_ID_CHARS and 0 < len(session_id) <= MAX_ID_CHARS):
        return None
    if not (transcript.startswith("/") and len(transcript) <= MAX_PATH_CHARS):
        return None
    return HookEvent(name, session_id, transcript, body)


def read_permission(event: HookEvent) -> Permission | None:
    """The question of a `PermissionRequest`; None where only the program itself can ask it."""
    tool, given = event.body.get("tool_name"), event.body.get("tool_input")
    if not isinstance(tool, str) or not tool or tool in INTERACTIVE:
        return None
    fields = given if isinstance(given, dict) else {}
    subject = _subject(fields)
    title = f"{tool}: {subject}" if subject else tool
    options = [{"id": ALLOW, "label": "Allow", "kind": "allow_once"}]
    rules: dict[str, Any] = {}
    suggested = event.body.get("permission_suggestions")
    for rule in suggested if isinstance(suggested, list) else []:
        label = _describe_rule(rule)
        if label is not None and len(rules) < MAX_SUGGESTIONS:
            ident = f"always-{len(rules) + 1}"
            rules[ident] = rule
            options.append({"id": ident, "label": label[:MAX_LABEL_CHARS], "kind": "allow_always"})
    options.append({"id": DENY, "label": "Deny", "kind": "reject_once"})
    use = {"toolName": tool, "toolInput": fields} if 0 < len(_dump(fields)) <= MAX_USE_CHARS else {}
    return Permission(title[:MAX_TITLE_CHARS], _describe_input(fields), options, rules, use)


def _subject(fields: dict[str, Any]) -> str:
    """What a tool is to work on, in a line: the command, the file, the address."""
    for name in ("command", "file_path", "notebook_path", "url", "path", "pattern", "query", "plan", "description"):
        text = fields.get(name)
        if isinstance(text, str) and text.strip():
            return " ".join(text[: 2 * MAX_TITLE_CHARS].split())
    return ""


def _describe_input(fields: dict[str, Any]) -> str:
    """Everything that the tool was given, a paragraph a field: texts as they are, anything else as JSON."""
    paragraphs: list[str] = []
    left = MAX_DETAIL_CHARS
    for name, value in fields.items():
        text = value if isinstance(value, str) else _dump(value)
        paragraph = f"{name}: {text[:left]}"
        paragraphs.append(paragraph)
        left -= len(paragraph)
        if left <= 0:
            return "\n".join([*paragraphs, "(cut here)"])
    return "\n".join(paragraphs)


def _dump(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"


def _describe_rule(rule: object) -> str | None:
    """What a rule that the program would remember says; None for one of unknown form."""
    if not isinstance(rule, dict):
        return None
    where = {"session": "in this session", "localSettings": "in this project", "projectSettings": "in this project"}
    scope = where.get(str(rule.get("destination")), "from now on")
    match rule:
        case {"type": "addRules", "behavior": "allow", "rules": [*rules]}:
            named = [_name_rule(one) for one in rules]
            return f"Allow {', '.join(named)} {scope}" if named else None
        case {"type": "setMode", "mode": str(mode)}:
            return f"Allow, and go on in mode {mode} {scope}"
        case {"type": "addDirectories", "directories": [*folders]}:
            return f"Allow, with access to {', '.join(map(str, folders))} {scope}" if folders else None
        case _:
            return None


def _name_rule(rule: object) -> str:
    if not isinstance(rule, dict):
        return "?"
    content = rule.get("ruleContent")
    return f"{rule.get('toolName')}({content})" if content else str(rule.get("toolName"))
