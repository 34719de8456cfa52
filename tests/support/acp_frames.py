"""Every kind of frame that the ACP runtime sends, as an agent gets them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio
from support import acp_agent_path
from support.patience import PATIENCE_S

from sessiond.clock import Clock
from sessiond.config.agents import AgentConfig, RuntimeConfig
from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.runtimes.acp.agents import AcpAgents, AcpLimits
from sessiond.runtimes.acp.runtime import AcpRuntime
from sessiond.runtimes.runtime import RunSpec
from sessiond.runtimes.sandbox import Bubblewrap

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
FORM = """form {"properties": {"sure": {"type": "boolean"}}}"""
TURNS = [
    *("hello", "order", "permission read", "permission edit reject_once", "permission edit allow_once", "requests"),
    *("ask", "both", "takeback", FORM),
]
REQUESTS = {
    "initialize": "InitializeRequest",
    "authenticate": "AuthenticateRequest",
    "session/new": "NewSessionRequest",
    "session/load": "LoadSessionRequest",
    "session/resume": "ResumeSessionRequest",
    "session/close": "CloseSessionRequest",
    "session/prompt": "PromptRequest",
    "session/set_config_option": "SetSessionConfigOptionSelectRequest",
    "session/cancel": "CancelNotification",
}


class SilentSink:
    """Keeps nothing; `said` is set by the first text."""

    def __init__(self) -> None:
        self.said = trio.Event()

    async def message(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def custom(self, custom_type: str, data: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def ask(self, draft: QuestionDraft, *, timeout_s: float | None = None) -> QuestionAnswer:
        """The first option."""
        await trio.lowlevel.checkpoint()
        return QuestionAnswer(
            question_id="0" * 16, outcome="answered", option_id=draft.options[0].id, note="why not", by="owner", at=0
        )

    def delta(self, text: str) -> None:
        self.said.set()

    def thought_delta(self, text: str) -> None: ...

    def tool(self, *_: Any, **__: Any) -> None: ...


def frame_types(frames: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The name of the definition in the schema, and the value that has to fit it, of each frame."""
    found = []
    for frame in frames:
        assert frame["jsonrpc"] == "2.0"
        if "method" in frame:
            assert frame.keys() - {"id"} == {"jsonrpc", "method", "params"}
            found.append((REQUESTS[frame["method"]], frame["params"]))
        elif "error" in frame:
            assert frame.keys() == {"jsonrpc", "id", "error"}
            found.append(("Error", frame["error"]))
        else:
            assert frame.keys() == {"jsonrpc", "id", "result"}
            is_permission = "outcome" in frame["result"]
            found.append(
                ("RequestPermissionResponse" if is_permission else "CreateElicitationResponse", frame["result"])
            )
    return found


async def read_all_frames(folder: Path) -> list[dict[str, Any]]:
    """Have conversations in which the runtime says everything that it can say."""
    for name in ("run", "work", "token"):
        (folder / name).mkdir()
    await _converse(folder, "close", "image", max_sessions=1, authenticate="api-key", permissions="allow")
    await _converse(folder, "load", permission_rules={"read": "deny"})
    await _converse(folder, "resume", cancels=True)
    log = folder / "work" / "frames.jsonl"
    return [json.loads(line) for line in log.read_bytes().splitlines()]


async def _converse(folder: Path, *options: str, cancels: bool = False, **fields: Any) -> None:
    command = (sys.executable, "-S", str(acp_agent_path.PATH), *options)
    agent = AgentConfig(id="main", runtime=RuntimeConfig(type="acp", command=command, **fields))
    agents = AcpAgents(
        environ={"PATH": os.environ["PATH"]},
        bubblewrap=Bubblewrap(private=()),
        limits=lambda: AcpLimits(1 << 20, 1 << 24),
        make_runtime=AcpRuntime,
        clock=Clock(),
    )
    known = folder / "work" / "native.json"
    native = next(iter(json.loads(known.read_bytes()))) if known.exists() else None
    spec = RunSpec(
        run_id="", session_key="agent:main:main", session_id="s1", agent_id="main", message="", images=(IMAGE,),
        model="m-2", workspace=folder / "work", socket=folder / "run" / "agent.sock", native_session_id=native,
    )  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(agents.run)
            for number, text in enumerate(TURNS):
                turn = msgspec.structs.replace(spec, message=text, run_id=str(number), session_id=f"s{number % 2}")
                if number % 2:
                    turn = msgspec.structs.replace(turn, native_session_id=None)
                outcome = await agents.runtime(agent).run(turn, SilentSink())  # type: ignore[arg-type]
                assert outcome.error is None, outcome
            if cancels:
                await _cancel(agents, agent, msgspec.structs.replace(spec, message="wait asks", run_id="c"))
            nursery.cancel_scope.cancel()


async def _cancel(agents: AcpAgents, agent: AgentConfig, spec: RunSpec) -> None:
    sink = SilentSink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agents.runtime(agent).run, spec, sink)
        await sink.said.wait()
        nursery.cancel_scope.cancel()
