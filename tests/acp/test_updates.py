"""Events of a session as updates for an editor: each thing that was said is shown once, in its order."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.acp_schema import check_update
from support.rows import check_each

from sessiond.acp.tool_calls import MAX_IDS, MAX_KNOWN, ToolCalls
from sessiond.acp.updates import MAX_CHUNK_CHARS, MAX_GROWING, MAX_SHOWN, SessionUpdates
from sessiond.client import Event

Update = dict[str, Any]


def said(role: str, content: Any, message_id: str = "m1", **more: Any) -> Event:
    message = {"role": role, "content": content, **more}
    return Event("session.message", {"sessionKey": "k", "messageId": message_id, "seq": 1, "message": message})


def delta(text: str, run_id: str = "r") -> Event:
    return Event("session.delta", {"sessionKey": "k", "runId": run_id, "text": text})


def tool(phase: str, call_id: str = "c1", name: str = "bash", **more: Any) -> Event:
    return Event("session.tool", {"runId": "r", "phase": phase, "toolCallId": call_id, "name": name, **more})


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def call(call_id: str = "c1", name: str = "bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}


def result(words: str, call_id: str = "c1", message_id: str = "m2", **more: Any) -> Event:
    return said("toolResult", [text(words)], message_id, toolCallId=call_id, toolName="bash", **more)


def live() -> SessionUpdates:
    """The updates of a session that an editor has followed since before its last message."""
    updates = SessionUpdates()
    updates.end_replay()
    updates.take(said("user", "before", "m0"))
    return updates


def shown(updates: SessionUpdates, *events: Event) -> list[tuple[Any, ...]]:
    """What an editor is shown, in short."""
    found = [update for event in events for update in updates.take(event)]
    for update in found:
        check_update({"sessionId": "s", "update": update})
    return [_short(update) for update in found]


def _short(update: Update) -> tuple[Any, ...]:
    kind = update["sessionUpdate"]
    if kind.endswith("_chunk"):
        return (kind.removesuffix("_chunk"), update["content"].get("text", update["content"]["type"]))
    words = [one["content"]["text"] for one in update.get("content", ()) if one["type"] == "content"]
    return (kind, update["toolCallId"], update.get("status"), *words)


def test_a_replay_shows_the_blocks_in_their_order_and_each_result_at_its_call() -> None:
    answer = [{"type": "thinking", "thinking": "hm"}, text("I look."), call("c1"), call("c2"), text("And wait.")]
    picture = [text("see"), {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    found = shown(
        SessionUpdates(),
        said("user", picture),
        said("assistant", answer, "m2"),
        result("b", "c2", "m3", isError=True),
        result("a", "c1", "m4"),
        said("assistant", [text("Done.")], "m5"),
    )
    assert found == [
        ("user_message", "see"),
        ("user_message", "image"),
        ("agent_thought", "hm"),
        ("agent_message", "I look."),
        ("tool_call", "c1", "pending"),
        ("tool_call", "c2", "pending"),
        ("agent_message", "And wait."),
        ("tool_call_update", "c2", "failed", "b"),
        ("tool_call_update", "c1", "completed", "a"),
        ("agent_message", "Done."),
    ]


def test_all_chunks_have_the_id_of_their_message() -> None:
    [first, second] = SessionUpdates().take(said("assistant", [text("a"), text("b")], "m7"))
    assert (first["messageId"], second["messageId"]) == ("m7", "m7")
    updates = live()
    chunks = [*updates.take(delta("one ")), *updates.take(said("assistant", [text("one two")], "m1"))]
    assert [chunk["content"]["text"] for chunk in chunks] == ["one ", "two"]
    assert chunks[0]["messageId"] == chunks[1]["messageId"]
    [later] = updates.take(delta("three"))
    assert later["messageId"] != chunks[0]["messageId"]


@check_each(
    ("pieces", "stored", "chunks"),
    [
        (["one ", "two"], ["one two"], ["one ", "two"]),
        (["one "], ["one two"], ["one ", "two"]),
        (["one two\n"], ["one two"], ["one two\n"]),
        (["\none"], ["one two"], ["\none", " two"]),
        (["one\n\ntwo"], ["one", "two"], ["one\n\ntwo"]),
        (["another"], ["one"], ["another", "one"]),
        ([], ["one"], ["one"]),
    ],
)
def test_text_that_came_live_is_not_shown_again(pieces: list[str], stored: list[str], chunks: list[str]) -> None:
    events = [*map(delta, pieces), said("assistant", [text(words) for words in stored])]
    assert shown(live(), *events) == [("agent_message", words) for words in chunks]


def test_thoughts_come_live_before_the_text_and_are_not_shown_again() -> None:
    thought = [Event("session.thought", {"runId": "r", "text": words}) for words in ("let ", "me ")]
    answer = said("assistant", [{"type": "thinking", "thinking": "let me see"}, text("I see.")])
    assert shown(live(), *thought, delta("I "), answer) == [
        ("agent_thought", "let "),
        ("agent_thought", "me "),
        ("agent_message", "I "),
        ("agent_thought", "see"),
        ("agent_message", "see."),
    ]


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_live_pieces_and_the_message_give_its_text_once(words: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(words)) for cut in cuts)]
    updates = live()
    pieces = [delta(words[begin:end]) for begin, end in pairwise(places)]
    found = [one for event in [*pieces, said("assistant", words)] for one in updates.take(event)]
    assert "".join(one["content"]["text"] for one in found) == words


def test_a_long_text_in_many_pieces_costs_no_more_than_its_length() -> None:
    updates, piece, began = live(), "x" * 1000, time.process_time()
    for _ in range(20_000):
        updates.take(delta(piece))
    assert updates.take(said("assistant", 20_000 * piece)) == []
    assert time.process_time() - began < 20  # a copy of the text for each piece takes minutes


def test_live_text_is_shown_from_the_beginning_of_a_message_only() -> None:
    updates = SessionUpdates()
    updates.end_replay()  # opened while the agent was writing
    assert shown(updates, delta("half a "), tool("start")) == []
    assert shown(updates, said("assistant", "not half a sentence")) == [("agent_message", "not half a sentence")]
    assert shown(updates, delta("and "), delta("so ")) == [("agent_message", "and "), ("agent_message", "so ")]
    assert shown(updates, Event("session.resync", {"reason": "lagged"}), delta("go ")) == []
    assert shown(updates, said("assistant", "and so go on", "m2")) == [("agent_message", "go on")]
    assert shown(updates, Event("session.delta", {"runId": "r", "text": "", "omitted": {"bytes": 3}}), delta("x")) == []
    assert shown(updates, said("assistant", "all of it", "m3")) == [("agent_message", "all of it")]
    updates.note_gap()
    assert shown(updates, delta("lost")) == []


def test_a_turn_with_live_tools_shows_each_step_once() -> None:
    found = shown(
        live(),
        delta("I look."),
        tool("start", args={"command": "ls"}),
        said("assistant", [text("I look."), call("c1", command="ls")], "m1"),
        tool("update", result="a"),
        tool("end", result="a b"),
        result("a b"),
        delta("Two."),
        said("assistant", [text("Two.")], "m3"),
    )
    assert found == [
        ("agent_message", "I look."),
        ("tool_call", "c1", "in_progress"),
        ("tool_call_update", "c1", None, "a"),
        ("tool_call_update", "c1", "completed", "a b"),
        ("agent_message", "Two."),
    ]
    updates = live()
    assert shown(updates, tool("start")) == [("tool_call", "c1", "in_progress")]
    [more] = updates.take(said("assistant", [call("c1", command="ls")], "m4"))
    assert more == {
        "sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "bash ls", "rawInput": {"command": "ls"}
    }  # fmt: skip
    for number, name in enumerate(("args", "arguments")):  # as attached programs say it, and as presets do
        [begun] = live().take(tool("start", f"n{number}", **{name: {"command": "ls"}}))
        assert (begun["title"], begun["rawInput"]) == ("bash ls", {"command": "ls"})
    # An agent that speaks the protocol itself has called it otherwise.
    updates.take(tool("start", "c2", "execute", title="List", kind="search"))
    [more] = updates.take(said("assistant", [call("c2", "execute", command="ls")], "m5"))
    assert more == {"sessionUpdate": "tool_call_update", "toolCallId": "c2", "rawInput": {"command": "ls"}}
    # Or says only after the begin what it does.
    updates.take(tool("start", "c3", "execute", title="Terminal", kind="execute"))
    named = tool("update", "c3", "execute", status="in_progress", title="ls -l", kind="execute")
    assert [*updates.take(named), *updates.take(named)] == [
        {"sessionUpdate": "tool_call_update", "toolCallId": "c3", "title": "ls -l"}
    ]
    assert [
        one["rawInput"] for one in updates.take(said("assistant", [call("c3", "execute", command="ls -l")], "m6"))
    ] == [{"command": "ls -l"}]


def test_long_texts_come_in_chunks_that_every_client_can_read() -> None:
    words = "é" * (2 * MAX_CHUNK_CHARS + 1)
    for message in (said("user", words, "m1"), said("assistant", words, "m2"), delta(words)):
        chunks = live().take(message)
        assert [len(chunk["content"]["text"]) for chunk in chunks] == [MAX_CHUNK_CHARS, MAX_CHUNK_CHARS, 1]
        assert len({chunk["messageId"] for chunk in chunks}) == 1
        assert "".join(chunk["content"]["text"] for chunk in chunks) == words


def test_calls_that_are_left_open_have_failed_and_a_late_result_corrects_it() -> None:
    updates = live()
    assert shown(updates, said("assistant", [call("c1"), call("c2")])) == [
        ("tool_call", "c1", "pending"),
        ("tool_call", "c2", "pending"),
    ]
    assert [_short(update) for update in updates.end_turn()] == [
        ("tool_call_update", "c1", "failed"),
        ("tool_call_update", "c2", "failed"),
    ]
    assert shown(updates, said("user", "go on", "m5"), result("late", "c2", "m6")) == [
        ("user_message", "go on"),
        ("tool_call_update", "c2", "completed", "late"),
    ]


def test_an_id_that_a_program_uses_again_is_another_call() -> None:
    updates = live()
    turns = [(said("assistant", [call("call_1")], f"a{n}"), result("x", "call_1", f"b{n}")) for n in range(3)]
    found = shown(updates, *(event for turn in turns for event in turn))
    assert [one[1] for one in found] == ["call_1", "call_1", "call_1#2", "call_1#2", "call_1#3", "call_1#3"]
    assert shown(updates, result("of nothing", "call_9", "b9")) == [("tool_call", "call_9", "completed", "of nothing")]
    assert shown(updates, tool("end", "call_9", result="late"), tool("update", "call_9")) == []


def test_a_message_that_grows_is_shown_by_what_is_new() -> None:
    updates = live()
    assert shown(updates, said("assistant", [text("one")])) == [("agent_message", "one")]
    grown = [text("one two"), call("c1"), text("three")]
    assert shown(updates, said("assistant", grown), said("assistant", grown)) == [
        ("agent_message", " two"),
        ("tool_call", "c1", "pending"),
        ("agent_message", "three"),
    ]
    assert shown(updates, result("x"), result("x y")) == [
        ("tool_call_update", "c1", "completed", "x"),
        ("tool_call_update", "c1", "completed", "x y"),
    ]


def test_the_editors_own_prompt_is_not_shown_to_it_and_others_are() -> None:
    updates = live()
    updates.expect_prompt("mine")
    assert shown(updates, said("user", "another's", "m1"), said("user", [text("mine")], "m2")) == [
        ("user_message", "another's")
    ]
    assert shown(updates, said("user", "mine", "m3")) == [("user_message", "mine")]
    updates.expect_prompt("never sent")
    updates.forget_prompt("never sent")
    assert shown(updates, said("user", "never sent", "m4")) == [("user_message", "never sent")]
    theirs = {"sourceSessionKey": "agent:main:two"}
    updates.expect_prompt("x")
    [foreign] = updates.take(said("user", "x", "m5", provenance=theirs))
    assert foreign["_meta"] == {"fromSessionKey": "agent:main:two"}


@check_each(
    ("text", "is_own"),
    [
        ("the key is sk-ant…6789, use it", True),
        ("the key is ***, use it", True),
        ("the key is ***", True),
        ("the key is sk-ant…6789, use", False),
        ("a key is sk-ant…6789, use it", False),
        ("the key is lost, use it", False),
        ("the key is sk-ant-0123456789, use it", True),
    ],
)
def test_an_own_prompt_is_known_where_its_secrets_are_masked(text: str, is_own: bool) -> None:
    updates = SessionUpdates("agent:main:main")
    updates.expect_prompt("the key is sk-ant-0123456789, use it")
    assert (shown(updates, said("user", text)) == []) is is_own


@check_each(
    ("block", "wanted"),
    [
        (call(name="Bash", command="ls\n -l"), ("Bash ls -l", "execute", None)),
        (call(name="Read", file_path="/w/a.py"), ("Read /w/a.py", "read", "/w/a.py")),
        (call(name="str_replace_editor", path="a.py"), ("str_replace_editor a.py", "edit", None)),
        (call(name="WebFetch", url="https://x"), ("WebFetch https://x", "fetch", None)),
        (call(name="execute", command="ls"), ("execute ls", "execute", None)),
        (call(name="TodoWrite"), ("TodoWrite", "think", None)),
        (call(name="frobnicate"), ("frobnicate", "other", None)),
        ({"type": "toolCall"}, ("tool", "other", None)),
        (call(name="x" * 500), ("x" * 119 + "…", "other", None)),
    ],
)
def test_a_call_says_what_it_does(block: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    [update] = ToolCalls().take_call(block)
    locations = update.get("locations") or [{"path": None}]
    assert (update["title"], update["kind"], locations[0]["path"]) == wanted


def test_what_an_agent_of_the_protocol_has_said_of_a_call_is_kept() -> None:
    details = {"title": "Edit a.py", "kind": "edit", "locations": [{"path": "/w/a.py", "line": 3}]}
    diff = {"path": "/w/a.py", "oldText": "a", "newText": "b"}
    updates = SessionUpdates()
    shown(updates, said("assistant", [call("c1", "tool_17")]))
    [update] = updates.take(result("ok", details={**details, "diffs": [diff, {"path": 3}]}))
    check_update({"sessionId": "s", "update": update})
    assert (update["title"], update["kind"], update["locations"]) == ("Edit a.py", "edit", [{"path": "/w/a.py"}])
    assert update["content"][1] == {"type": "diff", **diff}


def test_a_command_of_a_person_is_a_call_with_its_output() -> None:
    ran = said("bashExecution", None, command="make", output="no rule", exitCode=2)
    assert shown(SessionUpdates(), ran) == [
        ("tool_call", "m1", "pending"),
        ("tool_call_update", "m1", "failed", "no rule"),
    ]


def test_memory_is_bounded() -> None:
    updates = live()
    for number in range(MAX_SHOWN + 50):
        updates.take(said("assistant", [text("x")], f"n{number}"))
    assert len(updates._shown) == MAX_SHOWN
    assert sum(blocks is not None for _, blocks in updates._shown.values()) == MAX_GROWING
    calls = ToolCalls()
    for number in range(MAX_IDS + 50):
        calls.take_call(call(f"c{number}"))
    assert (len(calls._known), len(calls._times_used)) == (MAX_KNOWN, MAX_IDS)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["c1", "user", "text", "start", "end", "/a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "text", "type"]), inner),
    max_leaves=4,
)
BLOCK = st.dictionaries(st.sampled_from(["text", "thinking", "id", "name", "arguments", "data", "mimeType"]), ANY)
KIND = st.sampled_from(["text", "thinking", "toolCall", "image", "x"])
BLOCK = st.builds(lambda kind, rest: {**rest, "type": kind}, KIND, BLOCK)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "toolResult", "tool", "bashExecution", "custom"]) | ANY,
        "content": st.lists(BLOCK | ANY, max_size=4) | ANY,
    },
    optional={"toolCallId": ANY, "details": ANY, "isError": ANY, "provenance": ANY, "output": ANY, "exitCode": ANY},
)
EVENTS = st.one_of(
    st.builds(lambda m, i: Event("session.message", {"message": m, "messageId": i}), MESSAGE | ANY, ANY),
    st.builds(lambda rest: Event("session.tool", rest), st.dictionaries(
        st.sampled_from(["toolCallId", "name", "phase", "arguments", "result", "isError", "title", "locations"]), ANY
    )),
    st.builds(lambda t, r: Event("session.delta", {"text": t, "runId": r}), ANY, ANY),
    st.builds(lambda t, r: Event("session.thought", {"text": t, "runId": r}), ANY, ANY),
    st.builds(lambda rest: Event("session.resync", rest), st.just({"reason": "reset"})),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=8))
def test_any_events_give_updates_of_the_schema(events: list[Event]) -> None:
    updates = live()
    for event in events:
        for update in updates.take(event):
            check_update({"sessionId": "s", "update": update})
    updates.end_turn()
