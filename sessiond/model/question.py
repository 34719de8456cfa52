"""A question of an agent to a person, and its answer: their shapes, limits, and records. Pure.

What an agent writes into a question is hostile text: `compose_draft` makes it fit, the readers refuse what does not,
and neither leaves characters in it that could control a terminal or turn the direction of what follows.
Source: runs.md, "Questions".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.entry import RunId
from sessiond.model.lax import Milliseconds
from sessiond.model.title import UNSHOWN

OptionKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]
OPTION_KINDS: Final[tuple[OptionKind, ...]] = ("allow_once", "allow_always", "reject_once", "reject_always")
# How a question ended: a person chose, its time was over, who asked went away, or a rule of the configuration decided.
Outcome = Literal["answered", "expired", "withdrawn", "policy"]
# Over which road an answer came.
Road = Literal["socket", "http", "websocket", "mcp", "cli", "acp", "hook", "page"]
QuestionStatus = Literal["open", "answered", "expired", "withdrawn", "policy"]

MAX_TITLE_CHARS = 200
MAX_DETAIL_BYTES = 16 * 1024
MAX_OPTIONS = 16
MAX_OPTION_ID_BYTES = 200
MAX_LABEL_CHARS = 200
MAX_NOTE_BYTES = 4 * 1024
# A week: longer than anybody leaves an agent waiting.
MAX_TIMEOUT_S = 7 * 86_400
_MAX_WORD_CHARS = 1024
_MAX_BY_CHARS = 600  # a session key has at most 512 bytes
_MAX_REASON_CHARS = 500

QuestionId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
_Word = Annotated[str, Meta(max_length=_MAX_WORD_CHARS)]


class QuestionOption(msgspec.Struct, frozen=True):
    """One way to answer. `label` is in the agent's own words; `kind` says what it means."""

    id: Annotated[
        str, Meta(min_length=1, max_length=MAX_OPTION_ID_BYTES, description="Its id, at most 200 bytes in UTF-8.")
    ]
    label: Annotated[str, Meta(max_length=MAX_LABEL_CHARS, description="What it says, in the agent's own words.")]
    kind: Annotated[OptionKind, Meta(description="What it means.")]


class QuestionDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be asked. `kind` is that of the tool call `tool_call_id`, for which a permission is asked."""

    title: str
    options: tuple[QuestionOption, ...]
    detail: str | None = None
    kind: str | None = None
    tool_call_id: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A question as its record has it; times are milliseconds since 1970."""

    id: QuestionId
    run_id: RunId | None = None
    title: Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARS)]
    detail: Annotated[str, Meta(max_length=MAX_DETAIL_BYTES)] | None = None
    options: Annotated[tuple[QuestionOption, ...], Meta(min_length=1, max_length=MAX_OPTIONS)]
    asked_at: Milliseconds
    expires_at: Milliseconds | None = None
    tool_call_id: _Word | None = None
    kind: _Word | None = None

    def option(self, option_id: str) -> QuestionOption | None:
        """The option with this id."""
        return next((option for option in self.options if option.id == option_id), None)


class QuestionAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The end of a question as its record has it. `by` is `owner` or the key of a session."""

    question_id: QuestionId
    outcome: Outcome
    option_id: Annotated[str, Meta(max_length=MAX_OPTION_ID_BYTES)] | None = None
    note: Annotated[str, Meta(max_length=MAX_NOTE_BYTES)] | None = None
    by: Annotated[str, Meta(max_length=_MAX_BY_CHARS)] | None = None
    road: Road | None = None
    at: Milliseconds
    reason: Annotated[str, Meta(max_length=_MAX_REASON_CHARS)] | None = None


def compose_draft(
    title: str,
    options: Iterable[QuestionOption],
    *,
    detail: str | None = None,
    kind: str | None = None,
    tool_call_id: str | None = None,
) -> QuestionDraft | None:
    """A draft of what an agent says, cut to the limits; None where it has no title or no option that can be asked.

    For what a program sends that knows no limits of ours. An option whose id is too long to be stored, or that of an
    earlier one, is left out; so is a detail that only repeats the title.
    """
    shown = clean_line(title, MAX_TITLE_CHARS)
    kept: dict[str, QuestionOption] = {}
    for option in options:
        if len(kept) < MAX_OPTIONS and is_option_id(option.id):
            kept.setdefault(option.id, option)
    draft = QuestionDraft(
        title=shown,
        options=tuple(kept.values()),
        detail=cut_bytes(detail, MAX_DETAIL_BYTES) if detail and not _only_repeats(detail, shown) else None,
        kind=kind[:_MAX_WORD_CHARS] if kind else None,
        tool_call_id=tool_call_id[:_MAX_WORD_CHARS] if tool_call_id else None,
    )
    return clean_draft(draft) if shown and kept else None


def clean_draft(draft: QuestionDraft) -> QuestionDraft:
    """The draft as it may be shown."""
    options = tuple(replace(option, label=_clean_label(option)) for option in draft.options)
    detail = clean_text(draft.detail) if draft.detail else None
    return replace(draft, title=clean_line(draft.title, MAX_TITLE_CHARS), options=options, detail=detail or None)


def read_question(data: bytes | None) -> Question | None:
    """The question in the data of a record; None where it is none, or exceeds a limit."""
    found = lax.decode_fitting(data, Question)
    if found is None:
        return None
    ids = {option.id for option in found.options}
    title = clean_line(found.title, MAX_TITLE_CHARS)
    if not title or len(ids) < len(found.options) or not all(map(is_option_id, ids)):
        return None
    options = tuple(replace(option, label=_clean_label(option)) for option in found.options)
    detail = clean_text(found.detail) if found.detail else None
    return replace(found, title=title, options=options, detail=detail or None)


def read_answer(data: bytes | None) -> QuestionAnswer | None:
    """The answer to a question in the data of a record; None for any other, as of a policy to what was never asked."""
    found = lax.decode_fitting(data, QuestionAnswer)
    if found is None or not found.note:
        return found
    return replace(found, note=clean_text(found.note) or None)


def record_data(record: Question | QuestionAnswer) -> dict[str, Any]:
    """The data of the record of a question or an answer."""
    data: dict[str, Any] = msgspec.to_builtins(record)
    return data


def answer_fields(answer: QuestionAnswer) -> dict[str, Any]:
    """An answer on the wire, where the question is known."""
    fields = record_data(answer)
    del fields["questionId"]
    return fields


def is_option_id(text: str) -> bool:
    """Whether a text can be the id of an option: not empty, and not too long in UTF-8."""
    return bool(text) and len(text.encode("utf-8", "replace")) <= MAX_OPTION_ID_BYTES


def clean_line(text: str, max_chars: int) -> str:
    """The text on one line, without control and bidi characters, cut to so many characters."""
    # Of a text that is far too long the rest is not even looked at.
    words = UNSHOWN.sub("", " ".join(text[: 16 * max_chars].split()))
    return words[:max_chars].strip()


def clean_text(text: str) -> str:
    """The text without control and bidi characters but line breaks; tabs become spaces."""
    lines = text.replace("\t", " ").splitlines()
    return "\n".join(UNSHOWN.sub("", line).rstrip() for line in lines).strip("\n")


def cut_bytes(text: str, max_bytes: int) -> str:
    """The beginning of the text that takes at most so many bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def _only_repeats(detail: str, title: str) -> bool:
    """Whether every paragraph is the title, as it stands: other line breaks may be another command."""
    # Programs put a command into backticks where it is a title.
    return len(detail) <= 8 * MAX_TITLE_CHARS and all(
        title in (part, f"`{part}`") for part in clean_text(detail).split("\n\n")
    )


def _clean_label(option: QuestionOption) -> str:
    return clean_line(option.label, MAX_LABEL_CHARS) or clean_line(option.id, MAX_LABEL_CHARS) or option.kind
