"""Apply a `sessiond/entry` record to an entry: a JSON merge patch per field, also with field names of other programs.

Pure. Source: store.md, "Adoption"; RFC 7386.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.entry import Entry, Spawn

# A run of another program ended with that program at the latest, with an unknown status.
_FOREIGN_STATUS = {"done": "ok", "failed": "error", "killed": "aborted", "running": None}
_FOREIGN_NAMES = {"provider": "channel", "surface": "channel", "lastProvider": "lastChannel", "room": "groupId"}

# The fields that a `sessiond/entry` record may set, by wire name; other data in it has no effect. The times of the
# session's creation and its last message come from its header and its messages only.
_SPAWN = Spawn | None
_PATCHABLE: dict[str, tuple[str, Any]] = {
    field.encode_name: (field.name, field.type)
    for field in msgspec.structs.fields(Entry)
    if field.name
    not in {
        "session_id",
        "session_key",
        "updated_at",
        "created_at",
        "is_named_otherwise",
        "is_copy",
        "runs",
        "keyed",
        "talks",
        "questions",
        "hook",
        "attends",
        "file",
        "source",
        "title",
        "task",
        "message_count",
        "corrupt_records",
    }
}


def patch_entry(entry: Entry, data: dict[str, Any]) -> Entry:
    """The entry after a `sessiond/entry` record with this data. Fields of a wrong type are ignored."""
    changes: dict[str, Any] = {}
    for name, value in data.items():
        if name in _FOREIGN_NAMES:
            name = _FOREIGN_NAMES[name]
            if name in data:
                continue  # the current name of the field takes precedence
        if name == "sessionKey" and isinstance(value, str) and value.startswith("agent:"):
            changes["session_key"] = value
        if name not in _PATCHABLE:
            continue
        field, kind = _PATCHABLE[name]
        if name == "status" and isinstance(value, str):
            value = _FOREIGN_STATUS.get(value, value)
        try:
            changes[field] = _apply_patch(getattr(entry, field), value, kind)
        except msgspec.ValidationError:
            continue
    return replace(entry, **changes) if changes else entry


def is_settable(name: str, value: Any) -> bool:
    """Whether a patch can set the field to this value. Unknown fields belong to other programs and are no mistake."""
    if name == "sessionKey":
        return isinstance(value, str)
    if name not in _PATCHABLE or value is None:
        return True
    try:
        _apply_patch(None, value, _PATCHABLE[name][1])
    except msgspec.ValidationError:
        return False
    return True


def _apply_patch(old: Any, patch: Any, kind: Any) -> Any:
    """The value of a field after a merge patch. Raises ValidationError where it has a wrong type."""
    if kind == _SPAWN and type(patch) is dict:
        # A member of a wrong type is dropped without losing the others.
        patch = {**lax.keep_fitting(patch, Spawn), **{name: None for name, value in patch.items() if value is None}}
        old = msgspec.to_builtins(old)
    elif type(patch) is dict:
        patch = lax.keep_writable(patch)
    return msgspec.convert(merge_patch(old, patch), kind)


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` after a JSON merge patch. Source: RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
