"""Shorten live events for a subscriber that does not read in time: they then say only how many bytes were omitted.

Live events are in no file, so what was omitted cannot be read later.
"""

from __future__ import annotations

from msgspec.structs import replace

from sessiond.model.event import TEXT_METHODS, LiveEvent

_KEPT_FIELDS = ("runId", "phase", "toolCallId", "name")


def omit_content(event: LiveEvent) -> LiveEvent:
    """The event without its content; `omitted.bytes` is the size of what was left out."""
    if "omitted" in event.fields:
        return event
    fields = {name: event.fields[name] for name in _KEPT_FIELDS if name in event.fields}
    if event.method in TEXT_METHODS:
        fields["text"] = ""
    return replace(event, fields={**fields, "omitted": {"bytes": event.size}}, previous_text="", size=0)


def join_omitted(first: object, second: LiveEvent) -> LiveEvent | None:
    """Two shortened pieces of one text of a run as a single event; None where they are anything else."""
    if not isinstance(first, LiveEvent) or first.key != second.key or first.method not in TEXT_METHODS:
        return None
    ours, theirs = first.fields, second.fields
    if second.method != first.method or ours.get("runId") != theirs.get("runId") or "omitted" not in ours:
        return None
    missed = ours["omitted"]["bytes"] + omit_content(second).fields["omitted"]["bytes"]
    return replace(first, fields={**ours, "omitted": {"bytes": missed}})
