"""Commands whose run here has ended without an answer: the other machine is told to stop, once at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.link_stand_ins import StandInServer, run_until, settle, until

from sessiond.link.command_ledger import CommandLedger
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.repeated_sending import RepeatedSending
from sessiond.link.stopped_commands import StoppedCommands


class EndingRun:
    """A daemon whose run ends for all who wait for it at once."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self.waiters = 0

    async def current_link(self) -> None:
        raise AssertionError

    async def call(self, method: str, params: Any = None, /, **more: Any) -> Any:
        self.waiters += 1
        await self.has_ended.wait()
        return {"status": "aborted"}


def test_two_looks_that_hear_of_the_end_at_once_tell_the_machine_once(tmp_path: Path) -> None:
    async def body() -> None:
        ledger = LedgerThread(CommandLedger(tmp_path), lambda: None)
        daemon, server = EndingRun(), StandInServer()
        sending = RepeatedSending(server.send, lambda peer: True)
        stopped = StoppedCommands(ledger, daemon, sending, names=["mars"], is_open=lambda identity: False)
        await ledger.do(CommandLedger.note_asked, "mars", "c1", 1)
        running = asyncio.create_task(stopped.run())
        stopped.look()
        await until(lambda: daemon.waiters == 1)
        stopped.note_cancelled("mars", "c1")
        await until(lambda: daemon.waiters == 2)
        daemon.has_ended.set()
        await server.wait_for(1)
        await settle()
        assert (len(server.kept), len(stopped)) == (1, 1)
        stopped.note_answer("mars", "c1")
        await until(lambda: not len(stopped))
        assert await ledger.do(CommandLedger.unanswered_commands) == []
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        ledger.close()

    run_until(body)
