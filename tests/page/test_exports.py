"""Exported sessions in Chromium: nothing is asked for, nothing is said in the console, no text can do anything, and
they can be read on paper.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_stores, page_world
from support.page_world import MAIN, Transcript
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.recorded_home import write_recorded_home

from sessiond import cli
from tests.page.test_hostile_text import write_hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Of an A4 page between the margins, in CSS pixels.
PAPER = {"width": 688, "height": 1000}
OURS = {"html", "head", "meta", "link", "title", "style", "body", "main", "h1", "h2", "b", "dl", "dt", "dd", "article"}
OURS |= {"p", "pre", "code", "details", "summary", "img", "wbr"}
_ELEMENTS = "() => [...new Set([...document.querySelectorAll('*')].map((one) => one.localName))]"
_ATTRIBUTES = "() => [...new Set([...document.querySelectorAll('body *')].flatMap((one) => one.getAttributeNames()))]"


class OpenedExport:
    """A document in a profile of its own; `said` has whatever the console said, was asked for, or opened."""

    def __init__(self, browser: Browser, file: Path, scheme: Any = "light") -> None:
        self._address = ""
        self.context = browser.new_context(viewport=PAPER, color_scheme=scheme)  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("popup", lambda _: self.said.append("a window was opened"))
        self.page.on("request", lambda request: self._note_request(request.url))
        self.show(file)

    def show(self, file: Path) -> None:
        """Go to this document."""
        self._address = file.as_uri()
        self.page.goto(self._address)

    def _note_request(self, address: str) -> None:
        if address != self._address and not address.startswith("data:"):
            self.said.append(f"asked for {address[:200]}")

    def check(self, elements: set[str] = OURS) -> None:
        """What holds of every document."""
        assert set(self.page.evaluate(_ELEMENTS)) <= elements
        assert set(self.page.evaluate(_ATTRIBUTES)) <= {"class", "dir", "alt", "src", "open"}
        assert self.page.evaluate("() => window.harmed") is None
        assert self.said == []


def export(daemon: Daemon, key: str, file: Path, *more: str) -> Path:
    done = daemon.cli("export", key, "-o", str(file), *more)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """`opened(file)`: an OpenedExport."""
    documents: list[OpenedExport] = []

    def open_one(file: Path, **more: Any) -> OpenedExport:
        documents.append(OpenedExport(browser, file, **more))
        return documents[-1]

    yield open_one
    for one in documents:
        one.context.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon, to be started on a store that the test writes."""
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.stop()


def test_sessions_of_every_program_open_without_a_word_or_a_request(
    started: Daemon, tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = write_recorded_home(tmp_path)
    page_world.write_day(tmp_path)
    started.start()
    started.wait_for(lambda: len(started.rows()) > count, "not every session is listed")
    for name, value in started.environ.items():
        monkeypatch.setenv(name, value)
    document, shown = None, 0
    for row in started.rows():
        file = tmp_path / f"{row['sessionId']}.html"
        assert cli.run(["export", row["key"], "--raw", "-o", str(file)]) == 0
        if document is None:
            document = opened(file)
        else:
            document.show(file)
        page = document.page
        shown += page.locator("article").count()
        page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), row["key"]
        assert page.evaluate("() => [...document.images].every((one) => one.complete && one.naturalWidth)"), row["key"]
        document.check()
    assert shown > 3 * count


def test_hostile_texts_stay_text(started: Daemon, tmp_path: Path, opened: Any) -> None:
    write_hostile(started.store)
    started.start()
    document = opened(export(started, MAIN, tmp_path / "hostile.html"))
    document.check()
    page = document.page
    assert page.locator("h1").inner_text().startswith("\\u202eevil <img src=x onerror=alert(1)>")
    assert page.title().startswith("\\u202eevil <img src=x")
    first = page.locator("article").first.locator("p").inner_text()
    assert "<script>window.harmed = 1</script>" in first and "\\u202egpj.exe\\u202c \\u001b[31mred" in first
    # The one image that is one; SVG, which is a document of its own, is not shown.
    assert page.evaluate("() => [...document.images].map((one) => one.naturalWidth)") == [1]
    assert page.locator("article", has_text="the end").count() >= 1
    page.locator("summary").first.click()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    document.check()


def write_paper(store: Path) -> None:
    """A session with what is hard to print: long lines and words, long and short code, folded calls."""
    paper = Transcript(MAIN, "/home/ada", 1_795_000_000_000, label="On paper")
    for number in range(6):
        paper.user(f"See https://example.org/{'segment/' * 40}?q={number} and {'w' * 400}.")
        paper.tool("Bash", {"command": f"ls {'-l ' * 60}"}, "hidden-output\n" * 30)
        code = "\n".join(f"def function_{line}(argument): return {'x' * line}" for line in range(90))
        thought = {"type": "thinking", "thinking": "hidden-thought"}
        paper.say(thought, f"Here:\n\n```python\n{code}\n```\n\n{'Prose. ' * 200}")
    paper.save(store)


def test_it_reads_well_on_paper_also_where_the_screen_is_dark(started: Daemon, tmp_path: Path, opened: Any) -> None:
    write_paper(started.store)
    started.start()
    document = opened(export(started, MAIN, tmp_path / "paper.html"), scheme="dark")
    page = document.page
    background = "() => getComputedStyle(document.querySelector('summary')).color"
    on_screen = page.evaluate(background)
    page.locator("summary", has_text="Bash ls").nth(1).click()
    page.emulate_media(media="print")
    assert page.evaluate(background) != on_screen == "rgb(255, 255, 255)"
    # Calls are named, what they gave is folded, and what was opened is printed.
    assert page.locator("summary", has_text="Bash: result").first.is_visible()
    assert not page.get_by_text("hidden-output").first.is_visible()
    assert not page.get_by_text("hidden-thought").first.is_visible()
    assert page.locator("details[open] pre").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    # Six times more than a page of code; no page is left empty, and nothing in it can be followed.
    assert 10 <= len(re.findall(rb"/Type /Page\b(?!s)", printed)) <= 24
    assert b"/URI" not in printed
    document.check()


def test_ten_thousand_messages_open_at_once(started: Daemon, tmp_path: Path, opened: Any) -> None:
    filler = "x " * 200
    lines = [page_stores.message(n, "user" if n % 2 else "assistant", f"message {n} {filler}") for n in range(10_000)]
    page_stores.write_transcript(started.store, lines)
    started.start()
    file = export(started, page_stores.KEY, tmp_path / "long.html")
    began = time.perf_counter()
    document = opened(file)
    print(f"10,000 messages, {file.stat().st_size / 1e6:.1f} MB, opened in {time.perf_counter() - began:.2f} s")
    assert document.page.locator("article").count() == 10_000
    document.check()
