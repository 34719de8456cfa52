"""What waits for an agent that reads nothing is limited; what an agent refuses is a sentence."""

from __future__ import annotations

from pathlib import Path

from sessiond.runtimes.acp.connection import AgentRefused
from sessiond.runtimes.acp.frames import AUTH_REQUIRED, AgentFrame
from sessiond.runtimes.acp.process import AgentProcess, ProcessRules
from sessiond.runtimes.launcher import ProgramCommand


class Turn:
    def __init__(self) -> None:
        self.lost: list[str] = []

    async def offer(self, frame: AgentFrame, size: int) -> None: ...

    def lose_agent(self, reason: str) -> None:
        self.lost.append(reason)


def test_an_agent_for_which_more_than_128_mib_wait_is_ended() -> None:
    rules = ProcessRules(agent_id="main", start_s=1, idle_s=1, max_frame_bytes=1)
    process = AgentProcess(ProgramCommand(argv=("x",), env={}, cwd=Path("/")), rules)
    prompt, turn = [{"type": "text", "text": "x" * 67_108_864}], Turn()
    for native_id in ("a", "b"):
        process.connection.begin_prompt(native_id, prompt, turn)
        assert not process.ended
    process.connection.cancel_prompt("a")
    assert process.ended
    assert turn.lost == ["the agent was ended: it did not read what it was sent"] * 2


def test_a_refusal_is_quoted_without_its_full_stop_and_a_login_has_three_ways() -> None:
    rules = ProcessRules(agent_id="main", start_s=1, idle_s=1, max_frame_bytes=1)
    process = AgentProcess(ProgramCommand(argv=("x",), env={}, cwd=Path("/")), rules)
    assert process.explain_refusal(AgentRefused(-32603, "It failed. "), "failed") == "the agent failed: It failed"
    said = process.explain_refusal(AgentRefused(AUTH_REQUIRED, "Not logged in."), "opened no session")
    assert said == (
        "the agent opened no session: Not logged in. It wants a login: log in with the program itself, or set"
        " `authenticate` in the runtime of agent 'main' to one of its methods: (it names none); or give the variable"
        " that it reads, such as an API key, in `env` there"
    )
