"""`tokens.mint`: a new token for a session or an agent, with scopes and a lifetime."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sessiond.errors import Forbidden, InvalidParams, quote
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.model.caller import RUN_SCOPES, SCOPES
from sessiond.model.keys import AGENT_ID, agent_of, canonical_key, is_foreign
from sessiond.policy import visibility
from sessiond.ranges import TOKEN_TTL_S
from sessiond.rpc.method import Method
from sessiond.sessions import resolve


class TokensMintParams(Params, frozen=True, kw_only=True):
    scopes: Annotated[
        list[Annotated[str, says("A scope.", enum=list(SCOPES))]],
        Meta(min_length=1),
        says("The scopes of the token."),
    ]
    session_key: Annotated[str | None, says("The session that it acts as.")] = None
    agent_id: Annotated[str | None, says("The agent that it belongs to.", takes=f"`{AGENT_ID.pattern}`")] = None
    sandboxed: Annotated[bool, says("Whether its holder is sandboxed, and sees at most its own tree of sessions.")] = (
        False
    )
    ttl_seconds: Annotated[int, clamp_to(TOKEN_TTL_S, "Its lifetime in seconds.", null=False)] = TOKEN_TTL_S.default


class TokensMintResult(Result, frozen=True, kw_only=True):
    token: Annotated[str, says("The token; it cannot be shown again.")]
    id: Annotated[str, says("Its id, for tokens.revoke.")]
    expires_at: Annotated[int, says("When it expires, in milliseconds since 1970.")]


async def handle(ctx: Context, params: TokensMintParams) -> TokensMintResult:
    services = ctx.services
    # `admin` implies every other scope.
    lacking = [scope for scope in params.scopes if scope == "answer" and not ctx.caller.has(scope)]
    if lacking:
        raise Forbidden("a token gets the scope `answer` from a caller only that has it itself", code="token_wider")
    key = None
    if params.session_key is not None:
        # The session need not exist yet: a token may be minted before its first message.
        key = resolve.key_of(services.store.catalog, ctx.caller, services.rules, params.session_key)
        if key is None:
            key = services.find(ctx.caller, params.session_key).key
        _refuse_foreign(ctx, params.session_key, key)
    wider = [scope for scope in params.scopes if scope not in RUN_SCOPES]
    if wider and services.config.machine(agent_of(key) if key is not None else params.agent_id or "") is not None:
        raise Forbidden(
            f"a token of another machine has the scopes {', '.join(sorted(RUN_SCOPES))} at most, not {wider[0]}",
            code="token_wider",
        )
    catalog = services.store.catalog
    visibility.check_mint(
        ctx.caller,
        session_key=key,
        agent_id=params.agent_id,
        sandboxed=params.sandboxed,
        rules=services.visibility_rules,
        spawner_of=lambda target: resolve.spawner_of(catalog, target),
    )
    text, claims = await services.tokens.mint(
        scopes=frozenset(params.scopes),
        session_key=key,
        agent_id=params.agent_id,
        sandboxed=params.sandboxed,
        ttl_seconds=_limit_lifetime(ctx, params.ttl_seconds),
        parent=ctx.caller.token_id,
        run_id=ctx.caller.run_id,
    )
    return TokensMintResult(token=text, id=claims.id, expires_at=claims.expires_at_ms)


def _refuse_foreign(ctx: Context, text: str, key: str) -> None:
    """InvalidParams for the session of another program: nobody acts as that.

    So too for the key of one that is shown as a session of ours which the caller may not see.
    """
    services = ctx.services
    written = canonical_key(text, services.rules, agent_id=ctx.caller.agent_id) or key
    if is_foreign(key) or (is_foreign(written) and not services.sees(ctx.caller)(key)):
        raise InvalidParams(
            f"`$.sessionKey`: {quote(written)} is a session of another program; a token acts as a session of sessiond.",
            field="$.sessionKey",
        )


def _limit_lifetime(ctx: Context, ttl_s: float) -> float:
    """The lifetime, cut to that of the caller's own token, which would not expire in effect otherwise."""
    ends_ms = ctx.caller.expires_at_ms
    return ttl_s if ends_ms is None else min(ttl_s, (ends_ms - ctx.services.clock.wall_ms()) / 1000)


METHOD = Method("tokens.mint", "admin", TokensMintParams, TokensMintResult, handle, "Mint a token.")
