"""`initialize`: the client introduces itself and may present a token, which can only narrow its rights."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sessiond.errors import InvalidParams, Unauthenticated
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.model.caller import NOBODY
from sessiond.rpc.method import Method

PROTOCOLS = (1,)


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Name and version of the client or of the daemon."""

    name: Annotated[str, says("Its name.")]
    version: Annotated[str, says("Its version.")] = ""


class InitializeParams(Params, frozen=True, kw_only=True):
    protocol: Annotated[int, says("The version of the protocol that the client speaks.", enum=list(PROTOCOLS))]
    client: Annotated[ClientInfo, says("Name and version of the client.")]
    token: Annotated[
        str | None,
        says("A token: the connection gets its identity and scopes.", default="the owner, on the owner's socket"),
    ] = None


class CallerInfo(Result, frozen=True, kw_only=True):
    """The identity that the connection has now."""

    session_key: Annotated[str | None, says("The session that the connection acts as.")] = None
    agent_id: Annotated[str | None, says("The agent that it belongs to.")] = None
    sandboxed: Annotated[bool, says("Whether the caller is sandboxed, and sees at most its own tree of sessions.")]
    scopes: Annotated[list[str], says("Its scopes: some of list, read, send, spawn, answer and admin.")]


class InitializeResult(Result, frozen=True, kw_only=True):
    protocol: Annotated[int, says("The version of the protocol that is used.")]
    server: Annotated[ClientInfo, says("Name and version of the daemon.")]
    caller: Annotated[CallerInfo, says("The identity of the connection.")]
    limits: Annotated[
        dict[str, Any], says("The limits of the connection: bytes of a frame and of a record, and counts.")
    ]


def handle(ctx: Context, params: InitializeParams) -> InitializeResult:
    services, peer = ctx.services, ctx.require_peer()
    if params.protocol not in PROTOCOLS:
        raise InvalidParams(
            f"`$.protocol`: this daemon speaks {', '.join(map(str, PROTOCOLS))}, not {params.protocol}.",
            field="$.protocol",
            supported=list(PROTOCOLS),
        )
    if params.token is not None:
        # If the token is invalid, the client is not authenticated any more, not even on the owner's socket.
        peer.caller = NOBODY
        peer.caller = services.tokens.caller(params.token)
        services.channels.renew(peer)
    elif peer.caller.kind == "nobody":
        raise Unauthenticated("This socket needs a token; `sessiond token mint` makes one.")
    peer.client_name = params.client.name
    caller, limits = peer.caller, services.config.limits
    return InitializeResult(
        protocol=params.protocol,
        server=ClientInfo(name="sessiond", version=services.version),
        caller=CallerInfo(
            session_key=caller.session_key,
            agent_id=caller.agent_id,
            sandboxed=caller.sandboxed,
            scopes=sorted(caller.scopes),
        ),
        limits={
            "maxFrameBytes": limits.max_frame_bytes,
            "maxRecordBytes": limits.max_record_bytes,
            "maxNesting": limits.max_nesting,
            "maxInFlight": limits.max_in_flight,
            "maxQueuedEvents": limits.max_queued_events,
        },
    )


METHOD = Method(
    "initialize",
    None,
    InitializeParams,
    InitializeResult,
    handle,
    "Introduce the client, and present a token.",
    before_auth=True,
    before_ready=True,
)
