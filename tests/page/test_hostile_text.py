"""Transcripts are an attacker's text: it stays text, loads nothing, and the page stays usable."""

from __future__ import annotations

from typing import Any

from support.page_world import MAIN, Transcript
from support.real_daemon import Daemon

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_MARKUP = (
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><iframe srcdoc='<script>1</script>'>\n"
    "[a](javascript:window.harmed=1) [b](data:text/html,x) [c](https://me:secret@evil.example/) "
    "![d](https://evil.example/x.png) \u202egpj.exe\u202c \x1b[31mred https://evil.example/?q=1"
)


def write_hostile(store: Any) -> None:
    hostile = Transcript(MAIN, "/tmp/\u202egpj.exe", 1_795_000_000_000, label="\u202eevil <img src=x onerror=alert(1)>")
    hostile.user(_MARKUP)
    hostile.say("x" * 900_000)
    hostile.say("`" * 5000 + "*" * 5000 + "[" * 5000, {"type": "thinking", "thinking": "a" * 200_000})
    calls = [
        {"type": "toolCall", "id": f"c{n}", "name": "Bash\u202e", "arguments": {"command": "<b>"}}
        for n in range(40_000)
    ]
    hostile.say(*calls)
    image = {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zz4="}
    hostile.say(image, image | {"mimeType": "image/png", "data": _PNG}, {"type": ["odd"]}, None, 5, "bare")
    hostile.message("assistant", {"not": "a list"})
    hostile.message("toolResult", None, toolCallId={"x": 1}, toolName=7, isError="yes")
    hostile.message("\u202edaeh", [{"type": "text", "text": "a role of its own"}])
    hostile.user("forged", from_key="agent:main:<b>x</b>")
    hostile.say({"type": {"toString": 1}}, "```\u202e" + "l" * 5000 + "\ncode of a long language\n```")
    hostile.message("assistant", "nothing is hidden by a field", omitted={"bytes": 5})
    edits = [{"oldText": "\n" * 3000, "newText": "\n" * 2900}] * 50
    hostile.say(
        *(
            {"type": "toolCall", "id": f"e{n}", "name": "Edit", "arguments": {"path": "/x", "edits": edits}}
            for n in range(3)
        )
    )
    hostile.say("y" * 7_500_000)
    hostile.say("the end")
    hostile.save(store)


def test_hostile_transcripts_are_inert_and_the_page_is_usable(tmp_path: Any, open_page: Any) -> None:
    write_hostile(tmp_path / "store")
    daemon = Daemon(tmp_path).start()
    try:
        # The page's observer fails the test at any request to elsewhere and at any violation of the policy.
        page = open_page(daemon, at="#/session/agent%3Amain%3Amain")
        page.locator("message-view", has_text="the end").wait_for()
        pane = page.locator("transcript-view .scroller")
        while not page.locator("transcript-view .edge", has_text="The beginning").count():
            pane.evaluate("(pane) => { pane.scrollTop = 0 }")
            page.wait_for_timeout(20)
        first = page.locator("message-view").first
        first.scroll_into_view_if_needed()
        shown = first.locator(".body").text_content()
        assert "<script>window.harmed = 1</script>" in shown and "‹U+202E›gpj.exe‹U+202C› red" in shown
        assert first.locator("[role=link]").all_text_contents() == ["d", "https://evil.example/?q=1"]
        assert page.evaluate("() => window.harmed") is None
        assert page.locator("transcript-view :is(img, script, iframe, a)").count() == 0
        assert page.locator(".session-head h1").first.inner_text() == "‹U+202E›evil <img src=x onerror=alert(1)>"
        assert "‹U+202E›daeh" in page.locator("message-view .who").all_text_contents()
        assert page.locator("message-view", has_text="nothing is hidden by a field").count() == 1
        language = page.locator("code-block", has_text="code of a long language").locator(".language").text_content()
        assert language.startswith("‹U+202E›lll") and len(language) == 40
        # What is long is cut, and shown when it is asked for.
        cut = page.locator("message-view", has_text="kB more").first
        assert len(cut.text_content()) < 70_000
        cut.get_by_role("button", name="Show all").click()
        page.wait_for_function(
            "() => [...document.querySelectorAll('rich-text')].some((one) => one.textContent.length >= 900000)"
        )
        omitted = page.locator("message-view", has_text="This message has 7.5 MB")
        assert omitted.count() == 1
        many = page.locator("message-view", has_text="This message has").first
        many.get_by_role("button", name="Show it").click()
        page.locator(".cut", has_text="39,900 more parts").wait_for()
        assert page.locator("tool-call").count() < 200
        images = page.locator("details.image summary")
        for at in range(2):
            images.nth(at).click()
        page.locator("transcript-view img").first.wait_for(state="attached")
        assert page.locator("transcript-view img").count() == 1
        assert page.evaluate("() => document.querySelector('transcript-view img').naturalWidth") == 1
        page.locator("message-view", has_text="forged").locator(".sender button").click()
        page.locator("transcript-view .problem").wait_for()
    finally:
        daemon.stop()
