"""`sessions.import`: the sessions of an OpenClaw state folder, copied into this store."""

from __future__ import annotations

import os

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.sessions import importing
from sessiond.store import dirfd


class SessionsImportParams(Params, frozen=True, kw_only=True):
    """`path` is the state folder, absolute."""

    path: str


class ImportedRow(Result, frozen=True, kw_only=True):
    """`path` is relative to the source."""

    key: str
    session_id: str
    messages: int
    archived: bool
    path: str


class SkippedRow(Result, frozen=True, kw_only=True):
    path: str
    reason: str


class SessionsImportResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    imported: list[ImportedRow]
    skipped: list[SkippedRow]


async def handle(ctx: Context, params: SessionsImportParams) -> SessionsImportResult:
    services = ctx.services
    # It reads a folder of the owner's and makes sessions of any agent.
    if not services.sight_of(ctx.caller).unlimited:
        raise Forbidden("`sessions.import` is for the owner: this token is narrowed to sessions of its own.")
    if not os.path.isabs(params.path) or "\0" in params.path:
        raise InvalidParams("`$.path` is no absolute path.", field="$.path")
    try:
        root_fd = dirfd.open_root(params.path)
    except OSError as error:
        raise InvalidParams(f"`$.path` cannot be opened: {error.strerror}.", field="$.path") from None
    with dirfd.closing(root_fd):
        async with services.births.alone("import"):
            imported, skipped = await importing.openclaw_folder(services.store, services.feed, services.slices, root_fd)
    return SessionsImportResult(
        imported=[
            ImportedRow(
                key=one.session.key,
                session_id=one.session.session_id,
                messages=one.session.entry.message_count,
                archived=one.session.archived,
                path=one.path,
            )
            for one in imported
        ],
        skipped=[SkippedRow(path=one.path, reason=one.reason) for one in skipped],
    )


METHOD = Method(
    "sessions.import",
    "admin",
    SessionsImportParams,
    SessionsImportResult,
    handle,
    "Copy the sessions of an OpenClaw state folder into this store.",
)
