"""Real agent programs with ExecRuntime: reply, tool call, usage, resume, abort, errors, sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.runtimes.exec import ExecRuntime
from sessiond.runtimes.runtime import Message, RunOutcome, RunSpec, ToolPhase
from sessiond.runtimes.sandbox import Bubblewrap

pytestmark = pytest.mark.agents
# A program starts in one to three seconds, and more slowly on a busy machine.
TURN_S = 60
USAGE = {"input": 60, "output": 7, "cacheRead": 40, "cacheWrite": 0, "totalTokens": 107}


class Recorder:
    """A RunSink that keeps everything."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.deltas: list[str] = []
        self.tools: list[tuple[str, str]] = []
        self.native: str | None = None

    async def message(self, message: Message) -> None:
        assert isinstance(message, dict)
        self.messages.append(message)

    async def custom(self, custom_type: str, data: Any) -> None:
        msgspec.json.encode(data)

    def delta(self, text: str) -> None:
        self.deltas.append(text)

    def thought_delta(self, text: str) -> None: ...

    def tool(self, phase: ToolPhase, tool_call_id: str, name: str, **extra: Any) -> None:
        self.tools.append((phase, name))

    async def native_session(self, session_id: str) -> None:
        self.native = session_id


@pytest.fixture
def make_spec(program, workspace, tmp_path) -> Callable[..., RunSpec]:
    def make(message: str, **fields: Any) -> RunSpec:
        values: dict[str, Any] = {
            "run_id": f"run-of-{program.name}-{os.getpid()}",
            "session_key": f"agent:{program.name}:main",
            "session_id": "22222222-2222-4222-8222-222222222222",
            "agent_id": program.name,
            "message": message,
            "model": program.model,
            "workspace": workspace,
            "socket": tmp_path / "agent.sock",
        }
        return RunSpec(**{**values, **fields})

    return make


@pytest.fixture
def runtime(program, program_path, model, home) -> ExecRuntime:
    return make_runtime(program, program_path, program.setup(home, model.port), home)


def make_runtime(program: Any, path: Path, env: dict[str, str], home: Path) -> ExecRuntime:
    command = (str(path), *program.extra)
    return ExecRuntime(
        RuntimeConfig(type="exec", preset=program.name, command=command, env={**env, "HOME": str(home)}),
        environ={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=()),
        sandbox_config=SandboxConfig(network=True),
    )


async def run_turn(runtime: ExecRuntime, spec: RunSpec) -> tuple[RunOutcome, Recorder]:
    recorder = Recorder()
    with trio.fail_after(TURN_S):
        outcome = await runtime.run(spec, recorder)
    return outcome, recorder


def token_counts(usage: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (usage or {}).items() if key != "cost"}


async def test_a_message_gets_its_reply(runtime, make_spec) -> None:
    outcome, recorder = await run_turn(runtime, make_spec("say hello", context="a note before"))
    assert (outcome.error, outcome.notes) == (None, ())
    assert outcome.reply is not None
    assert outcome.reply.startswith("Answer 1 to: a note before")
    assert outcome.reply.rstrip().endswith("say hello")
    assert "".join(recorder.deltas) == outcome.reply
    assert [message["role"] for message in recorder.messages] == ["assistant"]
    assert token_counts(outcome.usage) == USAGE
    assert recorder.native


async def test_a_tool_is_called_and_its_result_is_in_the_transcript(runtime, make_spec, workspace) -> None:
    outcome, recorder = await run_turn(runtime, make_spec("please RUN touch made-by-the-agent && echo forty-two"))
    assert outcome.error is None
    assert outcome.reply == "The command printed: forty-two"
    assert (workspace / "made-by-the-agent").exists()
    assert [message["role"] for message in recorder.messages] == ["assistant", "toolResult", "assistant"]
    assert [phase for phase, _ in recorder.tools if phase != "update"] == ["start", "end"]
    assert "forty-two" in recorder.messages[1]["content"][0]["text"]
    assert token_counts(outcome.usage) == {key: 2 * value for key, value in USAGE.items()}


async def test_the_next_run_resumes_the_conversation_of_the_program(runtime, make_spec, model) -> None:
    _, first = await run_turn(runtime, make_spec("remember the word heron"))
    outcome, second = await run_turn(runtime, make_spec("and again", native_session_id=first.native))
    assert (outcome.error, outcome.notes) == (None, ())
    assert outcome.reply is not None
    assert outcome.reply.rstrip() == "Answer 2 to: and again"
    assert "heron" in str(model.requests()[-1])
    # The usage of this run alone, though some programs add up all runs.
    assert token_counts(outcome.usage) == USAGE
    assert (second.native or "").split()[0] == (first.native or "").split()[0]


async def test_a_run_with_an_unknown_conversation_starts_a_new_one_and_notes_it(runtime, make_spec, program) -> None:
    gone = "ses_00000000000000000000000000" if program.name == "opencode" else "00000000-0000-4000-8000-000000000000"
    outcome, recorder = await run_turn(runtime, make_spec("say hello", native_session_id=gone))
    assert outcome.error is None
    assert outcome.reply == "Answer 1 to: say hello"
    assert outcome.notes == ("the agent did not know its earlier conversation any more and began a new one",)
    assert recorder.native and recorder.native != gone


async def test_an_abort_ends_all_processes_of_the_run(runtime, make_spec, model) -> None:
    spec = make_spec("HANG please")
    recorder = Recorder()
    with trio.fail_after(TURN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, spec, recorder)
            while not any("HANG" in str(request) for request in model.requests()):  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert processes_of(spec.run_id)
            nursery.cancel_scope.cancel()
        while processes_of(spec.run_id):  # noqa: ASYNC110
            await trio.sleep(0.05)


def processes_of(run_id: str) -> list[int]:
    """The processes with this run in their environment."""
    wanted = f"SESSIOND_RUN_ID={run_id}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# The other programs retry for minutes.
@pytest.mark.parametrize("program", ["claude", "pi"], indirect=True)
async def test_a_failed_connection_to_the_model_is_an_error_with_the_programs_text(
    program, program_path, make_spec, home, model
) -> None:
    model.stop()
    env = {**program.setup(home, model.port), "CLAUDE_CODE_MAX_RETRIES": "0"}
    outcome, _ = await run_turn(make_runtime(program, program_path, env, home), make_spec("hello"))
    assert outcome.reply is None
    assert outcome.error is not None
    assert "onnect" in outcome.error or "fetch" in outcome.error, outcome.error


async def test_a_program_works_in_a_sandbox_with_its_home_in_the_workspace(
    program, program_path, make_spec, workspace, model
) -> None:
    reason = await Bubblewrap(private=()).find_problem()
    if reason is not None:
        pytest.skip(reason)
    home = workspace / "home"
    home.mkdir()
    runtime = make_runtime(program, program_path, program.setup(home, model.port), home)
    # The socket must exist to be mounted; nobody uses it in this test.
    spec = make_spec("please RUN ls -a /home", sandboxed=True, socket=create_socket_file(workspace))
    outcome, first = await run_turn(runtime, spec)
    assert outcome.error is None
    assert outcome.reply is not None
    assert outcome.reply.startswith("The command printed: .")
    again = make_spec("and again", sandboxed=True, socket=spec.socket, native_session_id=first.native)
    outcome, _ = await run_turn(runtime, again)
    assert (outcome.reply or "").rstrip() == "Answer 2 to: and again"


def create_socket_file(workspace: Path) -> Path:
    path = workspace.parent / "agent.sock"
    path.touch()
    return path
