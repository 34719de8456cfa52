"""What programs tell their hooks, read whatever it is; and what is printed for them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.hooks.answer import DENIED, print_context, print_decision
from sessiond.cli.hooks.event import MAX_DETAIL_CHARS, MAX_TITLE_CHARS, Permission, read_event, read_permission

# As Claude Code 2.1.329 and Codex 0.169.0 write them.
CLAUDE = {
    "session_id": "b7cf7d93-213e-4882-a973-3017e9167ff4",
    "transcript_path": "/home/ada/.claude/projects/-x/b7cf7d93-213e-4882-a973-3017e9167ff4.jsonl",
    "cwd": "/x",
    "prompt_id": "01deb1b6-5126-48f8-aceb-095cdab5fde9",
    "permission_mode": "default",
    "hook_event_name": "PermissionRequest",
    "tool_name": "Bash",
    "tool_input": {"command": "touch birds.txt", "description": "run it"},
    "permission_suggestions": [
        {"type": "addDirectories", "directories": ["/x"], "destination": "session"},
        {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
        {
            "type": "addRules",
            "behavior": "allow",
            "rules": [{"toolName": "Bash", "ruleContent": "touch:*"}, {"toolName": "Read"}],
            "destination": "localSettings",
        },
        {"type": "removeRules", "rules": []},
    ],
}
CODEX = {
    "session_id": "01a2053c-12fb-7550-8a93-86de217ae1f4",
    "turn_id": "01a2053c-5c91-78e0-90f7-f480925268d1",
    "transcript_path": "/home/ada/.codex/sessions/2026/11/22/rollout-2026-11-22T21-49-12-01a2053c.jsonl",
    "cwd": "/x",
    "hook_event_name": "PermissionRequest",
    "model": "gpt-5",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": {"command": "touch heron.txt", "description": "needs a file"},
}


@check_each(
    ("kind", "name"),
    [
        (None, "Notification"),
        ("permission_prompt", "Notification"),
        ("something_new", "Notification"),
        (["idle_prompt"], "Notification"),
        ("idle_prompt", "Stop"),
        ("auth_success", None),
    ],
)
def test_a_notification_that_asks_nothing_is_no_waiting(kind: Any, name: str | None) -> None:
    body = {**CLAUDE, "hook_event_name": "Notification", **({"notification_type": kind} if kind is not None else {})}
    event = read_event(json.dumps(body).encode())
    assert (event.name if event is not None else None) == name
    other = read_event(json.dumps({**body, "hook_event_name": "UserPromptSubmit"}).encode())
    assert other is not None and other.name == "UserPromptSubmit"


def read(body: Any) -> Permission:
    event = read_event(json.dumps(body).encode())
    assert event is not None
    permission = read_permission(event)
    assert permission is not None
    return permission


def test_a_call_is_named_where_the_program_names_it() -> None:
    given = {"toolName": "Bash", "toolInput": CODEX["tool_input"]}
    assert read(CODEX).use == given
    assert read({**CODEX, "tool_use_id": "toolu_1"}).use == {**given, "toolUseId": "toolu_1"}
    for unusable in ("", "x" * 201, 1, None):
        assert read({**CODEX, "tool_use_id": unusable}).use == given


def test_a_permission_of_claude_is_a_question_with_the_rules_that_it_would_remember() -> None:
    permission = read(CLAUDE)
    assert (permission.title, permission.detail) == (
        "Bash: touch birds.txt",
        "command: touch birds.txt\ndescription: run it",
    )
    assert [(one["id"], one["label"], one["kind"]) for one in permission.options] == [
        ("allow", "Allow", "allow_once"),
        ("always-1", "Allow, with access to /x in this session", "allow_always"),
        ("always-2", "Allow, and go on in mode acceptEdits in this session", "allow_always"),
        ("always-3", "Allow Bash(touch:*), Read in this project", "allow_always"),
        ("deny", "Deny", "reject_once"),
    ]


def test_codex_offers_to_remember_nothing() -> None:
    assert [one["id"] for one in read(CODEX).options] == ["allow", "deny"]


@check_each(
    ("answer", "decision"),
    [
        ({"outcome": "answered", "optionId": "allow"}, '{"behavior":"allow"}'),
        (
            {"outcome": "answered", "optionId": "always-2"},
            '{"behavior":"allow","updatedPermissions":[{"type":"setMode","mode":"acceptEdits","destination":"session"}]}',
        ),
        ({"outcome": "answered", "optionId": "deny", "note": "not now"}, '{"behavior":"deny","message":"not now"}'),
        (
            {"outcome": "answered", "optionId": "deny"},
            json.dumps({"behavior": "deny", "message": DENIED}, separators=(",", ":")),
        ),
        ({"outcome": "answered", "optionId": "other"}, None),
        ({"outcome": "withdrawn", "optionId": "allow"}, None),
        ({"outcome": "expired"}, None),
        ({}, None),
    ],
)
def test_what_is_printed_for_an_answer(answer: dict[str, Any], decision: str | None) -> None:
    printed = print_decision(read(CLAUDE), answer)
    head = '{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":'
    assert printed == (f"{head}{decision}}}}}" if decision is not None else None)


def test_what_is_printed_for_words_from_elsewhere() -> None:
    printed = print_context("UserPromptSubmit", 'the "heron"\n')
    wanted = {"hookEventName": "UserPromptSubmit", "additionalContext": 'the "heron"\n'}
    assert json.loads(printed) == {"hookSpecificOutput": wanted}
    assert "\n" not in printed


_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_choice = st.fixed_dictionaries({}, optional={"label": st.text(max_size=3) | _json, "description": _json}) | _json
_questions = st.lists(
    st.fixed_dictionaries(
        {"question": st.text(max_size=3), "multiSelect": st.booleans(), "options": st.lists(_choice, max_size=17)}
    ),
    max_size=2,
)
_rule = _json | st.fixed_dictionaries(
    {"type": st.sampled_from(["addRules", "setMode", "addDirectories"])},
    optional={"behavior": st.just("allow"), "rules": _json, "mode": _json, "directories": _json, "destination": _json},
)
_body = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("hook_event_name", "session_id"), st.just("Stop") | _json),
        "tool_name": st.sampled_from(["Bash", "AskUserQuestion"]) | _json,
        "transcript_path": st.just("/x.jsonl") | _json,
        "tool_input": st.dictionaries(st.sampled_from(["command", "url", "questions"]), _questions | _json) | _json,
        "permission_suggestions": st.lists(_rule, max_size=6) | _json,
    },
)


@given(st.binary(max_size=40) | _body.map(lambda body: json.dumps(body).encode()))
@example(b"[" * 100_000)
@example(b'{"session_id": "\\ud800", "hook_event_name": "\\ud800", "transcript_path": "/\\ud800"}')
@example(b"\xff\xfe\x00")
def test_any_bytes_are_an_event_or_nothing(data: bytes) -> None:
    event = read_event(data)
    if event is None:
        return
    assert event.name and event.session_id and event.transcript.startswith("/")
    permission = read_permission(event)
    if permission is not None:
        ids = [one["id"] for one in permission.options]
        assert ids[-1] == "deny" and len(set(ids)) == len(ids)
        for chosen in ids:
            printed = print_decision(permission, {"outcome": "answered", "optionId": chosen})
            assert printed is not None
            json.loads(printed)


def test_a_file_of_megabytes_is_cut_before_it_is_asked_about() -> None:
    permission = read(
        {**CLAUDE, "tool_name": "Write", "tool_input": {"file_path": "/x" * 10_000, "content": "a" * 9_000_000}}
    )
    assert len(permission.title) == MAX_TITLE_CHARS
    assert len(permission.detail) < MAX_DETAIL_CHARS + 100


BIRDS = [{"label": "Heron", "description": "grey"}, {"label": "Wren", "description": "small"}]
CHOICE = {"question": "Which bird?", "header": "Bird", "options": BIRDS, "multiSelect": False}


def test_what_an_agent_lets_a_person_choose_is_asked_with_its_choices() -> None:
    given = {"questions": [CHOICE]}
    permission = read({**CLAUDE, "tool_name": "AskUserQuestion", "tool_input": given})
    assert (permission.title, permission.detail) == ("Which bird?", "Heron: grey\nWren: small")
    assert [(one["id"], one["label"]) for one in permission.options] == [
        ("1", "Heron"),
        ("2", "Wren"),
        ("deny", "Do not answer"),
    ]
    printed = print_decision(permission, {"outcome": "answered", "optionId": "2"})
    decision = json.loads(printed or "")["hookSpecificOutput"]["decision"]
    assert decision == {"behavior": "allow", "updatedInput": {**given, "answers": {"Which bird?": "Wren"}}}


@check_each(
    "questions",
    [
        [CHOICE, CHOICE],
        [],
        None,
        [{**CHOICE, "multiSelect": True}],
        [{**CHOICE, "options": []}],
        [{**CHOICE, "options": ["Heron"]}],
        [{**CHOICE, "options": [{"label": ""}]}],
        [{**CHOICE, "options": [{"label": str(number)} for number in range(16)]}],
        [{**CHOICE, "question": 5}],
    ],
)
def test_what_cannot_be_asked_with_one_choice_is_left_to_the_program(questions: Any) -> None:
    body = {**CLAUDE, "tool_name": "AskUserQuestion", "tool_input": {"questions": questions}}
    event = read_event(json.dumps(body).encode())
    assert event is not None
    assert read_permission(event) is None


def test_what_the_daemon_does_not_take_is_asked_about_all_the_same() -> None:
    body = {"session_id": "s", "transcript_path": "/t", "hook_event_name": "PermissionRequest", "tool_name": "Bash"}
    data = json.dumps({**body, "tool_input": {"command": "ls", "odd": 0}})
    for odd in ('{"a": ' * 40 + "1" + "}" * 40, "[" * 500 + "]" * 500, "NaN", "1e999"):
        event = read_event(data.replace('"odd": 0', f'"odd": {odd}').encode())
        permission = read_permission(event) if event is not None else None
        assert permission is not None, odd[:20]
        assert (permission.title, permission.use) == ("Bash: ls", {})
