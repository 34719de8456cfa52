"""What the page shows where one run follows another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

WRITE = ("list", "read", "send")
KEY = "agent:slow:main"
# It says what it was told, and works on until it is stopped.
_CONFIG = """
[[agents.list]]
id = "slow"
default = true
runtime = { type = "exec", command = ["sh", "-c", "echo I begin $(cat); sleep 600 & wait"] }
"""
_SHOWN = """() => [...document.querySelectorAll("message-view, .pieces > .run, live-text")]
  .filter((one) => one.checkVisibility()).map((one) => one.innerText)"""


def send(page: Page, text: str, button: str) -> None:
    page.locator("message-composer textarea").fill(text)
    page.locator("message-composer").get_by_role("button", name=button, exact=True).click()


def expect_ended(page: Page, first: str, second: str, words: str) -> None:
    """The first run has ended in these words, and the second one is live."""
    page.locator("live-text", has_text=f"I begin {second}").wait_for()
    page.locator(".pieces > .run", has_text=words).last.wait_for()
    page.wait_for_function(
        "(first) => !document.querySelector('live-text').innerText.includes(`begin ${first}`)", arg=first
    )
    *_, asked, ended, next_asked, live = page.evaluate(_SHOWN)
    assert first in asked and "You" in asked, asked
    assert words in ended, ended
    assert second in next_asked and "You" in next_asked, next_asked
    assert live.count("I begin") == 1, live


def test_a_run_that_another_follows_at_once_is_closed_live_as_after_a_reload(tmp_path: Path, open_page: Any) -> None:
    daemon = Daemon(tmp_path).start(_CONFIG)
    try:
        daemon.call("sessions.create", key=KEY)
        page = open_page(daemon, scopes=WRITE, at="#/session/agent%3Aslow%3Amain")
        send(page, "one", "Send")
        page.locator("live-text", has_text="I begin one").wait_for()
        send(page, "two", "Steer")
        expect_ended(page, "one", "two", "I begin one")
        # The daemon dies while a message waits.
        send(page, "three", "Send")
        page.locator(".queued", has_text="three").wait_for()
        daemon.kill()
        daemon.start()
        expect_ended(page, "two", "three", "The run failed: ")
        live = page.evaluate(_SHOWN)
        page.reload()
        expect_ended(page, "two", "three", "The run failed: ")
        assert page.evaluate(_SHOWN) == live
    finally:
        daemon.stop()
