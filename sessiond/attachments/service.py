"""The async interface to the attachments: checks on the event loop, file work in worker threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sessiond.attachments.decode import AttachmentInput, PreparedFiles, prepare
from sessiond.attachments.materialize import Receipt, materialize
from sessiond.attachments.remove import FOLDERS, RemovalReport, remove_attachments
from sessiond.clock import Ids
from sessiond.config.settings import AttachmentsConfig
from sessiond.errors import InvalidParams, StorageError, reason_of
from sessiond.model import keys
from sessiond.tasks import RunSync, run_in_thread


class AttachmentService:
    """Check, write and remove attachments. An attachments id is a uuid, and is all that is needed to remove them."""

    def __init__(self, *, ids: Ids | None = None, run_sync: RunSync = run_in_thread) -> None:
        self._ids = ids or Ids()
        self.run_sync = run_sync

    def new_id(self) -> str:
        """A new attachments id, to be noted in the spawn journal before anything is written."""
        return self._ids.uuid()

    def check(self, items: Sequence[AttachmentInput], config: AttachmentsConfig) -> PreparedFiles:
        """The checked and decoded attachments. See `prepare` for the errors."""
        return prepare(items, config)

    async def materialize(self, prepared: PreparedFiles, workspace: Path, attachments_id: str | None = None) -> Receipt:
        """Write the files and return the receipt. `attachments_id` is an id from `new_id` that is noted already.

        Cancellation waits until it is done: the caller gets the receipt, or an error and nothing is left on disk.
        """
        attachments_id = _check_id(attachments_id or self._ids.uuid())
        try:
            receipt: Receipt = await self.run_sync(materialize, prepared, workspace, attachments_id)
        except OSError as error:  # no thread to do it in
            raise StorageError(
                f"the attachments cannot be written now: {reason_of(error)}", code="attachments_write_failed"
            ) from None
        return receipt

    async def remove(self, workspace: Path, attachments_id: str) -> RemovalReport:
        """Remove the folder of an id. What could not be removed is in the report; try again later."""
        try:
            report: RemovalReport = await self.run_sync(remove_attachments, workspace, _check_id(attachments_id))
        except OSError as error:  # no thread to do it in
            raise StorageError(f"the attachments cannot be removed now: {reason_of(error)}") from None
        return report

    def exists(self, workspace: Path, attachments_id: str) -> bool:
        """Whether anything exists at the place for the files of this id."""
        return os.path.lexists(workspace.joinpath(*FOLDERS, _check_id(attachments_id)))


def _check_id(attachments_id: str) -> str:
    """`attachments_id`, if it is a uuid: it becomes part of a path. InvalidParams for anything else."""
    if keys.UUID.fullmatch(attachments_id) is None:
        raise InvalidParams("This is no id of attachments: it must be a uuid.", code="attachments_invalid_id")
    return attachments_id
