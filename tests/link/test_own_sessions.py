"""What is known of this machine's own sessions, by which rules decide what leaves it."""

from __future__ import annotations

from typing import Any

from support.link_stand_ins import run_until

from sessiond.link.own_sessions import OwnSessions


class Lists:
    """A daemon whose default agent, and so whose `main`, may be another one after a restart."""

    def __init__(self, *keys: str) -> None:
        self.keys, self.default = keys, "ops"

    async def current_link(self) -> None:
        raise AssertionError

    async def call(self, method: str, params: Any = None, /, **more: Any) -> Any:
        main = f"agent:{self.default}:main"
        if method == "sessions.resolve":
            return {"key": params["sessionId"].replace("_", ":")}
        return {
            "sessions": [
                {"source": "sessiond", "sessionId": key.replace(":", "_"), "key": "main" if key == main else key}
                for key in self.keys
            ]
        }


def test_with_another_default_agent_no_session_passes_for_one_of_the_agent_before() -> None:
    async def body() -> None:
        daemon = Lists("agent:ops:main", "agent:secret:main")
        sessions = OwnSessions(daemon, lambda session: None)
        for daemon.default in ("ops", "secret", "ops", "none"):
            await sessions.list_all()
            assert {one.key for one in sessions.all.values()} == set(daemon.keys)
            assert all(one.session == one.key.replace(":", "_") for one in sessions.all.values())

    run_until(body)
