"""Why nothing comes of what another machine asks for, in sentences for the people there, who may never have seen the
configuration here. They say the same whether there is such a session or not.
"""

from __future__ import annotations

from sessiond.client.errors import RpcError
from sessiond.config.link import PeerConfig
from sessiond.errors import quote
from sessiond.link.command_wire import MachineCommand


def why_refused(here: str, sender: str, peer: PeerConfig | None, command: MachineCommand) -> str | None:
    """Why the configuration of this machine lets the sender do nothing of the kind; None where the daemon decides.

    Read on the sender's machine, by people who may never have seen the configuration here.
    """
    if peer is None:
        return f"{here} does not know {sender} any more; who is to send there again has to be in its [[link.peers]]"
    table = f'what has to be added on {here}, to the [[link.peers]] table with name = "{sender}", is for example'
    if command.method == "abort" and not (peer.send or peer.spawn):
        return f'{sender} may do nothing on {here}; {table}: send = ["agent:ops:*"]'
    if command.method == "send" and not peer.send:
        return f'nobody on {sender} may send to sessions on {here}; {table}: send = ["agent:ops:*"]'
    if command.method == "spawn" and not peer.spawn:
        return f'nobody on {sender} may spawn agents on {here}; {table}: spawn = ["ops"]'
    return None


def why_not_found(here: str, sender: str, target: str, error: RpcError) -> str:
    """Why nothing was sent, in the same words whether there is such a session: for people on the sender's machine, whom
    the daemon's own words would send to a list of theirs.
    """
    if error.reason != "session_not_found":
        return error.message
    return (
        f"no session {quote(target)} to which {sender} may send; which ones it may is said on {here} by send in the"
        f' [[link.peers]] table with name = "{sender}"'
    )
