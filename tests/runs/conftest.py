"""A sink that remembers, and turns to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from sessiond.runs.runtime import Message, RunSpec, ToolPhase


class Recorder:
    """A RunSink that keeps everything, in the order in which it came. `arrived` is set by every delta."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.raw: list[bytes | None] = []
        self.customs: list[tuple[str, Any]] = []
        self.deltas: list[str] = []
        self.tools: list[tuple[str, str, str, dict[str, Any]]] = []
        self.sessions: list[str] = []
        self.arrived = trio.Event()

    async def message(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        raw = bytes(message) if isinstance(message, msgspec.Raw) else None
        self.raw.append(raw)
        self.messages.append(msgspec.json.decode(raw) if raw is not None else message)

    async def custom(self, custom_type: str, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.customs.append((custom_type, data))

    def delta(self, text: str) -> None:
        self.deltas.append(text)
        self.arrived.set()

    def tool(self, phase: ToolPhase, tool_call_id: str, name: str, **extra: Any) -> None:
        self.tools.append((phase, tool_call_id, name, extra))

    def native_session(self, session_id: str) -> None:
        self.sessions.append(session_id)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def make_spec(workspace: Path, tmp_path: Path) -> Callable[..., RunSpec]:
    def make(message: str = "hello", **fields: Any) -> RunSpec:
        values: dict[str, Any] = {
            "run_id": "11111111-1111-4111-8111-111111111111",
            "session_key": "agent:main:main",
            "session_id": "22222222-2222-4222-8222-222222222222",
            "agent_id": "main",
            "message": message,
            "workspace": workspace,
            "socket": tmp_path / "run" / "agent.sock",
        }
        return RunSpec(**{**values, **fields})

    return make
