"""What a `sessiond/entry` record sets in an entry: a JSON merge patch, field by field, and the names of other programs.

Pure. Source: store.md, "Adoption"; RFC 7386.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.entry import Entry, Spawn

# A foreign `running` ended with the program that wrote it; how is not known.
_FOREIGN_STATUS = {"done": "ok", "failed": "error", "killed": "aborted", "running": None}
_FOREIGN_NAMES = {"provider": "channel", "surface": "channel", "lastProvider": "lastChannel", "room": "groupId"}

# What a `sessiond/entry` record may set, by wire name. The rest of its data stays in the file and does nothing.
# When a session began and when something was last said in it are told by its header and its messages alone.
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
        "file",
        "message_count",
        "corrupt_records",
    }
}


def patch_entry(entry: Entry, data: dict[str, Any]) -> Entry:
    """The entry after a `sessiond/entry` record with this data. A field of a wrong type does not count."""
    changes: dict[str, Any] = {}
    for name, value in data.items():
        if name in _FOREIGN_NAMES:
            name = _FOREIGN_NAMES[name]
            if name in data:
                continue  # the new name says it already
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
    """Whether a patch may set the field to this. What is no field here is somebody else's, and no mistake."""
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
    """The value of a field after a merge patch. ValidationError where it would be none."""
    if kind == _SPAWN and type(patch) is dict:
        # One fact of a wrong type does not cost the others.
        patch = {**lax.keep_fitting(patch, Spawn), **{name: None for name, value in patch.items() if value is None}}
        old = msgspec.to_builtins(old)
    elif type(patch) is dict:
        patch = lax.tame(patch)
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
