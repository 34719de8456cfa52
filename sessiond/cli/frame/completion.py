"""What the shell offers for a key or an agent: asked of the daemon, silently nothing where there is none."""

from __future__ import annotations

from sessiond.client.blocking import Client
from sessiond.client.errors import ClientError

# Somebody holds the TAB key: late is as bad as nothing.
TIMEOUT_S = 0.5


def offers(source: str | None) -> list[str]:
    """The words for `source`: `key`, `inbox`, `agent` or `method`."""
    try:
        with Client(name="sessiond-completion") as client:
            if source in ("key", "inbox"):
                asked = {"limit": 200, **({"search": ":mcp:"} if source == "inbox" else {})}
                rows = client.call("sessions_list", asked, timeout_s=TIMEOUT_S)["sessions"]
                return [row["key"] for row in rows]
            if source == "agent":
                return [agent["id"] for agent in client.call("agents_list", timeout_s=TIMEOUT_S)["agents"]]
            if source == "method":
                return [method["name"] for method in client.call("rpc.discover", timeout_s=TIMEOUT_S)["methods"]]
    except (ClientError, OSError):
        pass
    return []
