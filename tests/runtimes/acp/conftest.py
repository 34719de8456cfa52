"""Conversations with agents, each with one session at first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.acp_conversation import Conversation, acp_agent, open_agents

from sessiond.config.agents import AgentConfig
from sessiond.runtimes.acp.agents import AcpAgents


@pytest.fixture
def make_conversation(
    make_spec: Any, recorder: Any, tmp_path: Path
) -> Callable[[AcpAgents, AgentConfig], Conversation]:
    (tmp_path / "run").mkdir()
    return lambda agents, agent: Conversation(agents, agent, make_spec, type(recorder))


@pytest.fixture
async def talk(make_conversation: Any) -> AsyncIterator[Callable[..., Conversation]]:
    async with open_agents() as agents:
        yield lambda *options, **fields: make_conversation(agents, acp_agent(*options, **fields))
