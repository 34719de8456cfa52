"""`sessions.kill`: abort the runs of a session and of everything it spawned, at any depth."""

from __future__ import annotations

from typing import Annotated

from sessiond.errors import StorageError
from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context, Services
from sessiond.rpc.method import Method
from sessiond.store.catalog import Session


class SessionsKillParams(Params, frozen=True, kw_only=True):
    key: SessionName


class SessionsKillResult(Result, frozen=True, kw_only=True):
    killed: Annotated[bool, says("Whether a run was aborted.")]
    run_ids: Annotated[list[str], says("The runs that were aborted, of the session and of its descendants.")]


async def handle(ctx: Context, params: SessionsKillParams) -> SessionsKillResult:
    session = ctx.services.find(ctx.caller, params.key, field="$.key", action="send")
    run_ids = await kill(ctx.services, session)
    return SessionsKillResult(killed=bool(run_ids), run_ids=run_ids)


async def kill(services: Services, root: Session) -> list[str]:
    """Abort every run of the tree, parents first so that none of them spawns meanwhile.

    StorageError if the disk refuses the end of one of them; all have been stopped nevertheless.
    """
    refusal: StorageError | None = None
    catalog = services.store.catalog
    run_ids: list[str] = []
    seen: set[str] = set()
    level = [root.key]
    while level:
        seen.update(level)
        for key in level:
            session = catalog.by_key.get(key)
            if session is not None:
                try:
                    run_ids += await services.supervisor.stop(session)
                except StorageError as error:
                    refusal = error
            # After this each child that was being created exists, and is found below, or never will.
            await services.spawner.pending_children.cancel(key)
        level = [child for key in level for child in catalog.children_of(key) if child not in seen]
    if refusal is not None:
        raise refusal
    return run_ids


METHOD = Method(
    "sessions.kill",
    "admin",
    SessionsKillParams,
    SessionsKillResult,
    handle,
    "Abort the runs of a session and of all its descendants.",
)
