"""Say that another machine, or the program of an agent, is not there just now: nobody waits without knowing it."""

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
    """A remark where a message to the session of ours goes to a machine, or a program, that does not get it now.

    A caller that may not list agents goes without. To ask takes less than a hundredth of the start of this program.
    """
    machine = machine_behind(key)
    with suppress(ClientError):
        found = client.call("agents_list", timeout_s=CALL_TIMEOUT_S)
        name = machine or _find_agent(key, found["requester"])
        agent = next((one for one in found["agents"] if one["id"] == name), None)
        if agent is None:
            return
        words = _describe_unattached(agent) if machine is None or not agent.get("machine") else describe(agent)
        if words is not None:
            note(words)


def _find_agent(key: str, own: str) -> str | None:
    """The agent that a message to the session is for; None where the key does not say it, as that of another program
    or the id of a session.
    """
    key = key.strip().lower()
    return key.split(":")[1] if key.startswith("agent:") else own if key == "main" else None


def is_unattached(agent: dict[str, Any]) -> bool:
    """Whether the agent is a program that is not connected, so that its runs do not begin."""
    return agent["runtime"] == "attached" and not agent.get("attached")


def _describe_unattached(agent: dict[str, Any]) -> str | None:
    if not is_unattached(agent):
        return None
    name = one_line(agent["id"])
    return f"no program is attached as {name}: the message waits some minutes for one (sessiond agents)"


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
