"""What a run gets of its session's history and what it costs, with real programs as agents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.in_process import InProcessDaemon, in_process_daemon
from support.in_process_agents import agent, attached_agents_config
from support.patience import PATIENCE_S

from sessiond.daemon import host

CAT = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["cat"], input = "json" }
"""
PRICES = """
[models.pricing]
"cheap" = { input = 1.0, output = 1.0 }
"dear" = { input = 1000.0, output = 1000.0 }
"""


async def reply(there: InProcessDaemon, owner: Any, key: str, message: str) -> dict[str, Any]:
    sent = await owner.call("chat.send", sessionKey=key, message=message)
    ended: dict[str, Any] = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
    assert ended["status"] == "ok", ended
    return ended


def texts(history: list[dict[str, Any]]) -> list[str]:
    said = []
    for message in history:
        content = message["content"]
        said.append(content if isinstance(content, str) else content[0]["text"])
    return said


async def test_a_program_with_json_input_gets_the_history(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CAT) as there, there.connect() as owner:
        first = json.loads((await reply(there, owner, "main", "one"))["reply"])
        assert first["history"] == []
        second = json.loads((await reply(there, owner, "main", "one"))["reply"])
        assert texts(second["history"])[0] == "one"
        assert json.loads(texts(second["history"])[1])["message"] == "one"
        assert len(second["history"]) == 2
        await owner.call(
            "chat.inject", sessionKey="main", messages=[{"role": "toolResult", "toolCallId": "1", "content": []}]
        )
        third = json.loads((await reply(there, owner, "main", "three"))["reply"])
        assert [message["role"] for message in third["history"]] == [
            "user",
            "assistant",
            "user",
            "assistant",
            "toolResult",
        ]


async def test_the_history_given_to_a_run_is_bounded(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CAT) as there, there.connect() as owner:
        await owner.call("sessions.create", key="main")
        count = host._HISTORY_MESSAGES + 5
        messages = [{"role": "user", "content": str(number)} for number in range(count)]
        for start in range(0, count, 50):
            await owner.call("chat.inject", sessionKey="main", messages=messages[start : start + 50])
        told = json.loads((await reply(there, owner, "main", "now"))["reply"])["history"]
        assert texts(told) == [str(number) for number in range(5, count)]


@pytest.mark.parametrize("model", ["cheap", "dear"])
async def test_the_first_run_is_priced_by_its_own_model(tmp_path: Path, model: str) -> None:
    async def answer(_: object, __: dict[str, Any]) -> Any:
        return {"reply": "hi", "usage": {"input": 1000, "output": 1000, "totalTokens": 2000}, "model": model}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", more=PRICES)) as there,
        agent(there, "alice", answer),
    ):
        async with there.connect() as owner:
            await reply(there, owner, "agent:alice:main", "hello")
        session = there.services.store.catalog.by_key["agent:alice:main"]
        assert session.entry.estimated_cost_usd == {"cheap": 0.002, "dear": 2.0}[model]


async def test_a_run_is_priced_by_its_own_model_not_by_that_of_the_previous_run(tmp_path: Path) -> None:
    models = iter(["dear", "cheap"])

    async def answer(_: object, __: dict[str, Any]) -> Any:
        return {"reply": "hi", "usage": {"input": 1000, "output": 0, "totalTokens": 1000}, "model": next(models)}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", more=PRICES)) as there,
        agent(there, "alice", answer),
    ):
        session = None
        async with there.connect() as owner:
            await reply(there, owner, "agent:alice:main", "hello")
            session = there.services.store.catalog.by_key["agent:alice:main"]
            assert session.entry.estimated_cost_usd == 1.0
            await reply(there, owner, "agent:alice:main", "hello")
            assert session.entry.estimated_cost_usd == pytest.approx(1.001)


async def test_a_missing_runtime_folder_is_created_again(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CAT) as there, there.connect() as owner:
        shutil.rmtree(tmp_path / "sockets")
        await reply(there, owner, "main", "hello")
        assert (tmp_path / "sockets").stat().st_mode & 0o777 == 0o700
        # If it cannot be created, the run ends with an error that says why.
        shutil.rmtree(tmp_path / "sockets")
        (tmp_path / "sockets").write_text("in the way")
        sent = await owner.call("chat.send", sessionKey="main", message="hello")
        ended = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        assert (ended["status"], ended["error"]) == (
            "error",
            "the run's token cannot be written beside the daemon's sockets: File exists; the run was not started",
        )
