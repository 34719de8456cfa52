"""Stopping runs does not wait for a disk that refuses to store their ends: the disk may refuse for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.errors import StorageError

PARENT, CHILD = "agent:alice:parent", "agent:alice:child"


async def hang_if_live(_: Program, params: dict[str, Any]) -> Any:
    if params["message"] == "live":
        await trio.sleep_forever()
    return {"reply": "ended"}


class FullDisk:
    """Makes the store refuse run ends while `full`."""

    def __init__(self, there: InProcessDaemon) -> None:
        self.full = True
        self._append = there.services.store.append
        there.services.store.append = self.append

    async def append(self, session: Any, parts: Any) -> Any:
        data = [getattr(part, "data", None) or {} for part in parts]
        if self.full and any(one.get("status") == "aborted" for one in data):
            raise StorageError("could not write: no space left on device")
        return await self._append(session, parts)


@asynccontextmanager
async def start_two_runs(folder: Path) -> AsyncIterator[tuple[FullDisk, Connection, list[str]]]:
    """A session and its child with a run each that does not end by itself, and their run ids."""
    async with (
        in_process_daemon(folder, attached_agents_config("alice")) as there,
        agent(there, "alice", hang_if_live) as alice,
    ):
        async with there.connect() as owner:
            await owner.call("sessions.create", key=PARENT)
            await owner.call("sessions.create", key=CHILD, parentSessionKey=PARENT)
            ids = [(await owner.call("chat.send", sessionKey=key, message="live"))["runId"] for key in (PARENT, CHILD)]
            await until(lambda: len(alice.turns) == 2)
            yield FullDisk(there), owner, ids


@check_each(
    ("method", "params"),
    [
        ("chat.abort", {"sessionKey": PARENT}),
        ("chat.send", {"sessionKey": PARENT, "message": "/stop"}),
        ("sessions.reset", {"key": PARENT}),
        ("sessions.delete", {"key": PARENT}),
    ],
)
async def test_stopping_a_run_reports_that_its_end_is_not_on_disk(
    tmp_path: Path, method: str, params: dict[str, Any]
) -> None:
    async with start_two_runs(tmp_path) as (disk, owner, ids):
        for _ in range(2):  # also without waiting where the end was refused before
            refused = await owner.failure(method, **params)
            assert refused["code"] == -32009
            assert "stopped, but its end is not on disk yet" in refused["message"]
        # Later messages are not blocked.
        await owner.call("chat.inject", sessionKey=PARENT, messages=[{"role": "user", "content": "meanwhile"}])
        disk.full = False
        assert (await owner.call("agent.wait", runId=ids[0], timeoutMs=PATIENCE_S * 1000))["status"] == "aborted"
        await owner.call(method, **params)


async def test_kill_stops_the_whole_tree_before_it_reports_the_error(tmp_path: Path) -> None:
    async with start_two_runs(tmp_path) as (disk, owner, ids):
        assert (await owner.failure("sessions.kill", key=PARENT))["code"] == -32009
        disk.full = False
        for run_id in ids:
            assert (await owner.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000))["status"] == "aborted"


async def test_a_steer_is_accepted_and_runs_when_the_end_can_be_written(tmp_path: Path) -> None:
    async with start_two_runs(tmp_path) as (disk, owner, ids):
        steered = await owner.call("sessions.steer", key=PARENT, message="instead")
        assert steered["interrupted"] == [ids[0]]
        disk.full = False
        assert (await owner.call("agent.wait", runId=steered["runId"], timeoutMs=PATIENCE_S * 1000))["reply"] == "ended"
