"""A sink that records what it gets, specs of runs, and a store for sandboxed runs."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.bubblewrap_runtime import OTHER, RELATIVE, UUID

from sessiond.errors import Conflict
from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.runtimes.runtime import Message, RunSpec, ToolPhase
from sessiond.runtimes.sandbox import Bubblewrap


def make_answer(**fields: Any) -> QuestionAnswer:
    return QuestionAnswer(question_id="0" * 16, at=0, **fields)


class RecordedQuestion:
    """A question of a run; `choose` answers it."""

    def __init__(self, draft: QuestionDraft) -> None:
        self.draft = draft
        self.answer: QuestionAnswer | None = None
        self.decided = trio.Event()

    def choose(self, option_id: str, note: str | None = None) -> None:
        self.answer = make_answer(outcome="answered", option_id=option_id, note=note, by="owner", road="cli")
        self.decided.set()


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
        self.questions: list[RecordedQuestion] = []
        self._was_asked = trio.Event()

    async def wait_for_questions(self, count: int = 1) -> None:
        while len(self.questions) < count:
            await self._was_asked.wait()

    async def ask(self, draft: QuestionDraft, *, timeout_s: float | None = None) -> QuestionAnswer:
        if draft.title.endswith("too-many"):
            raise Conflict("too many questions are open")
        question = RecordedQuestion(draft)
        self.questions.append(question)
        self._was_asked.set()
        self._was_asked = trio.Event()
        try:
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
                await question.decided.wait()
            return question.answer or make_answer(outcome="expired")
        except trio.Cancelled:
            question.answer = make_answer(outcome="withdrawn")
            raise

    async def message(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        raw = bytes(message) if isinstance(message, msgspec.Raw) else None
        self.raw.append(raw)
        self.messages.append(msgspec.json.decode(raw) if raw is not None else message)

    async def custom(self, custom_type: str, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.customs.append((custom_type, data))

    async def wait_for_deltas(self, count: int) -> None:
        while len(self.deltas) < count:
            self.arrived = trio.Event()
            await self.arrived.wait()

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
