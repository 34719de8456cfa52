"""What a run of a preset leaves in the transcript: messages with every member that pi reads without asking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.in_process import in_process_daemon
from support.rows import check_each
from support.sampling import spread

from sessiond.model.message import complete_message
from sessiond.model.usage import cost_of, usage_in
from sessiond.runtimes.presets import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden" / "presets"
TOKENS = {"input", "output", "cacheRead", "cacheWrite", "totalTokens"}
COSTS = {"input", "output", "cacheRead", "cacheWrite", "total"}
# pi's types.d.ts, 0.73: the members that are not optional.
WHOLE = {
    "user": {"role", "content", "timestamp"},
    "assistant": {"role", "content", "api", "provider", "model", "usage", "stopReason", "timestamp"},
    "toolResult": {"role", "toolCallId", "toolName", "content", "isError", "timestamp"},
}


def assert_whole(message: dict[str, Any]) -> None:
    assert WHOLE[message["role"]] <= set(message), message
    assert isinstance(message["timestamp"], int) and message["timestamp"] > 1_600_000_000_000
    if message["role"] == "assistant":
        assert set(message["usage"]) >= {*TOKENS, "cost"}
        assert set(message["usage"]["cost"]) >= COSTS


def agents(folder: Path) -> str:
    """An agent for each preset, whose program prints what the real one printed."""
    lines = []
    for name in sorted(PRESETS):
        program = folder / name
        program.write_text(f"#!/bin/sh\nexec cat {GOLDEN / name}-tool.jsonl\n")
        program.chmod(0o755)
        runtime = f'{{ type = "exec", preset = "{name}", command = [{json.dumps(str(program))}] }}'
        lines.append(f'[[agents.list]]\nid = "{name}"\nruntime = {runtime}\n')
    return "".join(lines) + '[[agents.list]]\nid = "echo"\nruntime = { type = "echo" }\n'


def messages_below(store: Path) -> list[dict[str, Any]]:
    """Those of the only session."""
    (path,) = store.glob("agents/*/sessions/*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record["message"] for record in records if record["type"] == "message"]


@check_each("agent", spread([*sorted(PRESETS), "echo"], 3))
async def test_every_message_of_a_run_is_whole(tmp_path: Path, agent: str) -> None:
    key = f"agent:{agent}:main"
    async with in_process_daemon(tmp_path, agents(tmp_path)) as parts, parts.connect() as owner:
        sent = await owner.call("chat.send", sessionKey=key, message="please RUN echo forty-two")
        ended = await owner.call("agent.wait", runId=sent["runId"])
        assert ended["status"] == "ok", ended
        (row,) = (await owner.call("sessions_list"))["sessions"]
    messages = messages_below(tmp_path / "store")
    called = ["user", "assistant", "toolResult", "assistant"]
    assert [message["role"] for message in messages] == (["user", "assistant"] if agent == "echo" else called)
    for message in messages:
        assert_whole(message)
    # Of two requests to the model; counted once, whatever was added for pi's sake.
    assert row.get("inputTokens") == (None if agent == "echo" else 120)


def test_fields_that_a_message_has_are_kept() -> None:
    whole = {
        "role": "assistant",
        "content": [],
        "api": "a",
        "provider": "p",
        "model": "m",
        "usage": dict.fromkeys(sorted(TOKENS), 1) | {"cost": dict.fromkeys(sorted(COSTS), 0.5)},
        "stopReason": "length",
        "timestamp": 7,
        "extra": True,
    }
    assert complete_message(whole, 99) == whole


def test_a_cost_that_nobody_told_is_still_none() -> None:
    message = complete_message({"role": "assistant", "content": [], "usage": {"input": 3, "output": 1}}, 99)
    usage = usage_in(message["usage"])
    assert usage is not None and cost_of(usage) is None
    told = complete_message({"role": "assistant", "content": [], "usage": {"input": 3, "cost": {"total": 0.5}}}, 99)
    usage = usage_in(told["usage"])
    assert usage is not None and cost_of(usage) == 0.5


_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())
_objects = st.dictionaries(st.sampled_from(sorted(TOKENS | COSTS | {"cost"})), _values)


@given(
    st.sampled_from(["user", "assistant", "toolResult", "custom"]),
    st.dictionaries(st.sampled_from(["usage", "timestamp", "model", "stopReason", "isError"]), _values | _objects),
)
def test_any_message_of_a_program_is_completed(role: str, more: dict[str, Any]) -> None:
    message = {"role": role, "content": [], **more}
    whole = complete_message(message, 1_700_000_000_000)
    assert {"role", "content", "timestamp"} <= set(whole)
    assert {name: whole[name] for name in message if name not in ("usage", "timestamp")} == {
        name: message[name] for name in message if name not in ("usage", "timestamp")
    }
