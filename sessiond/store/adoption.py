"""Adopt sessions that another program wrote: their key, and their metadata in the index beside them. Pure.

OpenClaw keeps the metadata of its sessions in `sessions.json`; pi has no index. An adopted file gets one
`sessiond/entry` record with the key and the metadata, so that the file alone is enough. Source: store.md, "Adoption".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.errors import InvalidParams
from sessiond.model import lax
from sessiond.model import record as records
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules, agent_of, canonical_key, normalize_key
from sessiond.model.lax import whole_ms
from sessiond.model.patching import patch_entry
from sessiond.model.record import Record

Foreign = dict[str, dict[str, Any]]
# Fields that the file itself has, or that are about the other program's paths and file.
_LEFT_OUT = frozenset({"sessionId", "sessionKey", "file", "source"})
_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(Entry)) - _LEFT_OUT
# Fields computed from messages and runs, and places in the file: no longer valid once the file was rewritten.
_OF_THE_FILE = frozenset(
    {
        "updatedAt",
        "createdAt",
        "isNamedOtherwise",
        "isCopy",
        "messageCount",
        "corruptRecords",
        "inboxCursor",
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "cacheRead",
        "cacheWrite",
        "contextTokens",
        "estimatedCostUsd",
        "runs",
        "keyed",
        "talks",
        "questions",
        "hook",
        "status",
        "startedAt",
        "endedAt",
        "runtimeMs",
        "abortedLastRun",
    }
)


class Claim(msgspec.Struct, frozen=True):
    """The key of an adopted session and its metadata from the other program's index."""

    key: str
    fields: dict[str, Any]

    def line(self, record_id: str, parent_id: str | None, now_ms: int, record_limit: int) -> bytes:
        """The record that adopts the file. If it is too large, only the fields known to this program are kept."""
        known = {name: value for name, value in self.fields.items() if name in _FIELDS}
        least = {name: value for name, value in known.items() if name == "sandboxed"}
        line = b""
        for parent, fields in ((parent_id, self.fields), (parent_id, known), (None, known), (None, least)):
            line = self._line(record_id, parent, now_ms, lax.keep_writable(fields))
            if len(line) <= record_limit:
                break
        return line

    def _line(self, record_id: str, parent_id: str | None, now_ms: int, fields: dict[str, Any]) -> bytes:
        return records.custom_line(record_id, parent_id, now_ms, records.ENTRY, {"sessionKey": self.key, **fields})


def says_key(record: Record) -> bool:
    """Whether the record gives its file a session key, as the one that adopts a file does."""
    return record.custom_type == records.ENTRY and "sessionKey" in lax.decode_dict(record.data)


def is_own_key(key: str, agent_id: str) -> bool:
    """Whether a session of this agent can have the key in its file. Does not depend on the configuration."""
    prefix = f"agent:{agent_id}:"
    try:
        return key.startswith(prefix) and bool(key[len(prefix) :].strip(":")) and normalize_key(key, "key") == key
    except InvalidParams:
        return False


def claim(agent_id: str, session_id: str, before: Entry | None, foreign: Foreign, rules: KeyRules) -> Claim:
    """The key and metadata of a file without a session key.

    They come from the index beside it; else from the entry `before`, if another program rewrote a known file; else it
    is an import with a new key.
    """
    mine = [(key, fields) for key, fields in foreign.items() if fields.get("sessionId") == session_id]
    # If several keys name the session, the one used last counts.
    mine.sort(key=lambda item: whole_ms(item[1].get("updatedAt")) or 0, reverse=True)
    named = [(text, fields) for key, fields in mine if (text := _own_spelling(key, agent_id, rules)) is not None]
    key = f"agent:{agent_id}:import:{session_id.lower()}"
    if named:
        key = named[0][0]
    elif before is not None and is_own_key(before.session_key, agent_id):
        key = before.session_key
    fields = (named or mine or [("", {})])[0][1]
    settings = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    if before is not None:
        settings = {**settings_in(before), **settings}
        if before.sandboxed:
            settings["sandboxed"] = True
    return Claim(key, settings)


def settings_in(entry: Entry) -> dict[str, Any]:
    """The settings in the entry, by wire name: what has to be written into a rewritten file so that they are kept."""
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return {name: value for name, value in fields.items() if name not in _LEFT_OUT | _OF_THE_FILE}


def claim_to_restore(entry: Entry, before: Entry, key: str, agent_id: str) -> Claim | None:
    """What has to be written into a rewritten file, whose fold is `entry`; None where nothing is missing.

    A file without a session key gets its key and all settings back. A file with one is valid as it is, except that a
    sandboxed session stays sandboxed.
    """
    if not is_own_key(entry.session_key, agent_id):
        return Claim(key, settings_in(before))
    return Claim(entry.session_key, {"sandboxed": True}) if before.sandboxed and not entry.sandboxed else None


def keep_origin(entry: Entry, before: Entry) -> Entry:
    """The entry of a rewritten file, with the header fields that it lacks as they were `before`; if it has no session
    key, with all settings too.

    The next append writes them into the file. Without them a child would lose its spawner, a sandboxed session its
    sandbox, and an emptied copy would take over the key.
    """
    kept = entry
    if not is_own_key(entry.session_key, agent_of(before.session_key)):
        kept = patch_entry(entry, {**settings_in(before), **settings_in(entry)})
    names = ("created_at", "updated_at", "is_named_otherwise", "is_copy", "cwd", "spawned_by", "attends")
    return replace(kept, **{name: getattr(before, name) for name in names if not getattr(kept, name)})


def _own_spelling(key: str, agent_id: str, rules: KeyRules) -> str | None:
    try:
        text = canonical_key(key, replace(rules, default_agent=agent_id), agent_id=agent_id)
    except InvalidParams:
        return None
    return text if text is not None and agent_of(text) == agent_id else None


def session_ids(foreign: Foreign) -> Iterator[tuple[str, int | None]]:
    """The session ids in a foreign index, each with the time when it was used last."""
    for fields in foreign.values():
        session_id = fields.get("sessionId")
        if isinstance(session_id, str):
            yield session_id, whole_ms(fields.get("updatedAt"))


def bare_header(session_id: str, agent_id: str, created_ms: int) -> bytes:
    """The header for a session without a file, without the fields that only this program writes."""
    return records.header_line(session_id, None, agent_id, created_ms, cwd="")
