"""`http.open`: an address for the owner's page, and a one-time code that it trades for a token."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sessiond.errors import Forbidden, Unsupported
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.model.caller import Scope
from sessiond.ranges import PAGE_TTL_S
from sessiond.rpc.method import Method
from sessiond.sessions.page_access import CODE_S, PageListener


class HttpOpenParams(Params, frozen=True, kw_only=True):
    scopes: Annotated[
        list[Annotated[Scope, says("A scope.")]],
        Meta(min_length=1),
        says("The scopes of the token for which the page trades the code."),
    ]
    ttl_seconds: Annotated[int, clamp_to(PAGE_TTL_S, "The lifetime of that token in seconds.", null=False)] = (
        PAGE_TTL_S.default
    )


class HttpOpenResult(Result, frozen=True, kw_only=True):
    address: Annotated[str, says("Where the page is: `http://127.0.0.1:PORT/`.")]
    code: Annotated[str, says("The code, for the fragment of the address. It can be traded once.")]
    code_seconds: Annotated[int, says("How many seconds the code lasts.")]


def handle(ctx: Context, params: HttpOpenParams) -> HttpOpenResult:
    listener = require_owner(ctx, METHOD.name)
    services = ctx.services
    address = listener.open(services.clock.wall_ms() + (params.ttl_seconds + CODE_S) * 1000)
    code = services.page.issue_code(frozenset(params.scopes), params.ttl_seconds)
    return HttpOpenResult(address=address, code=code, code_seconds=CODE_S)


def require_owner(ctx: Context, method: str) -> PageListener:
    """What opens and closes the page's port. Forbidden for callers with a token: the page stands in for the owner."""
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{method}` is for the owner, on the owner's socket and without a token.")
    listener = ctx.services.page.listener
    if listener is None:
        raise Unsupported("This daemon serves no HTTP.")
    return listener


METHOD = Method(
    "http.open", "admin", HttpOpenParams, HttpOpenResult, handle, "Open the owner's page: its address and a code."
)
