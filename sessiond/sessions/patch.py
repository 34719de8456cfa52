"""What may be changed of a session's metadata, and what is wrong with a value. Writes nothing itself."""

from __future__ import annotations

from typing import Any

from sessiond.config import Config
from sessiond.errors import Conflict, InvalidParams
from sessiond.model.keys import agent_of
from sessiond.store.catalog import Catalog

MAX_LABEL_CHARS = 512


def check_label(catalog: Catalog, key: str, label: str, *, field: str = "$.label") -> str:
    """A label for the session of `key`: trimmed, printable, and no other session's of the same agent."""
    text = label.strip()
    if not text:
        raise InvalidParams(f"`{field}` is empty; null clears a label.", field=field)
    if len(text) > MAX_LABEL_CHARS:
        raise InvalidParams(f"`{field}` has {len(text)} characters, the limit is {MAX_LABEL_CHARS}.", field=field)
    if not text.isprintable():
        raise InvalidParams(f"`{field}` has characters that cannot be printed.", field=field)
    if any(other != key for other in catalog.labelled(agent_of(key), text)):
        raise Conflict(f"the label {text!r} is in use by another session of this agent", code="label_in_use")
    return text


def check_model(config: Config, model: str, *, field: str = "$.model") -> dict[str, Any]:
    """The entry fields for a model that the configuration allows."""
    text = model.strip()
    if not text:
        raise InvalidParams(f"`{field}` is empty; null goes back to the default.", field=field)
    if config.models.allow and text not in config.models.allow:
        raise InvalidParams(
            f"`{field}`: the model {text!r} is not in models.allow ({', '.join(config.models.allow)}).",
            field=field,
            code="model_unknown",
        )
    return {"model": text, "modelOverride": text}
