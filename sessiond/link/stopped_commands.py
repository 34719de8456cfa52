"""Commands to other machines whose run here has ended without their answer: that machine is told to stop, again and
again until it answers.

What was asked is on disk before it is sent and until it is answered. So what was stopped while the link was away, or
told to a server that lost it, is found when the link is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

import structlog

from sessiond.client.errors import ClientError, RpcError
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.command_wire import MachineCommand, encode
from sessiond.link.ledger_thread import LedgerThread
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.repeated_sending import RepeatedSending

log = structlog.get_logger("sessiond.link")

# How long the end of a run that was cancelled may take to be on record.
END_S = 20.0
# How often the runs of commands without an answer are looked at that nobody waits for.
LOOK_S = 60.0


class StoppedCommands:
    """`names` are the machines in the configuration. `is_open(id)`: whether the command's run waits for its answer."""

    def __init__(
        self,
        ledger: LedgerThread,
        daemon: OwnerDoor,
        sending: RepeatedSending,
        *,
        names: Collection[str],
        is_open: Callable[[str], bool],
    ) -> None:
        self._ledger, self._daemon, self._sending = ledger, daemon, sending
        self._names, self._is_open = names, is_open
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping: dict[tuple[str, str], asyncio.Event] = {}
        self._due = asyncio.Event()

    def __len__(self) -> int:
        """How many machines have not said yet that they have stopped a command."""
        return len(self._stopping)

    async def run(self) -> None:
        """Tell whom there is to tell, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await self._due.wait()
                    self._due.clear()
                    for peer, command_id in await self._ledger.retry(CommandLedger.unanswered_commands):
                        await self._look_at(peer, command_id, 0.0)
        finally:
            self._tasks = None

    def look(self) -> None:
        """Look at all of them: the connection to the daemon is new."""
        self._due.set()

    def note_cancelled(self, peer: str, command_id: str) -> None:
        """The daemon has cancelled its request: with the run, or alone."""
        if self._tasks is not None:
            self._tasks.create_task(self._look_at(peer, command_id, END_S))

    def note_answer(self, peer: str, command_id: str) -> None:
        """The machine has answered a command that nobody waits for."""
        answered = self._stopping.get((peer, command_id))
        if answered is not None:
            answered.set()

    async def _look_at(self, peer: str, command_id: str, wait_s: float) -> None:
        if peer not in self._names or not self._is_left(peer, command_id):
            return
        status = await self._status_of(command_id, wait_s)
        if status in (None, "running") or not self._is_left(peer, command_id) or self._tasks is None:
            return
        if status == "ok":  # by the answer, right before the link ended
            await self._ledger.retry(CommandLedger.note_answered, peer, command_id)
        else:
            # Noted now: another look may have heard of the end at the same moment.
            answered = self._stopping[peer, command_id] = asyncio.Event()
            self._tasks.create_task(self._stop(peer, command_id, answered))

    def _is_left(self, peer: str, command_id: str) -> bool:
        return not self._is_open(command_id) and (peer, command_id) not in self._stopping

    async def _status_of(self, run_id: str, wait_s: float) -> str | None:
        """How the run has ended, or `running`; None where the daemon does not say it."""
        try:
            found = await self._daemon.call(
                "agent.wait", runId=run_id, timeoutMs=int(wait_s * 1000), timeout_s=wait_s + END_S
            )
        except RpcError as error:
            return "aborted" if error.slug == "not_found" else None  # its session was deleted
        except ClientError:
            return None
        status: str = found["status"]
        return status

    async def _stop(self, peer: str, command_id: str, answered: asyncio.Event) -> None:
        log.info("stopping a run there", peer=peer, command=command_id)
        try:
            async with asyncio.TaskGroup() as tasks:
                telling = tasks.create_task(
                    self._sending.repeat(peer, command_id, encode(MachineCommand(method="abort")))
                )
                await answered.wait()
                telling.cancel()
            await self._ledger.retry(CommandLedger.note_answered, peer, command_id)
        finally:
            del self._stopping[peer, command_id]
