"""`sessions.messages.unsubscribe` over every transport."""

from __future__ import annotations

import pytest
from support.real_daemon import Daemon
from support.sampling import share_out
from support.single_calls import SINGLE_CALLS
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS, Refused, SubscribedConnection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tests/system/test_live.py` subscribes over each transport."""
    share_out(metafunc, "transport", sorted(SUBSCRIBED_CONNECTIONS))


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> type[SubscribedConnection]:
    transport: type[SubscribedConnection] = SUBSCRIBED_CONNECTIONS[request.param]
    return transport


def inject(daemon: Daemon, key: str, *texts: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text} for text in texts])


def test_no_events_arrive_after_unsubscribing(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject(shared, fresh, "heard")
        assert hearing.next_texts(1) == ["heard"]
        got = hearing.call("sessions.messages.unsubscribe", key=fresh.upper())
        assert got == {"subscribed": False, "key": fresh}
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_a_subscription_to_all_sessions_goes_on(shared: Daemon, fresh: str) -> None:
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.subscribe")
        hearing.call("sessions.messages.subscribe", key=fresh)
        hearing.call("sessions.messages.unsubscribe", key=fresh)
        inject(shared, fresh, "heard")
        assert hearing.next_texts(1) == ["heard"]


def test_unsubscribing_ends_a_replay_under_way(shared: Daemon, fresh: str) -> None:
    start = shared.call("sessions_history", sessionKey=fresh, limit=1, cursor=None)["positions"][0]["cursor"]
    for _ in range(5):
        inject(shared, fresh, *(f"{number} " + "x" * 2000 for number in range(500)))
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh, cursor=start)
        assert hearing.next_texts(3) == [f"{number} " + "x" * 2000 for number in range(3)]
        hearing.call("sessions.messages.unsubscribe", key=fresh)
        hearing.call("ping")
        hearing.events.clear()
        inject(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_followers_can_unsubscribe_from_a_deleted_session_and_others_get_not_found(shared: Daemon, fresh: str) -> None:
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing, SUBSCRIBED_CONNECTIONS["ndjson"](shared) as other:
        hearing.call("sessions.messages.subscribe", key=fresh)
        shared.call("sessions.delete", key=fresh)
        with pytest.raises(Refused) as refused:
            other.call("sessions.messages.unsubscribe", key=fresh)
        assert refused.value.error["code"] == -32002
        assert hearing.call("sessions.messages.unsubscribe", key=fresh) == {"subscribed": False, "key": fresh}
        shared.reply(fresh, "made again")
        assert hearing.call("ping") == {} and hearing.events == []


def test_unsubscribing_without_a_subscription_is_not_an_error(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        assert hearing.call("sessions.messages.unsubscribe", key=fresh) == {"subscribed": False, "key": fresh}


@pytest.mark.parametrize("transport", ["http-json", "http-cbor"])
def test_plain_http_requests_cannot_unsubscribe(shared: Daemon, fresh: str, transport: str) -> None:
    answer = SINGLE_CALLS[transport](shared, "sessiond", None, "sessions.messages.unsubscribe", {"key": fresh})
    assert answer["error"]["code"] == -32006
