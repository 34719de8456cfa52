"""`sessions.subscribe` over every transport that lasts."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

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


def next_events(hearing: SubscribedConnection, key: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next events of one session, without those of sessions of other tests."""
    heard: list[tuple[str, dict[str, Any]]] = []
    while len(heard) < count:
        method, params = hearing.event()
        if params["sessionKey"] == key:
            heard.append((method, params))
    return heard


def inject(daemon: Daemon, key: str, *texts: str) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text} for text in texts])


def test_all_events_of_a_session_arrive_in_order(transport: type[SubscribedConnection], shared: Daemon) -> None:
    key = f"agent:main:test:{uuid4()}"
    with transport(shared) as hearing:
        assert hearing.call("sessions.subscribe") == {"subscribed": True}
        shared.call("sessions.create", key=key)
        shared.reply(key, "hello")
        shared.call("sessions.patch", key=key, label=str(uuid4()))
        shared.call("sessions.reset", key=key)
        shared.call("sessions.delete", key=key)
        heard = [
            (method, params.get("phase"), params.get("reason")) for method, params in next_events(hearing, key, 12)
        ]
        assert heard == [
            ("sessions.changed", "create", "create"),
            ("session.message", None, None),
            ("sessions.changed", "message", None),
            ("sessions.changed", "start", None),
            ("session.delta", None, None),
            ("session.message", None, None),
            ("sessions.changed", "message", None),
            ("sessions.changed", "end", "ok"),
            ("sessions.changed", "patch", None),
            ("sessions.changed", "reset", None),
            ("session.resync", None, "reset"),
            ("sessions.changed", "delete", None),
        ]


def test_the_row_in_an_event_is_that_of_the_list_without_children(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe")
        shared.call("sessions.patch", key=fresh, displayName="Shown", thinkingLevel="high")
        [(method, params)] = next_events(hearing, fresh, 1)
        listed = next(row for row in shared.rows() if row["key"] == fresh)
        assert (method, params) == ("sessions.changed", {"sessionKey": fresh, "phase": "patch", "row": listed})


def test_events_name_the_main_session_by_its_full_key_and_its_row_by_main(shared: Daemon) -> None:
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.subscribe")
        shared.reply("main", "hello")
        [message, changed] = next_events(hearing, "agent:main:main", 2)
        if message[0] == "sessions.changed":  # it was created just now
            [changed] = next_events(hearing, "agent:main:main", 1)
        assert changed[1]["row"]["key"] == "main"


def test_without_the_scope_read_only_changes_arrive(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    token = shared.call("tokens.mint", scopes=["list"], sessionKey=fresh)["token"]
    with transport(shared, token) as hearing:
        hearing.call("sessions.subscribe")
        inject(shared, fresh, "unheard")
        shared.reply(fresh, "unheard too")
        heard = next_events(hearing, fresh, 4)
        assert {method for method, _ in heard} == {"sessions.changed"}
        assert [params["phase"] for _, params in heard] == ["message", "message", "start", "message"]
        assert "unheard" not in str(heard)


def test_without_messages_only_changes_arrive(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe", messages=False)
        inject(shared, fresh, "unheard", "as well")
        shared.call("sessions.patch", key=fresh, displayName="Shown")
        heard = next_events(hearing, fresh, 3)
        assert [(method, params["phase"]) for method, params in heard] == [
            ("sessions.changed", "message"),
            ("sessions.changed", "message"),
            ("sessions.changed", "patch"),
        ]


def test_of_sources_that_were_not_asked_for_nothing_arrives(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe", sources=["claude", "machine"])
        inject(shared, fresh, "unheard")
        hearing.call("sessions.subscribe", sources=["sessiond"])
        inject(shared, fresh, "heard")
        [(_, message), (_, changed)] = next_events(hearing, fresh, 2)
        assert (message["message"]["content"], changed["phase"]) == ("heard", "message")


def test_a_source_that_there_is_none_of_is_refused(transport: type[SubscribedConnection], shared: Daemon) -> None:
    with transport(shared) as hearing:
        for sources in ([], ["another"]):
            with pytest.raises(Refused) as refused:
                hearing.call("sessions.subscribe", sources=sources)
            assert refused.value.error["code"] == -32602


def test_only_events_of_visible_sessions_arrive(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    mine = f"agent:main:test:{uuid4()}"
    child = f"agent:other:subagent:{uuid4()}"
    shared.call("sessions.create", key=mine)
    token = shared.call("tokens.mint", scopes=["list", "read"], sessionKey=mine)["token"]
    with transport(shared, token) as hearing:
        hearing.call("sessions.subscribe")
        inject(shared, fresh, "another's")
        shared.call("sessions.create", key=child, parentSessionKey=mine)
        inject(shared, child, "my child's")
        inject(shared, mine, "mine")
        shared.call("sessions.delete", key=child)
        heard: list[tuple[str, dict[str, Any]]] = []
        while not heard or heard[-1][1].get("phase") != "delete":
            heard.append(hearing.event())
        assert {params["sessionKey"] for _, params in heard} == {mine, child}
        texts = [params["message"]["content"] for method, params in heard if method == "session.message"]
        assert texts == ["my child's", "mine"]


def test_a_message_arrives_before_the_row_that_counts_it(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.subscribe")
        for number in range(20):
            inject(shared, fresh, str(number), f"{number} again")
        heard = next_events(hearing, fresh, 80)
        seq = 2
        for message, changed in zip(heard[::2], heard[1::2], strict=True):
            seq += 1
            assert (message[0], message[1]["seq"]) == ("session.message", seq)
            assert (changed[0], changed[1]["row"]["messageCount"]) == ("sessions.changed", seq)


def test_subscribing_needs_the_scope_list(shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["read"], sessionKey=fresh)["token"]
    with pytest.raises(Refused) as refused, SUBSCRIBED_CONNECTIONS["ndjson"](shared, token) as hearing:
        hearing.call("sessions.subscribe")
    assert refused.value.error["code"] == -32003


@pytest.mark.parametrize("transport", ["http-json", "http-cbor"])
def test_plain_http_requests_cannot_subscribe(shared: Daemon, fresh: str, transport: str) -> None:
    answer = SINGLE_CALLS[transport](shared, "sessiond", None, "sessions.subscribe", {})
    assert answer["error"]["code"] == -32006


def test_a_token_shown_later_narrows_the_events(shared: Daemon, fresh: str) -> None:
    mine = f"agent:main:test:{uuid4()}"
    shared.call("sessions.create", key=mine)
    token = shared.call("tokens.mint", scopes=["list", "read"], sessionKey=mine)["token"]
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.subscribe")
        inject(shared, fresh, "while the owner")
        assert hearing.next_texts(1) == ["while the owner"]
        hearing.call("initialize", protocol=1, client={"name": "x", "version": "1"}, token=token)
        inject(shared, fresh, "not any more")
        inject(shared, mine, "mine")
        assert hearing.next_texts(1) == ["mine"]
