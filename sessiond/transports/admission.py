"""How many connections there are, and how many of them are strangers. Counts; knows no sockets."""

from __future__ import annotations


class Admission:
    """At most `max_connections` at once, and at most `max_strangers` of them not authenticated.

    Strangers have a bound of their own, so that idle ones cannot keep out those who may come in.
    """

    def __init__(self, max_connections: int, max_strangers: int) -> None:
        self.connections = 0
        self.strangers = 0
        self._max_connections = max_connections
        self._max_strangers = max_strangers

    def enter(self, *, stranger: bool) -> Place | None:
        """A place for one more connection, or None where there is none."""
        if self.connections >= self._max_connections or (stranger and self.strangers >= self._max_strangers):
            return None
        self.connections += 1
        self.strangers += stranger
        return Place(self, stranger)


class Place:
    """One connection's place. Both calls may be made more than once."""

    def __init__(self, admission: Admission, stranger: bool) -> None:
        self.stranger = stranger
        self._admission = admission
        self._held = True

    def known(self) -> None:
        """Its client has shown who it is."""
        if self.stranger:
            self.stranger = False
            self._admission.strangers -= 1

    def leave(self) -> None:
        if self._held:
            self.known()
            self._held = False
            self._admission.connections -= 1
