"""The async door to the attachments: checks at once, file work off the loop. Holds no state but how to get there."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from sessiond.attachments.decode import AttachmentInput, PreparedFiles, prepare
from sessiond.attachments.materialize import Receipt, materialize
from sessiond.attachments.remove import FOLDERS, RemovalReport, remove_attachments
from sessiond.clock import Ids
from sessiond.config.settings import AttachmentsConfig
from sessiond.errors import InvalidParams
from sessiond.model import keys

# What `trio.to_thread.run_sync` does; tests with an autojump clock hand in one that runs inline.
RunSync = Callable[..., Awaitable[Any]]


class AttachmentService:
    """Check, write and remove the attachments of one spawn. An id is a uuid and is all that needs to be kept."""

    def __init__(self, *, ids: Ids | None = None, run_sync: RunSync = trio.to_thread.run_sync) -> None:
        self._ids = ids or Ids()
        self.run_sync = run_sync

    def new_id(self) -> str:
        """An id for attachments, to be noted before they are written."""
        return self._ids.uuid()

    def check(self, items: Sequence[AttachmentInput], config: AttachmentsConfig) -> PreparedFiles:
        """All rules (runs.md, "Attachments"), before anything is written. See `prepare` for the errors."""
        return prepare(items, config)

    async def materialize(self, prepared: PreparedFiles, workspace: Path, attachments_id: str | None = None) -> Receipt:
        """Write them and return the receipt; with `attachments_id` under an id that the caller has on record already.

        Not ended half way by cancellation: the caller gets the receipt, or the error and nothing on disk.
        """
        attachments_id = _check_id(attachments_id or self._ids.uuid())
        receipt: Receipt = await self.run_sync(materialize, prepared, workspace, attachments_id)
        return receipt

    async def remove(self, workspace: Path, attachments_id: str) -> RemovalReport:
        """Remove the folder of an id. What could not be removed is in the report, to be tried again at a sweep."""
        report: RemovalReport = await self.run_sync(remove_attachments, workspace, _check_id(attachments_id))
        return report

    def is_there(self, workspace: Path, attachments_id: str) -> bool:
        """Whether something stands where the files of an id belong."""
        return os.path.lexists(workspace.joinpath(*FOLDERS, _check_id(attachments_id)))


def _check_id(attachments_id: str) -> str:
    """The path is made of it: a uuid or nothing."""
    if keys.UUID.fullmatch(attachments_id) is None:
        raise InvalidParams("This is no id of attachments: it must be a uuid.", code="attachments_invalid_id")
    return attachments_id
