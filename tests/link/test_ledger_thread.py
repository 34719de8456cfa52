"""The ledger in its thread: every write is told, also one whose caller does not wait any more, and no reading is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.link_stand_ins import run_until, settle

from sessiond.link.command_ledger import CommandLedger
from sessiond.link.ledger_thread import LedgerThread


def test_every_write_is_told_and_no_reading(tmp_path: Path) -> None:
    async def body() -> None:
        told: list[int] = []
        thread = LedgerThread(CommandLedger(tmp_path), lambda: told.append(threading.get_ident()))

        async def times() -> int:
            await settle()
            assert set(told) <= {threading.get_ident()}, "in the loop's own thread"
            count = len(told)
            told.clear()
            return count

        assert await thread.do(CommandLedger.accept, "lap", "c1", b"body", 1) and await times() == 1
        assert not await thread.do(CommandLedger.accept, "lap", "c1", b"body", 1) and await times() == 0
        await thread.do(CommandLedger.put_part, "lap", "c2", 0, 2, b"a")
        assert await times() == 1
        await thread.do(CommandLedger.answer, "lap", "c1", b"answer")
        assert await times() == 1
        await thread.retry(CommandLedger.note_sent, "lap", "c1", b"gone")
        assert await times() == 1
        await thread.do(CommandLedger.find, "lap", "c1")
        await thread.do(CommandLedger.counts)
        await thread.do(CommandLedger.unsent_answers)
        assert await times() == 0
        thread.close()

    run_until(body)


def test_a_write_whose_caller_was_cancelled_is_told(tmp_path: Path) -> None:
    async def body() -> None:
        told: list[None] = []
        thread = LedgerThread(CommandLedger(tmp_path), lambda: told.append(None))

        go = threading.Event()

        def answer_slowly(ledger: CommandLedger) -> bool:
            go.wait()
            return ledger.accept("lap", "c2", b"body", 1)

        writing = asyncio.create_task(thread.do(answer_slowly))
        await settle()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        go.set()
        assert await thread.do(CommandLedger.find, "lap", "c2") is not None
        await settle()
        assert len(told) == 1
        thread.close()

    run_until(body)
