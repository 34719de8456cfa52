"""Files that come with a message: written to the agent's workspace before the message is accepted, or not at all.

The files were checked before. Source: runs.md, "Attachments".
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from sessiond.attachments.decode import PreparedFiles
from sessiond.attachments.notice import describe
from sessiond.attachments.service import AttachmentService
from sessiond.errors import SessiondError
from sessiond.model.keys import agent_of
from sessiond.runs.run import RunRequest
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runs.supervisor import RunSupervisor
from sessiond.store.catalog import Session

# The image types that models accept.
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ORIGIN = "They came with the message below."


async def accept_with_files(
    supervisor: RunSupervisor,
    attachments: AttachmentService,
    journal: SpawnJournal,
    *,
    session: Session,
    request: RunRequest,
    prepared: PreparedFiles,
    workspace: Path,
    on_queued: Callable[[], None],
) -> str:
    """Write the files to `workspace`, which exists, and accept the message; the id of its run.

    Files that a crash leaves without a run are removed at the next start of the daemon.
    """
    run_id = ""
    # Shielded: once files are written they belong to a run or are removed, even if the caller disconnects.
    with trio.CancelScope(shield=True):
        attachments_id = attachments.new_id()
        await attachments.run_sync(journal.begin, agent_of(session.key), attachments_id, session.session_id)
        try:
            receipt = await attachments.materialize(prepared, workspace, attachments_id)
        except SessiondError:
            journal.complete(attachments_id)
            raise
        handed: dict[str, Any] = msgspec.to_builtins(receipt)
        # A session may work in another folder than the workspace.
        notice = describe(receipt, origin=_ORIGIN, root=workspace if session.entry.own_folder is not None else None)
        request = replace(
            request,
            message=add_images(request.message, prepared),
            attachments=handed,
            context="\n".join(filter(None, (request.context, notice))),
        )
        try:
            run_id = await supervisor.accept_once(session, request, on_queued=on_queued)
        except SessiondError:
            await _remove_files(attachments, journal, workspace, attachments_id)
            raise
        run = supervisor.registry.get(run_id)
        if run is None or run.request.attachments != handed:
            # The same request came twice at once, and the run has the files of the other one.
            await _remove_files(attachments, journal, workspace, attachments_id)
        else:
            journal.keep(attachments_id, run.session.session_id)
    return run_id


async def _remove_files(
    attachments: AttachmentService, journal: SpawnJournal, workspace: Path, attachments_id: str
) -> None:
    report = await attachments.remove(workspace, attachments_id)
    if not report.left:
        journal.complete(attachments_id)


def add_images(message: dict[str, Any], prepared: PreparedFiles) -> dict[str, Any]:
    """The message with the images among its files as blocks after its text; unchanged without images."""
    blocks = [
        {"type": "image", "data": base64.b64encode(file.data).decode("ascii"), "mimeType": file.mime_type}
        for file in prepared.files
        if file.mime_type in _IMAGES
    ]
    return {**message, "content": [{"type": "text", "text": message["content"]}, *blocks]} if blocks else message
