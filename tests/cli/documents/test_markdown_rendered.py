"""Exported Markdown in a renderer that shows HTML as such: no message adds an element, an image or a heading."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.cli.documents import markdown
from sessiond.cli.documents.contents import message_entry

markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py comes with requirements.lock only")

MARKUP = ["<b>", "<script>alert(1)</script>", "<!--", "-->", "</details>", "<?x", "<https://a.b>", "&lt;b&gt;"]
LINKS = [
    "[d](",
    "[d](<",
    "[d](\n",
    "[r]:\n",
    "javascript:x",
    "java&#115;cript:x",
    "javascript&colon;x",
    "JAVA\\script:",
    "data:x",
]
LINKS += ["[d](https://e.x/p)", "[d](a/b.py)", "[r]: /x", "[r]: ", "[d][r]", "(", ":", "<", "\\", "&"]
IMAGES = ["![d](https://e.x/p)", "![d][r]", "[r]: https://e.x/p", "!", "[", "](", ")"]
BLOCK_STARTS = ["\n", "\n\n", "- ", "> ", "# ", "    ", "\t", "|a|b|\n|-|-|\n", "|", "---", "===", "1. ", "```", "~~~"]
PIECES = st.sampled_from(
    [*MARKUP, *IMAGES, *LINKS, *BLOCK_STARTS, "\\", "\\\\", "`", "``", " ", "a", "*", "\u2028", "\r"]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)
BLOCKS = st.one_of(
    TEXTS.map(lambda text: {"type": "text", "text": text}),
    TEXTS.map(lambda text: {"type": "thinking", "thinking": text}),
    TEXTS.map(lambda text: {"type": "toolCall", "id": "c", "name": text or "x", "arguments": {"command": text}}),
)


@given(st.lists(BLOCKS, min_size=1, max_size=3), TEXTS)
@example([{"type": "text", "text": "a \\<b>"}], "")
@example([{"type": "text", "text": "`\\`<b>`x`"}], "<b>")
@example([{"type": "text", "text": "[a](javascript:x) [b](< javascript:x>) [c][r]\n\n[r]:\njavascript:x"}], "")
@example([{"type": "text", "text": "x ` \\\\<b>\n- ` <i>"}], "\n# x")
def test_no_message_adds_an_element_an_image_a_heading_or_a_link_with_an_effect(
    blocks: list[dict[str, Any]], sender: str
) -> None:
    provenance = {"kind": "inter_session", "sourceSessionKey": sender}
    message = {"role": "assistant", "content": blocks, "provenance": provenance}
    text = markdown.head(sender, [("folder", sender)]) + markdown.message(message_entry(message, 0, ()), "now")
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table")
    reader.validateLink = lambda _: True  # unlike those that refuse such links themselves
    tokens = reader.parse(text)
    top = [token for token in tokens if token.level == 0]
    assert [token.tag for token in top if token.type == "heading_open"] == ["h1", "h2"]
    for token in tokens:
        if token.type == "html_block":
            # Ours: `<details><summary>...</summary>` and `</details>`.
            assert token.level == 0 and token.content.startswith(("<details><summary>", "</details>")), text
            assert token.content.count("<") == (1 if token.content.startswith("</") else 3), text
    inline = [child for token in tokens for child in token.children or ()]
    assert not [child for child in inline if child.type in ("html_inline", "image")], text
    for child in inline:
        if child.type == "link_open":
            scheme = re.match(r"[\s\x00-\x20]*([\w+.-]*):", unquote(str(child.attrs["href"])))
            assert scheme is None or scheme[1] in ("http", "https", "mailto"), text
