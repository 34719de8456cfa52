import pytest

from sessiond.errors import Overloaded
from sessiond.model.caller import OWNER, Caller
from sessiond.transports.admission import Admission


def token(name):
    return Caller(kind="token", token_id=name)


class Hall:
    """An admission, and who was sent away."""

    def __init__(self, connections=16, strangers=6):
        self.admission = Admission(connections, strangers)
        self.ended = []

    def enter(self, name, *, stranger):
        return self.admission.enter(stranger=stranger, end=lambda: self.ended.append(name))

    def take_over(self, name, *, stranger):
        return self.admission.take_over(stranger=stranger, end=lambda: self.ended.append(name))


def test_a_token_holds_a_quarter_of_the_places_and_no_more():
    hall = Hall()
    for _ in range(4):
        hall.enter("a", stranger=True).identify(token("a"))
    more = hall.enter("a", stranger=True)
    with pytest.raises(Overloaded):
        more.identify(token("a"))
    assert more.stranger, "nothing has changed by the refusal"
    more.identify(token("b"))
    more.identify(token("b"))
    more.leave()
    more.leave()
    assert (hall.admission.connections, hall.admission.strangers) == (4, 0)


def test_tokens_and_strangers_leave_places_for_the_owner():
    hall = Hall()
    while (place := hall.enter("x", stranger=True)) is not None:
        place.identify(token(f"t{hall.admission.connections // 4}"))
    assert hall.admission.connections == 14
    assert hall.take_over("x", stranger=True) is None
    for _ in range(2):
        hall.enter("owner", stranger=False).identify(OWNER)
    assert hall.enter("owner", stranger=False) is None


def test_a_flood_of_strangers_never_takes_the_owners_silent_connection():
    hall = Hall()
    hall.enter("owner", stranger=False)
    for number in range(6):
        hall.enter(f"s{number}", stranger=True)
    for number in range(100):
        assert hall.take_over(f"new {number}", stranger=True) is not None
    assert "owner" not in hall.ended and hall.ended[:6] == [f"s{number}" for number in range(6)]
    # With all places taken, too, and nobody else silent.
    full = Hall(16, 16)
    full.enter("owner", stranger=False)
    for number in range(13):
        full.enter("x", stranger=True).identify(token(f"t{number // 4}"))
    assert full.enter("y", stranger=True) is not None
    assert full.take_over("z", stranger=True) is not None and full.ended == ["y"]
    full.enter("owner 2", stranger=False)
    assert full.take_over("owner 3", stranger=False) is not None and full.ended == ["y", "z"]
    assert full.take_over("owner 4", stranger=False) is not None and full.ended[2:] == ["owner"]


def test_idle_connections_of_the_owner_keep_nobody_out_and_the_owner_keeps_its_own():
    hall = Hall()
    for number in range(16):
        hall.enter(f"owner {number}", stranger=False)
    for number in range(4):
        hall.take_over("a", stranger=True).identify(token("a"))
        assert hall.ended == [f"owner {count}" for count in range(number + 1)], "the longest silent"
    for name in "bcd":
        for _ in range(4):
            if (place := hall.take_over(name, stranger=True)) is not None:
                place.identify(token(name))
    # Two of sixteen are the owner's alone, silent or not.
    assert len(hall.ended) == 14
    assert hall.take_over("e", stranger=True) is None and len(hall.ended) == 14
    hall.take_over("owner 16", stranger=False).identify(OWNER)
    assert hall.ended[14:] == ["owner 14"]


def test_connections_of_the_owner_that_have_spoken_are_nobodys_to_take():
    hall = Hall()
    for _ in range(16):
        hall.enter("owner", stranger=False).identify(OWNER)
    assert hall.take_over("a", stranger=True) is None
    assert hall.take_over("owner", stranger=False) is None
    assert hall.ended == []
