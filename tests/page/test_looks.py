"""The page in every width and in light and dark: nothing that keeps people out, nothing that spills over; what stands
there where there is nothing, or no daemon. `SESSIOND_PICTURES=FOLDER` keeps what was seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.page_world import CHILD, MAIN, AttachedAgent, address_of
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = os.environ.get("SESSIOND_PICTURES")
WIDTHS = {1440: 900, 900: 900, 400: 800}
ALL = ("list", "read", "send", "spawn", "answer", "admin")
_AXE = """async () => (await axe.run(document)).violations.flatMap(
  (one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`))"""
# The streams of the page wait no more than this before they try again by themselves: from now on, for ever.
_HOLD_RETRIES = """() => {
  const { setTimeout } = window;
  window.held = 0;
  window.setTimeout = (work, ms, ...more) => (ms > 2000 ? setTimeout(work, ms, ...more) : void window.held++);
  window.releaseRetries = () => { window.setTimeout = setTimeout; };
}"""
_HOLD_REQUESTS = """
  const { fetch } = window;
  window.held = 0;
  const released = new Promise((release) => { window.releaseRequests = release; });
  window.fetch = async (address, how) => {
    window.held++;
    const aborted = new Promise((_, reject) => how.signal?.addEventListener("abort", () => reject(how.signal.reason)));
    await Promise.race([released, aborted]);
    return fetch(address, how);
  };
"""
_SPILL = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def talked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With one session of two messages; whoever kills it starts it again."""
    daemon = Daemon(tmp_path_factory.mktemp("talked")).start()
    daemon.reply("main", "hello")
    yield daemon
    daemon.stop()


def keep(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", animations="disabled")


def check(page: Page, name: str) -> list[str]:
    """What keeps people out of the page as it is now."""
    keep(page, name)
    found = [f"{name}: {line}" for line in page.evaluate(_AXE)]
    return found + ([f"{name}: spills over"] if page.evaluate(_SPILL) > 0 else [])


def with_axe(page: Page) -> Page:
    if not AXE.exists():
        pytest.skip("axe-core is not here: `just test-page` brings it")
    # Not as an element: the page's policy forbids that, as it should.
    page.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": AXE.read_text()})
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_out_in_any_view(day: Daemon, open_page: Any, scheme: str) -> None:
    wrong: list[str] = []
    for width, height in WIDTHS.items():
        page = with_axe(open_page(day, scopes=ALL, viewport=(width, height), scheme=scheme))
        page.wait_for_selector("now-view", state="attached")
        wrong += check(page, f"now-{width}-{scheme}")
        page.evaluate("(at) => { location.hash = at }", address_of(CHILD))
        page.locator("message-view").first.wait_for()
        for summary in page.locator("tool-call summary").all()[:3]:
            summary.click()
        wrong += check(page, f"session-{width}-{scheme}")
        if width < 1200:
            page.get_by_role("button", name="Facts").click()
            wrong += check(page, f"facts-{width}-{scheme}")
        page.evaluate("() => { location.hash = '#/usage' }")
        page.locator("usage-view table").wait_for()
        wrong += check(page, f"usage-{width}-{scheme}")
        page.keyboard.press("Control+k")
        page.keyboard.type("tail")
        page.locator("search-box li.match").first.wait_for()
        wrong += check(page, f"search-{width}-{scheme}")
        page.keyboard.press("Escape")
        page.keyboard.press("n")
        page.locator("spawn-form option").first.wait_for(state="attached")
        wrong += check(page, f"task-{width}-{scheme}")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        wrong += check(page, f"keys-{width}-{scheme}")
    assert wrong == []


def test_a_question_keeps_nobody_out(day: Daemon, open_page: Any) -> None:
    with day.connect() as wire:
        agent = AttachedAgent(wire)
        day.call("chat.send", sessionKey=MAIN, message="go on")
        agent.begin()
        long = ("long", "An option that has a good deal to say about what it does, and where " * 2, "allow_always")
        detail = "sudo systemctl restart tidepool\n" * 12
        agent.ask(
            "May I restart the service?", ("yes", "Yes", "allow_once"), ("no", "No", "reject_once"), long, detail=detail
        )
        wrong: list[str] = []
        for scopes in (ALL, ("list", "read")):
            for scheme, (width, height) in zip(("light", "dark", "light"), WIDTHS.items(), strict=True):
                page = with_axe(open_page(day, scopes=scopes, viewport=(width, height), scheme=scheme))
                page.locator("now-view question-card").wait_for(state="attached")
                wrong += check(page, f"asked-now-{width}-{len(scopes)}")
                page.evaluate("(at) => { location.hash = at }", address_of(MAIN))
                page.locator("session-view > open-questions question-card").wait_for()
                wrong += check(page, f"asked-{width}-{len(scopes)}")
        agent.end("done")
    assert wrong == []


def test_an_empty_store_says_what_to_do_next(daemon: Daemon, open_page: Any) -> None:
    for width, height in WIDTHS.items():
        page = with_axe(open_page(daemon, viewport=(width, height)))
        page.locator(".empty >> visible=true").wait_for()
        shown = page.locator("body").inner_text()
        assert 'sessiond send main "hello"' in shown and "sessiond setup" in shown
        assert check(page, f"empty-{width}") == []
    daemon.reply("main", "hello")
    page.locator("session-row").first.wait_for()


def test_the_state_of_the_connection_is_told_always(talked: Daemon, open_page: Any) -> None:
    page = with_axe(open_page(talked, at=address_of(MAIN)))
    page.locator("message-view").nth(1).wait_for()
    page.locator("search-box").wait_for(state="attached")
    talked.kill()
    page.locator("connection-state.away", has_text="Daemon away").wait_for()
    assert "sessiond status" in page.locator("connection-state").inner_text()
    # What one has seen is still there to be read.
    assert page.locator("message-view").count() == 2
    assert check(page, "away") == []
    # Both streams wait for nobody but the button, however long the daemon takes to start.
    page.evaluate(_HOLD_RETRIES)
    page.wait_for_function("() => window.held >= 2")
    talked.start()
    page.get_by_role("button", name="Try now").click()
    page.locator("connection-state.live").wait_for()
    page.evaluate("() => window.releaseRetries()")
    # A tab without a token says how to get one.
    other = page.context.new_page()
    other.goto(page.url.partition("#")[0])
    other.locator(".sign-in", has_text="sessiond web").wait_for()
    talked.call("http.close")
    page.locator("connection-state.refused", has_text="sessiond web").wait_for()


def test_nothing_covers_a_name_and_there_is_room_to_write(day: Daemon, open_page: Any) -> None:
    for width, height in WIDTHS.items():
        page = open_page(day, scopes=ALL, viewport=(width, height), at=address_of(CHILD))
        said = page.locator("message-view.from-session.first").first
        said.hover()
        name, tools = (said.locator(part).bounding_box() for part in (".who", ".tools button:first-child"))
        assert name["x"] + name["width"] <= tools["x"] or name["y"] + name["height"] <= tools["y"], width
        text = page.locator("message-composer textarea").bounding_box()
        assert text["width"] >= 300, width
        assert page.locator("transcript-view .pill").is_hidden()


def test_a_page_whose_token_is_over_says_so(talked: Daemon, open_page: Any) -> None:
    page = open_page(talked).context.new_page()
    opened = talked.call("http.open", scopes=["list", "read"], ttlSeconds=3)
    page.goto(f"{opened['address']}#{opened['code']}")
    # Nothing comes after that, so it is not `live`; a machine that takes longer to show it is told at once.
    page.locator("connection-state.refused, .sign-in", has_text="sessiond web").wait_for()
    page.reload()
    page.locator(".sign-in .problem", has_text="not signed in any more").wait_for()
    # However late the answers are: the rows are asked for once, the events twice, since the page's token is over.
    page.add_init_script(_HOLD_REQUESTS)
    page.reload()
    page.wait_for_function("() => window.held >= 3")
    page.evaluate("() => window.releaseRequests()")
    page.locator(".sign-in .problem", has_text="not signed in any more").wait_for()


def test_a_daemon_that_dies_while_the_page_is_loaded_costs_nothing(talked: Daemon, open_page: Any) -> None:
    page = open_page(talked, allow=("dynamically imported",), at=address_of(MAIN))
    page.locator("message-view").first.wait_for()
    # The half of the page that comes after the first rows fails to load once.
    page.route("**/page-views.js", lambda route: route.abort(), times=1)
    page.reload()
    page.locator("session-row").first.wait_for()
    talked.kill()
    talked.start()
    page.locator("message-view").nth(1).wait_for()


def test_four_windows_leave_each_other_connections(talked: Daemon, open_page: Any) -> None:
    # A browser has six for all of them, and each has two streams.
    pages = [open_page(talked, at=address_of(MAIN))]
    for _ in range(3):
        opened = talked.call("http.open", scopes=["list", "read"])
        page = pages[0].context.new_page()
        page.goto(f"{opened['address']}#{opened['code']}")
        page.locator("session-row").first.click()
        page.locator("message-view").nth(1).wait_for()
        pages.append(page)
    # The two that were looked at last are live; the others say that they may be behind, until somebody looks at them.
    pages[0].locator("connection-state.reconnecting").wait_for()
    pages[0].evaluate("() => { dispatchEvent(new Event('focus')) }")
    pages[0].locator("connection-state.live").wait_for()
    pages[2].locator("connection-state.reconnecting").wait_for()
    pages[3].locator("connection-state.live").wait_for()
