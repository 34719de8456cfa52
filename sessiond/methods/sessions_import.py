"""`sessions.import`: copy the sessions of an OpenClaw state folder into this store."""

from __future__ import annotations

import os
from typing import Annotated

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.sessions import importing
from sessiond.store import dirfd


class SessionsImportParams(Params, frozen=True, kw_only=True):
    path: Annotated[str, says("The OpenClaw state folder.", takes="absolute")]


class ImportedRow(Result, frozen=True, kw_only=True):
    """A session that was copied."""

    key: Annotated[str, says("Its canonical key here.")]
    session_id: Annotated[str, says("The id of its transcript.")]
    messages: Annotated[int, says("How many messages it has.")]
    archived: Annotated[bool, says("Whether it was imported as an archived session.")]
    path: Annotated[str, says("Its file, relative to the folder.")]


class SkippedRow(Result, frozen=True, kw_only=True):
    """A file that was not copied."""

    path: Annotated[str, says("The file, relative to the folder.")]
    reason: Annotated[str, says("Why it was not copied, in a few words.")]


class SessionsImportResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    imported: Annotated[list[ImportedRow], says("The sessions that were copied.")]
    skipped: Annotated[list[SkippedRow], says("The files that were not copied.")]


async def handle(ctx: Context, params: SessionsImportParams) -> SessionsImportResult:
    services = ctx.services
    # It reads any folder of the owner and creates sessions for any agent.
    if not services.sight_of(ctx.caller).unlimited:
        raise Forbidden("`sessions.import` is for the owner: this token is narrowed to sessions of its own.")
    if not os.path.isabs(params.path) or "\0" in params.path:
        raise InvalidParams("`$.path` is no absolute path.", field="$.path")
    try:
        root_fd = dirfd.open_root(params.path)
    except OSError as error:
        raise InvalidParams(f"`$.path` cannot be opened: {error.strerror}.", field="$.path") from None
    with dirfd.closing(root_fd):
        async with services.session_changes.exclusive("import"):
            imported, skipped = await importing.openclaw_folder(
                services.store, services.feed, services.time_slicer, root_fd
            )
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
