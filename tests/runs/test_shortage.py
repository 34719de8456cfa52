"""A run that finds no free file descriptor at its start waits until there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio
from support.in_process import in_process_daemon
from support.in_process_agents import until
from support.patience import PATIENCE_S
from support.sampling import spread
from support.shortage import free_descriptors

KEY = "agent:main:x"
PROGRAM = [sys.executable, "-c", "import sys; print('heard', sys.stdin.read().strip())"]


@pytest.mark.parametrize("left", spread([2, 4, 6, 8, 10], 1))
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_a_run_waits_for_the_file_descriptors_that_starting_its_program_needs(
    tmp_path: Path, left: int, first: bool
):
    config = f'[[agents.list]]\nid = "main"\nruntime = {{ type = "exec", command = {json.dumps(PROGRAM)} }}\n'
    async with in_process_daemon(tmp_path, config) as there, there.connect() as owner:
        await owner.call("sessions.create", key=KEY)
        if not first:
            assert await owner.say(KEY, "before") == "heard before"
        with free_descriptors(left):
            sent = await owner.call("chat.send", sessionKey=KEY, message="hello")
            await until(lambda: (run := there.services.supervisor.current(KEY)) is not None and run.begun)
            with trio.move_on_after(0.3):
                await there.services.supervisor.registry.live[sent["runId"]].done.wait()
        ended = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        assert (ended["status"], ended.get("reply"), ended.get("error")) == ("ok", "heard hello", None)
        messages = (await owner.call("sessions_history", sessionKey=KEY))["messages"]
        assert len(messages) == (2 if first else 4)
