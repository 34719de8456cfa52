"""A sink that records what it gets, specs of runs, and a store for sandboxed runs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.bubblewrap_runtime import OTHER, RELATIVE, UUID

from sessiond.runtimes.runtime import Message, RunSpec, ToolPhase
from sessiond.runtimes.sandbox import Bubblewrap


class Recorder:
    """A RunSink that keeps everything in the order of its arrival. `arrived` is set by every delta."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.raw: list[bytes | None] = []
        self.customs: list[tuple[str, Any]] = []
        self.deltas: list[str] = []
        self.thoughts: list[str] = []
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

    def thought_delta(self, text: str) -> None:
        self.thoughts.append(text)

    def tool(self, phase: ToolPhase, tool_call_id: str, name: str, **extra: Any) -> None:
        self.tools.append((phase, tool_call_id, name, extra))

    async def native_session(self, session_id: str) -> None:
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


@pytest.fixture(scope="module")
def bubblewrap_reason() -> str | None:
    return trio.run(Bubblewrap(private=()).find_problem)


@pytest.fixture
def needs_bubblewrap(bubblewrap_reason: str | None) -> None:
    if bubblewrap_reason is not None:
        pytest.skip(bubblewrap_reason)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that contains the agent's workspace, which is the default place for one."""
    store = tmp_path / "store"
    workspace = store / "agents" / "main" / "workspace"
    for uuid, text in ((UUID, "the attachment"), (OTHER, "of another session")):
        (workspace / ".openclaw" / "attachments" / uuid).mkdir(parents=True)
        (workspace / ".openclaw" / "attachments" / uuid / "notes.txt").write_text(text)
    (store / "agents" / "main" / "sessions").mkdir()
    (store / "agents" / "main" / "sessions" / "x.jsonl").write_text("{}\n")
    (store / "run").mkdir()
    (store / "run" / "token").write_text("the token")
    return store


@pytest.fixture
def make_sandboxed_spec(make_spec: Callable[..., RunSpec], store: Path) -> Callable[..., RunSpec]:
    def make(**fields: Any) -> RunSpec:
        values: dict[str, Any] = {
            "workspace": store / "agents" / "main" / "workspace",
            "socket": store / "run" / "agent.sock",
            "token_file": store / "run" / "token",
            "attachments": {"relDir": RELATIVE, "count": 1},
            "sandboxed": True,
        }
        return make_spec(**{**values, **fields})

    return make


@pytest.fixture
def agent_socket(store: Path) -> Any:
    """agent.sock and sessiond.sock, both listening; agent.sock answers one connection with `welcome`."""
    with socket.socket(socket.AF_UNIX) as agent, socket.socket(socket.AF_UNIX) as owner:
        agent.bind(str(store / "run" / "agent.sock"))
        owner.bind(str(store / "run" / "sessiond.sock"))
        agent.listen()
        owner.listen()
        agent.setblocking(False)
        yield agent
