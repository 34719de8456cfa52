"""Changes of a session's metadata: checks of the new values, and the record that is appended for a change.

Source: protocol.md, "The gateway's calls".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sessiond.config.settings import Config
from sessiond.errors import Conflict, InvalidParams, StorageError, quote
from sessiond.model.keys import agent_of
from sessiond.model.record import ENTRY
from sessiond.policy.spawn import check_model_length, check_thinking
from sessiond.ranges import SEND_POLICIES, VERBOSE_LEVELS
from sessiond.store.catalog import Catalog, Session
from sessiond.store.store import Custom, SessionStore

Sees = Callable[[str], bool]
MAX_LABEL_CHARS = 512


class DeliveryContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The session's delivery target. A field that is left out is not changed; null clears it."""

    channel: Annotated[str | msgspec.UnsetType | None, Meta(description="The channel.")] = msgspec.UNSET
    to: Annotated[str | msgspec.UnsetType | None, Meta(description="The address on the channel.")] = msgspec.UNSET
    account_id: Annotated[str | msgspec.UnsetType | None, Meta(description="The account on the channel.")] = (
        msgspec.UNSET
    )
    thread_id: Annotated[str | int | msgspec.UnsetType | None, Meta(description="The thread on the channel.")] = (
        msgspec.UNSET
    )


def apply(
    store: SessionStore,
    config: Config,
    session: Session,
    wanted: Mapping[str, Any],
    *,
    sees: Sees,
    tell: Callable[[StorageError | None], None],
) -> None:
    """Change the metadata to `wanted`, which is by wire name; None clears. Call it while no reset is under way.

    One record, which has its place among the appends to the session when this returns. `tell(None)` is called when it
    is on disk, `tell(error)` where it cannot be. InvalidParams for a bad value, Conflict for a label in use; then
    nothing is changed.
    """
    with ExitStack() as claim:
        label = claim.enter_context(claimed_label(store.catalog, session.key, wanted.get("label"), sees))
        data = fields(config, session, wanted if label is None else {**wanted, "label": label})
        if not data:
            tell(None)
            return
        drafts = store.make_drafts([Custom(ENTRY, data)])
        held = claim.pop_all()

    def release(_ids: list[str], error: StorageError | None) -> None:
        held.close()
        tell(error)

    try:
        store.append_later(session, drafts, release)
    except BaseException:
        held.close()
        raise


def fields(config: Config, session: Session, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the entry record for a change: a merge patch (RFC 7386). The label has been checked already."""
    data: dict[str, Any] = {}
    for name, value in wanted.items():
        if name == "model":
            data |= _model(config, session, value)
        elif value is None:
            data[name] = None
        else:
            data[name] = _CHECKS[name](value)
    return data


def _model(config: Config, session: Session, model: str | None) -> dict[str, Any]:
    if model is None:
        # Back to the default model. The next answer will say which one that is.
        return {"model": None, "modelOverride": None, "modelProvider": None}
    data = check_model(config, model)
    if data["model"] != session.entry.model:
        data["modelProvider"] = None  # that of the old model
    return data


def _delivery_context(value: DeliveryContext) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(value)
    for name, text in data.items():
        if isinstance(text, str):
            data[name] = check_line(text, f"$.deliveryContext.{name}")
    return data


def _identity(value: object) -> object:
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "label": _identity,
    "displayName": lambda value: check_line(value, "$.displayName"),
    "thinkingLevel": lambda value: check_thinking(value, "$.thinkingLevel"),
    "verboseLevel": lambda value: check_word(value, "$.verboseLevel", VERBOSE_LEVELS),
    "sendPolicy": lambda value: check_word(value, "$.sendPolicy", SEND_POLICIES),
    "contextTokens": _identity,
    "notify": _identity,
    "deliveryContext": _delivery_context,
}


def check_label(catalog: Catalog, key: str, label: str, sees: Sees) -> str:
    """The label, trimmed. It has to be printable and not in use by another session of the same agent (Conflict).

    Only sessions that the caller may see (`sees(key)`) are compared, so that a refusal does not reveal a hidden
    session. Two sessions may thus have the same label; a caller who sees both has to name them by key.
    """
    text = check_line(label, "$.label")
    agent_id = agent_of(key)
    taken = any(other != key and sees(other) for other in catalog.keys_with_label(agent_id, text))
    claimed = any(
        other != key and (sees(other) or sees(by))
        for (agent, claim, other), by in catalog.claims.items()
        if (agent, claim) == (agent_id, text)
    )
    if taken or claimed:
        raise Conflict(f"the label {quote(text)} is in use by another session of this agent", code="label_in_use")
    return text


@contextmanager
def claimed_label(
    catalog: Catalog, key: str, label: str | None, sees: Sees, *, by: str | None = None
) -> Iterator[str | None]:
    """Check the label and reserve it while the context lasts, which is until it is written.

    `by` is the key of the requester if the session of `key` does not exist yet: callers who may see the requester see
    the reservation.
    """
    if label is None:
        yield None
        return
    text, claim = check_label(catalog, key, label, sees), (agent_of(key), label.strip(), key)
    catalog.claims[claim] = by or key
    try:
        yield text
    finally:
        catalog.claims.pop(claim, None)


def check_model(config: Config, model: str) -> dict[str, Any]:
    """The entry fields for a model. InvalidParams (`model_unknown`) if the configuration does not allow it."""
    text = model.strip()
    if not text:
        raise InvalidParams("`$.model` is empty; null goes back to the default.", field="$.model")
    check_model_length(text)
    if config.models.allow and text not in config.models.allow:
        raise InvalidParams(
            f"`$.model`: the model {quote(text)} is not in models.allow ({', '.join(config.models.allow)}).",
            field="$.model",
            code="model_unknown",
        )
    return {"model": text, "modelOverride": text}


def check_line(value: str, field: str) -> str:
    """A line that people read, without white space around it; InvalidParams where it is none."""
    text = value.strip()
    if not text:
        raise InvalidParams(f"`{field}` is empty; null clears it.", field=field)
    if len(text) > MAX_LABEL_CHARS:
        raise InvalidParams(f"`{field}` has {len(text)} characters, the limit is {MAX_LABEL_CHARS}.", field=field)
    if not text.isprintable():
        raise InvalidParams(f"`{field}` has characters that cannot be printed.", field=field)
    return text


def check_word(value: str, field: str, words: tuple[str, ...]) -> str:
    """One of the words in its one spelling; InvalidParams where it is none."""
    text = value.strip().lower()
    if text not in words:
        raise InvalidParams(f"`{field}` is {quote(value[:40])}; use one of {', '.join(words)}, or null.", field=field)
    return text
