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
# Fewer than a message to the daemon may have.
MAX_USE_LEVELS = 32
# So many of the rules that a program offers to remember are offered.
MAX_SUGGESTIONS = 4
ALLOW, DENY = "allow", "deny"
# Claude Code notifies a minute after a turn that nobody has typed anything since: the turn is over, also one that was
# interrupted, of whose end it tells nothing else. That it has logged in, or has its answer, is no waiting either.
NOTIFYING, STOPPING, IDLE = "Notification", "Stop", "idle_prompt"
SAYING_NOTHING = ("auth_success", "agent_completed", "elicitation_complete", "elicitation_response")
# The tool with which Claude Code lets its agent ask the person something: to allow it would be no answer.
QUESTIONING = "AskUserQuestion"
# Beside the choices of the agent there is one more, not to answer.
MAX_CHOICES = 15


class HookEvent:
    """A hook's name, the session that it is about, and everything that the program said (`body`)."""

    def __init__(self, name: str, session_id: str, transcript: str, body: dict[str, Any]) -> None:
        self.name, self.session_id, self.transcript, self.body = name, session_id, transcript, body

    def params(self) -> dict[str, Any]:
        """The params that every call about it has."""
        return {"event": self.name, "sessionId": self.session_id, "transcriptPath": self.transcript}


class Permission:
    """The question whether a tool may run. `grants` are what a decision says more, by the id of its option; `use` is
    the call as the daemon may find it in the program's transcript, empty where it is too large to be sent.
    """

    def __init__(
        self, title: str, detail: str, options: list[dict[str, str]], grants: dict[str, Any], use: dict[str, Any]
    ) -> None:
        self.title, self.detail, self.options = title[:MAX_TITLE_CHARS], detail, options
        self.grants, self.use = grants, use


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
    kind = body.get("notification_type") if name == NOTIFYING else None
    if kind in SAYING_NOTHING:
        return None
    return HookEvent(STOPPING if kind == IDLE else name, session_id, transcript, body)


def read_permission(event: HookEvent) -> Permission | None:
    """The question of a `PermissionRequest`; None where only the program itself can ask it."""
    tool, given = event.body.get("tool_name"), event.body.get("tool_input")
    if not isinstance(tool, str) or not tool:
        return None
    fields = given if isinstance(given, dict) else {}
    use = {"toolName": tool, "toolInput": fields} if _can_be_sent(fields) else {}
    ident = event.body.get("tool_use_id")
    if use and isinstance(ident, str) and 0 < len(ident) <= MAX_ID_CHARS:
        use["toolUseId"] = ident
    if tool == QUESTIONING:
        return _read_choices(fields, use)
    subject = _subject(fields)
    title = f"{tool}: {subject}" if subject else tool
    options = [{"id": ALLOW, "label": "Allow", "kind": "allow_once"}]
    grants: dict[str, Any] = {}
    suggested = event.body.get("permission_suggestions")
    for rule in suggested if isinstance(suggested, list) else []:
        label = _describe_rule(rule)
        if label is not None and len(grants) < MAX_SUGGESTIONS:
            ident = f"always-{len(grants) + 1}"
            grants[ident] = {"updatedPermissions": [rule]}
            options.append({"id": ident, "label": label[:MAX_LABEL_CHARS], "kind": "allow_always"})
    options.append({"id": DENY, "label": "Deny", "kind": "reject_once"})
    return Permission(title, _describe_input(fields), options, grants, use)


def _can_be_sent(fields: dict[str, Any]) -> bool:
    """Whether the daemon takes it. What it does not take, as NaN, must not keep the question from being asked."""
    try:
        size = len(json.dumps(fields, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return False
    return size <= MAX_USE_CHARS and not _is_nested(fields, MAX_USE_LEVELS)


def _is_nested(value: object, levels: int) -> bool:
    """Whether the value has more levels than that."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_nested(child, levels - 1) for child in children)


def _read_choices(fields: dict[str, Any], use: dict[str, Any]) -> Permission | None:
    """What an agent lets a person choose from; None for several questions, and for several answers to one."""
    match fields.get("questions"):
        case [{"question": str(question), "options": [*choices], "multiSelect": False}]:
            pass
        case _:
            return None
    labels = [one.get("label") if isinstance(one, dict) else None for one in choices]
    if not (0 < len(labels) <= MAX_CHOICES and all(isinstance(label, str) and label for label in labels)):
        return None
    grants: dict[str, Any] = {}
    options, described = [], []
    for number, (label, choice) in enumerate(zip(map(str, labels), choices, strict=True), 1):
        options.append({"id": str(number), "label": label[:MAX_LABEL_CHARS], "kind": "allow_once"})
        grants[str(number)] = {"updatedInput": {**fields, "answers": {question: label}}}
        if isinstance(choice.get("description"), str):
            described.append(f"{label}: {choice['description']}")
    options.append({"id": DENY, "label": "Do not answer", "kind": "reject_once"})
    return Permission(question, "\n".join(described)[:MAX_DETAIL_CHARS], options, grants, use)


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
