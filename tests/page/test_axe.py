"""What axe finds wrong for people who see little or nothing, in every view, light and dark. Its rules come by npm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_stores
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
KEY = "agent:main:test:axe"
# Calls and results, thoughts, a diff, code, a list, a link, a table: what a transcript can show.
MARKDOWN = """# A title

Some *words*, `code`, [a link](https://example.com/).

- one
- two

```python
print(1)
```

| a | b |
|---|---|
| 1 | 2 |
"""
LINES = [
    page_stores.message(1, "user", "look at it, please"),
    page_stores.message(
        2,
        "assistant",
        [
            {"type": "thinking", "thinking": "Where may it be?"},
            {"type": "text", "text": MARKDOWN},
            {
                "type": "toolCall",
                "id": "c1",
                "name": "Edit",
                "arguments": {"path": "a.py", "oldText": "one", "newText": "two"},
            },
            {"type": "toolCall", "id": "c2", "name": "Bash", "arguments": {"command": "just test"}},
        ],
        model="demo-1",
    ),
    page_stores.message(3, "toolResult", [{"type": "text", "text": "done"}], toolCallId="c1", toolName="Edit"),
    page_stores.message(
        4, "toolResult", [{"type": "text", "text": "failed"}], toolCallId="c2", toolName="Bash", isError=True
    ),
    page_stores.message(200_000, "assistant", "That is all."),
]
EVERYTHING = ("list", "read", "send", "spawn", "admin")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("axe")
    page_stores.write_sessions(folder / "store", 12)
    page_stores.write_transcript(folder / "store", LINES, key=KEY)
    made = Daemon(folder).start()
    yield made
    made.stop()


def check(page: Page, where: str) -> list[str]:
    """What axe finds; nothing is moving any more when it looks."""
    page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{where}: {one['id']} ({one['help']}) {node['html'][:160]} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_is_closed_to_anyone(world: Daemon, open_page: Any, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe is not here: `just test-page` brings it by npm")
    found: list[str] = []
    for viewport in ((1440, 900), (400, 800)):
        page = open_page(world, scopes=EVERYTHING, scheme=scheme, viewport=viewport)
        page.evaluate(AXE.read_text())
        where = f"{scheme}, {viewport[0]} wide"
        page.wait_for_selector("session-row")
        found += check(page, f"{where}, tree")
        page.evaluate("(key) => { location.hash = `#/session/${encodeURIComponent(key)}` }", KEY)
        page.wait_for_selector("message-view")
        found += check(page, f"{where}, transcript")
        for summary in page.query_selector_all("transcript-view summary"):
            summary.click()
        found += check(page, f"{where}, everything unfolded")
        page.evaluate("() => { location.hash = '#/usage' }")
        page.wait_for_selector("usage-view:not([hidden])")
        found += check(page, f"{where}, usage")
        page.keyboard.press("Control+k")
        page.wait_for_selector("search-box :is(input)")
        found += check(page, f"{where}, search")
        page.keyboard.press("Escape")
    assert found == []
