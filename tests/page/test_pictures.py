"""The two pictures of the README. `SESSIOND_PICTURES=docs` takes them anew."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_world
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = (1280, 800)
MOST_BYTES = 120_000


def take_picture(page: Page, name: str) -> bytes:
    """The page as it is now, when nothing moves any more; kept where that is asked for."""
    page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")
    session = page.context.new_cdp_session(page)
    taken = base64.b64decode(session.send("Page.captureScreenshot", {"format": "webp", "quality": 85})["data"])
    if os.environ.get("SESSIOND_PICTURES") == "docs":
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.webp").write_bytes(taken)
    return taken


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Daemon]:
    page_world.write_day(tmp_path)
    started = Daemon(tmp_path).start(page_world.CONFIG)
    yield started
    started.stop()


def open_session(open_page: Any, day: Daemon, key: str, scheme: str) -> Page:
    page: Page = open_page(day, scopes=("list", "read", "send", "spawn"), scheme=scheme, viewport=SIZE)
    page.wait_for_selector("session-row")
    page.evaluate("(key) => { location.hash = `#/session/${encodeURIComponent(key)}` }", key)
    page.locator("message-view").first.wait_for()
    page.locator("connection-state.live").wait_for()
    return page


def check_picture(name: str, taken: bytes) -> None:
    assert taken[8:12] == b"WEBP" and len(taken) <= MOST_BYTES
    assert (FOLDER / f"{name}.webp").stat().st_size <= MOST_BYTES


def test_a_run_is_followed_live(day: Daemon, open_page: Any) -> None:
    with day.connect() as wire:
        agent = page_world.AttachedAgent(wire)
        page = open_session(open_page, day, page_world.MAIN, "light")
        question = "The nightly is green now. What do I tell the users about the new tail?"
        day.call("chat.send", sessionKey=page_world.MAIN, message=question)
        agent.begin()
        agent.tell("tool", phase="start", toolCallId="c1", name="Bash", args={"command": "git log --oneline v2.3.."})
        agent.tell("delta", text="Three things have changed for them:\n\n1. A file that is replaced is **followed**, ")
        agent.tell("delta", text="not read twice.\n2. `tail --since` takes ")
        page.locator("live-text", has_text="tail --since").wait_for()
        check_picture("page", take_picture(page, "page"))
        agent.end("That is all.")
        page.locator("live-text", has_text="tail --since").wait_for(state="detached")


def test_a_change_is_a_diff(day: Daemon, open_page: Any) -> None:
    page = open_session(open_page, day, page_world.CHILD, "dark")
    page.locator("tool-call summary", has_text="Edit").click()
    page.locator("diff-view").wait_for()
    # A long title beside it does not cut the mark of a state.
    widths = "() => [...document.querySelectorAll('facts-panel li .state-mark')].map((one) => one.clientWidth)"
    assert (marks := page.evaluate(widths)) and min(marks) >= 10
    check_picture("page-dark", take_picture(page, "page-dark"))
