"""What becomes of sessions that another program wrote: their key, and the metadata of the index beside them. Pure.

OpenClaw keeps in `sessions.json` what it knows of a session; pi keeps no index. A file that is adopted gets one
`sessiond/entry` record with both, and from then on says it all. Source: store.md, "Adoption".
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
# What the file itself says, and what only the other program's paths and file facts are about.
_LEFT_OUT = frozenset({"sessionId", "sessionKey", "file"})
_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(Entry)) - _LEFT_OUT
# What is counted from messages, told by runs, or a place in the file: over with what stood in it.
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
        "status",
        "startedAt",
        "endedAt",
        "runtimeMs",
        "abortedLastRun",
    }
)


class Claim(msgspec.Struct, frozen=True):
    """The key of an adopted session and what its old index said of it."""

    key: str
    fields: dict[str, Any]

    def line(self, record_id: str, parent_id: str | None, now_ms: int, record_limit: int) -> bytes:
        """The record that adopts the file. Of an entry too large for one, only what this program reads is kept."""
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
    """Whether this is a record that adopts the file it stands in."""
    return record.custom_type == records.ENTRY and "sessionKey" in lax.decode_dict(record.data)


def is_own_key(key: str, agent_id: str) -> bool:
    """Whether a session of this agent can have the key that its file claims. Does not depend on the configuration."""
    prefix = f"agent:{agent_id}:"
    try:
        return key.startswith(prefix) and bool(key[len(prefix) :].strip(":")) and normalize_key(key, "key") == key
    except InvalidParams:
        return False


def claim(agent_id: str, session_id: str, before: Entry | None, foreign: Foreign, rules: KeyRules) -> Claim:
    """The key and metadata of a file that does not say its key.

    The index beside it tells; else the entry `before`, which it had until somebody wrote the file anew; else it is an
    import.
    """
    mine = [(key, fields) for key, fields in foreign.items() if fields.get("sessionId") == session_id]
    # Several keys for one session: the one that was used last.
    mine.sort(key=lambda item: whole_ms(item[1].get("updatedAt")) or 0, reverse=True)
    named = [(text, fields) for key, fields in mine if (text := _own_spelling(key, agent_id, rules)) is not None]
    key = f"agent:{agent_id}:import:{session_id.lower()}"
    if named:
        key = named[0][0]
    elif before is not None and is_own_key(before.session_key, agent_id):
        key = before.session_key
    fields = (named or mine or [("", {})])[0][1]
    told = {name: value for name, value in fields.items() if name not in _LEFT_OUT}
    if before is not None:
        told = {**settings_in(before), **told}
        if before.sandboxed:
            told["sandboxed"] = True
    return Claim(key, told)


def settings_in(entry: Entry) -> dict[str, Any]:
    """What was set in the entry, by wire name: what a record must say so that a file that is written anew keeps it."""
    told: dict[str, Any] = msgspec.to_builtins(entry)
    return {name: value for name, value in told.items() if name not in _LEFT_OUT | _OF_THE_FILE}


def claim_to_restore(entry: Entry, before: Entry, key: str, agent_id: str) -> Claim | None:
    """What a record must say of a file that was written anew and gives `entry`; None where it says it all itself.

    One that says no key gets back all that was set. One that does is believed, except that a session whose runs were in
    a sandbox never comes out of it.
    """
    if not is_own_key(entry.session_key, agent_id):
        return Claim(key, settings_in(before))
    return Claim(entry.session_key, {"sandboxed": True}) if before.sandboxed and not entry.sandboxed else None


def keep_origin(entry: Entry, before: Entry) -> Entry:
    """The entry with what only a header says, as it was `before`, where the file that was written anew says nothing of
    it; and where it does not say its key either, with all that was set.

    The next append writes it down: a child that forgot its spawner would leave its tree, one that forgot its sandbox
    would run outside, and a copy that was emptied would take the key over.
    """
    kept = entry
    if not is_own_key(entry.session_key, agent_of(before.session_key)):
        kept = patch_entry(entry, {**settings_in(before), **settings_in(entry)})
    names = ("created_at", "updated_at", "is_named_otherwise", "is_copy", "cwd", "spawned_by")
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
    """The header of a file for a session that had none, without our fields."""
    return records.header_line(session_id, None, agent_id, created_ms, cwd="")
