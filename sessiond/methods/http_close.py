"""`http.close`: end every page of the owner, and the port that was opened for them."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.http_open import require_owner
from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class HttpCloseResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    revoked: Annotated[int, says("How many tokens of pages were revoked.")]
    closed: Annotated[bool, says("Whether a port was closed; one of the configuration stays open.")]


async def handle(ctx: Context, params: NoParams) -> HttpCloseResult:  # noqa: ARG001
    listener = require_owner(ctx, METHOD.name)
    revoked = await ctx.services.page.close()
    return HttpCloseResult(revoked=revoked, closed=listener.close())


METHOD = Method(
    "http.close", "admin", NoParams, HttpCloseResult, handle, "End the owner's pages, and the port opened for them."
)
