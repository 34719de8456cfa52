"""How many connections there are, and how many of them are strangers. Counts; knows no sockets."""

from __future__ import annotations

from collections.abc import Callable


class Admission:
    """At most `max_connections` at once, and at most `max_strangers` of them not authenticated.

    Strangers have a bound of their own, so that idle ones cannot keep out those who may come in. Whoever holds a place
    without having said anything yet can lose it to one who has (`take_over`).
    """

    def __init__(self, max_connections: int, max_strangers: int) -> None:
        self.connections = 0
        self.strangers = 0
        self._max_connections = max_connections
        self._max_strangers = max_strangers
        # In the order in which they came.
        self._waiting: dict[Place, None] = {}

    def enter(self, *, stranger: bool, end: Callable[[], object]) -> Place | None:
        """A place for one more connection, or None where there is none. `end` is called if it is taken away again."""
        if self.connections >= self._max_connections or (stranger and self.strangers >= self._max_strangers):
            return None
        self.connections += 1
        self.strangers += stranger
        place = Place(self, end, stranger=stranger)
        self._waiting[place] = None
        return place

    def take_over(self, *, stranger: bool, end: Callable[[], object]) -> Place | None:
        """The place of whoever has waited longest without a word, whose connection ends; None where all have spoken.

        Where strangers are as many as they may be, a stranger takes a stranger's.
        """
        full = stranger and self.strangers >= self._max_strangers
        silent = next((place for place in self._waiting if place.stranger or not full), None)
        if silent is not None:
            silent.leave()
            silent.end()
        return self.enter(stranger=stranger, end=end)

    def forget(self, place: Place) -> None:
        """The place is not waiting any more."""
        self._waiting.pop(place, None)


class Place:
    """One connection's place. Both calls may be made more than once."""

    def __init__(self, admission: Admission, end: Callable[[], object], *, stranger: bool) -> None:
        self.stranger = stranger
        self.end = end
        self._admission = admission
        self._held = True

    def known(self) -> None:
        """Its client has shown who it is; the owner, by saying anything."""
        self._admission.forget(self)
        if self.stranger:
            self.stranger = False
            self._admission.strangers -= 1

    def leave(self) -> None:
        if self._held:
            self.known()
            self._held = False
            self._admission.connections -= 1
