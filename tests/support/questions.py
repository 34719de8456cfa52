"""Agents that ask, and their questions as the owner sees them."""

from __future__ import annotations

from typing import Any

import trio
from support.in_process import Connection
from support.in_process_agents import Program
from support.patience import PATIENCE_S

OPTIONS = [
    {"id": "yes", "label": "Yes, once", "kind": "allow_once"},
    {"id": "no", "label": "No", "kind": "reject_once"},
]
ASKED: dict[str, Any] = {"title": "May I run `ls`?", "detail": "ls -l\nin /tmp", "options": OPTIONS}


async def ask_once(made: Program, params: dict[str, Any]) -> Any:
    """An agent that asks one question, and says what it was answered."""
    answer = await made.call("agents.ask", runId=params["runId"], **ASKED)
    return {"reply": f"{answer['outcome']} {answer.get('optionId')} {answer.get('note')} {answer.get('answeredBy')}"}


async def wait_for_question(owner: Connection, **wanted: Any) -> dict[str, Any]:
    """The oldest open question."""
    with trio.fail_after(PATIENCE_S):
        while not (found := (await owner.call("questions.list", open=True, **wanted))["questions"]):  # noqa: ASYNC110
            await trio.sleep(0.005)
    question: dict[str, Any] = found[0]
    return question


async def answered_outcome(owner: Connection, run_id: str) -> str:
    """What an agent says at the end of its run."""
    ended = await owner.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)
    reply: str = ended["reply"]
    return reply
