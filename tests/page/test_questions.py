"""An agent asks, and a person answers on the page: whatever it says, by mouse and by keys, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import page_world
from support.page_world import CHILD, MAIN, AttachedAgent, address_of
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Page

ANSWERS = ("list", "read", "send", "answer")
YES = ("yes", "Yes, once", "allow_once")
NO = ("no", "No", "reject_once")
_SETTLED = """() => {
  const open = [...document.querySelectorAll("open-questions")].find((one) => one.checkVisibility());
  return open && performance.now() - open.changedAt > 600;
}"""


@pytest.fixture
def agent(day: Daemon, agent: AttachedAgent) -> Iterator[AttachedAgent]:
    """At work, so that it can ask."""
    day.call("chat.send", sessionKey=MAIN, message="go on")
    agent.begin()
    yield agent
    agent.end("done")
    day.wait_for(lambda: day.call("daemon.status")["liveRuns"] == 0, "the run does not end")


def card(page: Page, text: str) -> Any:
    return page.locator("question-card >> visible=true").filter(has_text=text)


def test_what_waits_stands_on_top_and_is_answered_there(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=ANSWERS)
    page.locator("now-view").wait_for()
    # A label is the agent's own, and says what it likes; what an option does is said by the page.
    sly = ("sly", "No, <b>never</b>", "allow_always")
    agent.ask("May I run <img src=x onerror=alert(1)>?", YES, NO, sly, detail="rm -rf build\n\trm -rf dist")
    asked = card(page, "May I run <img src=x onerror=alert(1)>?")
    asked.wait_for()
    # The question is told before the row that it changes.
    page.locator(".group.waiting").wait_for()
    assert page.locator(".group .title").first.inner_text() == "Waits for you"
    assert "waits: May I run" in page.locator("session-row").first.inner_text()
    assert asked.locator(".options button").all_inner_texts() == [
        "Yes, once\nallows it once",
        "No\nrefuses it once",
        "No, <b>never</b>\nallows it always",
    ]
    assert asked.locator("pre").inner_text() == "rm -rf build\n rm -rf dist"
    assert page.title().startswith("(1) ")
    # Who has just aimed at what stood there before hits nothing.
    assert asked.locator("img, b").count() == 0
    asked.get_by_label("Note").fill("but keep dist")
    page.wait_for_function(_SETTLED)
    asked.get_by_role("button", name="Yes, once").click()
    answer = agent.take_answer()
    assert (answer["outcome"], answer["optionId"], answer["note"]) == ("answered", "yes", "but keep dist")
    asked.wait_for(state="detached")
    [closed] = day.call("questions.list", sessionKey=MAIN, open=False)["questions"][-1:]
    assert (closed["answer"]["by"], closed["answer"]["road"]) == ("owner", "page")
    page.wait_for_function("() => document.title === 'sessiond'")


def test_a_run_that_waits_for_a_person_is_stopped_like_any_other(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    page = open_page(day, scopes=ANSWERS, at=address_of(MAIN))
    agent.ask("May I?", YES, NO)
    card(page, "May I?").wait_for()
    page.locator(".session-head .state", has_text="waits for you").wait_for()
    composer = page.locator("message-composer")
    composer.get_by_role("button", name="Stop").click()
    composer.get_by_role("button", name="Stop the run?").click()
    page.locator(".run.aborted").wait_for()
    card(page, "May I?").wait_for(state="detached")
    composer.get_by_role("button", name="Stop").wait_for(state="hidden")


def test_keys_alone_answer_what_waits(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=ANSWERS, at="#/usage")
    page.locator("usage-view h1").wait_for()
    agent.ask("By keys?", YES, NO)
    page.wait_for_function("() => document.title.startsWith('(1) ')")
    page.keyboard.press("a")
    page.wait_for_function("() => document.activeElement.textContent.startsWith('Yes, once')")
    assert page.locator("session-view > open-questions question-card").count() == 1
    # What comes next gets the focus: another question, as a whole, so that no key that is still down answers it.
    agent.ask("And this?", YES, NO)
    card(page, "And this?").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert agent.take_answer()["optionId"] == "no"
    card(page, "By keys?").wait_for(state="detached")
    page.wait_for_function("() => document.activeElement.matches('question-card')")
    assert "And this?" in page.locator("question-card:focus").inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert agent.take_answer()["optionId"] == "yes"
    # Then where one writes.
    page.wait_for_function("() => document.activeElement.matches('message-composer textarea')")


def test_the_transcript_has_what_was_asked_and_answered(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=ANSWERS, at=address_of(MAIN))
    page.locator("message-view").first.wait_for()
    for title in ("In <b>place</b>?", "Taken back?"):
        agent.ask(title, YES, NO)
        page.locator("transcript-view .run", has_text=f"Asked: {title}It waits for an answer").wait_for()
        [question] = day.call("questions.list", sessionKey=MAIN, open=True)["questions"]
        if title.startswith("In"):
            day.call("questions.answer", id=question["id"], optionId="yes", note="with care")
            agent.take_answer()
            page.locator("transcript-view .run", has_text="You answered: Yes, once: with care").wait_for()
        else:
            agent.take_back()
            page.locator("transcript-view .run", has_text="It was taken back").wait_for()
    assert page.locator("transcript-view .run b").count() == 0
    # It stands where it was asked, also when one comes later.
    agent.tell("message", message={"role": "assistant", "content": [{"type": "text", "text": "as you say"}]})
    page.locator("message-view", has_text="as you say").wait_for()
    page.reload()
    last = page.locator("message-view, .pieces > .run").filter(has_text="as you say")
    last.wait_for()
    page.locator(".pieces > .run", has_text="with care").wait_for()
    texts = page.locator("message-view, .pieces > .run").all_inner_texts()
    at = [
        next(n for n, text in enumerate(texts) if word in text) for word in ("with care", "Taken back?", "as you say")
    ]
    assert at == sorted(at)


def test_who_may_not_answer_is_told_how_and_what_is_answered_elsewhere_goes(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    # All but `answer`, which `admin` does not imply.
    page = open_page(day, scopes=("list", "read", "send", "admin"), at=address_of(MAIN))
    agent.ask("Shown only?", YES, NO)
    asked = card(page, "Shown only?")
    asked.wait_for()
    assert asked.locator(".options button, input").count() == 0
    shown = asked.inner_text()
    [question] = day.call("questions.list", open=True)["questions"]
    for text in ("Yes, once", "allows it once", "sessiond web --write", f"sessiond answer {question['id'][:8]}"):
        assert text in shown, text
    day.call("questions.answer", id=question["id"], optionId="yes")
    asked.wait_for(state="detached")
    assert agent.take_answer()["outcome"] == "answered"


def test_of_two_answers_the_first_counts_and_the_second_is_told(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    page = open_page(day, scopes=ANSWERS, at=address_of(MAIN))
    agent.ask("Twice?", YES, NO)
    asked = card(page, "Twice?")
    asked.wait_for()
    # The page does not hear of it: its streams are held up.
    page.evaluate("() => { document.querySelector('session-view').page.list.stop() }")
    [question] = day.call("questions.list", open=True)["questions"]
    day.call("questions.answer", id=question["id"], optionId="no")
    assert agent.take_answer()["optionId"] == "no"
    asked.get_by_role("button", name="Yes, once").press("Enter")
    asked.locator(".problem", has_text="was not answered").wait_for()


def test_who_waits_is_in_sight_everywhere_and_one_press_away(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    wide = open_page(day, scopes=ANSWERS, at="#/usage")
    small = open_page(day, scopes=ANSWERS, at=address_of(CHILD), viewport=(400, 800))
    start = open_page(day, scopes=ANSWERS, viewport=(400, 800))
    small.locator("h1", has_text="fix-replaced-file").wait_for()
    start.locator("session-row").first.wait_for()
    waits = [page.locator("connection-state").get_by_role("button", name="1 waits for you") for page in (wide, small)]
    assert [one.count() for one in waits] == [0, 0]
    agent.ask("In sight?", YES, NO, detail="line\n" * 200)
    for page, button in zip((wide, small), waits, strict=True):
        button.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        button.click()
        page.locator("session-view > open-questions question-card", has_text="In sight?").wait_for()
        page.wait_for_function("() => document.activeElement.textContent.startsWith('Yes, once')")
    # The start of a small one has the card above the tree, and both are of use.
    asked = card(start, "In sight?")
    asked.wait_for()
    assert start.evaluate("() => document.documentElement.scrollWidth") == 400
    box, tree = asked.bounding_box(), start.locator("session-tree").bounding_box()
    pane = start.locator(".middle").bounding_box()
    assert box["y"] < tree["y"] and pane["height"] <= 400 and tree["height"] > 200, (box, pane, tree)
    assert tree["y"] == pane["y"] + pane["height"] and tree["width"] == 400
    start.wait_for_function(_SETTLED)
    asked.get_by_role("button", name="Yes, once").click()
    assert agent.take_answer()["optionId"] == "yes"
    asked.wait_for(state="detached")
    assert not start.locator(".middle").is_visible()
    for button in waits:
        button.wait_for(state="hidden")


def test_a_question_whose_asker_went_away_goes(tmp_path: Path, open_page: Any) -> None:
    page_world.write_day(tmp_path)
    daemon = Daemon(tmp_path).start(page_world.CONFIG)
    try:
        with daemon.connect() as wire:
            agent = AttachedAgent(wire)
            daemon.call("chat.send", sessionKey=MAIN, message="go on")
            agent.begin()
            page = open_page(daemon, scopes=ANSWERS, at=address_of(MAIN))
            agent.ask("Still there?", YES, NO)
            card(page, "Still there?").wait_for()
            daemon.kill()
        daemon.start()
        card(page, "Still there?").wait_for(state="detached")
    finally:
        daemon.stop()
