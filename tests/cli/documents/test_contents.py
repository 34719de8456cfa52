"""Sessions as documents: any message is shown, and none can do anything or look like another one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.documents import contents, markdown, web_page
from sessiond.cli.documents.contents import message_entry

PNG = "iVBORw0KGgo="
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
TEXTS = st.text(alphabet=st.sampled_from("`<>!-a \n\\~&*#[]()\u202e\x00\ud800é")) | st.text()
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "toolCall", "image", "x"])},
    optional={
        **dict.fromkeys(("text", "thinking", "name", "arguments", "data"), TEXTS | JSON),
        "mimeType": st.sampled_from(["image/png", "image/svg+xml", 'image/png" onerror="x']),
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "<b>"])},
    optional={
        "content": TEXTS | st.lists(BLOCKS | JSON) | JSON,
        "provenance": st.just({"kind": "inter_session", "sourceSessionKey": "</h2>\n## x"}) | JSON,
        "timestamp": JSON,
        "isError": JSON,
        "toolName": JSON,
    },
)
OURS = {"article", "h2", "b", "p", "pre", "code", "details", "summary", "img", "wbr"}
VOID = {"img", "wbr"}


class Elements(HTMLParser):
    """The elements of a page and their attributes; asserts that each is closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


@given(MESSAGES, st.lists(st.fixed_dictionaries({"name": TEXTS | JSON, "bytes": st.integers(0, 1 << 40)}), max_size=1))
@example({"role": "user", "content": "<!-- `<!-- ` <script>alert(1)</script>"}, [])
@example({"role": "user", "content": [{"type": "image", "mimeType": "image/png", "data": '"><script>'}]}, [])
def test_no_message_adds_an_element_or_a_heading(message: dict[str, Any], files: list[dict[str, Any]]) -> None:
    one = message_entry(message, 1_767_323_045_000, files)
    page = Elements()
    page.feed(web_page.message(one, "now"))
    page.close()
    assert not page.opened and {tag for tag, _ in page.seen} <= OURS
    assert all(set(attributes) <= {"class", "dir", "alt", "src"} for _, attributes in page.seen)
    assert all(str(attributes.get("src", "data:")).startswith("data:") for _, attributes in page.seen)
    text = markdown.message(one, "now")
    text.encode()
    outside = list(_outside_code(text))
    assert [line for line in outside if line.startswith("#")] == [text.split("\n")[1]]
    own = re.compile(r"</?details>|</?summary>|`[^`]+`")
    for line in outside:
        if not line.startswith(">"):
            assert "<" not in own.sub("", line), line


def _outside_code(text: str) -> list[str]:
    """The lines that are in no fenced block of the document itself."""
    fence, lines = "", []
    for line in text.split("\n"):
        if fence:
            fence = "" if line == fence else fence
        elif found := re.match(r"`{3,}", line):
            fence = found[0]
        else:
            lines.append(line)
    assert not fence
    return lines


@check_each(
    ("text", "shown"),
    [
        ("a `Vec<T>` b", "> a `Vec<T>` b"),
        ("a <b> c", "> a \\<b> c"),
        ("1 < 2", "> 1 < 2"),
        ("\\` <!-- `", "> \\` \\<!-- `"),
        # Escaped already, and an escaped backslash.
        ("a \\<b> \\\\<b>", "> a \\<b> \\\\\\<b>"),
        # Whoever shows the document would ask for it.
        ("![x](https://evil/x.png) \\![y](u) `![z]`!", "> \\![x](https://evil/x.png) \\![y](u) `![z]`!"),
        ("\\![x][y]\n\n[y]: https://evil/", "> \\![x][y]\n>\n> [y]: https://evil/"),
        # The first line's tick ends in the second.
        ("a ` b\nc ` <!-- ` d", "> a ` b\n> c ` \\<!-- ` d"),
        # Two items of a list: no code span over them.
        ("- ` a\n- <!-- `", "> - ` a\n> - \\<!-- `"),
        ("``<a>` ``", "> ``<a>` ``"),
        ("`\n\n<a>`", "> `\n>\n> \\<a>`"),
        ("<x>\n" * 50, "\n".join(["> \\<x>"] * 50)),
    ],
)
def test_markup_is_escaped_outside_of_code(text: str, shown: str) -> None:
    assert (
        markdown.message(message_entry({"role": "user", "content": text}, None, ()), "").split("\n", 3)[3]
        == shown + "\n"
    )


def test_a_word_that_no_browser_can_measure_has_places_to_break() -> None:
    word = "&" * 2500
    page = web_page.message(message_entry({"role": "user", "content": f"{word} {'a' * 1000}"}, 0, ()), "")
    assert f"{'&amp;' * 1000}<wbr>{'&amp;' * 1000}<wbr>{'&amp;' * 500} {'a' * 1000}</p>" in page


@check_each(
    ("text", "parts"),
    [
        ("a\n```py\nb\n```\nc", [("text", "a", ""), ("code", "b", "py"), ("text", "c", "")]),
        ("```\nnever closed", [("code", "never closed", "")]),
        ("````\n```\n````", [("code", "```", "")]),
        ("~~~\n```\n~~~", [("code", "```", "")]),
        ("```a`b\n", [("text", "```a`b", "")]),
        ("", []),
        ("\n \n", []),
    ],
)
def test_fenced_code_stands_apart(text: str, parts: list[tuple[str, str, str]]) -> None:
    assert [(part.kind, part.text, part.label) for part in contents.text_and_code(text)] == parts


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "toolCall", "name": name, "arguments": arguments}]}


IMAGE = {"type": "image", "mimeType": "image/png", "data": PNG}


@check_each(
    ("message", "summaries"),
    [
        (call("Bash", {"command": "just  test"}), ["Bash just test"]),
        (call("shell", {"command": ["ls", "-l"]}), ["shell ls -l"]),
        (call("x", "{bad"), ["x"]),
        ({"role": "toolResult", "toolName": "Bash", "isError": True, "content": "no"}, ["Bash failed: result"]),
        ({"role": "toolResult", "content": [IMAGE]}, ["result: result", "image/png"]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, ["thinking"]),
    ],
)
def test_calls_results_and_thoughts_have_a_line(message: dict[str, Any], summaries: list[str]) -> None:
    assert [part.summary() for part in message_entry(message, None, ()).parts] == summaries


def test_what_is_not_known_is_shown_as_json() -> None:
    (part,) = message_entry({"role": "user", "content": [{"type": "new", "a": 1}]}, None, ()).parts
    assert json.loads(part.text) == {"type": "new", "a": 1}


def test_a_result_without_a_name_has_that_of_its_call() -> None:
    messages = [
        {"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "Bash", "arguments": {}}]},
        {"role": "toolResult", "toolCallId": "c", "content": "ok"},
        {"role": "toolResult", "toolCallId": ["c"], "content": "ok"},
    ]
    calls = contents.names_of_calls(messages)
    shown = [message_entry(message, None, (), calls).parts[0].summary() for message in messages]
    assert shown == ["Bash", "Bash: result", "result: result"]
