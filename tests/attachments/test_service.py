"""The async interface: ids, file work in threads, and that cancellation cannot interrupt a write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.rows import check_each

from sessiond.attachments.decode import Attachment, PreparedFile, PreparedFiles
from sessiond.attachments.remove import RemovalReport
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Ids
from sessiond.config.settings import AttachmentsConfig
from sessiond.errors import Forbidden, InvalidParams

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "1" + ID[1:]


async def run_inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def test_checked_attachments_are_written_and_removed(tmp_path: Path) -> None:
    service = AttachmentService(ids=Ids(uuid=lambda: ID))
    prepared = service.check([Attachment(name="a", content="text")], AttachmentsConfig())
    receipt = await service.materialize(prepared, tmp_path)
    assert (receipt.attachments_id, (tmp_path / receipt.rel_dir / "a").read_text()) == (ID, "text")
    assert await service.remove(tmp_path, receipt.attachments_id) == RemovalReport(removed=True)
    assert os.listdir(tmp_path / ".openclaw/attachments") == []


async def test_a_given_id_is_used(tmp_path: Path) -> None:
    service = AttachmentService(run_sync=run_inline)
    receipt = await service.materialize(PreparedFiles((PreparedFile("a", b""),)), tmp_path, OTHER)
    assert receipt.rel_dir == f".openclaw/attachments/{OTHER}"


@check_each("bad", ["", "..", "a", f"../{ID}", ID.upper(), ID + "/", ID + "\n", f"{ID}/../{OTHER}"])
async def test_an_id_that_is_not_a_uuid_is_refused(tmp_path: Path, bad: str) -> None:
    (tmp_path / ".openclaw/attachments" / ID).mkdir(parents=True)
    service = AttachmentService(run_sync=run_inline)
    with pytest.raises(InvalidParams) as caught:
        await service.remove(tmp_path, bad)
    assert caught.value.code == "attachments_invalid_id"
    if bad:
        with pytest.raises(InvalidParams):
            await service.materialize(PreparedFiles(), tmp_path, bad)
    assert os.listdir(tmp_path / ".openclaw/attachments") == [ID]


def test_the_check_needs_no_event_loop(tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        AttachmentService().check([Attachment(name="a", content="")], AttachmentsConfig(enabled=False))


async def test_file_work_is_done_in_a_thread(tmp_path: Path) -> None:
    threads: list[int] = []

    def uuid() -> str:
        threads.append(threading.get_ident())
        return ID

    async def run_recorded(function: Callable[..., Any], *arguments: Any) -> Any:
        def run() -> Any:
            threads.append(threading.get_ident())
            return function(*arguments)

        return await trio.to_thread.run_sync(run)

    await AttachmentService(ids=Ids(uuid=uuid), run_sync=run_recorded).materialize(PreparedFiles(), tmp_path)
    assert threads[0] == threading.get_ident() != threads[1]


async def test_a_cancelled_write_is_completed(tmp_path: Path) -> None:
    service = AttachmentService()
    prepared = PreparedFiles(tuple(PreparedFile(f"f{i}", b"x" * 1000) for i in range(20)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.materialize, prepared, tmp_path, ID)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(os.listdir(tmp_path / ".openclaw/attachments" / ID)) == 21
