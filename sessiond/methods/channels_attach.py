"""`channels.attach`: deliver for a channel on this connection. Source: runs.md, "Channels and delivery"."""

from __future__ import annotations

from typing import Annotated, Any

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.agents_attach import ask
from sessiond.methods.params import Params, Result, check_by, says
from sessiond.methods.services import Context, Services
from sessiond.model.keys import AGENT_ID
from sessiond.rpc.method import Method
from sessiond.rpc.peer import Peer
from sessiond.sessions import resolve

MAX_ACCOUNT_CHARS = 512


def check_channel(text: str, field: str) -> str:
    """The name of a channel; InvalidParams where it is none. Names are parts of session keys, which are lower case."""
    channel = text.strip().lower()
    if not AGENT_ID.fullmatch(channel) or channel == "unknown":
        raise InvalidParams(f"`{field}` is no channel: names match {AGENT_ID.pattern}.", field=field)
    return channel


def check_account(text: str, field: str) -> None:
    """InvalidParams where a text is no account's id."""
    if not (1 <= len(text) <= MAX_ACCOUNT_CHARS and text.isprintable()):
        raise InvalidParams(f"`{field}` has 1 to {MAX_ACCOUNT_CHARS} printable characters.", field=field)


class ChannelsAttachParams(Params, frozen=True, kw_only=True):
    channel: Annotated[
        str,
        check_by(check_channel, f"`{AGENT_ID.pattern}`, not `unknown`"),
        says("The channel to deliver for on this connection, such as `telegram`."),
    ]
    account_id: Annotated[
        Annotated[
            str,
            check_by(
                check_account,
                "printable",
                minLength=1,
                maxLength=MAX_ACCOUNT_CHARS,
            ),
        ]
        | None,
        says("The account on the channel through which it delivers.", default="every account"),
    ] = None
    threads: Annotated[bool, says("Whether it can bind a session to a thread of the channel.")] = False


class ChannelsAttachResult(Result, frozen=True, kw_only=True):
    channel: Annotated[str, says("The channel, in lower case.")]
    attached: Annotated[bool, says("Always true.")]


class PeerAdapter:
    """A peer as `delivery/channels.py` uses it."""

    def __init__(self, peer: Peer, services: Services, account_id: str | None, *, threads: bool) -> None:
        self.connection = peer
        self._services = services
        self.account_id = account_id
        self.threads = threads

    def serves(self, session_key: str) -> bool:
        # Checked for each delivery, because the connection may have presented another token since.
        services, caller = self._services, self.connection.caller
        alive = not services.tokens.is_dead(caller)
        return alive and resolve.reaches(services.store.catalog, services.sight_of(caller), session_key)

    async def ask(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        return await ask(self.connection, method, params, timeout_s=timeout_s)


def handle(ctx: Context, params: ChannelsAttachParams) -> ChannelsAttachResult:
    channels = ctx.services.channels
    # The newest adapter gets the texts of all sessions on the channel, so its caller has to be allowed to see them all.
    if not ctx.services.sight_of(ctx.caller).unlimited:
        raise Forbidden("attaching a channel needs the scope `admin` and sight of all sessions; this one is narrowed.")
    channel, peer = check_channel(params.channel, "$.channel"), ctx.require_peer()
    channels.attach(channel, PeerAdapter(peer, ctx.services, params.account_id, threads=params.threads))
    peer.on_close(lambda: channels.detach(peer))
    return ChannelsAttachResult(channel=channel, attached=True)


METHOD = Method(
    "channels.attach",
    "admin",
    ChannelsAttachParams,
    ChannelsAttachResult,
    handle,
    "Deliver for a channel on this connection: texts come as `channel.deliver` requests.",
    streams=True,
)
