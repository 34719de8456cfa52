"""The base of every method's params and results, and the types of parameters that several methods have.

camelCase on the wire; unknown params are refused. Default, range, description and check of a parameter are declared
with its type and nowhere else: `rpc/bounds.py` applies them, `rpc/param_errors.py` makes error sentences of them, and
`rpc.discover` and the table of protocol.md show them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessiond.errors import InvalidParams, quote
from sessiond.machine_names import MACHINE_NAME
from sessiond.model.keys import AGENT_ID
from sessiond.model.lax import MAX_MS
from sessiond.policy.spawn import check_thinking
from sessiond.ranges import THINKING_LEVELS, Range
from sessiond.sessions.patch import MAX_LABEL_CHARS, check_line, check_word


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Params by name."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A result, without the members that are not set."""


class NoParams(Params, frozen=True, kw_only=True):
    """The params of a method that takes none."""


class Empty(Result, frozen=True, kw_only=True):
    """`{}`."""


def says(text: str, *, default: str | None = None, takes: str | None = None, **schema: Any) -> Meta:
    """The description of a parameter or of a field of a result.

    `default` and `takes` describe what a JSON Schema cannot express: the default, and the values that are accepted.
    """
    more = {"x-default": default, "x-takes": takes, **schema}
    return Meta(description=text, extra_json_schema={name: value for name, value in more.items() if value is not None})


def clamp_to(limits: Range, text: str | None = None, *, refuses_less: bool = False, null: bool = True) -> Meta:
    """A number that is clamped to a range.

    `refuses_less`: numbers below the range are refused. `null`: null stands for the default, else it is refused.
    """
    extra = {"clamped": "most" if refuses_less else True, "null": null}
    return Meta(ge=limits.least, le=limits.most, description=text, extra=extra)


def check_by(check: Callable[[str, str], object], takes: str, **schema: Any) -> Meta:
    """A text that `check(text, field)` may refuse. `takes` describes the accepted texts."""
    return Meta(extra={"check": check}, extra_json_schema={"x-takes": takes, **schema})


def allow_words(words: tuple[str, ...]) -> Meta:
    """One of these words, whatever its case and the white space around it."""
    return Meta(extra={"check": partial(check_word, words=words)}, extra_json_schema={"enum": list(words)})


def check_text(text: str, field: str) -> None:
    """InvalidParams for a blank text, or one with a NUL character."""
    if not text or text.isspace():
        raise InvalidParams(f"`{field}`: text that is not blank is expected, not {quote(text[:40])}.", field=field)
    if "\0" in text:
        raise InvalidParams(f"`{field}` has a NUL character; text has none.", field=field)


def check_agent_id(text: str, field: str) -> None:
    """InvalidParams for a text that is not an agent id."""
    if not AGENT_ID.fullmatch(text):
        raise InvalidParams(f"`{field}` is no agent id: ids match {AGENT_ID.pattern}.", field=field)


def check_folder(text: str, field: str) -> None:
    """InvalidParams for a text that is not an absolute path."""
    if not text.startswith("/") or "\0" in text:
        raise InvalidParams(f"`{field}`: an absolute path is expected, not {quote(text[:80])}.", field=field)


def check_machine(text: str, field: str) -> None:
    """InvalidParams for a text that is no machine's name."""
    if not MACHINE_NAME.fullmatch(text):
        raise InvalidParams(f"`{field}` is no machine's name: they match {MACHINE_NAME.pattern}.", field=field)


SessionName = Annotated[str, says("The session: its key, an alias such as `main` or `current`, or its id.")]
MessageText = Annotated[str, check_by(check_text, "not blank, no NUL"), says("The text of the message.")]
IdempotencyKey = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    says("Chosen by the caller: a request repeated with the same key is carried out once and gets the same answer."),
]
AgentIdText = Annotated[str, check_by(check_agent_id, f"`{AGENT_ID.pattern}`", pattern=f"^{AGENT_ID.pattern}$")]
MachineName = Annotated[str, check_by(check_machine, f"`{MACHINE_NAME.pattern}`", pattern=f"^{MACHINE_NAME.pattern}$")]
OfMachine = Annotated[MachineName | None, says("Only sessions of this other machine.")]
Line = Annotated[str, check_by(check_line, "printable, not blank", minLength=1, maxLength=MAX_LABEL_CHARS)]
FolderName = Annotated[
    Annotated[str, check_by(check_folder, "an absolute path")] | None,
    says("Only sessions whose working folder is this one or below it, by path segments; no links are resolved."),
]
SourceNames = Annotated[
    Annotated[list[Literal["sessiond", "claude", "codex", "gemini", "pi", "opencode", "machine"]], Meta(min_length=1)]
    | None,
    says(
        "Only sessions of these programs; `sessiond` stands for its own, `machine` for those of other machines.",
        default="every program",
    ),
]
TIMES = Range(0, MAX_MS, 0)
ThinkingLevel = Annotated[str, Meta(extra={"check": check_thinking}, extra_json_schema={"enum": list(THINKING_LEVELS)})]
RunSeconds = Annotated[
    Annotated[float, Meta(ge=0)] | None,
    says(
        "The time limit of the run in seconds, after which it ends with status `timeout`; 0: no limit.",
        default="`agents.defaults.runTimeoutSeconds`",
    ),
]
