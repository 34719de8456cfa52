"""`sessions.resolve` over every transport."""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


def test_a_key_an_id_and_a_label_resolve_to_the_same_session(call: Call, shared: Daemon) -> None:
    label = f"label {uuid4()}"
    made = shared.call("sessions.create", label=label)
    wanted = {"key": made["key"], "sessionId": made["sessionId"]}
    assert call("sessions.resolve", key=f"  {made['key'].upper()} ") == wanted
    assert call("sessions.resolve", sessionId=made["sessionId"]) == wanted
    assert call("sessions.resolve", key=made["sessionId"]) == wanted
    assert call("sessions.resolve", label=label) == wanted


@check_each("params", [{}, {"key": "main", "label": "x"}])
def test_exactly_one_of_key_id_and_label_must_be_given(call: Call, params: dict[str, str]) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sessions.resolve", **params)
    assert failed.value.error["code"] == -32602


@check_each(
    ("key", "code"),
    [
        ("agent:main", -32602),
        ("agent::x", -32602),
        ("agent:BAD ID:x", -32602),
        ("a\nb", -32602),
        ("", -32602),
        ("x" * 513, -32602),
        ("x" * 512, -32002),
        ("nobody-knows", -32002),
        ("current", -32602),
        ("../../etc/passwd", -32002),
        ("agent:main:../../x", -32002),
    ],
)
def test_names_of_no_session_are_refused_as_documented(call: Call, key: str, code: int) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sessions.resolve", key=key)
    assert failed.value.error["code"] == code


def test_an_alias_gives_no_access_that_the_key_does_not_give(call: Call, shared: Daemon, fresh: str) -> None:
    shared.reply("main", "hello")
    row = shared.call("sessions.resolve", key="main")
    token = shared.call("tokens.mint", scopes=["list"], sessionKey=fresh)["token"]
    for alias in ("main", "MAIN", " main ", "agent:main:main", row["sessionId"], row["sessionId"].upper()):
        with pytest.raises(CallFailed) as failed:
            call("sessions.resolve", by=token, key=alias)
        assert failed.value.error["code"] == -32002
    assert call("sessions.resolve", by=token, key="current")["key"] == fresh
