"""How many connections there are, and whose they are. Counts; knows no sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sessiond.errors import Overloaded
from sessiond.model.caller import Caller

# Of all places: what one token may hold, and what is kept for the owner.
_TOKEN_PART = 4
_OWNER_PART = 8

# "owner", "stranger", or which token.
Holder = str


class Admission:
    """At most `max_connections` at once, and at most `max_strangers` of them not authenticated.

    Strangers have a bound of their own, so that idle ones cannot keep out those who may come in; so has each token.
    Some places are the owner's alone, and as many of the owner's connections are nobody else's to take. Whoever holds
    a place without having said anything yet can lose it to one who has (`take_over`).
    """

    def __init__(self, max_connections: int, max_strangers: int) -> None:
        self.connections = 0
        self._max_connections = max_connections
        self._max_strangers = max_strangers
        self._max_of_token = max(1, max_connections // _TOKEN_PART)
        self._max_of_others = max_connections - max_connections // _OWNER_PART
        self._held: Counter[Holder] = Counter()
        # In the order in which they came.
        self._waiting: dict[ConnectionPlace, None] = {}

    @property
    def strangers(self) -> int:
        return self._held["stranger"]

    def enter(self, *, stranger: bool, end: Callable[[], object]) -> ConnectionPlace | None:
        """A place for one more connection, or None where there is none. `end` is called if it is taken away again."""
        if self.connections >= self._max_connections or (stranger and self._no_stranger_fits()):
            return None
        self.connections += 1
        place = ConnectionPlace(self, end, "stranger" if stranger else "owner")
        self._held[place.holder] += 1
        self._waiting[place] = None
        return place

    def _no_stranger_fits(self) -> bool:
        others = self.connections - self._held["owner"]
        return self.strangers >= self._max_strangers or others >= self._max_of_others

    def take_over(self, *, stranger: bool, end: Callable[[], object]) -> ConnectionPlace | None:
        """The place of whoever has waited longest without a word, whose connection ends; None where all have spoken.

        It is a stranger's while there is one. The owner's is taken by the owner, and by a stranger only where the owner
        has more than the places that are its alone: else a thousand idle ones would keep out every agent.
        """
        silent = next((place for place in self._waiting if place.stranger), None)
        if silent is None and (not stranger or self._owner_has_more_than_its_own()):
            silent = next(iter(self._waiting), None)
        if silent is not None:
            silent.leave()
            silent.end()
        return self.enter(stranger=stranger, end=end)

    def _owner_has_more_than_its_own(self) -> bool:
        return self._held["owner"] > self._max_connections - self._max_of_others

    def speaks(self, place: ConnectionPlace) -> None:
        """The place is not waiting any more."""
        self._waiting.pop(place, None)

    def change(self, place: ConnectionPlace, holder: Holder) -> None:
        """The connection is this holder's from now on. Overloaded where it has as many as it may."""
        if holder == place.holder:
            return
        if holder != "owner" and self._held[holder] >= self._max_of_token:
            raise Overloaded(
                f"This token has {self._max_of_token} connections, as many as one may have; close some of them.",
                limit="connectionsOfToken",
                value=self._max_of_token,
            )
        self.leave(place.holder)
        self._held[holder] += 1
        place.holder = holder

    def leave(self, holder: Holder) -> None:
        """One of the holder's connections has gone, or is another's now."""
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]


class ConnectionPlace:
    """One connection's place."""

    def __init__(self, admission: Admission, end: Callable[[], object], holder: Holder) -> None:
        self.holder = holder
        self.end = end
        self._admission = admission
        self._held = True

    @property
    def stranger(self) -> bool:
        return self.holder == "stranger"

    def identify(self, caller: Caller) -> None:
        """Its client has shown who it is; the owner, by saying anything. Overloaded where a token has too many.

        May be called more than once.
        """
        if caller.kind == "token":
            self._admission.change(self, f"token {caller.token_id or caller.run_id}")
        elif caller.kind == "owner":
            self._admission.change(self, "owner")
        self._admission.speaks(self)

    def leave(self) -> None:
        """The connection has gone. May be called more than once."""
        if self._held:
            self._held = False
            self._admission.speaks(self)
            self._admission.leave(self.holder)
            self._admission.connections -= 1
