"""What real agent programs printed, and what became of it. Made by tests/agents/record.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from support.rows import check_each

from sessiond.runtimes.output import Ended, LinesOutput, MessageOutput
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.turn_summary import TurnSummary

GOLDEN = Path(__file__).parents[2] / "golden" / "presets"
MODELS = {
    "claude": "claude-sonnet-4-5",
    "codex": "gpt-5",
    "gemini": "gemini-2.5-pro",
    "opencode": "anthropic/claude-sonnet-4-5",
    "pi": "anthropic/claude-sonnet-4-5",
}
RECORDINGS = sorted(path.stem for path in GOLDEN.glob("*.jsonl"))
TURNS = {"hello": 1, "tool": 2, "failing-tool": 2, "resumed": 1}


def read(recording: str, make_spec: Any, step: int) -> tuple[list[Any], Any]:
    """The events of a recording that arrives in pieces of `step` bytes, and the ones that are expected."""
    name = recording.partition("-")[0]
    expected = msgspec.json.decode((GOLDEN / f"{recording}.events.json").read_bytes())
    spec = make_spec(model=MODELS[name], native_session_id=expected["nativeSessionId"])
    output = LinesOutput(PRESETS[name].parser(spec), 8 << 20)
    data = (GOLDEN / f"{recording}.jsonl").read_bytes()
    events: list[Any] = []
    for start in range(0, len(data), step):
        events.extend(output.feed(data[start : start + step]))
    events.extend(output.end())
    assert output.bad_lines == 0
    return events, expected["events"]


def test_every_program_is_recorded_in_every_scene() -> None:
    assert {recording for recording in RECORDINGS if not recording.endswith("-gone")} == {
        f"{name}-{scene}" for name in PRESETS for scene in TURNS
    }


@check_each("recording", RECORDINGS)
@check_each("step", [1_000_000, 997])
def test_a_recording_becomes_its_events(recording, step, make_spec) -> None:
    events, expected = read(recording, make_spec, step)
    assert [{"event": type(event).__name__, **msgspec.to_builtins(event)} for event in events] == expected


@check_each("recording", [name for name in RECORDINGS if not name.endswith("-gone")])
def test_usage_is_counted_once_for_each_request(recording, make_spec) -> None:
    """The model server said 60 input, 40 cached and 7 output tokens for each request."""
    events, _ = read(recording, make_spec, 1_000_000)
    summary = TurnSummary()
    for event in events:
        if isinstance(event, MessageOutput | Ended):
            summary.add(event)
    summary.end()
    turns = TURNS[recording.partition("-")[2]]
    usage = {key: value for key, value in (summary.usage or {}).items() if key != "cost"}
    assert usage == {
        "input": 60 * turns,
        "output": 7 * turns,
        "cacheRead": 40 * turns,
        "cacheWrite": 0,
        "totalTokens": 107 * turns,
    }
    assert summary.error is None


@check_each("recording", [name for name in RECORDINGS if not name.endswith("-gone")])
def test_the_messages_are_those_of_a_transcript(recording, make_spec) -> None:
    events, _ = read(recording, make_spec, 1_000_000)
    messages = [event.message for event in events if isinstance(event, MessageOutput)]
    roles = [message["role"] for message in messages]
    if TURNS[recording.partition("-")[2]] == 1:
        assert roles == ["assistant"]
        return
    assert roles == ["assistant", "toolResult", "assistant"]
    call = next(block for block in messages[0]["content"] if block["type"] == "toolCall")
    assert (call["id"], call["name"]) == (messages[1]["toolCallId"], messages[1]["toolName"])
    assert [message.get("stopReason") for message in messages] == ["toolUse", None, "stop"]
