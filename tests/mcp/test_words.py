"""Answers as text for a model: short, complete where it matters, and bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.mcp.calls import build_read_call
from sessiond.mcp.words import MESSAGE_CHARS, TEXT_CHARS, words

RUN = "s.1"
CREATED_AT_MS = 1_767_225_600_000
ROW = {"key": "main", "updatedAt": CREATED_AT_MS, "messageCount": 2, "status": "ok"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@check_each(
    ("tool", "result", "said"),
    [
        ("sessions_send", {"status": "ok", "reply": "forty-two", "sessionKey": "k"}, "forty-two"),
        ("sessions_send", {"status": "ok", "sessionKey": "k"}, "k did its work and replied nothing."),
        (
            "sessions_send",
            {"status": "timeout", "error": "no answer within 3 s", "runId": RUN, "sessionKey": "k"},
            "No reply from k yet (no answer within 3 s). Its agent goes on working: wait on with sessions_wait and"
            " runId s.1.",
        ),
        (
            "sessions_send",
            {"status": "error", "error": "it fell over", "sessionKey": "k"},
            "k could not do it: it fell over",
        ),
        (
            "sessions_send",
            {"status": "accepted", "runId": RUN, "sessionKey": "k"},
            "Accepted by k, not waited for. sessions_wait with runId s.1 has its end.",
        ),
        (
            "sessions_send",
            {"status": "accepted", "reason": "ancestor_busy", "runId": RUN, "sessionKey": "k"},
            "Accepted by k, not waited for (ancestor_busy). sessions_wait with runId s.1 has its end.",
        ),
        (
            "sessions_send",
            {"status": "accepted", "reason": "inbox", "runId": RUN, "sessionKey": "k"},
            "Kept in the inbox of k, which is an interactive program. It answers when it looks; its answer will be in"
            " your sessions_inbox.",
        ),
        ("sessions_wait", {"status": "ok", "runId": RUN, "reply": "done"}, "done"),
        ("sessions_wait", {"status": "ok", "runId": RUN}, "The run ended well and replied nothing."),
        ("sessions_wait", {"status": "running", "runId": RUN}, "The run goes on; wait again with runId s.1."),
        ("sessions_wait", {"status": "aborted", "runId": RUN}, "The run ended without a reply: aborted"),
        (
            "sessions_spawn",
            {"childSessionKey": "k", "runId": RUN, "attachments": {"count": 2, "relDir": ".openclaw/x"}},
            "Started k. It has 2 files in .openclaw/x. sessions_wait with runId s.1 waits for its result.",
        ),
        (
            "agents_list",
            {"requester": "main", "agents": [{"id": "main", "name": "M", "runtime": "exec", "sandboxed": True}]},
            "You are of agent main.\nmain: M, exec, sandboxed",
        ),
        (
            "sessions_list",
            {"sessions": [{**ROW, "messages": [{"role": "user", "content": "hi"}]}], "visibility": "tree"},
            "1 session (visibility: tree)\nmain: ok, 2 messages, 2026-01-01 00:00:00Z\n    user: hi",
        ),
        (
            "sessions_search",
            {
                "matches": [{"sessionKey": "k", "role": "user", "timestamp": CREATED_AT_MS, "snippet": "a heron"}],
                "hasMore": True,
                "nextCursor": "x.y",
            },
            "1 match; more with cursor x.y\nk, user, 2026-01-01 00:00:00Z: a heron",
        ),
        (
            "sessions_inbox",
            {"messages": [{"text": "hi", "timestamp": "T"}], "sessionKey": "k", "cursor": "1-1-a", "hasMore": False},
            "1 message to k\n--- from the owner, T\nhi",
        ),
        (
            "questions_list",
            {
                "questions": [
                    {
                        "id": "1a2b",
                        "status": "open",
                        "sessionKey": "k",
                        "title": "Run it?",
                        "detail": "ls\nrm",
                        "options": [{"id": "a\n", "label": "Yes", "kind": "allow_once"}],
                    },
                    {
                        "id": "3c4d",
                        "status": "expired",
                        "sessionKey": "k",
                        "options": [],
                        "answer": {"outcome": "expired", "at": 1},
                    },
                ]
            },
            '2 questions\n1a2b (open), asked by k: Run it?\n    > ls\n    > rm\n    "a\\n": Yes (allow_once)\n'
            "3c4d (expired), asked by k: \n    it ended: expired",
        ),
        ("questions_answer", {"id": "1a2b", "optionId": "yes"}, 'Answered 1a2b with "yes"; the agent goes on.'),
    ],
)
def test_answers_are_summarized_as_text(tool: str, result: dict[str, Any], said: str) -> None:
    assert words(tool, result) == said


def test_a_history_shows_tool_calls_by_name_and_hides_thinking() -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Let me look."},
        {"type": "toolCall", "name": "Bash", "arguments": {}},
    ]
    result = {"sessionKey": "k", "messages": [{"role": "assistant", "content": content}], "nextCursor": "9-1-a"}
    assert words("sessions_history", result) == (
        "k: 1 message; older ones with cursor 9-1-a\nassistant:  Let me look. [calls Bash]"
    )


def history(*texts: str) -> str:
    messages = [{"role": "user", "content": text} for text in texts]
    return words("sessions_history", {"sessionKey": "k", "messages": messages})


def test_a_message_is_complete_up_to_its_limit_and_cut_beyond() -> None:
    assert history("x" * MESSAGE_CHARS).endswith("x")
    assert history("x" * (MESSAGE_CHARS + 3)).endswith("x [… 3 more characters, see the structured content]")


def test_a_long_history_shows_its_newest_messages() -> None:
    count = TEXT_CHARS // MESSAGE_CHARS + 3
    said = history(*(f"{number}:" + "x" * (MESSAGE_CHARS - 10) for number in range(count)))
    assert len(said) < TEXT_CHARS + 300
    assert f"user: {count - 1}:" in said
    assert "user: 0:" not in said
    assert "more, see the structured content or ask for fewer]" in said.splitlines()[1]


@given(st.lists(JSON, max_size=5))
def test_any_message_can_be_summarized(messages: list[Any]) -> None:
    assert words("sessions_history", {"sessionKey": "k", "messages": messages})


def test_only_the_shown_messages_of_a_full_inbox_count_as_read() -> None:
    # Up to 60,000 characters are shown of up to 256 KiB; a client that only sees the text must not miss the others.
    kept = [{"text": "x" * 9_000, "timestamp": "T", "cursor": f"c{number}"} for number in range(12)]
    page = {"messages": kept, "sessionKey": "k", "cursor": "end", "hasMore": False}
    said = words("sessions_inbox", page)
    shown = said.count("--- from")
    assert 1 < shown < 12
    assert said.startswith(f"{shown} messages to k; there are more: call again")
    reading = build_read_call("sessions_inbox", page)
    assert reading is not None and reading.params_of(0) == {"cursor": f"c{shown - 1}"}
    few = {**page, "messages": kept[:2]}
    reading = build_read_call("sessions_inbox", few)
    assert reading is not None and reading.params_of(0) == {"cursor": "end"}
    assert build_read_call("sessions_inbox", {**page, "messages": []}) is None
    assert build_read_call("sessions_history", page) is None


def test_a_session_of_another_program_is_shown_with_its_title_and_folder() -> None:
    row = {"key": "claude:abc", "updatedAt": 0, "title": "Mend the roof", "cwd": "/home/me", "readOnly": True}
    shown = {"sessions": [{**row, "messageCount": 2}, {**row, "partial": True}], "visibility": "all", "partial": 1}
    head, whole, partial = words("sessions_list", shown).splitlines()
    assert head == "2 sessions (visibility: all; 1 session not read whole yet may be missing)"
    assert whole == "claude:abc: Mend the roof, /home/me, 2 messages, 1970-01-01 00:00:00Z"
    assert "not read whole yet" in partial
