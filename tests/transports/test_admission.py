import pytest

from sessiond.errors import Overloaded
from sessiond.model.caller import OWNER, Caller
from sessiond.transports.admission import Admission


def token(name):
    return Caller(kind="token", token_id=name)


class RecordedAdmission:
    """An admission, and the names of the connections that it closed to make room."""

    def __init__(self, connections=16, strangers=6):
        self.admission = Admission(connections, strangers)
        self.ended = []

    def enter(self, name, *, stranger):
        return self.admission.enter(stranger=stranger, end=lambda: self.ended.append(name))

    def take_over(self, name, *, stranger):
        return self.admission.take_over(stranger=stranger, end=lambda: self.ended.append(name))


def test_a_token_holds_at_most_a_quarter_of_the_connections():
    recorded = RecordedAdmission()
    for _ in range(4):
        recorded.enter("a", stranger=True).identify(token("a"))
    more = recorded.enter("a", stranger=True)
    with pytest.raises(Overloaded):
        more.identify(token("a"))
    assert more.stranger, "nothing has changed by the refusal"
    more.identify(token("b"))
    more.identify(token("b"))
    more.leave()
    more.leave()
    assert (recorded.admission.connections, recorded.admission.strangers) == (4, 0)


def test_tokens_and_unauthenticated_clients_leave_connections_for_the_owner():
    recorded = RecordedAdmission()
    while (place := recorded.enter("x", stranger=True)) is not None:
        place.identify(token(f"t{recorded.admission.connections // 4}"))
    assert recorded.admission.connections == 14
    assert recorded.take_over("x", stranger=True) is None
    for _ in range(2):
        recorded.enter("owner", stranger=False).identify(OWNER)
    assert recorded.enter("owner", stranger=False) is None


def test_a_flood_of_unauthenticated_clients_never_displaces_an_idle_owner():
    recorded = RecordedAdmission()
    recorded.enter("owner", stranger=False)
    for number in range(6):
        recorded.enter(f"s{number}", stranger=True)
    for number in range(100):
        assert recorded.take_over(f"new {number}", stranger=True) is not None
    assert "owner" not in recorded.ended and recorded.ended[:6] == [f"s{number}" for number in range(6)]
    # Also where all connections are in use and nobody else is idle.
    full = RecordedAdmission(16, 16)
    full.enter("owner", stranger=False)
    for number in range(13):
        full.enter("x", stranger=True).identify(token(f"t{number // 4}"))
    assert full.enter("y", stranger=True) is not None
    assert full.take_over("z", stranger=True) is not None and full.ended == ["y"]
    full.enter("owner 2", stranger=False)
    assert full.take_over("owner 3", stranger=False) is not None and full.ended == ["y", "z"]
    assert full.take_over("owner 4", stranger=False) is not None and full.ended[2:] == ["owner"]


def test_idle_owner_connections_are_displaced_except_those_reserved_for_the_owner():
    recorded = RecordedAdmission()
    for number in range(16):
        recorded.enter(f"owner {number}", stranger=False)
    for number in range(4):
        recorded.take_over("a", stranger=True).identify(token("a"))
        assert recorded.ended == [f"owner {count}" for count in range(number + 1)], "the longest silent"
    for name in "bcd":
        for _ in range(4):
            if (place := recorded.take_over(name, stranger=True)) is not None:
                place.identify(token(name))
    # Two of sixteen are reserved for the owner, idle or not.
    assert len(recorded.ended) == 14
    assert recorded.take_over("e", stranger=True) is None and len(recorded.ended) == 14
    recorded.take_over("owner 16", stranger=False).identify(OWNER)
    assert recorded.ended[14:] == ["owner 14"]


def test_owner_connections_that_have_sent_a_message_are_never_displaced():
    recorded = RecordedAdmission()
    for _ in range(16):
        recorded.enter("owner", stranger=False).identify(OWNER)
    assert recorded.take_over("a", stranger=True) is None
    assert recorded.take_over("owner", stranger=False) is None
    assert recorded.ended == []
