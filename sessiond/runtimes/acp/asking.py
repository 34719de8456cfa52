"""What an agent asks a person, and what it is answered when the person has chosen. Pure. Source: runs.md, "acp".

The agent words its options itself. They are never chosen by their ids, which may be any text: where an id is not plain,
the question has a number in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sessiond.errors import quote
from sessiond.model.question import (
    MAX_OPTIONS,
    MAX_TITLE_CHARS,
    OPTION_KINDS,
    OptionKind,
    QuestionAnswer,
    QuestionDraft,
    QuestionOption,
    clean_line,
    compose_draft,
    cut_bytes,
    is_option_id,
)
from sessiond.runtimes.acp import permissions
from sessiond.runtimes.acp.permissions import ALLOWING
from sessiond.runtimes.presets.fields import array, member, table, text

# Of the command, of its other arguments, and of what the agent says of it: together what a question has room for.
_MAX_COMMAND_BYTES, _MAX_ARGUMENTS_BYTES, _MAX_SAID_BYTES = 6 * 1024, 5 * 1024, 4 * 1024
_MAX_CHANGED_BYTES = 2 * 1024
_DECLINE = "Decline"


class AgentReply(msgspec.Struct, frozen=True):
    """What an agent is answered. `denied` is why it may not go on, None where it may."""

    result: dict[str, Any]
    denied: str | None = None


class PermissionQuestion(msgspec.Struct, frozen=True):
    """A `session/request_permission`. `ids` has the agent's own ids by ours."""

    draft: QuestionDraft
    ids: dict[str, str]

    def reply(self, answer: QuestionAnswer) -> AgentReply:
        """The answer for what became of the question."""
        chosen = self.ids.get(answer.option_id or "")
        if answer.outcome != "answered" or chosen is None:
            return self.refuse(_reason_of(answer))
        kind = next(option.kind for option in self.draft.options if option.id == answer.option_id)
        outcome = {"outcome": "selected", "optionId": chosen}
        result = {"outcome": outcome, **_meta(_reason_of(answer))}
        return AgentReply(result, None if kind in ALLOWING else _reason_of(answer))

    def refuse(self, reason: str) -> AgentReply:
        """The answer where nobody has chosen: the agent's own way to say no."""
        options = [{"optionId": self.ids[option.id], "kind": option.kind} for option in self.draft.options]
        return AgentReply(permissions.reject(options, reason).result, reason)

    def cancel(self, reason: str) -> AgentReply:
        """The answer where the turn is over or being cancelled."""
        return AgentReply(permissions.cancel(reason).result, reason)


class FormQuestion(msgspec.Struct, frozen=True):
    """An `elicitation/create` with one choice: `field` is its name, `values` what may be filled in, by our ids.

    `note_field` is the name of the text that goes with the choice, if the form has one.
    """

    draft: QuestionDraft
    field: str
    values: dict[str, str | bool]
    note_field: str | None = None

    def reply(self, answer: QuestionAnswer) -> AgentReply:
        """The answer for what became of the question."""
        value = self.values.get(answer.option_id or "")
        if answer.outcome != "answered" or value is None:
            return self.refuse(_reason_of(answer))
        content = {self.field: value}
        if answer.note and self.note_field is not None:
            content[self.note_field] = answer.note
        return AgentReply({"action": "accept", "content": content, **_meta(_reason_of(answer))})

    def refuse(self, reason: str) -> AgentReply:
        """The answer where nobody has chosen."""
        return decline_form(reason)

    def cancel(self, reason: str) -> AgentReply:
        """The answer where the turn is over or being cancelled."""
        return cancel_form(reason)


AgentQuestion = PermissionQuestion | FormQuestion


def decline_form(reason: str) -> AgentReply:
    """The answer to a form that nobody fills in."""
    return AgentReply({"action": "decline", **_meta(reason)}, reason)


def cancel_form(reason: str) -> AgentReply:
    """The answer to a form of a turn that is over or being cancelled."""
    return AgentReply({"action": "cancel", **_meta(reason)}, reason)


def read_permission(
    request: dict[str, Any], call: dict[str, Any], *, title: str, kind: str
) -> PermissionQuestion | None:
    """A request as a question; None if it has no option that can be shown.

    `call` is all that the agent has said of the tool call.
    """
    ids, options = _name_options(_permission_options(array(request, "options")))
    draft = compose_draft(
        clean_line(title, MAX_TITLE_CHARS) or kind,
        options,
        detail="\n\n".join(_describe(call)),
        tool_call_id=text(request, "toolCall", "toolCallId"),
        kind=clean_line(kind, MAX_TITLE_CHARS),
    )
    return None if draft is None else PermissionQuestion(draft, ids)


def read_form(request: dict[str, Any]) -> FormQuestion | str:
    """A form as a question, or why it is none."""
    mode = text(request, "mode")
    if mode != "form":
        return f"only forms can be shown, not the mode {quote(mode)}"
    schema = table(request, "requestedSchema")
    fields = table(schema, "properties")
    choices = {name: found for name, field in fields.items() if (found := _choices(field))}
    others = [name for name in fields if name not in choices]
    if len(choices) != 1:
        return "only a form with one choice can be shown"
    ((name, values),) = choices.items()
    if any(text(fields[other], "type") != "string" or other in array(schema, "required") for other in others):
        return "only a form with one choice can be shown, and this one asks for more"
    if len(values) >= MAX_OPTIONS:
        return f"only {MAX_OPTIONS - 1} choices can be shown, and this form has {len(values)}"
    ids, options = _name_options((given, label, "allow_once") for given, (_, label) in values.items())
    # A form has no words of its own for a refusal.
    options.append(QuestionOption(id=_free_id("decline", ids), label=_DECLINE, kind="reject_once"))
    said = [text(one, word) for one in (schema, fields[name]) for word in ("title", "description")]
    said += [
        f"{text(one, 'title')}: {text(one, 'description')}"
        for one in array(fields[name], "oneOf")
        if text(one, "description")
    ]
    asked = clean_line(text(request, "message"), MAX_TITLE_CHARS)
    draft = compose_draft(
        asked or clean_line(name, MAX_TITLE_CHARS) or "a form",
        options,
        detail="\n".join(filter(None, [text(request, "message"), *said])),
        tool_call_id=text(request, "toolCallId"),
        kind="elicitation",
    )
    if draft is None:
        return "only a form with one choice can be shown"
    notes = [other for other in others if other.startswith(f"{name}_")]
    own = {option_id: values[given][0] for option_id, given in ids.items()}
    return FormQuestion(draft, name, own, notes[0] if len(notes) == 1 else None)


def _reason_of(answer: QuestionAnswer) -> str:
    """Why the agent gets this answer, in a sentence: the note of whoever answered, if there is one."""
    if answer.outcome == "answered":
        return answer.note or f"answered by {answer.by or 'a person'}"
    if answer.outcome == "expired":
        return "nobody answered the question in time"
    return answer.reason or "the question was withdrawn"


def _meta(reason: str) -> dict[str, Any]:
    return {"_meta": {"sessiond": {"reason": reason}}}


def _permission_options(offered: list[Any]) -> Iterator[tuple[str, str, OptionKind]]:
    """Id, label and kind of the options that can be shown: the id may be any text, the kind has to say what it does."""
    usable = [one for one in offered if isinstance(member(one, "optionId"), str) and text(one, "kind") in OPTION_KINDS]
    shown = usable[:MAX_OPTIONS]
    # Many ways to say yes must not hide that there is one to say no.
    refusing = next((one for one in usable if one["kind"] not in ALLOWING), None)
    if refusing is not None and refusing not in shown:
        shown[-1] = refusing
    for one in shown:
        yield one["optionId"], text(one, "name"), one["kind"]


def _name_options(
    offered: Iterable[tuple[str, str, OptionKind]],
) -> tuple[dict[str, str], list[QuestionOption]]:
    """Options of a question for `(id, label, kind)` of the agent, and the agent's ids by theirs."""
    ids: dict[str, str] = {}
    options = []
    for number, (given, label, kind) in enumerate(offered, 1):
        if given not in ids.values():
            own = given if _is_plain(given) and given not in ids else _free_id(str(number), ids)
            ids[own] = given
            options.append(QuestionOption(id=own, label=label or own, kind=kind))
    return ids, options


def _is_plain(given: str) -> bool:
    return given.isprintable() and given.strip() == given and is_option_id(given)


def _free_id(wanted: str, taken: dict[str, str]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted


def _choices(field: Any) -> dict[str, tuple[str | bool, str]]:
    """The values of a choice by how they are written, with their labels; none if the field is no choice."""
    match text(field, "type"):
        case "boolean":
            return {"true": (True, "Yes"), "false": (False, "No")}
        case "string":
            named = [one for one in array(field, "oneOf") if isinstance(member(one, "const"), str)]
            plain = [one for one in array(field, "enum") if isinstance(one, str)]
            return {one["const"]: (one["const"], text(one, "title")) for one in named} or {
                one: (one, one) for one in plain
            }
        case _:
            return {}


def _describe(call: dict[str, Any]) -> Iterator[str]:
    """What a tool call would do: its arguments, what it would change, and what the agent says of it."""
    given = call.get("rawInput")
    if command := text(given, "command"):
        yield _cut(command, _MAX_COMMAND_BYTES)
        # The folder, a sandbox that is left: all but what says it in other words.
        rest = table(call, "rawInput")
        given = {name: value for name, value in rest.items() if name not in ("command", "description")}
    if given:
        shown = given if isinstance(given, str) else msgspec.json.format(msgspec.json.encode(given), indent=2).decode()
        yield _cut(shown, _MAX_ARGUMENTS_BYTES)
    said = []
    for item in array(call, "content"):
        if text(item, "type") == "diff":
            said.append(_show_change(item))
        elif text(item, "content", "type") == "text":
            said.append(text(item, "content", "text"))
    if not said:
        said = [text(one, "path") for one in array(call, "locations") if text(one, "path")]
    if said:
        yield _cut("\n".join(said), _MAX_SAID_BYTES)


def _show_change(item: Any) -> str:
    lines = [text(item, "path")]
    for mark, name in (("-", "oldText"), ("+", "newText")):
        lines += [f"{mark} {line}" for line in _cut(text(item, name), _MAX_CHANGED_BYTES).splitlines()]
    return "\n".join(lines)


def _cut(said: str, most_bytes: int) -> str:
    shown = cut_bytes(said, most_bytes)
    return said if len(shown) >= len(said) else f"{shown}\n(cut: {len(said)} characters in all)"
