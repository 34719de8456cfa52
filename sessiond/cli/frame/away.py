"""Say that another machine is not reached just now, so that nobody waits for its reply without knowing it."""

from __future__ import annotations

from contextlib import suppress

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.times import clock, now_ms
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client


def note_away(client: Client, key: str) -> None:
    """A remark where the session of ours, or the agent, writes to a machine that does not get it now.

    Asked of the daemon for such sessions alone; a caller that may not list agents goes without.
    """
    machine = machine_behind(key)
    if machine is None:
        return
    with suppress(ClientError):
        agents = client.call("agents_list", timeout_s=CALL_TIMEOUT_S)["agents"]
        words = next((describe(one) for one in agents if one["id"] == machine and one.get("machine")), None)
        if words is not None:
            note(words)


def machine_behind(key: str) -> str | None:
    """The machine to which messages to the session may go: `mars` of `mars/main`, `agent:mars:mars/main` and
    `agent:mars:subagent:<uuid>`, where `mars` may be an agent here as well.
    """
    if not key.startswith("agent:"):
        machine, slash, _ = key.partition("/")
        return machine.strip().lower() if slash else None
    agent, _, rest = key.removeprefix("agent:").partition(":")
    return agent if rest.startswith((f"{agent}/", "subagent:")) else None


def describe(agent: dict[str, Any]) -> str | None:
    """Why the machine that the agent stands for gets nothing now; None where it is there."""
    machine = one_line(agent["id"])
    if not agent.get("attached"):
        return f"no link runs here: {machine} gets it when one does (sessiond link run)"
    if agent.get("awaySince") is None:
        return None
    since = clock(agent["awaySince"], now_ms())
    return f"{machine} is away since {since}: it gets it when it is back (sessiond link status)"
