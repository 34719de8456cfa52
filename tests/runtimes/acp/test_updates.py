"""Updates of agents as messages, events and records, whatever the agents say."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.runtimes.acp.tool_calls import LEFT_OPEN
from sessiond.runtimes.acp.updates import ContextUsage, UpdateReader, cost_since, turn_usage
from sessiond.runtimes.output import ENVELOPE_BYTES, CustomOutput, Delta, Event, MessageOutput, ThoughtDelta, Tool

LIMIT = 8192


def reader() -> UpdateReader:
    return UpdateReader(provider="p", max_record_bytes=LIMIT, known_lists={})


def chunk(text: str, message_id: str | None = None, kind: str = "agent_message_chunk") -> dict[str, Any]:
    more = {} if message_id is None else {"messageId": message_id}
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}


def call(call_id: str = "c", /, *, of: str = "tool_call", **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": of, "toolCallId": call_id, **fields}


def read(*updates: Any, stop: str = "end_turn") -> tuple[UpdateReader, list[Event]]:
    made = reader()
    events = [event for update in updates for event in made.take(update)]
    return made, [*events, *made.end(stop)]


def messages(events: list[Event]) -> list[dict[str, Any]]:
    return [event.message for event in events if isinstance(event, MessageOutput)]


def test_calls_that_are_too_long_for_a_record_are_shortened() -> None:
    many = [call(f"c{number}", title="t") for number in range(20)]
    grown = [call(one["toolCallId"], of="tool_call_update", rawInput={"a": "z" * 1000}) for one in many]
    for updates in ([call(title="t" * 2 * LIMIT, status="completed")], [*many, *grown]):
        _, events = read(*updates)
        sizes = [len(msgspec.json.encode(message)) for message in messages(events)]
        assert len(sizes) >= 2 and max(sizes) <= LIMIT - ENVELOPE_BYTES


def test_open_calls_hold_so_much_and_no_more() -> None:
    """A call that is ended early has a result that says so, and one with as much as its predecessors had is kept."""
    printed = {"rawOutput": "z" * (6 * 1024 * 1024)}
    twice = [call("c0", **printed), call("c0", of="tool_call_update", **printed)]
    for count, early in ((10, []), (12, ["c0", "c1"])):
        made, events = reader(), []
        for update in [*twice, *(call(f"c{number}", **printed) for number in range(1, count))]:
            events += list(made.take(update))
        assert [event.tool_call_id for event in events if isinstance(event, Tool) and event.phase == "end"] == early
        results = [one for one in messages([*events, *made.end("end_turn")]) if one["role"] == "toolResult"]
        assert len(results) == count and all(one["content"][0]["text"] == LEFT_OPEN for one in results)


def test_titles_and_what_permission_requests_say_count_as_held_too() -> None:
    long = "z" * (6 * 1024 * 1024)
    made, asked = reader(), reader()
    events = [event for number in range(12) for event in made.take(call(f"c{number}", title=long))]
    begun = [event for number in range(12) for event in asked.take(call(f"c{number}"))]
    events_asked = [one for number in range(12) for one in asked.calls.begin(call(f"c{number}", rawInput={"a": long}))]
    for found in (events, [*begun, *events_asked]):
        ended = [event.tool_call_id for event in found if isinstance(event, Tool) and event.phase == "end"]
        assert ended == ["c0", "c1"]


def test_a_result_is_cut_to_what_its_ids_leave_room_for() -> None:
    call_id, name = "\x01" * 1024, "\x02" * 100
    _, events = read(call(call_id, name=name, status="completed", rawOutput="\x03" * LIMIT))
    (result,) = [one for one in messages(events) if one["role"] == "toolResult"]
    assert len(msgspec.json.encode(result)) <= LIMIT - ENVELOPE_BYTES
    assert "cut here" in result["content"][0]["text"]


def test_a_call_is_in_a_message_before_its_result() -> None:
    updates = [
        chunk("let me look"),
        call(title="Read a", kind="read", status="pending", locations=[{"path": "/a"}]),
        call(of="tool_call_update", rawInput={"path": "/a"}, title=None, status="in_progress"),
        call(
            of="tool_call_update",
            status="completed",
            content=[
                {"type": "diff", "path": "/a", "oldText": "x", "newText": "y"},
                {"type": "content", "content": {"type": "image", "data": "aGk=", "mimeType": "image/png"}},
                {"type": "terminal", "terminalId": "t"},
            ],
        ),
        call(of="tool_call_update", status="failed", rawOutput="late"),
        chunk("done"),
    ]
    made, events = read(*updates)
    said = {"api": "acp", "provider": "p"}
    block = {"type": "toolCall", "id": "c", "name": "read", "arguments": {"path": "/a"}}
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    details = {"title": "Read a", "kind": "read", "locations": [{"path": "/a"}], "diffs": [updates[3]["content"][0]]}
    assert messages(events) == [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "let me look"}, block],
            **said,
            "stopReason": "toolUse",
        },
        {
            "role": "toolResult",
            "toolCallId": "c",
            "toolName": "read",
            "content": [{"type": "text", "text": "(changed /a)"}, image],
            "isError": False,
            "details": details,
        },
        {"role": "assistant", "content": [{"type": "text", "text": "done"}], **said, "stopReason": "stop"},
    ]
    live = [(one.phase, one.extra.get("status")) for one in events if isinstance(one, Tool)]
    assert live == [("start", None), ("update", "in_progress"), ("end", None)]
    assert made.dropped == 0


NAMES = [
    ({"name": "bash", "kind": "execute", "title": "Run"}, "bash"),
    ({"kind": "execute", "title": "Run"}, "execute"),
    ({"kind": "other", "title": "Run"}, "Run"),
    ({"title": "Run"}, "Run"),
    ({}, "other"),
]
ARGUMENTS = [({"a": 1}, {"a": 1}), (None, {}), ("text", {"input": "text"}), ([1], {"input": [1]})]


@check_each(("fields", "name"), NAMES)
@check_each(("raw", "arguments"), ARGUMENTS)
def test_a_call_has_a_name_and_arguments(fields: Any, name: str, raw: Any, arguments: Any) -> None:
    _, events = read(call(**fields, rawInput=raw))
    first, result = messages(events)
    assert first["content"] == [{"type": "toolCall", "id": "c", "name": name, "arguments": arguments}]
    assert result["content"] == [{"type": "text", "text": LEFT_OPEN}] and result["isError"]


ENDS = [
    ("end_turn", "stop"),
    ("max_tokens", "length"),
    ("max_turn_requests", "length"),
    ("cancelled", "aborted"),
    ("refusal", "error"),
    ("new", "stop"),
]


@check_each(("stop", "said"), ENDS)
def test_the_last_message_says_why_the_agent_stopped(stop: str, said: str) -> None:
    assert [one["stopReason"] for one in messages(read(chunk("one", "a"), chunk("two", "b"), stop=stop)[1])] == [
        "stop",
        said,
    ]


SPLITS = [
    (["a", "b"], [None, None], ["ab"]),
    (["a", "b"], ["1", "1"], ["ab"]),
    (["a", "b"], ["1", "2"], ["a", "b"]),
    (["a", "b", "c"], ["1", None, "1"], ["a", "b", "c"]),
]


@check_each(("texts", "ids", "expected"), SPLITS)
def test_a_message_is_what_has_one_id(texts: list[str], ids: list[str | None], expected: list[str]) -> None:
    _, events = read(*(chunk(text, one) for text, one in zip(texts, ids, strict=True)))
    assert [one["content"][0]["text"] for one in messages(events)] == expected
    assert [one.text for one in events if isinstance(one, Delta)] == texts


def test_a_thought_without_an_id_belongs_to_what_follows_it() -> None:
    _, events = read(
        chunk("hm", None, "agent_thought_chunk"), chunk("so", "1"), chunk("hm 2", "2", "agent_thought_chunk")
    )
    assert [one.text for one in events if isinstance(one, ThoughtDelta)] == ["hm", "hm 2"]
    first, second = messages(events)
    assert first["content"] == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    assert second["content"] == [{"type": "thinking", "thinking": "hm 2"}]


THOUGHTS = [
    (["1", None, "1"], [[("text", "t0"), ("thinking", "t1"), ("text", "t2")]]),
    (["1", None, "2"], [[("text", "t0")], [("thinking", "t1"), ("text", "t2")]]),
    (["1", None], [[("text", "t0"), ("thinking", "t1")]]),
    ([None, None, None], [[("text", "t0"), ("thinking", "t1"), ("text", "t2")]]),
]


@check_each(("ids", "expected"), THOUGHTS)
def test_a_thought_between_two_texts_is_with_the_text_after_it(ids: list[str | None], expected: Any) -> None:
    kinds = ["agent_message_chunk", "agent_thought_chunk", "agent_message_chunk"]
    updates = [chunk(f"t{number}", one, kinds[number]) for number, one in enumerate(ids)]
    said = [[(block["type"], block[block["type"]]) for block in one["content"]] for one in messages(read(*updates)[1])]
    assert said == expected


def test_what_is_too_long_for_a_record_is_split_or_cut() -> None:
    room = LIMIT - ENVELOPE_BYTES
    for text in ("word " * 5000, "x" * 20_000, "\n\u0001" * 6000, "é" * 9000):
        made, events = read(chunk(text))
        assert "".join(one["content"][0]["text"] for one in messages(events)) == text
        assert made.split == len(messages(events)) - 1 > 0
        assert all(len(msgspec.json.encode(one)) < LIMIT for one in messages(events))
    _, events = read(call(title="t", rawInput={"x": "y" * 20_000}, status="completed", rawOutput="z " * 20_000))
    first, result = messages(events)
    assert first["content"][0]["arguments"] == {"omitted": "20008 bytes, too long for limits.maxRecordBytes"}
    assert "cut here: the whole result is" in result["content"][0]["text"]
    assert all(len(msgspec.json.encode(one)) < room for one in messages(events))
    thoughts = [chunk("hm " * 100, None, "agent_thought_chunk")] * 200
    made, events = read(chunk("so", "1"), *thoughts)
    assert len(messages(events)) > 5 and all(len(msgspec.json.encode(one)) < LIMIT for one in messages(events))
    made, events = read({"sessionUpdate": "plan", "entries": ["x" * 9000]})
    assert (made.dropped, events) == (1, [])


def test_open_calls_are_limited() -> None:
    made = reader()
    events = [event for number in range(1001) for event in made.take(call(str(number), title="t"))]
    assert [one.tool_call_id for one in events if isinstance(one, Tool) and one.phase == "end"] == ["0"]


def test_lists_are_recorded_when_they_changed() -> None:
    known: dict[str, bytes] = {}
    for update, count in (({"a": 1}, 1), ({"a": 1}, 0), ({"a": 2}, 1)):
        made = UpdateReader(provider="p", max_record_bytes=LIMIT, known_lists=known)
        assert len(list(made.take({"sessionUpdate": "config_option_update", **update}))) == count
    assert [type(one) for one in read({"sessionUpdate": "notice"}, {"sessionUpdate": "notice"})[1]] == [
        CustomOutput
    ] * 2


USAGES: list[tuple[dict[str, int], tuple[int, int, int, int, int]]] = [
    ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}, (10, 5, 0, 0, 15)),
    ({"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 4, "totalTokens": 15}, (6, 5, 4, 0, 15)),
    ({"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 4, "totalTokens": 19}, (10, 5, 4, 0, 19)),
    ({"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3, "totalTokens": 18}, (10, 8, 0, 0, 18)),
    ({"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3, "totalTokens": 15}, (10, 5, 0, 0, 15)),
    ({"inputTokens": -1, "outputTokens": 5}, (0, 5, 0, 0, 5)),
]


@check_each(("said", "expected"), USAGES)
def test_the_usage_of_a_turn(said: dict[str, int], expected: Any) -> None:
    found = turn_usage({"usage": said}, None, None)
    assert found == dict(zip(("input", "output", "cacheRead", "cacheWrite", "totalTokens"), expected, strict=True))
    filled = turn_usage({"usage": said}, ContextUsage(77, 100, None), 0.5)
    assert filled is not None and filled["totalTokens"] == 77 and filled["cost"] == {"total": 0.5}


def test_the_usage_of_gemini_cli_is_in_its_own_member() -> None:
    said = {"_meta": {"quota": {"token_count": {"input_tokens": 200, "output_tokens": 14}}}}
    found = turn_usage(said, None, None)
    assert found == {"input": 200, "output": 14, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 214}


def test_what_a_command_prints_to_a_terminal_is_its_result() -> None:
    def printed(**meta: str) -> dict[str, Any]:
        return call(of="tool_call_update", _meta={name: {"data": data} for name, data in meta.items()})

    begun = call(title="ls", content=[{"type": "terminal", "terminalId": "t"}])
    ended = call(of="tool_call_update", status="completed", rawOutput={"exit": 0})
    for updates, expected in (
        ([printed(terminal_output_delta="a\n"), printed(terminal_output_delta="b\n")], "a\nb\n"),
        ([printed(terminal_output_delta="lost"), printed(terminal_output="whole")], "whole"),
        ([printed(terminal_output_delta="x" * LIMIT)] * 3, None),
    ):
        _, events = read(begun, *updates, ended)
        (result,) = [one for one in messages(events) if one["role"] == "toolResult"]
        text = result["content"][0]["text"]
        assert text == expected or (expected is None and "the whole result is" in text)


def test_a_call_that_only_a_permission_request_names_is_in_a_message() -> None:
    made = reader()
    asked = {"toolCallId": "c", "title": "ls", "kind": "execute", "status": "pending", "content": ["why"]}
    events = list(made.calls.begin(asked))
    made.calls.deny(asked, "so it is")
    events += [*made.calls.begin({}), *made.calls.begin({"toolCallId": ""}), *made.end("end_turn")]
    first, result = messages(events)
    assert first["content"] == [{"type": "toolCall", "id": "c", "name": "execute", "arguments": {}}]
    assert result["content"] == [{"type": "text", "text": "(permission denied: so it is)"}]
    assert (result["isError"], made.dropped) == (True, 0)


def test_costs_are_differences_and_a_lower_one_begins_again() -> None:
    assert [cost_since(*one) for one in ((None, None), (1.0, None), (None, 2.0), (1.5, 2.0), (2.0, 1.0))] == [
        None,
        None,
        2.0,
        0.5,
        1.0,
    ]
    assert turn_usage({}, None, None) is None


WORDS = [
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
    "usage_update",
    "user_message_chunk",
    "x",
]
NAMED = [
    "content",
    "messageId",
    "toolCallId",
    "title",
    "name",
    "kind",
    "status",
    "rawInput",
    "rawOutput",
    "locations",
    "type",
    "text",
    "used",
    "size",
    "cost",
    "amount",
    "_meta",
    "terminal_output",
    "terminal_output_delta",
    "data",
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**60)
    | st.text(max_size=4)
    | st.sampled_from(["text", "completed", "content", "diff", "image"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMED), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.lists(
        st.builds(
            lambda kind, more: {"sessionUpdate": kind, **more},
            st.sampled_from(WORDS),
            st.dictionaries(st.sampled_from(NAMED), values),
        )
        | values,
        max_size=8,
    )
)
def test_any_updates_give_messages_that_can_be_stored(updates: list[Any]) -> None:
    """Some of the updates come as the call of a permission request that is denied."""
    made, events = reader(), []
    for update in updates:
        if isinstance(update, dict) and update.get("sessionUpdate") == "tool_call":
            known = made.calls.describe(update)
            assert isinstance(known.kind, str) and isinstance(known.title, str)
            events += made.calls.begin(update)
            made.calls.deny(update, "no")
        else:
            events += made.take(update)
    events += made.end("end_turn")
    calls: set[str] = set()
    for message in messages(events):
        assert len(msgspec.json.encode(message)) < LIMIT
        if message["role"] == "toolResult":
            assert message["toolCallId"] in calls
            calls.remove(message["toolCallId"])
        else:
            calls |= {block["id"] for block in message["content"] if block["type"] == "toolCall"}
    assert calls == set() and made.dropped <= len(updates)
