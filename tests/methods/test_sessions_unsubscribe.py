"""`sessions.unsubscribe` over every transport."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon
from support.single_calls import ROADS
from support.subscribed_connections import HEARING, Hearing


@pytest.fixture(params=sorted(HEARING))
def road(request: pytest.FixtureRequest) -> type[Hearing]:
    road: type[Hearing] = HEARING[request.param]
    return road


def inject(daemon: Daemon, key: str, text: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])


def test_nothing_comes_afterwards(road: type[Hearing], shared: Daemon, fresh: str) -> None:
    with road(shared) as hearing:
        hearing.call("sessions.subscribe")
        inject(shared, fresh, "heard")
        assert hearing.said(1) == ["heard"]
        assert hearing.call("sessions.unsubscribe") == {"subscribed": False}
        hearing.events.clear()
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_a_session_that_is_followed_by_its_key_goes_on(road: type[Hearing], shared: Daemon, fresh: str) -> None:
    with road(shared) as hearing:
        hearing.call("sessions.subscribe")
        hearing.call("sessions.messages.subscribe", key=fresh)
        hearing.call("sessions.unsubscribe")
        hearing.events.clear()
        inject(shared, fresh, "heard")
        assert hearing.event()[1]["message"]["content"] == "heard"
        assert hearing.call("ping") == {} and hearing.events == []


def test_not_following_is_no_error(road: type[Hearing], shared: Daemon, fresh: str) -> None:
    with road(shared) as hearing:
        assert hearing.call("sessions.unsubscribe") == {"subscribed": False}


@pytest.mark.parametrize("road", ["http-json", "http-cbor"])
def test_a_single_exchange_cannot_follow(shared: Daemon, fresh: str, road: str) -> None:
    answer = ROADS[road](shared, "sessiond", None, "sessions.unsubscribe", {})
    assert answer["error"]["code"] == -32006


def test_it_can_be_followed_again(shared: Daemon, fresh: str) -> None:
    with HEARING["ndjson"](shared) as hearing:
        for text in ("one", "two"):
            hearing.call("sessions.subscribe")
            inject(shared, fresh, text)
            assert hearing.said(1) == [text]
            hearing.call("sessions.unsubscribe")
            inject(shared, fresh, f"after {text}")
            hearing.events.clear()
