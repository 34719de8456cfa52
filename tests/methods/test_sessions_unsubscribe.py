"""`sessions.unsubscribe` over every transport."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon
from support.sampling import share_out
from support.single_calls import SINGLE_CALLS
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS, SubscribedConnection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tests/system/test_live.py` subscribes over each transport."""
    share_out(metafunc, "transport", sorted(SUBSCRIBED_CONNECTIONS))


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> type[SubscribedConnection]:
    transport: type[SubscribedConnection] = SUBSCRIBED_CONNECTIONS[request.param]
    return transport


def inject(daemon: Daemon, key: str, text: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])


def test_no_events_arrive_after_unsubscribing(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe")
        inject(shared, fresh, "heard")
        assert hearing.next_texts(1) == ["heard"]
        assert hearing.call("sessions.unsubscribe") == {"subscribed": False}
        hearing.events.clear()
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_a_subscription_to_one_session_goes_on(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe")
        hearing.call("sessions.messages.subscribe", key=fresh)
        hearing.call("sessions.unsubscribe")
        hearing.events.clear()
        inject(shared, fresh, "heard")
        assert hearing.event()[1]["message"]["content"] == "heard"
        assert hearing.call("ping") == {} and hearing.events == []


def test_unsubscribing_without_a_subscription_is_not_an_error(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        assert hearing.call("sessions.unsubscribe") == {"subscribed": False}


@pytest.mark.parametrize("transport", ["http-json", "http-cbor"])
def test_plain_http_requests_cannot_unsubscribe(shared: Daemon, fresh: str, transport: str) -> None:
    answer = SINGLE_CALLS[transport](shared, "sessiond", None, "sessions.unsubscribe", {})
    assert answer["error"]["code"] == -32006


def test_a_client_can_subscribe_again(shared: Daemon, fresh: str) -> None:
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        for text in ("one", "two"):
            hearing.call("sessions.subscribe")
            inject(shared, fresh, text)
            assert hearing.next_texts(1) == [text]
            hearing.call("sessions.unsubscribe")
            inject(shared, fresh, f"after {text}")
            hearing.events.clear()
