"""`http.open` over every transport."""

from __future__ import annotations

import pytest
from support.method_calls import Call, CallFailed
from support.owner_page import trade
from support.real_daemon import Daemon
from support.rows import check_each


def test_it_gives_an_address_and_a_code_for_the_scopes(call: Call) -> None:
    opened = call("http.open", scopes=["list"])
    assert opened.keys() == {"address", "code", "codeSeconds"}
    assert trade(opened["address"], opened["code"]).json()["scopes"] == ["list"]


@check_each("scopes", [[], ["all"], ["list", "nothing"], "list", None])
def test_scopes_that_are_none_are_refused(shared: Daemon, scopes: object) -> None:
    assert shared.failure("http.open", scopes=scopes)["data"]["type"] == "invalid_params"


def test_it_is_for_the_owner_alone(call: Call, shared: Daemon) -> None:
    token = shared.call("tokens.mint", scopes=["admin"])["token"]
    for method, params in (("http.open", {"scopes": ["list"]}), ("http.close", {})):
        with pytest.raises(CallFailed) as caught:
            call(method, by=token, **params)
        assert caught.value.error["data"]["type"] == "forbidden"
