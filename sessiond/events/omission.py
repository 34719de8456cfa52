"""Live events that a subscriber does not take in time: what is told of them instead of what they said.

They stand in no file, so nothing can be read again; whoever follows learns how much it has missed.
"""

from __future__ import annotations

from msgspec.structs import replace

from sessiond.model.event import LiveEvent

_KEPT = ("runId", "phase", "toolCallId", "name")


def omit_content(event: LiveEvent) -> LiveEvent:
    """The event without what makes it large: `omitted.bytes` says how much that was."""
    if "omitted" in event.fields:
        return event
    fields = {name: event.fields[name] for name in _KEPT if name in event.fields}
    if event.method == "session.delta":
        fields["text"] = ""
    return replace(event, fields={**fields, "omitted": {"bytes": event.size}}, before="", size=0)


def join(first: object, second: LiveEvent) -> LiveEvent | None:
    """Two shortened deltas of a run as one; None where they are anything else."""
    if not isinstance(first, LiveEvent) or first.key != second.key or first.method != "session.delta":
        return None
    ours, theirs = first.fields, second.fields
    if second.method != first.method or ours.get("runId") != theirs.get("runId") or "omitted" not in ours:
        return None
    missed = ours["omitted"]["bytes"] + omit_content(second).fields["omitted"]["bytes"]
    return replace(first, fields={**ours, "omitted": {"bytes": missed}})
