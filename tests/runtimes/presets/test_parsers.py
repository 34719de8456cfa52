"""Lines that are hard to record: failures, sub-agents, several tools at once, and whatever a next version may print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.usage import Usage
from sessiond.runtimes.output import (
    CustomOutput,
    Delta,
    Ended,
    Event,
    LinesOutput,
    MessageOutput,
    NativeSession,
    Tool,
    decode_object,
    to_message,
)
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.runtime import RunSpec


@pytest.fixture
def read(make_spec) -> Any:
    def read(preset: str, *lines: dict[str, Any], native: str | None = None, **fields: Any) -> list[Event]:
        spec = make_spec(native_session_id=native, **fields)
        output = LinesOutput(PRESETS[preset].parser(spec), 8 << 20)
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        return [*output.feed(data), *output.end()]

    return read


def assistant(message_id: str, *blocks: dict[str, Any], **usage: int) -> dict[str, Any]:
    message = {"id": message_id, "role": "assistant", "model": "m", "content": list(blocks), "usage": usage}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None}


def test_claude_without_partial_messages_joins_the_lines_of_a_request(read) -> None:
    events = read(
        "claude",
        assistant("a", {"type": "thinking", "thinking": "hm"}, input_tokens=5, output_tokens=1),
        assistant("a", {"type": "text", "text": "one"}, input_tokens=5, output_tokens=3),
        assistant("b", {"type": "text", "text": "two"}, input_tokens=9, output_tokens=4),
    )
    first, second = [event.message for event in events if isinstance(event, MessageOutput)]
    assert [block["type"] for block in first["content"]] == ["thinking", "text"]
    assert first["usage"] == {"input": 5, "output": 3, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 8}
    assert second["content"] == [{"type": "text", "text": "two"}]
    assert second["usage"]["totalTokens"] == 13


def test_claude_keeps_what_a_sub_agent_says_out_of_the_conversation(read) -> None:
    line = {**assistant("a", {"type": "text", "text": "from within"}), "parent_tool_use_id": "toolu_1"}
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}
    events = read("claude", line, {"type": "stream_event", "event": delta, "parent_tool_use_id": "toolu_1"})
    assert events == [CustomOutput("claude/assistant", line)]


def test_claude_says_its_error_and_what_was_not_allowed(read) -> None:
    events = read(
        "claude",
        {
            "type": "result",
            "subtype": "success",
            "is_error": True,
            "result": "Invalid API key",
            "permission_denials": [{"tool_name": "Bash"}],
        },
    )
    assert events == [
        CustomOutput("claude/permission_denials", [{"tool_name": "Bash"}]),
        Ended(error="Invalid API key", reply="Invalid API key"),
    ]
    assert read("claude", {"type": "result", "subtype": "error_max_turns"}) == [Ended(error="error_max_turns")]


def test_claude_results_hold_images_and_unknown_blocks(read) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image, {"type": "new"}, "odd"], "is_error": True}
    events = read(
        "claude",
        assistant("a", {"type": "tool_use", "id": "t", "name": "Read", "input": {"path": "x"}}),
        {"type": "user", "message": {"role": "user", "content": [result]}},
    )
    assert events[-1] == MessageOutput(
        {
            "role": "toolResult",
            "toolCallId": "t",
            "toolName": "Read",
            "content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}, {"type": "new"}],
            "isError": True,
        }
    )


def item(phase: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": fields}


def test_codex_tools_at_the_same_time_are_one_message_and_two_results(read) -> None:
    events = read(
        "codex",
        item("completed", id="0", type="agent_message", text="both"),
        item("started", id="1", type="command_execution", command="a", aggregated_output="", exit_code=None),
        item("started", id="2", type="mcp_tool_call", server="s", tool="t", arguments={"x": 1}),
        item("completed", id="1", type="command_execution", command="a", aggregated_output="A", exit_code=3),
        item(
            "completed",
            id="2",
            type="mcp_tool_call",
            server="s",
            tool="t",
            arguments={"x": 1},
            result={"content": [{"type": "text", "text": "T"}]},
            status="completed",
        ),
    )
    messages = [event.message for event in events if isinstance(event, MessageOutput)]
    assert [block.get("name", block["type"]) for block in messages[0]["content"]] == ["text", "shell", "mcp__s__t"]
    assert [(one["toolName"], one["content"], one["isError"]) for one in messages[1:]] == [
        ("shell", [{"type": "text", "text": "A"}], True),
        ("mcp__s__t", [{"type": "text", "text": "T"}], False),
    ]


def test_codex_says_two_things_in_two_messages(read) -> None:
    events = read(
        "codex",
        item("completed", id="0", type="agent_message", text="one"),
        item("completed", id="1", type="agent_message", text="two"),
    )
    assert [event.message["content"][0]["text"] for event in events if isinstance(event, MessageOutput)] == [
        "one",
        "two",
    ]


def test_codex_that_failed_says_why(read) -> None:
    line = {"type": "error", "message": "Reconnecting"}
    assert read("codex", line, line, {"type": "turn.failed", "error": {"message": "quota"}}) == [
        CustomOutput("codex/error", line),
        Ended(error="quota"),
    ]
    assert read("codex", line) == [CustomOutput("codex/error", line), Ended(error="Reconnecting")]


def test_codex_that_recovered_did_not_fail(read) -> None:
    usage = {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 2}
    events = read("codex", {"type": "error", "message": "Reconnecting"}, {"type": "turn.completed", "usage": usage})
    assert events[-1] == Ended(usage={"input": 6, "output": 2, "cacheRead": 4, "cacheWrite": 0, "totalTokens": 12})


@check_each(
    ("native", "input_tokens"),
    [
        ("t1 100 40 0 7", 15),
        ("t1", 75),
        ("t2 100 40 0 7", 75),
        ("t1 200 40 0 7", 75),
        ("t1 1 2", 75),
        ("t1 x 40 0 7", 75),
    ],
)
def test_codex_counts_from_where_the_last_run_ended(read, native, input_tokens) -> None:
    usage = {"input_tokens": 120, "cached_input_tokens": 45, "output_tokens": 9}
    events = read(
        "codex",
        {"type": "thread.started", "thread_id": "t1"},
        {"type": "turn.completed", "usage": usage},
        native=native,
    )
    assert [event.usage["input"] for event in events if isinstance(event, Ended) and event.usage] == [input_tokens]
    assert NativeSession("t1 120 45 0 9") in events


def test_codex_keeps_the_counts_of_a_thread_that_is_resumed(read) -> None:
    assert read("codex", {"type": "thread.started", "thread_id": "t1"}, native="t1 100 40 0 7") == []


@pytest.mark.parametrize(
    ("thread", "total", "fresh"),
    [
        ("copy", {"input_tokens": 320, "cached_input_tokens": 85, "output_tokens": 19}, (170, 45, 9)),
        # Less than the original had: this release counts a copy from nothing.
        ("copy", {"input_tokens": 30, "cached_input_tokens": 10, "output_tokens": 2}, (20, 10, 2)),
    ],
)
def test_codex_does_not_count_what_the_original_of_a_copy_has_used(read, thread, total, fresh) -> None:
    used = Usage(input=65, output=10, cache_read=40)
    lines = ({"type": "thread.started", "thread_id": thread}, {"type": "turn.completed", "usage": total})
    events = read("codex", *lines, fork_of="original", fork_usage=used)
    (spent,) = [event.usage for event in events if isinstance(event, Ended) and event.usage]
    assert (spent["input"], spent["cacheRead"], spent["output"]) == fresh
    counts = (total["input_tokens"], total["cached_input_tokens"], 0, total["output_tokens"])
    assert NativeSession(" ".join(map(str, (thread, *counts)))) in events


FORKS = {
    "claude": ["--resume=ID", "--fork-session"],
    "codex": ["fork", "ID", "-"],
    "gemini": ["--session-file=/x.jsonl"],
    "opencode": ["--session=ID", "--fork"],
    "pi": ["--fork", "ID"],
}


def test_a_program_begins_with_a_copy_until_it_has_a_conversation_of_its_own(make_spec) -> None:
    assert PRESETS.keys() == FORKS.keys()
    for name, words in FORKS.items():
        preset = PRESETS[name]
        begun = preset.command(make_spec(fork_of="ID", fork_file=Path("/x.jsonl")), [])
        assert begun[-len(words) :] == words
        own = preset.command(make_spec(fork_of="ID", native_session_id="own"), [])
        assert own == preset.command(make_spec(native_session_id="own"), [])
        for evil in ("--evil", "", "a b"):
            assert preset.command(make_spec(fork_of=evil), []) == preset.command(make_spec(), [])


def test_gemini_that_failed_says_why(read) -> None:
    events = read("gemini", {"type": "result", "status": "error", "error": {"type": "E", "message": "no quota"}})
    assert [event.error for event in events if isinstance(event, Ended)] == ["no quota"]


def test_opencode_that_failed_says_why(read) -> None:
    error = {"name": "APIError", "data": {"message": "bad key"}}
    events = read("opencode", {"type": "error", "sessionID": "ses_1", "error": error})
    assert events == [NativeSession("ses_1"), Ended(error="bad key")]


def test_pi_that_failed_says_why_unless_it_tried_again(read) -> None:
    def end(**fields: Any) -> dict[str, Any]:
        return {"type": "message_end", "message": {"role": "assistant", "content": [], **fields}}

    failed = end(stopReason="error", errorMessage="overloaded")
    assert read("pi", failed)[-1] == Ended(error="overloaded")
    assert not any(isinstance(event, Ended) for event in read("pi", failed, end(stopReason="stop")))


def test_pi_leaves_out_the_message_of_this_turn_alone(read) -> None:
    def user(text: str) -> dict[str, Any]:
        return {"type": "message_end", "message": {"role": "user", "content": text}}

    assert read("pi", user("asked"), user("steered")) == [MessageOutput({"role": "user", "content": "steered"})]


@check_each("preset", sorted(PRESETS))
def test_lines_of_a_next_version_are_kept(read, preset) -> None:
    line = {"type": "brand_new", "value": [1, {"a": None}]}
    assert read(preset, line, {"no": "type"}) == [
        CustomOutput(f"{preset}/brand_new", line),
        CustomOutput(f"{preset}/line", {"no": "type"}),
    ]


@check_each("preset", sorted(PRESETS))
def test_a_session_id_that_could_be_an_option_is_not_taken(read, preset, make_spec) -> None:
    evil = "--dangerously-skip-permissions"
    lines = [
        {"type": "system", "subtype": "init", "session_id": evil},
        {"type": "thread.started", "thread_id": evil},
        {"type": "init", "session_id": evil},
        {"type": "text", "sessionID": evil},
        {"type": "session", "id": evil},
    ]
    assert not any(isinstance(event, NativeSession) for event in read(preset, *lines))
    plain = PRESETS[preset].command(make_spec(), [])
    assert PRESETS[preset].command(make_spec(native_session_id=evil), []) == plain


COMMANDS = {
    "claude": "claude -p --output-format=stream-json --verbose --include-partial-messages --model=m --effort=high "
    "--resume=id1 -x",
    "codex": 'codex exec --json --skip-git-repo-check --model=m -c model_reasoning_effort="high" -x resume id1 -',
    "gemini": "gemini --output-format=stream-json --model=m --resume=id1 -x",
    "opencode": "opencode run --format=json --thinking --model=m --variant=high --session=id1 -x",
    "pi": "pi --mode json -p --model m --thinking high --session id1 -x",
}


@check_each("preset", sorted(PRESETS))
def test_the_command_line_says_model_thinking_and_conversation(preset, make_spec) -> None:
    spec = make_spec(model="m", thinking="high", native_session_id="id1 1 2 3 4")
    program = PRESETS[preset].program
    assert PRESETS[preset].command(spec, [program, "-x"]) == COMMANDS[preset].split(" ")
    assert PRESETS[preset].command(make_spec(), ["/opt/it"])[0] == "/opt/it"


# What the readers look at, so that a guess gets somewhere.
WORD_LIST = """
type message role content text thinking assistant user system init subtype session_id stream_event
event delta text_delta content_block_delta message_delta message_stop tool_use tool_result
tool_use_id id name input usage input_tokens output_tokens result is_error errors total_cost_usd
model_usage_since_last_result thread.started thread_id turn.completed turn.failed error item
item.started item.completed command_execution mcp_tool_call file_change web_search collab_tool_call
agent_message reasoning changes agents_states exit_code status part sessionID step_finish tokens
cost callID state metadata exit output tool_name tool_id parameters stats models message_end
message_update assistantMessageEvent toolResult toolCallId tool_execution_end args stopReason
errorMessage timestamp source data media_type image provenance
"""
WORDS = st.sampled_from(WORD_LIST.split())
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5),
    max_leaves=15,
)
LINES = st.dictionaries(WORDS, VALUES, max_size=6).flatmap(
    lambda line: st.sampled_from([line]) | WORDS.map(lambda word: {**line, "type": word})
)
SPEC = RunSpec(
    run_id="r",
    session_key="agent:main:main",
    session_id="s",
    agent_id="main",
    message="",
    workspace=None,
    socket=None,  # type: ignore[arg-type]
)


@pytest.mark.parametrize("preset", sorted(PRESETS))
@given(lines=st.lists(LINES, max_size=8), native=st.none() | st.text(max_size=20))
@settings(deadline=None)
def test_no_line_is_fatal_and_all_that_comes_of_it_can_be_written(preset, lines, native) -> None:
    spec = msgspec.structs.replace(SPEC, native_session_id=native)
    output = LinesOutput(PRESETS[preset].parser(spec), 8 << 20)
    events: list[Event] = []
    for line in lines:
        events.extend(output.feed(msgspec.json.encode(line) + b"\n"))
    events.extend(output.end())
    for event in events:
        match event:
            case MessageOutput():
                again = decode_object(msgspec.json.encode(event.message))
                assert again is not None and to_message(again) == MessageOutput(again)
            case CustomOutput():
                assert event.custom_type.startswith(f"{preset}/") and msgspec.json.encode(event.data)
            case Tool():
                assert event.tool_call_id and isinstance(event.name, str) and msgspec.json.encode(event.extra)
            case Delta():
                assert event.text
            case NativeSession():
                assert not event.session_id.startswith("-")
            case Ended():
                assert msgspec.json.encode(event)
