"""`sessions.prune`: list archived transcripts over a given age; with `confirm` remove them for good."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.model.lax import MAX_MS
from sessiond.rpc.method import Method
from sessiond.sessions import prune
from sessiond.sessions.resolve import reaches
from sessiond.store.catalog import Session


class SessionsPruneParams(Params, frozen=True, kw_only=True):
    older_than_ms: Annotated[
        float,
        Meta(ge=0, le=MAX_MS),
        says("Only transcripts that were last written to more than so many milliseconds ago."),
    ]
    confirm: Annotated[bool, says("Whether to remove them for good.")] = False


class PrunedTranscript(Result, frozen=True, kw_only=True):
    """An archived transcript over the given age."""

    key: Annotated[str, says("The canonical key that the session had.")]
    session_id: Annotated[str, says("Its id.")]
    path: Annotated[str, says("The path of its file.")]
    bytes: Annotated[int, says("Its size in bytes.")]
    updated_at: Annotated[int, says("When its newest message was, in milliseconds since 1970.")]


class KeptTranscript(Result, frozen=True, kw_only=True):
    """An archived transcript that could not be removed."""

    path: Annotated[str, says("The path of its file.")]
    reason: Annotated[str, says("Why it was not removed, in a few words.")]


class SessionsPruneResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    confirmed: Annotated[bool, says("Whether anything was removed.")]
    removed: Annotated[
        list[PrunedTranscript], says("The removed transcripts; without `confirm` those that would be removed.")
    ]
    bytes: Annotated[int, says("Their total size in bytes.")]
    skipped: Annotated[list[KeptTranscript], says("Transcripts that could not be removed.")]


async def handle(ctx: Context, params: SessionsPruneParams) -> SessionsPruneResult:
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller, "send")
    # The archive has no session that attends one of another program.
    own = [session for session in catalog.by_id.values() if session.entry.attends is None]
    visible = [session for session in own if reaches(catalog, sight, session.key)]
    chosen = prune.find_old(visible, int(params.older_than_ms), services.clock.wall_ms())
    if not params.confirm:
        return _result(ctx, [one.session for one in chosen], [], confirmed=False)
    removal = prune.Removal(chosen)
    try:
        await services.time_slicer.run(removal.steps())
    finally:
        # Also after a cancellation: some transcripts may have been removed already.
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
