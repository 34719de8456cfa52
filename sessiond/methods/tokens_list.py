"""`tokens.list`: the tokens issued, newest first; never the tokens themselves."""

from __future__ import annotations

from sessiond.auth.tokenlog import TokenRow
from sessiond.methods.params import NoParams, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class TokensListResult(Result, frozen=True, kw_only=True):
    tokens: list[TokenRow]


def handle(ctx: Context, params: NoParams) -> TokensListResult:  # noqa: ARG001
    return TokensListResult(tokens=ctx.services.tokens.rows())


METHOD = Method("tokens.list", "admin", NoParams, TokensListResult, handle, "List the tokens that were issued.")
