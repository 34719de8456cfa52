"""The base of every method's params and results, and the types of parameters that several methods have.

camelCase on the wire, unknown params refused by name. A parameter's default, range, says and refusal stand with its
type, and nowhere else: `rpc/bounds.py` applies them, `rpc/param_errors.py` puts them into words, `rpc.discover` and the
table of protocol.md show them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sessiond.errors import InvalidParams, quote
from sessiond.model.keys import AGENT_ID
from sessiond.model.lax import MAX_MS
from sessiond.policy.spawn import check_thinking
from sessiond.ranges import THINKING_LEVELS, Range
from sessiond.sessions.patch import MAX_LABEL_CHARS, check_line, check_word


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Params by name."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A result; what is not there is left out."""


class NoParams(Params, frozen=True, kw_only=True):
    """A method that takes none."""


class Empty(Result, frozen=True, kw_only=True):
    """`{}`."""


def says(text: str, *, default: str | None = None, takes: str | None = None, **schema: Any) -> Meta:
    """What a parameter or a field of a result is, in a sentence.

    `default` and `takes` are for what a JSON Schema cannot say: what holds where it is left out, and what it may be.
    """
    more = {"x-default": default, "x-takes": takes, **schema}
    return Meta(description=text, extra_json_schema={name: value for name, value in more.items() if value is not None})


def clamp_to(limits: Range, text: str | None = None, *, refuses_less: bool = False, null: bool = True) -> Meta:
    """A number that is taken as the nearest of its range.

    `refuses_less`: what is below the range is refused. `null`: null is the default, else it is refused.
    """
    extra = {"clamped": "most" if refuses_less else True, "null": null}
    return Meta(ge=limits.least, le=limits.most, description=text, extra=extra)


def check_by(check: Callable[[str, str], object], takes: str, **schema: Any) -> Meta:
    """A text that `check(text, field)` may refuse. `takes` says what passes."""
    return Meta(extra={"check": check}, extra_json_schema={"x-takes": takes, **schema})


def allow_words(words: tuple[str, ...]) -> Meta:
    """One of some words; case and white space around it do not matter."""
    return Meta(extra={"check": partial(check_word, words=words)}, extra_json_schema={"enum": list(words)})


def check_text(text: str, field: str) -> None:
    """InvalidParams where a text says nothing, or holds what no text has."""
    if not text or text.isspace():
        raise InvalidParams(f"`{field}`: text that is not blank is expected, not {quote(text[:40])}.", field=field)
    if "\0" in text:
        raise InvalidParams(f"`{field}` has a NUL character; text has none.", field=field)


def check_agent_id(text: str, field: str) -> None:
    """InvalidParams where a text is no agent id."""
    if not AGENT_ID.fullmatch(text):
        raise InvalidParams(f"`{field}` is no agent id: ids match {AGENT_ID.pattern}.", field=field)


SessionName = Annotated[str, says("The session: its key, an alias such as `main` or `current`, or its id.")]
MessageText = Annotated[str, check_by(check_text, "not blank, no NUL"), says("The text of the message.")]
IdempotencyKey = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    says("A word of the caller's: the same request with the same key is done once, and answered again."),
]
AgentIdText = Annotated[str, check_by(check_agent_id, f"`{AGENT_ID.pattern}`", pattern=f"^{AGENT_ID.pattern}$")]
Line = Annotated[str, check_by(check_line, "printable, not blank", minLength=1, maxLength=MAX_LABEL_CHARS)]
TIMES = Range(0, MAX_MS, 0)
ThinkingLevel = Annotated[str, Meta(extra={"check": check_thinking}, extra_json_schema={"enum": list(THINKING_LEVELS)})]
RunSeconds = Annotated[
    Annotated[float, Meta(ge=0)] | None,
    says(
        "After how many seconds the run is ended with status `timeout`; 0 is never.",
        default="`agents.defaults.runTimeoutSeconds`",
    ),
]
