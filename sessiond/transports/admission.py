"""How many connections are open, and which caller holds them. Counts only; knows no sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sessiond.errors import Overloaded
from sessiond.model.caller import Caller

# One token may have 1/4 of all places; 1/8 is reserved for the owner.
_TOKEN_PART = 4
_OWNER_PART = 8

# "owner", "stranger" (not authenticated), or "token <id>".
Holder = str


class Admission:
    """At most `max_connections` at once, and at most `max_strangers` of them unauthenticated.

    Strangers (unauthenticated clients) have a bound of their own, so that idle ones cannot keep out authenticated
    clients; so has each token. Some places are reserved for the owner, and as many connections of the owner cannot be
    replaced by others. A connection that has sent no message yet can be replaced by one that has (`take_over`).
    """

    def __init__(self, max_connections: int, max_strangers: int) -> None:
        self.connections = 0
        self._max_connections = max_connections
        self._max_strangers = max_strangers
        self._max_of_token = max(1, max_connections // _TOKEN_PART)
        self._max_of_others = max_connections - max_connections // _OWNER_PART
        self._counts: Counter[Holder] = Counter()
        # Connections that have sent no message yet, oldest first.
        self._silent: dict[ConnectionPlace, None] = {}

    @property
    def strangers(self) -> int:
        return self._counts["stranger"]

    def enter(self, *, stranger: bool, end: Callable[[], object]) -> ConnectionPlace | None:
        """A place for one more connection, None where all are taken. `end` is called if it is replaced later."""
        if self.connections >= self._max_connections or (stranger and self._is_full_for_strangers()):
            return None
        self.connections += 1
        place = ConnectionPlace(self, end, "stranger" if stranger else "owner")
        self._counts[place.holder] += 1
        self._silent[place] = None
        return place

    def _is_full_for_strangers(self) -> bool:
        others = self.connections - self._counts["owner"]
        return self.strangers >= self._max_strangers or others >= self._max_of_others

    def take_over(self, *, stranger: bool, end: Callable[[], object]) -> ConnectionPlace | None:
        """The place of the connection that has been silent longest, which is closed; None where all have sent messages.

        Strangers are replaced first. Connections of the owner are replaced by the owner, and by a stranger only where
        the owner has more than its reserved places: else a thousand idle ones would keep out every agent.
        """
        silent = next((place for place in self._silent if place.stranger), None)
        if silent is None and (not stranger or self._owner_exceeds_reserve()):
            silent = next(iter(self._silent), None)
        if silent is not None:
            silent.leave()
            silent.end()
        return self.enter(stranger=stranger, end=end)

    def _owner_exceeds_reserve(self) -> bool:
        return self._counts["owner"] > self._max_connections - self._max_of_others

    def note_message(self, place: ConnectionPlace) -> None:
        """The connection has sent a message, or ended: it is not silent any more."""
        self._silent.pop(place, None)

    def change_holder(self, place: ConnectionPlace, holder: Holder) -> None:
        """Count the connection for another holder. Overloaded where that has as many as permitted."""
        if holder == place.holder:
            return
        if holder != "owner" and self._counts[holder] >= self._max_of_token:
            raise Overloaded(
                f"This token has {self._max_of_token} connections, as many as one may have; close some of them.",
                limit="connectionsOfToken",
                value=self._max_of_token,
            )
        self.leave(place.holder)
        self._counts[holder] += 1
        place.holder = holder

    def leave(self, holder: Holder) -> None:
        """Count one connection of the holder less."""
        self._counts[holder] -= 1
        if not self._counts[holder]:
            del self._counts[holder]


class ConnectionPlace:
    """The place of one connection."""

    def __init__(self, admission: Admission, end: Callable[[], object], holder: Holder) -> None:
        self.holder = holder
        self.end = end
        self._admission = admission
        self._held = True

    @property
    def stranger(self) -> bool:
        return self.holder == "stranger"

    def identify(self, caller: Caller) -> None:
        """The client has authenticated, or sent a message. Overloaded where its token has too many connections.

        May be called more than once.
        """
        if caller.kind == "token":
            self._admission.change_holder(self, f"token {caller.token_id or caller.run_id}")
        elif caller.kind == "owner":
            self._admission.change_holder(self, "owner")
        self._admission.note_message(self)

    def leave(self) -> None:
        """The connection has ended. May be called more than once."""
        if self._held:
            self._held = False
            self._admission.note_message(self)
            self._admission.leave(self.holder)
            self._admission.connections -= 1
