"""`sessions.messages.unsubscribe` over every transport."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon
from support.single_calls import ROADS
from support.subscribed_connections import HEARING, Hearing, Refused


@pytest.fixture(params=sorted(HEARING))
def road(request: pytest.FixtureRequest) -> type[Hearing]:
    road: type[Hearing] = HEARING[request.param]
    return road


def inject(daemon: Daemon, key: str, *texts: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text} for text in texts])


def test_nothing_comes_afterwards(road: type[Hearing], shared: Daemon, fresh: str) -> None:
    with road(shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject(shared, fresh, "heard")
        assert hearing.said(1) == ["heard"]
        got = hearing.call("sessions.messages.unsubscribe", key=fresh.upper())
        assert got == {"subscribed": False, "key": fresh}
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_everything_goes_on_where_that_is_followed(shared: Daemon, fresh: str) -> None:
    with HEARING["ndjson"](shared) as hearing:
        hearing.call("sessions.subscribe")
        hearing.call("sessions.messages.subscribe", key=fresh)
        hearing.call("sessions.messages.unsubscribe", key=fresh)
        inject(shared, fresh, "heard")
        assert hearing.said(1) == ["heard"]


def test_a_replay_that_is_under_way_ends(shared: Daemon, fresh: str) -> None:
    start = shared.call("sessions_history", sessionKey=fresh, limit=1, cursor=None)["positions"][0]["cursor"]
    for _ in range(5):
        inject(shared, fresh, *(f"{number} " + "x" * 2000 for number in range(500)))
    with HEARING["ndjson"](shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh, cursor=start)
        assert hearing.said(3) == [f"{number} " + "x" * 2000 for number in range(3)]
        hearing.call("sessions.messages.unsubscribe", key=fresh)
        hearing.call("ping")
        hearing.events.clear()
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_a_deleted_session_can_still_be_left_by_who_followed_it_and_is_unknown_to_others(
    shared: Daemon, fresh: str
) -> None:
    with HEARING["ndjson"](shared) as hearing, HEARING["ndjson"](shared) as other:
        hearing.call("sessions.messages.subscribe", key=fresh)
        shared.call("sessions.delete", key=fresh)
        with pytest.raises(Refused) as refused:
            other.call("sessions.messages.unsubscribe", key=fresh)
        assert refused.value.error["code"] == -32002
        assert hearing.call("sessions.messages.unsubscribe", key=fresh) == {"subscribed": False, "key": fresh}
        shared.reply(fresh, "made again")
        assert hearing.call("ping") == {} and hearing.events == []


def test_not_following_is_no_error(road: type[Hearing], shared: Daemon, fresh: str) -> None:
    with road(shared) as hearing:
        assert hearing.call("sessions.messages.unsubscribe", key=fresh) == {"subscribed": False, "key": fresh}


@pytest.mark.parametrize("road", ["http-json", "http-cbor"])
def test_a_single_exchange_cannot_follow(shared: Daemon, fresh: str, road: str) -> None:
    answer = ROADS[road](shared, "sessiond", None, "sessions.messages.unsubscribe", {"key": fresh})
    assert answer["error"]["code"] == -32006
