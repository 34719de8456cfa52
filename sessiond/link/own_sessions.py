"""This machine's own sessions, as its daemon lists them and tells of them: what rules decide on, and what has changed.

Knows events and rows. Does not know peers or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sessiond.client.wire import Event
from sessiond.link.owner_door import OwnerDoor
from sessiond.model.keys import agent_of

_PAGE = 200


class SessionFacts(msgspec.Struct, frozen=True):
    """A session of this machine. `cursor` is the end of its transcript as the list last showed it; empty where only
    events told of it.
    """

    session: str
    key: str
    label: str | None = None
    cwd: str | None = None
    updated_at: int = 0
    cursor: str = ""

    @property
    def agent(self) -> str:
        return agent_of(self.key)

    @property
    def size(self) -> int:
        """How long its transcript was, by the list."""
        head = self.cursor.partition("-")[0]
        return int(head) if head.isdecimal() else 0

    @property
    def row(self) -> dict[str, Any]:
        """What rules look at."""
        return {"source": "sessiond", "key": self.key, "label": self.label, "cwd": self.cwd}


class OwnSessions:
    """`changed(session id)` is called for each that may have more bytes, other facts, or is not there any more."""

    def __init__(self, daemon: OwnerDoor, changed: Callable[[str], object]) -> None:
        self._daemon, self._changed = daemon, changed
        self._facts: dict[str, SessionFacts] = {}
        self._ids: dict[str, str] = {}  # key -> session id
        self._names: dict[str, tuple[str, str]] = {}  # key as rows show it (`main`) -> session id, canonical key
        self._touched: set[str] = set()  # since the list was begun
        self._lists_all = False

    @property
    def all(self) -> Mapping[str, SessionFacts]:
        return self._facts

    def find(self, session: str) -> SessionFacts | None:
        return self._facts.get(session)

    def note_event(self, event: Event) -> None:
        key = event.get("sessionKey")
        if not isinstance(key, str):
            return
        if event.name == "sessions.changed":
            row = event.get("row")
            if isinstance(row, dict):
                self._take(row, key, is_news=True)
            elif event.get("phase") == "delete":
                self._drop(self._ids.get(key))

    def note_facts(self, session: str, label: str | None, cwd: str | None) -> SessionFacts | None:
        """What was told together with bytes of the session."""
        facts = self._facts.get(session)
        if facts is not None and (facts.label, facts.cwd) != (label, cwd):
            facts = self._facts[session] = msgspec.structs.replace(facts, label=label, cwd=cwd)
            self._changed(session)
        return facts

    def note_missing(self, session: str) -> None:
        """The daemon has no such session."""
        self._drop(session)

    async def list_all(self) -> None:
        """Read the whole list; what is not in it is not there any more. What is new in it is no change. ClientError."""
        self._lists_all = True
        try:
            await self._list_all()
        finally:
            self._lists_all = False

    async def _list_all(self) -> None:
        self._touched.clear()
        seen: set[str] = set()
        params: dict[str, Any] = {"limit": _PAGE, "includeCursors": True, "sources": ["sessiond"]}
        while True:
            page = await self._daemon.call("sessions_list", params)
            seen |= await self._take_page(page)
            if not page.get("hasMore"):
                break
            params = {**params, "cursor": page["nextCursor"]}
        for session in self._facts.keys() - seen - self._touched:
            self._drop(session)

    async def list_newest(self) -> None:
        """Read the newest page: some records change a transcript and no row, so that there is no event. ClientError."""
        params = {"limit": _PAGE, "includeCursors": True, "sources": ["sessiond"]}
        await self._take_page(await self._daemon.call("sessions_list", params))

    async def _take_page(self, page: dict[str, Any]) -> set[str]:
        seen: set[str] = set()
        for row in page["sessions"]:
            key, session = row["key"], row["sessionId"]
            if not key.startswith("agent:"):
                # Of that session only: with another default agent `main` is another agent's.
                if self._names.get(key, ("", ""))[0] != session:
                    found = await self._daemon.call("sessions.resolve", {"sessionId": session})
                    self._names[key] = session, found["key"]
                key = self._names[key][1]
            seen.add(session)
            self._take(row, key)
        return seen

    def _take(self, row: dict[str, Any], key: str, *, is_news: bool = False) -> None:
        session = row.get("sessionId")
        if not isinstance(session, str) or row.get("source") != "sessiond" or not key.startswith("agent:"):
            return
        if row.get("archived"):
            self._drop(session)
            return
        before = self._ids.get(key)
        if before != session:
            self._drop(before)  # the key was reset: its old transcript is in the archive
        had, cursor = self._facts.get(session), row.get("cursor") or ""
        facts = SessionFacts(session, key, row.get("label"), row.get("cwd"), int(row.get("updatedAt", 0)), cursor)
        self._ids[key], self._facts[session] = session, facts
        self._touched.add(session)
        if had is None:
            is_news = is_news or not self._lists_all
        else:
            is_news = is_news or (had.label, had.cwd) != (facts.label, facts.cwd) or cursor not in ("", had.cursor)
        if is_news:
            self._changed(session)

    def _drop(self, session: str | None) -> None:
        facts = self._facts.pop(session, None) if session is not None else None
        if facts is not None:
            if self._ids.get(facts.key) == facts.session:
                del self._ids[facts.key]
            self._touched.add(facts.session)
            self._changed(facts.session)
