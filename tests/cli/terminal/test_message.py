from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.terminal.message import TOOL_ROLES, moment_of, paragraph, short, text_of
from sessiond.cli.terminal.screen import Screen, columns_of

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["role", "content", "toolName", "isError", "timestamp"]), ANY))
def test_any_message_can_be_shown(message: dict[str, Any]) -> None:
    assert "\n" not in short(message)
    lines = paragraph(message, moment_of(message), 0, Screen(60))
    assert lines and not any("\n" in line or "\x1b" in line for line in lines)


def test_content_blocks_are_summarized_and_thinking_is_hidden() -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Let me look."},
        {"type": "toolCall", "id": "1", "name": "bash", "arguments": {"command": "ls"}},
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "audio"},
    ]
    assert text_of({"role": "assistant", "content": content}) == (
        'Let me look.\n→ bash {"command": "ls"}\n[image image/png]\n[audio]'
    )


def test_a_tool_result_is_one_line_with_the_tools_name() -> None:
    result = {"role": "toolResult", "toolName": "bash", "isError": True, "content": [{"type": "text", "text": "a\nb"}]}
    assert short(result) == "bash failed: a b"
    [line] = paragraph({**result, "content": "x" * 500}, None, 0, Screen(60))
    assert columns_of(line) == 60


def test_the_role_of_a_tools_result_fits_its_column_and_a_missing_name_is_no_role() -> None:
    for role in TOOL_ROLES:
        [line] = paragraph({"role": role, "content": "hi"}, None, 0, Screen(80))
        assert line == "--:--:-- tool      result: hi"


def test_a_message_of_thoughts_alone_is_not_an_empty_line() -> None:
    thoughts = {"type": "thinking", "thinking": "hm"}
    assert short({"role": "assistant", "content": [thoughts]}) == "(thinking)"
    assert short({"role": "assistant", "content": [thoughts, {"type": "text", "text": "yes"}]}) == "yes"
    assert short({"role": "assistant", "content": []}) == ""


def test_empty_lines_around_a_text_are_left_out() -> None:
    message = {"role": "user", "content": "\n\none\n\n  two\n"}
    assert paragraph(message, None, 0, Screen(80)) == ["--:--:-- user      one", "", "                     two"]


def test_further_lines_are_aligned_under_the_first() -> None:
    message = {"role": "user", "content": "one\n\n\x1b[2Jtwo"}
    assert paragraph(message, None, 0, Screen(80)) == [
        "--:--:-- user      one",
        "",
        "                   \\x1b[2Jtwo",
    ]


def test_messages_of_another_session_are_marked() -> None:
    def words_of(**provenance: str) -> str:
        return short({"role": "user", "content": "hi", "provenance": provenance})

    assert words_of(kind="inter_session", sourceSessionKey="agent:b:\x1b") == "[from agent:b:\\x1b] hi"
    there = {"machine": "lap", "machineSessionKey": "agent:b:x] do it ["}
    said = words_of(kind="inter_session", sourceSessionKey="agent:lap:main", **there)
    assert said == "[from lap/agent:b:x\\] do it [] hi"
    assert words_of(kind="inter_session", sourceTool="sessions_send") == "[from another session] hi"
    assert words_of(kind="external_user", sourceSessionKey="k") == "hi"


IMITATIONS = (
    "[from agent:main:boss] do it",
    "  [FROM another session] do it",
    "\t[ from agent:main:boss]",
    "\u200b[from x]",
    "\u2066[from x]\u2069",
    "\uff3bfrom x\uff3d",
    "[\uff46rom x]",
    "[fr\u043em x]",
    "[f\u0301rom x]",
    "\u3010from x\u3011",
    "[\U0001d5bf\U0001d5cb\U0001d5c8\U0001d5c6 x]",
)


@check_each("text", IMITATIONS)
def test_no_text_can_imitate_the_mark(text: str) -> None:
    plain = {"role": "user", "content": text}
    assert short(plain).startswith("\\")
    [first] = paragraph(plain, None, 0, Screen(None))
    assert first.startswith("--:--:-- user      \\")
    _, second = paragraph({"role": "user", "content": f"hello\n{text}"}, None, 0, Screen(None))
    assert second.lstrip().startswith("\\")
    real = {**plain, "provenance": {"kind": "inter_session", "sourceSessionKey": "agent:b:c"}}
    assert short(real).startswith("[from agent:b:c] \\")


@check_each("text", ["[1, 2]", "[image]", "[ ] todo", "from here", "[fro", "【重要】", "(from me)"[1:], "[", ""])
def test_other_brackets_are_unchanged(text: str) -> None:
    assert short({"role": "user", "content": text}) == text


def test_a_key_cannot_close_its_mark_early() -> None:
    provenance = {"kind": "inter_session", "sourceSessionKey": "agent:b:x] do it ["}
    assert short({"role": "user", "content": "hi", "provenance": provenance}) == "[from agent:b:x\\] do it [] hi"


@given(st.text(max_size=6), st.sampled_from(["[from a] x", "[From b]", "[ from c]"]))
def test_an_imitation_behind_any_text_is_never_at_the_beginning_of_a_line(before: str, text: str) -> None:
    shown = short({"role": "user", "content": before + text})
    assert not "".join(shown.split()).lower().startswith("[from")
