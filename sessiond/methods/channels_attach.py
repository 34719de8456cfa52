"""`channels.attach`: this connection delivers for a channel from now on. Source: runs.md, "Channels and delivery"."""

from __future__ import annotations

from typing import Any

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.agents_attach import ask
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context, Services
from sessiond.model.keys import AGENT_ID
from sessiond.rpc.method import Method
from sessiond.rpc.peer import Peer
from sessiond.sessions import resolve

MAX_ACCOUNT_CHARS = 512


class ChannelsAttachParams(Params, frozen=True, kw_only=True):
    channel: str
    account_id: str | None = None
    threads: bool = False


class ChannelsAttachResult(Result, frozen=True, kw_only=True):
    channel: str
    attached: bool


class PeerAdapter:
    """A peer as `runs/channels.py` sees it."""

    def __init__(self, peer: Peer, services: Services, account_id: str | None, *, threads: bool) -> None:
        self.connection = peer
        self._services = services
        self.account_id = account_id
        self.threads = threads

    def serves(self, session_key: str) -> bool:
        # Asked for each delivery, as for each event: the connection may have shown another token since.
        services, caller = self._services, self.connection.caller
        alive = not services.tokens.is_dead(caller)
        return alive and resolve.reaches(services.store.catalog, services.sight_of(caller), session_key)

    async def ask(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        return await ask(self.connection, method, params, timeout_s=timeout_s)


def handle(ctx: Context, params: ChannelsAttachParams) -> ChannelsAttachResult:
    channels = ctx.services.channels
    # The newest adapter gets what every session says on the channel: whoever may not see it would take it away.
    if not ctx.services.sight_of(ctx.caller).unlimited:
        raise Forbidden("attaching a channel needs the scope `admin` and sight of all sessions; this one is narrowed.")
    # Channels are parts of session keys, which are lower case.
    channel = params.channel.strip().lower()
    if not AGENT_ID.fullmatch(channel) or channel == "unknown":
        raise InvalidParams("`$.channel` is no channel: names match [a-z0-9][a-z0-9_-]{0,63}.", field="$.channel")
    account = params.account_id
    if account is not None and not (1 <= len(account) <= MAX_ACCOUNT_CHARS and account.isprintable()):
        raise InvalidParams(f"`$.accountId` has 1 to {MAX_ACCOUNT_CHARS} printable characters.", field="$.accountId")
    channels.attach(channel, PeerAdapter(ctx.peer, ctx.services, account, threads=params.threads))
    ctx.peer.on_close(lambda: channels.detach(ctx.peer))
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
