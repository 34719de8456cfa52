"""`sessions.messages.subscribe` over every transport that lasts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.real_daemon import Daemon
from support.rows import check_each
from support.sampling import share_out
from support.single_calls import SINGLE_CALLS
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS, Refused, SubscribedConnection

# Of the right form, with a tag that the daemon has not made.
FORGED = "0-0-000000000000"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tests/system/test_live.py` subscribes over each transport."""
    share_out(metafunc, "transport", sorted(SUBSCRIBED_CONNECTIONS))


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> type[SubscribedConnection]:
    transport: type[SubscribedConnection] = SUBSCRIBED_CONNECTIONS[request.param]
    return transport


def inject_text(daemon: Daemon, key: str, *texts: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in texts]
    got: dict[str, Any] = daemon.call("chat.inject", sessionKey=key, messages=messages)
    return got


def read_row(daemon: Daemon, key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in daemon.rows() if row["key"] == key)
    return found


def append_directly(daemon: Daemon, key: str, line: bytes) -> None:
    """Append to the file as another program does."""
    fd = os.open(read_row(daemon, key)["transcriptPath"], os.O_WRONLY | os.O_APPEND)
    os.write(fd, line)
    os.close(fd)


def test_appended_messages_arrive_with_their_cursor(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        before = shared.call("sessions_history", sessionKey=fresh)
        got = hearing.call("sessions.messages.subscribe", key=fresh)
        assert got == {"subscribed": True, "key": fresh, "cursor": before["cursor"]}
        usage = {"input": 3, "output": 4, "totalTokens": 7}
        message = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "usage": usage}
        wrote = shared.call("chat.inject", sessionKey=fresh, messages=[message])
        [place] = shared.call("chat.history", sessionKey=fresh, limit=1)["positions"]
        assert hearing.event() == (
            "session.message",
            {
                "sessionKey": fresh,
                "sessionId": before["sessionId"],
                "messageId": wrote["ids"][0],
                "seq": 3,
                "cursor": wrote["cursor"],
                "message": message,
                "timestamp": place["timestamp"],
                "usage": usage,
            },
        )


def test_a_line_that_another_program_appends_arrives_unchanged(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        append_directly(
            shared, fresh, b'{"type":"message","id":"ours","message":{"role":"user","content":"\\u00e9","own":1.50}}\n'
        )
        method, params = hearing.event()
        assert (method, params["messageId"]) == ("session.message", "ours")
        assert params["message"] == {"role": "user", "content": "é", "own": 1.5}


def test_from_a_cursor_all_later_messages_are_replayed_before_new_ones(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    inject_text(shared, fresh, "a")
    cursor = inject_text(shared, fresh, "b")["cursor"]
    inject_text(shared, fresh, "c", "d")
    with transport(shared) as hearing:
        assert hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)["cursor"] == cursor
        assert hearing.next_texts(2) == ["c", "d"]
        inject_text(shared, fresh, "e")
        assert hearing.next_texts(1) == ["e"]


def test_subscribing_again_repeats_nothing(transport: type[SubscribedConnection], shared: Daemon, fresh: str) -> None:
    with transport(shared) as hearing:
        cursor = hearing.call("sessions.messages.subscribe", key=fresh)["cursor"]
        inject_text(shared, fresh, "a", "b")
        hearing.call("sessions.subscribe")
        hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject_text(shared, fresh, "c")
        heard = [hearing.event() for _ in range(4)]
        assert [params["message"]["content"] for method, params in heard if method == "session.message"] == list("abc")
        assert [params["phase"] for method, params in heard if method == "sessions.changed"] == ["message"]


def test_an_older_cursor_replays_from_there(shared: Daemon, fresh: str) -> None:
    cursor = inject_text(shared, fresh, "a")["cursor"]
    inject_text(shared, fresh, "b")
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject_text(shared, fresh, "c")
        hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)
        assert hearing.next_texts(3) == ["c", "b", "c"]


def test_live_text_and_tool_events_of_a_run_arrive_without_session_changes(shared: Daemon) -> None:
    key = f"agent:main:test:{uuid4()}"
    shared.call("sessions.create", key=key)
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=key)
        shared.reply(key, "hello")
        heard = [hearing.event() for _ in range(3)]
        assert [method for method, _ in heard] == ["session.message", "session.delta", "session.message"]
        run_id = heard[1][1]["runId"]
        assert heard[1][1] == {"sessionKey": key, "runId": run_id, "text": "hello"}
        assert hearing.call("ping") == {} and hearing.events == []


def test_a_reset_is_announced_and_the_new_transcript_followed(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    with transport(shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject_text(shared, fresh, "old")
        new_id = shared.call("sessions.reset", key=fresh)["sessionId"]
        inject_text(shared, fresh, "new")
        heard = [hearing.event() for _ in range(3)]
        assert [method for method, _ in heard] == ["session.message", "session.resync", "session.message"]
        resync = heard[1][1]
        assert (resync["sessionKey"], resync["reason"]) == (fresh, "reset")
        assert (heard[2][1]["sessionId"], heard[2][1]["seq"]) == (new_id, 1)
        # The cursor of the resync can be subscribed from.
        with transport(shared) as again:
            again.call("sessions.messages.subscribe", key=fresh, cursor=resync["cursor"])
            assert again.next_texts(1) == ["new"]


@check_each("cursor", ["", "x", "0", "0-0", "0-0-zzzzzzzzzzzz", "-1-0-000000000000", FORGED])
def test_an_invalid_or_forged_cursor_is_refused(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str, cursor: str
) -> None:
    with transport(shared) as hearing:
        with pytest.raises(Refused) as refused:
            hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)
        error = refused.value.error
        assert (error["code"], error["data"]["field"]) == (-32602, "$.cursor")
        assert error["data"]["code"] == ("cursor_stale" if cursor == FORGED else "cursor_invalid")
        # A refused subscription follows nothing.
        inject_text(shared, fresh, "unheard")
        assert hearing.call("ping") == {} and hearing.events == []


def test_the_cursor_of_another_session_is_refused_and_reveals_nothing(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    other = f"agent:main:test:{uuid4()}"
    shared.reply(other, "hello")
    cursor = shared.call("sessions_history", sessionKey=other)["positions"][0]["cursor"]
    with transport(shared) as hearing:
        with pytest.raises(Refused) as refused:
            hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)
        assert refused.value.error["data"]["code"] == "cursor_stale"
        assert hearing.events == []


@pytest.mark.parametrize("how", ["replaced", "in place", "in place at the same length"])
def test_a_cursor_from_before_a_rewrite_of_the_file_replays_the_whole_file(
    shared: Daemon, fresh: str, tmp_path: Path, how: str
) -> None:
    before = inject_text(shared, fresh, "first")["cursor"]
    inject_text(shared, fresh, "a", "b")
    path = Path(read_row(shared, fresh)["transcriptPath"])
    text = path.read_bytes().replace(b"first", b"other" if how.endswith("length") else b"something else")
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as watching:
        watching.call("sessions.messages.subscribe", key=fresh)
        if how == "replaced":
            (tmp_path / "new").write_bytes(text)
            (tmp_path / "new").rename(path)
        else:
            path.write_bytes(text)
        said = "other" if how.endswith("length") else "something else"
        with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
            got = hearing.call("sessions.messages.subscribe", key=fresh, cursor=before)
            assert got["cursor"] != before
            method, params = hearing.event()
            assert (method, params["reason"]) == ("session.resync", "rewritten")
            heard: list[str] = []
            while "b" not in heard:
                method, params = hearing.event()
                heard = [*heard, params["message"]["content"]] if method == "session.message" else []
            assert heard[-3:] == [said, "a", "b"]


def test_a_cursor_from_before_resets_replays_each_transcript_since(
    transport: type[SubscribedConnection], shared: Daemon, fresh: str
) -> None:
    cursor = inject_text(shared, fresh, "had")["cursor"]
    inject_text(shared, fresh, "tail 1", "tail 2")
    shared.call("sessions.reset", key=fresh)
    inject_text(shared, fresh, "between")
    shared.call("sessions.reset", key=fresh)
    inject_text(shared, fresh, "new")
    with transport(shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh, cursor=cursor)
        heard = [hearing.event() for _ in range(6)]
        assert [params.get("reason") or params["message"]["content"] for _, params in heard] == [
            "tail 1",
            "tail 2",
            "reset",
            "between",
            "reset",
            "new",
        ]
        # The cursor of the last resync can be subscribed from.
        with transport(shared) as again:
            again.call("sessions.messages.subscribe", key=fresh, cursor=heard[4][1]["cursor"])
            assert again.next_texts(1) == ["new"]


def test_start_is_before_the_first_message(shared: Daemon, fresh: str) -> None:
    inject_text(shared, fresh, "a")
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh, cursor="start")
        assert hearing.next_texts(3)[-1] == "a"


def test_unknown_invisible_and_archived_sessions_are_not_found(shared: Daemon, fresh: str) -> None:
    archived = shared.call("sessions_history", sessionKey=fresh)["sessionId"]
    shared.call("sessions.reset", key=fresh)
    token = shared.call("tokens.mint", scopes=["read"], sessionKey="agent:other:main")["token"]
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as owner, SUBSCRIBED_CONNECTIONS["ndjson"](shared, token) as stranger:
        for hearing, key in (
            (owner, "agent:main:nowhere"),
            (owner, archived),
            (stranger, fresh),
            (stranger, "nowhere"),
        ):
            with pytest.raises(Refused) as refused:
                hearing.call("sessions.messages.subscribe", key=key)
            assert refused.value.error["code"] == -32002, key


def test_subscribing_needs_the_scope_read(shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["list", "send"], sessionKey=fresh)["token"]
    with pytest.raises(Refused) as refused, SUBSCRIBED_CONNECTIONS["ndjson"](shared, token) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
    assert refused.value.error["code"] == -32003


@pytest.mark.parametrize("transport", ["http-json", "http-cbor"])
def test_plain_http_requests_cannot_subscribe(shared: Daemon, fresh: str, transport: str) -> None:
    answer = SINGLE_CALLS[transport](shared, "sessiond", None, "sessions.messages.subscribe", {"key": fresh})
    assert answer["error"]["code"] == -32006


def test_a_revoked_token_gets_no_more_events(transport: type[SubscribedConnection], shared: Daemon, fresh: str) -> None:
    minted = shared.call("tokens.mint", scopes=["read"], sessionKey=fresh)
    with transport(shared, minted["token"]) as hearing:
        hearing.call("sessions.messages.subscribe", key=fresh)
        inject_text(shared, fresh, "heard")
        assert hearing.next_texts(1) == ["heard"]
        shared.call("tokens.revoke", id=minted["id"])
        inject_text(shared, fresh, "secret")
        with pytest.raises(Exception) as ended:  # each client library has its own error for the end of a connection
            hearing.event()
        assert not isinstance(ended.value, TimeoutError)


def test_secrets_are_masked_for_a_token_and_not_for_the_owner(shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["read"], sessionKey=fresh)["token"]
    with SUBSCRIBED_CONNECTIONS["ndjson"](shared) as owner, SUBSCRIBED_CONNECTIONS["ndjson"](shared, token) as other:
        for hearing in (owner, other):
            hearing.call("sessions.messages.subscribe", key=fresh)
        inject_text(shared, fresh, "password=hunter2hunter2")
        assert owner.next_texts(1) == ["password=hunter2hunter2"]
        assert "hunter2" not in other.next_texts(1)[0]
