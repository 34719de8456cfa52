"""The page in the system's Chromium, driven by Playwright: `just test-page`. Skipped in words where either is missing.

Whatever a test does, it fails if its page asks another host, violates its own policy, or has an error in its console.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_world
from support.owner_page import READ_SCOPES
from support.page_world import AttachedAgent
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What it would ask others for by itself.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--enable-precise-memory-info",
    "--no-first-run",
)
VIEWPORT = (1440, 900)
OpenPage = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs a browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not here: `just test-page` brings it")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: the page was not looked at (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET], chromium_sandbox=os.geteuid() != 0, timeout=PATIENCE_S * 1000
        )
        yield made
        made.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an empty store. Tests that want another one build it in `tmp_path` and start their own."""
    made = Daemon(tmp_path).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the sessions of one day, for all tests of a module."""
    folder = tmp_path_factory.mktemp("day")
    page_world.write_day(folder)
    made = Daemon(folder).start(page_world.CONFIG)
    yield made
    made.stop()


@pytest.fixture
def agent(day: Daemon) -> Iterator[AttachedAgent]:
    """The program that answers for the agents of the day."""
    with day.connect() as wire:
        yield AttachedAgent(wire)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(daemon, scopes=..., viewport=..., scheme=..., at="#/usage", allow=...)`: a Playwright page that is
    signed in, in a profile of its own. `allow` is a part of what the console may say.
    """
    contexts: list[tuple[BrowserContext, _Observer]] = []

    def open_one(
        daemon: Daemon,
        *,
        scopes: tuple[str, ...] = READ_SCOPES,
        viewport: tuple[int, int] = VIEWPORT,
        scheme: Any = "light",
        at: str = "",
        allow: tuple[str, ...] = (),
        **more: Any,
    ) -> Page:
        opened = daemon.call("http.open", scopes=list(scopes))
        context = browser.new_context(
            viewport={"width": viewport[0], "height": viewport[1]}, color_scheme=scheme, locale="en-GB", **more
        )
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        contexts.append((context, _Observer(page, opened["address"], allow)))
        page.goto(f"{opened['address']}#{opened['code']}")
        page.wait_for_function("() => sessionStorage.getItem('sessiond.token') && !location.hash.match(/^#[^/]/)")
        if at:
            page.evaluate("(at) => { location.hash = at }", at)
        return page

    yield open_one
    wrong = [line for _, observer in contexts for line in observer.wrong]
    for context, _ in contexts:
        context.close()
    assert wrong == []


class _Observer:
    """What a page must not do. While its daemon is away a request that fails is no fault of the page."""

    def __init__(self, page: Page, address: str, allow: tuple[str, ...]) -> None:
        self.wrong: list[str] = []
        self._address, self._allow = address, ("net::ERR_", "Failed to load resource", *allow)
        page.on("request", lambda request: self._note_request(request.url))
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on("console", lambda message: message.type in ("error", "warning") and self._note(message.text))

    def _note_request(self, url: str) -> None:
        if not url.startswith((self._address, "data:", "blob:")):
            self.wrong.append(f"asked for {url}")

    def _note(self, text: str) -> None:
        if not any(part in text for part in self._allow):
            self.wrong.append(text)
