"""`tokens.list`: metadata of the issued tokens of visible sessions, newest first. Never the tokens themselves."""

from __future__ import annotations

from typing import Annotated

from sessiond.auth.tokenlog import TokenRow
from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class TokensListResult(Result, frozen=True, kw_only=True):
    tokens: Annotated[list[TokenRow], says("The tokens, newest first.")]


def handle(ctx: Context, params: NoParams) -> TokensListResult:  # noqa: ARG001
    services = ctx.services
    rows = services.tokens.rows()
    return TokensListResult(tokens=[row for row in rows if services.sees_token_of(ctx.caller, row)])


METHOD = Method("tokens.list", "admin", NoParams, TokensListResult, handle, "List the tokens that were issued.")
