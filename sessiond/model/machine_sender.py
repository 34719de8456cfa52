"""Who sent a message on another machine, as that machine says. Data for people and loop guards, never an identity: what
the message may do is decided by the machine alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sessiond.model import lax
from sessiond.model.keys import MAX_KEY_BYTES, UUID

_KEY = re.compile(r"agent:[a-z0-9][a-z0-9_-]{0,63}:.+")
# More than any chain of messages can have (`limits.maxHops`).
_MOST_HOPS = 1024


class MachineSender(msgspec.Struct, frozen=True, kw_only=True):
    """The machine `name`, which is certain; and what it says: its session, and the chain that the message is part of.

    `hops` messages have led to this one there.
    """

    name: str
    session_key: str | None = None
    trace_id: str | None = None
    hops: int = 0

    def provenance(self) -> dict[str, str]:
        """What the provenance of the message says of it. Source: store.md, "Messages"."""
        key = {"machineSessionKey": self.session_key} if self.session_key is not None else {}
        return {"machine": self.name, **key}


class _Told(msgspec.Struct, frozen=True, rename="camel"):
    session_key: str | None = None
    trace_id: str | None = None
    hops: int | None = None


def machine_sender(name: str, meta: Mapping[str, Any] | None) -> MachineSender:
    """The sender on the machine `name`, from `_meta.machine` of a call: `{sessionKey?, traceId?, hops?}`.

    Values that cannot be what they should be are left out: they are an attacker's where the machine is.
    """
    given = (meta or {}).get("machine")
    told = lax.convert_fitting(given, _Told) if isinstance(given, dict) else None
    if told is None:
        return MachineSender(name=name)
    key, trace_id = told.session_key, told.trace_id
    # No control and no bidi characters: it is shown on one line, in brackets, before a message.
    is_text = key is not None and key.isprintable() and len(key.encode()) <= MAX_KEY_BYTES
    return MachineSender(
        name=name,
        session_key=key if is_text and _KEY.fullmatch(key or "") else None,
        trace_id=trace_id if trace_id is not None and UUID.fullmatch(trace_id) else None,
        hops=max(0, min(_MOST_HOPS, told.hops or 0)),
    )
