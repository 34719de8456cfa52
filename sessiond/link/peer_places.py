"""How far each session was published to one machine, and in which generation: the rules by which places move."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from sessiond.link.own_sessions import SessionFacts
from sessiond.link.ranges import make_generation
from sessiond.link.sent_places import SentPlace, SentPlaces
from sessiond.link.transcript_bytes import FoundBytes


class PeerPlaces:
    """`wall_ms` and `salt` make generations."""

    def __init__(self, peer: str, places: SentPlaces, wall_ms: Callable[[], int], salt: Callable[[], int]) -> None:
        self._peer, self._places, self._wall_ms, self._salt = peer, places, wall_ms, salt

    @property
    def all(self) -> Mapping[str, SentPlace]:
        return self._places.of_peer(self._peer)

    def find(self, session: str) -> SentPlace | None:
        return self.all.get(session)

    def is_told(self, session: str) -> bool:
        """Whether the peer knows of the session, as far as is known here."""
        place = self.find(session)
        return place is not None and not place.is_gone

    def place_of(self, facts: SessionFacts) -> SentPlace:
        """The place of a session that is exported: in a new generation if the peer knows nothing of it."""
        place = self.find(facts.session)
        if place is None or place.is_gone:
            return self._make(facts.session, facts.agent, "" if place is None else place.generation)
        return place

    def renew(self, session: str, seen: SentPlace, after: str = "") -> SentPlace:
        """Begin a new generation, unless somebody has since `seen`."""
        place = self.all[session]
        if place.generation == seen.generation:
            return self._make(session, seen.agent, max(seen.generation, after))
        return place

    def anchor(self, session: str, place: SentPlace, found: FoundBytes) -> None:
        """These bytes may be sent: whatever becomes of them, the generation ends when they change."""
        now = self.all[session]
        if now.generation == place.generation and (found.to >= now.to or now.cursor is None):
            self._put(session, replace(now, cursor=found.cursor))

    def advance(self, session: str, place: SentPlace, found: FoundBytes) -> None:
        """These bytes were sent."""
        now = self.all[session]
        if now.generation == place.generation and (found.to > now.to or now.cursor is None):
            self._put(session, replace(now, to=found.to, cursor=found.cursor))

    def note_seen(self, facts: SessionFacts | None, found: FoundBytes) -> None:
        """All is published: the list need not be compared with the transcript again."""
        place = self.find(facts.session) if facts is not None else None
        if facts is None or place is None or not facts.size == found.size == place.to:
            return
        if place.seen != facts.cursor:
            self._put(facts.session, replace(place, seen=facts.cursor, cursor=found.cursor))

    def end(self, session: str, generation: str) -> None:
        """The peer was told that the session is gone."""
        place = self.find(session)
        if place is not None and place.generation == generation:
            self._put(session, SentPlace(place.agent, generation, is_gone=True))

    def _make(self, session: str, agent: str, after: str) -> SentPlace:
        place = SentPlace(agent, make_generation(after, self._wall_ms(), self._salt()))
        self._put(session, place)
        return place

    def _put(self, session: str, place: SentPlace) -> None:
        self._places.put(self._peer, session, place)
