"""What one sees of a run and of one's own messages while they are under way, and while the daemon is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import page_world
from support.page_world import CHILD, MAIN, REVIEWER, AttachedAgent, address_of, write
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

WRITE = ("list", "read", "send", "spawn")
_SHOWN = """() => [...document.querySelectorAll("message-view, .queued")].map(
  (one) => one.querySelector(".body").innerText
)"""


def count_shown(page: Page, text: str) -> int:
    """How often a text stands in the transcript, written or waiting."""
    return sum(text in one for one in page.evaluate(_SHOWN))


def test_a_message_sent_from_a_search_hit_is_shown_and_one_finds_back(day: Daemon, open_page: Any) -> None:
    key = "agent:coder:long"
    said = [{"role": "user", "content": f"line {number} " + "needle" * (number == 40)} for number in range(300)]
    day.reply(key, "hello")
    day.call("chat.inject", sessionKey=key, messages=said)
    page = open_page(day, scopes=WRITE, at=address_of(MAIN))
    page.locator("message-view").first.wait_for()
    page.keyboard.press("Control+k")
    page.locator("search-box input[type=search]").fill("needle")
    page.locator("search-box [role=option]", has_text="needle").first.wait_for()
    page.keyboard.press("Enter")
    hit = page.locator("message-view.found", has_text="needle")
    hit.wait_for()
    assert page.locator("message-view", has_text="line 299").count() == 0
    write(page, "and then?")
    page.keyboard.press("Enter")
    page.locator("message-view.from-user", has_text="and then?").wait_for()
    page.locator("message-view.from-assistant", has_text="and then?").wait_for()
    page.wait_for_function("() => document.querySelector('.pill').hidden")
    assert page.evaluate("() => document.activeElement.localName") == "textarea"
    # The way back is that of the browser.
    page.go_back()
    hit.wait_for()
    page.wait_for_function("() => !document.querySelector('.pill').hidden")


def test_a_run_that_is_opened_while_it_works_shows_all_that_it_said(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    early = open_page(day, scopes=WRITE, at=address_of(MAIN))
    write(early, "Tell me all")
    early.keyboard.press("Enter")
    agent.begin()
    agent.tell("delta", text="Once upon a time.\n\nThere was ")
    early.locator("live-text", has_text="There was").wait_for()
    page = open_page(day, at=address_of(MAIN))
    live = page.locator("live-text")
    live.get_by_text("There was").wait_for()
    agent.tell("delta", text="a daemon.")
    for one in (early, page):
        one.locator("live-text").get_by_text("There was a daemon.").wait_for()
        assert one.locator("live-text .body").inner_text() == "Once upon a time.\n\nThere was a daemon."
    # Chosen anew, and found again after a lost connection: neither twice nor from the middle on.
    page.evaluate("(at) => { location.hash = at }", address_of(CHILD))
    page.locator("h1", has_text="fix-replaced-file").wait_for()
    page.evaluate("(at) => { location.hash = at }", address_of(MAIN))
    live.get_by_text("There was a daemon.").wait_for()
    page.evaluate("() => { dispatchEvent(new Event('focus')) }")
    for state in ("hidden", "visible"):
        page.evaluate(
            """(state) => {
              Object.defineProperty(document, "hidden", { configurable: true, get: () => state === "hidden" });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            state,
        )
    agent.tell("delta", text=" The end")
    page.wait_for_function("() => document.querySelector('live-text').innerText.includes('The end')")
    assert live.locator(".body").inner_text() == "Once upon a time.\n\nThere was a daemon. The end"
    # A question of the run takes nothing away.
    agent.ask("Shall I go on?", ("yes", "Yes", "allow_once"))
    page.locator("session-view > open-questions question-card", has_text="Shall I go on?").wait_for()
    page.locator(".session-head .state", has_text="waits for you").wait_for()
    assert "Once upon a time" in live.inner_text()
    agent.end("Once upon a time.\n\nThere was a daemon. The end")
    for one in (early, page):
        one.locator("message-view.from-assistant", has_text="The end").wait_for()
        one.wait_for_function("() => document.querySelector('live-text').hidden")
        assert count_shown(one, "Once upon a time") == 1


def test_a_message_that_waits_is_shown_at_once_and_never_twice(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    page, other = (open_page(day, scopes=WRITE, at=address_of(MAIN)) for _ in range(2))
    write(page, "Begin")
    page.keyboard.press("Enter")
    agent.begin()
    agent.tell("delta", text="I begin")
    page.locator("live-text", has_text="I begin").wait_for()
    for one in (page, other):
        # However often it is rendered, the text is in the document once at most.
        one.evaluate(
            """() => {
              window.most = 0;
              const count = () => {
                const all = [...document.querySelectorAll("message-view, .queued")];
                const found = all.filter((one) => one.textContent.includes("and the second thing"));
                window.most = Math.max(window.most, found.length);
              };
              new MutationObserver(count).observe(document, { childList: true, subtree: true });
            }"""
        )
    write(page, "and the **second** thing")
    page.keyboard.press("Enter")
    for one in (page, other):
        waiting = one.locator(".queued.from-user", has_text="and the second thing")
        waiting.locator("strong").wait_for()
        assert "queued" in waiting.inner_text() and "read after this turn" in waiting.inner_text()
    # By whichever client it was sent; and opened later it is there, too.
    queued = day.call("chat.send", sessionKey=MAIN, message="from a terminal")
    page.locator(".queued", has_text="from a terminal").wait_for()
    later = open_page(day, at=address_of(MAIN))
    later.locator(".queued").nth(1).wait_for()
    day.call("chat.abort", sessionKey=MAIN, runId=queued["runId"])
    for one in (page, other, later):
        one.locator(".queued", has_text="from a terminal").wait_for(state="detached")
    agent.end("I began.")
    agent.begin()
    for one in (page, other, later):
        one.locator("message-view.from-user", has_text="and the second thing").wait_for()
        one.locator(".queued").wait_for(state="detached")
    agent.end("And so on.")
    for one in (page, other):
        one.locator("message-view.from-assistant", has_text="And so on.").wait_for()
        assert (count_shown(one, "and the second thing"), one.evaluate("() => window.most")) == (1, 1)


def test_what_was_said_last_is_there_after_a_run(day: Daemon, open_page: Any) -> None:
    day.reply(REVIEWER, "Hello, reviewer")
    page = open_page(day)
    line = page.locator("now-section", has_text="Said last").locator("li:has(bdi:text-is('reviewer'))")
    line.wait_for()
    day.reply(REVIEWER, "the newest of all words")
    line.locator(".said", has_text="the newest of all words").wait_for()


def test_while_the_daemon_is_away_a_message_is_kept_and_sent_when_it_is_back(daemon: Daemon, open_page: Any) -> None:
    key = "agent:main:away"
    daemon.reply(key, "hello")
    page = open_page(daemon, scopes=WRITE, at=address_of(key))
    page.locator("message-view").nth(1).wait_for()
    daemon.kill()
    page.locator("connection-state.away").wait_for()
    hint, text = page.locator("message-composer .form > .hint"), page.locator("message-composer textarea")
    assert "The daemon is away" in hint.inner_text() and "is kept" in hint.inner_text()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") == 400
    write(page, "not this one")
    page.keyboard.press("Enter")
    unsent = page.locator("message-composer .unsent", has_text="waits for the daemon")
    unsent.get_by_role("button", name="Do not send it").click()
    page.locator("message-composer").get_by_role("button", name="Send").is_enabled()
    assert (text.input_value(), page.locator("message-composer .problem").count()) == ("not this one", 0)
    write(page, "but this one")
    page.keyboard.press("Enter")
    page.locator("message-composer .hint", has_text="sent when it is back").wait_for()
    assert ("but this one" in unsent.inner_text(), text.input_value()) == (True, "")
    # What one goes on writing is another message; a page that is loaded anew has both.
    write(page, "and half a thou")
    page.evaluate("(at) => { location.hash = at }", "#/session/agent%3Amain%3Aother")
    page.wait_for_function("() => document.querySelector('message-composer textarea').value === ''")
    page.go_back()
    unsent.wait_for()
    assert text.input_value() == "and half a thou"
    kept = page.evaluate("(key) => sessionStorage.getItem(`sessiond.draft ${key}`)", key)
    assert kept == "but this one\n\nand half a thou"
    daemon.start()
    page.locator("message-view.from-assistant", has_text="but this one").wait_for()
    unsent.wait_for(state="detached")
    page.wait_for_function("() => document.querySelector('message-composer .form > .hint').innerText === ''")
    assert text.input_value() == "and half a thou"
    assert page.evaluate("(key) => sessionStorage.getItem(`sessiond.draft ${key}`)", key) == "and half a thou"
    said = [record["message"]["content"] for record in daemon.records(key) if record["type"] == "message"]
    assert [one for one in said if "this one" in str(one) and isinstance(one, str)] == ["but this one"]


def test_while_the_daemon_is_away_nothing_is_stopped_and_the_state_may_be_older(tmp_path: Path, open_page: Any) -> None:
    page_world.write_day(tmp_path)
    daemon = Daemon(tmp_path).start(page_world.CONFIG)
    with daemon.connect() as wire:
        agent = AttachedAgent(wire)
        page = open_page(daemon, scopes=(*WRITE, "admin"), at=address_of(MAIN))
        write(page, "Work")
        page.keyboard.press("Enter")
        agent.begin()
        buttons = [page.get_by_role("button", name=name, exact=True) for name in ("Stop", "Steer", "Kill", "Reset")]
        state = page.locator(".session-head .state", has_text="running")
        state.wait_for()
        for button in buttons:
            button.wait_for()
        assert [one.is_enabled() for one in buttons] == [True] * 4
        daemon.kill()
        page.locator("connection-state.away").wait_for()
        assert [one.is_enabled() for one in buttons] == [False] * 4
        told = "(one) => getComputedStyle(one, '::after').content"
        assert state.evaluate(told) == '" may be older"'
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") == 400
    daemon.start()
    page.locator("connection-state.live").wait_for()
    page.wait_for_function("() => !document.querySelector('.danger').disabled")
    assert page.locator(".session-head .state").evaluate(told) == "none"
    daemon.stop()


def test_what_is_sent_before_the_page_knows_that_the_daemon_is_away_is_shown_to_wait(
    daemon: Daemon, open_page: Any
) -> None:
    key = "agent:main:soon"
    daemon.reply(key, "hello")
    page = open_page(daemon, scopes=WRITE, at=address_of(key))
    page.locator("message-view").nth(1).wait_for()
    # Nothing answers, and no connection is lost.
    page.route("**/rpc", lambda _route: None)
    write(page, "this one")
    page.keyboard.press("Enter")
    unsent = page.locator("message-composer .unsent", has_text="this one")
    unsent.get_by_role("button", name="Do not send it").wait_for()
    assert (page.locator("connection-state.live").count(), page.locator("textarea").input_value()) == (1, "")
    unsent.get_by_role("button", name="Do not send it").click()
    page.wait_for_function("() => document.querySelector('message-composer textarea').value === 'this one'")
    unsent.wait_for(state="detached")
    assert page.locator("message-composer .problem").count() == 0


def test_files_are_chosen_twice_and_dropped_at_once_within_the_limit(day: Daemon, open_page: Any) -> None:
    page = open_page(day, scopes=WRITE, at=address_of(CHILD))
    page.locator("message-composer textarea").wait_for()
    files, small = page.locator("message-composer .file"), {"name": "a.txt", "mimeType": "text/plain", "buffer": b"one"}
    chooser = page.get_by_label("Choose files")
    for count in (1, 0, 1):
        if count:
            chooser.set_input_files(small)
            files.filter(has_text="a.txt").wait_for()
        else:
            page.get_by_role("button", name="Leave out a.txt").click()
        page.wait_for_function("(n) => document.querySelectorAll('message-composer .file').length === n", arg=count)
    page.evaluate(
        """() => {
          for (const name of ["large-1", "large-2"]) {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(6 * 1024 * 1024)], name));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
          }
        }"""
    )
    page.locator("message-composer .problem", has_text="does not fit").wait_for()
    assert [one.split()[0] for one in files.all_inner_texts()] == ["a.txt", "large-1"]
    # What was asked and what failed is about this session alone.
    page.evaluate("(at) => { location.hash = at }", address_of(REVIEWER))
    page.locator("h1", has_text="reviewer").wait_for()
    assert (files.count(), page.locator("message-composer .problem").count()) == (0, 0)


def test_a_file_that_was_sent_stands_with_its_message_at_once(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    page, other = (open_page(day, scopes=WRITE, at=address_of(MAIN)) for _ in range(2))
    page.locator("message-composer textarea").wait_for()
    table = {"name": "table.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n3,4"}
    page.get_by_label("Choose files").set_input_files(table)
    page.locator("message-composer .file", has_text="table.csv").wait_for()
    write(page, "What is in it?")
    page.keyboard.press("Enter")
    agent.begin()
    for one in (page, other):
        asked = one.locator("message-view.from-user", has_text="What is in it?")
        asked.locator(".files", has_text="table.csv 11 bytes").wait_for()
    agent.end("Numbers.")
    page.locator("message-view.from-assistant", has_text="Numbers.").wait_for()
    assert page.locator("message-view .files", has_text="table.csv").count() == 1


def test_a_question_of_a_button_ends_with_its_session(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=(*WRITE, "admin"), at=address_of(MAIN))
    write(page, "Work")
    page.keyboard.press("Enter")
    agent.begin()
    for name, asking in (("Stop", "Stop the run?"), ("Reset", "Begin anew?")):
        page.get_by_role("button", name=name, exact=True).click()
        page.get_by_role("button", name=asking).wait_for()
        for key in (REVIEWER, MAIN):
            page.evaluate("(at) => { location.hash = at }", address_of(key))
            page.wait_for_function(
                "(is) => document.querySelector('.session-head h1').innerText.includes('reviewer') === is",
                arg=key == REVIEWER,
            )
            assert page.locator("button.asking").count() == 0
    agent.end("Done.")
    page.locator("message-view.from-assistant", has_text="Done.").wait_for()


def test_a_transcript_that_cannot_be_read_on_says_so_and_freezes_nothing(day: Daemon, open_page: Any) -> None:
    key = "agent:coder:unreadable"
    day.reply(key, "hello")
    day.call(
        "chat.inject", sessionKey=key, messages=[{"role": "assistant", "content": f"line {n}"} for n in range(200)]
    )
    page = open_page(day, at=address_of(MAIN))
    page.locator("message-view").first.wait_for()
    asked: list[str] = []

    def refuse(route: Any) -> None:
        body = route.request.post_data or ""
        if "chat.history" not in body or '"cursor"' not in body:
            return route.continue_()
        asked.append(body)
        error = {"code": -32602, "message": "the place is gone", "data": {"type": "invalid_params"}}
        return route.fulfill(status=400, json={"jsonrpc": "2.0", "id": 1, "error": error})

    page.route("**/rpc", refuse)
    page.evaluate("(at) => { location.hash = at }", address_of(key))
    problem = page.locator("transcript-view .problem", has_text="the place is gone")
    problem.first.wait_for()
    # The jump to an earlier prompt ends, nothing is asked again by itself, and the page goes on.
    page.keyboard.press("k")
    page.evaluate("() => new Promise((done) => setTimeout(done, 100))")
    assert problem.count() > 0 and len(asked) < 5
    page.unroute("**/rpc")
    problem.first.get_by_role("button", name="Try again").click()
    page.locator("message-view", has_text="line 199").wait_for()
    problem.first.wait_for(state="detached")
