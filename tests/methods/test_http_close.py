"""`http.close` over every transport."""

from __future__ import annotations

from pathlib import Path

from support.in_process import in_process_daemon
from support.method_calls import Call
from support.owner_page import open_page
from support.real_daemon import Daemon


def test_it_ends_the_pages_and_their_port(call: Call, shared: Daemon) -> None:
    shared.call("http.close")
    page = open_page(shared)
    with page.events() as events:
        assert next(events) == ("ready", {})
        assert call("http.close") == {"revoked": 1, "closed": True}
        assert list(events) == []
    assert call("http.close") == {"revoked": 0, "closed": False}


async def test_a_daemon_without_listeners_says_that_it_serves_no_http(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as parts, parts.connect() as owner:
        for method, params in (("http.open", {"scopes": ["list"]}), ("http.close", {})):
            assert (await owner.failure(method, **params))["data"]["type"] == "unsupported"
