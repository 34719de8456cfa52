"""Conversations with agents that speak ACP by hand (`acp_agent.py`), through the runtime and a sink that records."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from support import acp_agent_path
from support.patience import PATIENCE_S

from sessiond.clock import Clock
from sessiond.config.agents import AgentConfig, RuntimeConfig
from sessiond.runtimes.acp.agents import AcpAgents, AcpLimits
from sessiond.runtimes.acp.runtime import AcpRuntime
from sessiond.runtimes.runtime import RunOutcome
from sessiond.runtimes.sandbox import Bubblewrap

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "SESSIOND_TOKEN_FILE": "/the/owner"}


class Conversation:
    """One session with an agent: `say` runs a turn and returns its outcome and what the sink got."""

    def __init__(self, agents: AcpAgents, agent: AgentConfig, make_spec: Any, new_recorder: Any) -> None:
        self.agents, self.agent, self._make_spec, self._new_recorder = agents, agent, make_spec, new_recorder
        self.number = 0
        self.recorder = new_recorder()

    async def say(self, text: str, session: str = "s1", **fields: Any) -> RunOutcome:
        self.number += 1
        self.recorder = self._new_recorder()
        spec = self._make_spec(text, session_id=session, run_id=f"{session}.{self.number}", **fields)
        with trio.fail_after(PATIENCE_S):
            return await self.agents.runtime(self.agent).run(spec, self.recorder)

    @property
    def native(self) -> list[Any]:
        return [data for kind, data in self.recorder.customs if kind == "sessiond/native"]

    def answers(self) -> list[Any]:
        return [data for kind, data in self.recorder.customs if kind == "sessiond/answer"]

    def shape(self) -> list[Any]:
        """The messages in short: `text`, `(thought)`, `call NAME`, `result NAME: text`."""
        found: list[Any] = []
        for message in self.recorder.messages:
            if message["role"] == "toolResult":
                said = "".join(block["text"] for block in message["content"])
                found.append(f"result {message['toolName']}: {said}{' !' if message['isError'] else ''}")
                continue
            blocks = []
            for block in message["content"]:
                match block["type"]:
                    case "text":
                        blocks.append(block["text"])
                    case "thinking":
                        blocks.append(f"({block['thinking']})")
                    case _:
                        blocks.append(f"call {block['name']}")
            found.append("+".join(blocks))
        return found


def acp_agent(*options: str, **fields: Any) -> AgentConfig:
    command = (sys.executable, "-S", str(acp_agent_path.PATH), *options)
    return AgentConfig(id="main", runtime=RuntimeConfig(type="acp", command=command, **fields))


@asynccontextmanager
async def open_agents(max_record_bytes: int = 1 << 20, max_frame_bytes: int = 4 << 20) -> AsyncIterator[AcpAgents]:
    limits = AcpLimits(max_record_bytes, max_frame_bytes)
    agents = AcpAgents(
        environ=ENVIRON,
        bubblewrap=Bubblewrap(private=()),
        limits=lambda: limits,
        clock=Clock(),
        make_runtime=AcpRuntime,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(agents.run)
        yield agents
        nursery.cancel_scope.cancel()


def read_frames(conversation: Conversation) -> list[dict[str, Any]]:
    """What the agent got."""
    return frames_in(conversation._make_spec().workspace)


def frames_in(folder: Path) -> list[dict[str, Any]]:
    """What an agent in this folder got."""
    return [msgspec.json.decode(line) for line in (folder / "frames.jsonl").read_bytes().splitlines()]
