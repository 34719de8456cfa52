"""`sessions.prune`: which archived transcripts are older than an age; with `confirm` they are removed, for good."""

from __future__ import annotations

from sessiond.errors import InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.model.lax import MAX_MS
from sessiond.rpc.method import Method
from sessiond.sessions import prune
from sessiond.sessions.resolve import reaches
from sessiond.store.catalog import Session


class SessionsPruneParams(Params, frozen=True, kw_only=True):
    older_than_ms: float
    confirm: bool = False


class PrunedTranscript(Result, frozen=True, kw_only=True):
    key: str
    session_id: str
    path: str
    bytes: int
    updated_at: int


class KeptTranscript(Result, frozen=True, kw_only=True):
    path: str
    reason: str


class SessionsPruneResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    """Without `confirm`, `removed` is what would be removed."""

    confirmed: bool
    removed: list[PrunedTranscript]
    bytes: int
    skipped: list[KeptTranscript]


async def handle(ctx: Context, params: SessionsPruneParams) -> SessionsPruneResult:
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller, "send")
    if not 0 <= params.older_than_ms <= MAX_MS:
        raise InvalidParams("`$.olderThanMs` is no age in milliseconds.", field="$.olderThanMs")
    visible = [session for session in catalog.by_id.values() if reaches(catalog, sight, session.key)]
    chosen = prune.old(visible, int(params.older_than_ms), services.clock.wall_ms())
    if not params.confirm:
        return _result(ctx, [one.session for one in chosen], [], confirmed=False)
    removal = prune.Removal(chosen)
    try:
        await services.slices.run(removal.steps())
    finally:
        # Also where the caller went away in the middle: what is gone is gone.
        prune.forget(services.store, removal.removed)
        services.feed.changed.set()
    return _result(ctx, removal.removed, removal.kept, confirmed=True)


def _result(
    ctx: Context, removed: list[Session], kept: list[tuple[Session, str]], *, confirmed: bool
) -> SessionsPruneResult:
    root = ctx.services.store.path
    rows = [
        PrunedTranscript(
            key=session.key,
            session_id=session.session_id,
            path=str(root / session.path),
            bytes=session.entry.file.bytes,
            updated_at=session.entry.updated_at,
        )
        for session in removed
    ]
    return SessionsPruneResult(
        confirmed=confirmed,
        removed=rows,
        bytes=sum(row.bytes for row in rows),
        skipped=[KeptTranscript(path=str(root / session.path), reason=reason) for session, reason in kept],
    )


METHOD = Method(
    "sessions.prune",
    "admin",
    SessionsPruneParams,
    SessionsPruneResult,
    handle,
    "Show old archived transcripts; with `confirm`, remove them.",
)
