"""`tokens.revoke`: end a token for good; what its holders follow ends at once."""

from __future__ import annotations

from sessiond.errors import InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class TokensRevokeParams(Params, frozen=True, kw_only=True):
    id: str | None = None
    token: str | None = None


class TokensRevokeResult(Result, frozen=True, kw_only=True):
    revoked: bool


async def handle(ctx: Context, params: TokensRevokeParams) -> TokensRevokeResult:
    if (params.id is None) == (params.token is None):
        raise InvalidParams("Give exactly one of `$.id` and `$.token`.", field="$.id")
    return TokensRevokeResult(revoked=await ctx.services.tokens.revoke(token_id=params.id, text=params.token))


METHOD = Method("tokens.revoke", "admin", TokensRevokeParams, TokensRevokeResult, handle, "End a token.")
