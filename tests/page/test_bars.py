"""How quick and how small the page is, in a real browser on the machine that runs this. The best of a few attempts
counts: what else the machine does is not the page's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_stores
from support.page_world import address_of
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import WHOLE

if TYPE_CHECKING:
    from playwright.sync_api import Page

# On a machine that does something else besides, times are allowed to be this many times longer.
SLACK = float(os.environ.get("SESSIOND_PAGE_SLACK", "1"))
FIRST_ROWS_MS = 300 * SLACK
OPEN_MS = 500 * SLACK
APPEND_MS = 50 * SLACK
HEAP_MB = 100
MOST_ELEMENTS = 400
MESSAGES = 10_000

# Notes the moment, since the navigation, at which the first element of a kind is in the document.
_NOTE_FIRST = """
new MutationObserver(() => {
  window.firstAt ??= document.querySelector("TAG") && performance.now();
}).observe(document, { childList: true, subtree: true });
"""
_SHOWN = "() => document.querySelectorAll('message-view').length"
_DOWN = "() => { document.querySelector('transcript-view .scroller').scrollTop = 1e9; }"
_UP = "() => { document.querySelector('transcript-view .scroller').scrollTop = 0; }"


def test_the_first_rows_of_a_thousand_sessions_are_there_in_300_ms(tmp_path: Path, open_page: Any) -> None:
    page_stores.write_sessions(tmp_path / "store", 1000)
    daemon = Daemon(tmp_path).start()
    try:
        page = open_page(daemon)
        page.add_init_script(_NOTE_FIRST.replace("TAG", "session-row"))
        times = []
        for _ in range(7):
            page.reload()
            page.wait_for_selector("session-row")
            page.wait_for_function("() => window.firstAt > 0")
            times.append(page.evaluate("() => window.firstAt"))
        print(f"first rows of 1,000 sessions: {min(times):.0f} ms, {sorted(times)[3]:.0f} ms in the middle")
        assert min(times) <= FIRST_ROWS_MS, times
    finally:
        daemon.stop()


@pytest.fixture
def long_session(tmp_path: Path) -> Any:
    """A session of 10,000 messages, and with `filler` characters in each of them."""
    started: list[Daemon] = []

    def start(filler: int) -> Daemon:
        text = "x " * (filler // 2)
        lines = [
            page_stores.message(number, "user" if number % 2 else "assistant", f"message {number} {text}")
            for number in range(1, MESSAGES + 1)
        ]
        page_stores.write_transcript(tmp_path / "store", lines)
        started.append(Daemon(tmp_path).start())
        return started[0]

    yield start
    for daemon in started:
        daemon.stop()


def test_a_transcript_of_500_mb_opens_in_500_ms(long_session: Any, open_page: Any) -> None:
    daemon = long_session(50_000)
    assert sum(path.stat().st_size for path in daemon.transcripts()) > 500_000_000
    page = open_page(daemon)
    page.wait_for_selector("session-row")
    times = []
    for _ in range(5):
        page.evaluate("() => { location.hash = '#/' }")
        page.wait_for_function("() => !document.querySelector('message-view')")
        times.append(
            page.evaluate(
                """async (address) => {
                  const began = performance.now();
                  location.hash = address;
                  while (!document.querySelector("message-view")) await new Promise(requestAnimationFrame);
                  return performance.now() - began;
                }""",
                address_of(page_stores.KEY),
            )
        )
    print(f"a transcript of 500 MB opens in {min(times):.0f} ms, {sorted(times)[2]:.0f} ms in the middle")
    assert min(times) <= OPEN_MS, times


def used_heap_mb(page: Page) -> float:
    """The heap of the page after a collection of what nobody holds."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / 1e6


def test_scrolling_through_10000_messages_keeps_few_of_them(long_session: Any, open_page: Any) -> None:
    page = open_page(long_session(300), at=address_of(page_stores.KEY))
    page.wait_for_selector("message-view")
    seen, shown = set(), 0
    deadline = time.monotonic() + PATIENCE_S
    while 1 not in seen:
        assert time.monotonic() < deadline, f"stopped at {min(seen)}"
        page.evaluate(_UP)
        page.wait_for_timeout(20)
        seqs = page.eval_on_selector_all("message-view", "(all) => all.map((one) => Number(one.dataset.seq))")
        assert seqs == sorted(set(seqs))
        seen.update(seqs)
        shown = max(shown, len(seqs))
    heap = used_heap_mb(page)
    print(f"after {len(seen)} of {MESSAGES} messages: {shown} elements at most, a heap of {heap:.0f} MB")
    assert (len(seen), shown <= MOST_ELEMENTS) == (MESSAGES, True)
    assert heap <= HEAP_MB
    # And down again, a part of the way: what went is read anew.
    for _ in range(20):
        page.evaluate(_DOWN)
        page.wait_for_timeout(20)
    assert page.evaluate(_SHOWN) <= MOST_ELEMENTS


def test_an_append_is_in_the_document_within_50_ms(daemon: Daemon, open_page: Any) -> None:
    key = "agent:main:test:live"
    daemon.reply(key, "hello")
    page = open_page(daemon, at=address_of(key))
    page.wait_for_selector("message-view")
    page.evaluate(
        """() => {
          window.seenAt = {};
          new MutationObserver(() => {
            const last = [...document.querySelectorAll("message-view")].at(-1);
            const mark = last && /mark \\d+/.exec(last.textContent);
            if (mark) window.seenAt[mark[0]] ??= Date.now();
          }).observe(document, { childList: true, subtree: true, characterData: true });
        }"""
    )
    times = []
    with daemon.connect() as wire:
        for number in range(20):
            mark, began_ms = f"mark {number}", time.time() * 1000
            wire.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": mark}])
            page.wait_for_function("(mark) => window.seenAt[mark]", arg=mark)
            times.append(page.evaluate("(mark) => window.seenAt[mark]", mark) - began_ms)
    print(f"from an append to the document: {sorted(times)[10]:.0f} ms in the middle, {max(times):.0f} at most")
    assert sorted(times)[10] <= APPEND_MS, times


def test_a_daemon_killed_while_messages_arrive_shows_each_once_in_order(daemon: Daemon, open_page: Any) -> None:
    key, (messages, kills) = "agent:main:test:kills", (1000, 20) if WHOLE else (200, 4)
    daemon.reply(key, "before")
    page = open_page(daemon, at=address_of(key))
    page.wait_for_selector("message-view")
    # Every element that ever comes, in the order in which it comes.
    page.evaluate(
        """() => {
          window.came = [];
          new MutationObserver((changes) => {
            for (const { addedNodes } of changes)
              for (const node of addedNodes)
                if (node.localName === "message-view")
                  window.came.push(`${node.dataset.seq} ${/message \\d+/.exec(node.textContent)}`);
          }).observe(document.querySelector("transcript-view"), { childList: true, subtree: true });
        }"""
    )
    for number in range(messages):
        daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": f"message {number}"}])
        if number % (messages // kills) == messages // kills // 2:
            daemon.kill()
            daemon.start()
        # What comes between two frames and is more than the window holds never becomes an element.
        if number % (MOST_ELEMENTS // 4) == 0:
            page.wait_for_function("(last) => window.came.at(-1)?.endsWith(last)", arg=f" message {number}")
    page.wait_for_function("(last) => window.came.at(-1)?.endsWith(last)", arg=f"message {messages - 1}")
    assert page.evaluate("() => window.came") == [f"{number + 3} message {number}" for number in range(messages)]
    seqs = page.eval_on_selector_all("message-view", "(all) => all.map((one) => Number(one.dataset.seq))")
    assert seqs == sorted(set(seqs)) and len(seqs) <= MOST_ELEMENTS
