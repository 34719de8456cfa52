"""`tokens.revoke`: revoke a token and close the connections that use it."""

from __future__ import annotations

import re
from typing import Annotated

from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method

_ID = re.compile(r"[0-9a-f]{32}")


class TokensRevokeParams(Params, frozen=True, kw_only=True):
    id: Annotated[str | None, says("The token's id. Give this or `token`.")] = None
    token: Annotated[str | None, says("The token itself, instead of `id`.")] = None


class TokensRevokeResult(Result, frozen=True, kw_only=True):
    revoked: Annotated[bool, says("False if it was revoked already.")]


async def handle(ctx: Context, params: TokensRevokeParams) -> TokensRevokeResult:
    if (params.id is None) == (params.token is None):
        raise InvalidParams("Give exactly one of `$.id` and `$.token`.", field="$.id")
    services, caller = ctx.services, ctx.caller
    # Whoever has the token itself may revoke it. By its id it may be revoked by callers who may see its session.
    if params.id is not None and not services.sight_of(caller).unlimited:
        rows = [row for row in services.tokens.rows() if row.id == params.id and services.sees_token_of(caller, row)]
        if not rows and _ID.fullmatch(params.id):
            raise NotFound(f"no token has the id {quote(params.id[:32])}; `tokens.list` shows the tokens there are")
    return TokensRevokeResult(revoked=await services.tokens.revoke(token_id=params.id, text=params.token))


METHOD = Method("tokens.revoke", "admin", TokensRevokeParams, TokensRevokeResult, handle, "Revoke a token.")
