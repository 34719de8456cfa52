"""What the page shows of sessions and their transcripts, and how one moves in it, by mouse and by keys alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import page_world
from support.page_world import CHILD, MAIN, address_of
from support.real_daemon import Daemon

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def row(page: Page, name: str) -> Locator:
    return page.locator(f"session-row:has(.title:text-is('{name}'))")


def message(page: Page, text: str) -> Locator:
    return page.locator("message-view", has_text=text).first


def test_the_tree_shows_what_there_is(day: Daemon, open_page: Any) -> None:
    page = open_page(day)
    page.wait_for_selector("session-row")
    groups = page.locator(".group .title").all_inner_texts()
    assert sorted(groups) == ["harbour-site", "tidepool"]
    # The sub-agent stands below its parent, a failure is told in a word.
    child = row(page, "fix-replaced-file")
    assert (child.get_attribute("aria-level"), child.locator(".state-mark").inner_text()) == ("3", "done")
    failed = row(page, "images to webp")
    assert "failed" in failed.locator(".meta").inner_text()
    assert "claude" in page.locator("session-row", has_text="The navigation jumps").locator(".meta").inner_text()
    page.locator("session-tree select").select_option("agent")
    assert sorted(page.locator(".group .title").all_inner_texts()) == ["claude", "coder", "main", "reviewer"]
    page.locator("session-tree input").fill("navigation saf")
    page.wait_for_function("() => document.querySelectorAll('session-row').length === 1")


def test_what_was_not_read_is_marked_until_it_is(day: Daemon, open_page: Any) -> None:
    page = open_page(day)
    reviewer = row(page, "reviewer")
    reviewer.wait_for()
    # What is older than the first visit counts as read.
    assert page.locator("session-row.unread").count() == 0
    day.reply("agent:reviewer:main", "one more thing")
    page.locator("session-row.unread:has(.title:text-is('reviewer'))").wait_for()
    assert "unread" in reviewer.inner_text()
    page.reload()
    page.locator("session-row.unread:has(.title:text-is('reviewer'))").wait_for()
    reviewer.click()
    message(page, "one more thing").wait_for()
    page.wait_for_function("() => !document.querySelector('session-row.unread')")
    # What comes while it is open is read, and so it stays.
    day.reply("agent:reviewer:main", "and this")
    message(page, "and this").wait_for()
    page.evaluate("() => { location.hash = '#/' }")
    page.reload()
    reviewer.wait_for()
    assert page.locator("session-row.unread").count() == 0


def test_the_list_of_what_was_said_last_goes_on(daemon: Daemon, open_page: Any) -> None:
    for number in range(15):
        daemon.reply(f"agent:main:test:{number}", f"question {number}")
    page = open_page(daemon)
    said = page.locator("now-section", has=page.locator("h2", has_text="Said last"))
    said.locator("li").nth(11).wait_for()
    assert (said.locator("li").count(), "15" in said.locator("h2").inner_text()) == (12, True)
    said.get_by_role("button", name="3 more").click()
    said.locator("li").nth(14).wait_for()
    said.get_by_role("button", name="more").wait_for(state="hidden")


def test_a_transcript_tells_who_what_and_when(day: Daemon, open_page: Any) -> None:
    page = open_page(day, at=address_of(CHILD))
    first = message(page, "Fix test_replaced_file")
    assert first.locator(".who").inner_text() == "Session"
    failed = page.locator("tool-call", has_text="failed")
    assert failed.locator("summary").inner_text().split() == [
        "Bash",
        "just",
        "test",
        "tests/test_tail.py",
        "-x",
        "failed",
        "4.2",
        "s",
    ]
    assert not failed.locator(".inside").text_content()
    # A diff as a diff, opened by key.
    edit = page.locator("tool-call summary", has_text="Edit")
    assert "+2" in edit.inner_text() and "−1" in edit.inner_text()
    edit.press("Enter")
    page.locator("diff-view .diff-line.added").first.wait_for()
    assert page.locator("diff-view .diff-line.added").count() == 2
    assert page.locator("diff-view .diff-line.removed").count() == 1
    code = page.locator("code-block", has_text="st_ino != self.inode").first
    assert code.locator(".copy").inner_text() == "Copy"
    assert page.locator(".day").count() == 1
    # The record as it stands in the file.
    said = message(page, "The reviewer adds")
    said.hover()
    said.get_by_role("button", name="Raw").click()
    record = said.locator(".raw code")
    record.wait_for()
    assert '"sourceSessionKey": "agent:main:main"' in record.inner_text() and '"type": "message"' in record.inner_text()
    # From the sender to where it came from.
    first.locator(".sender button").click()
    page.locator("h1", has_text="What is left before").wait_for()
    thoughts = page.locator("details.thinking")
    assert thoughts.get_attribute("open") is None
    thoughts.locator("summary").click()
    thoughts.locator(".inside", has_text="then the nightly log").wait_for()
    page.locator(".child button", has_text="fix-replaced-file").click()
    page.locator("h1", has_text="fix-replaced-file").wait_for()


def test_a_link_asks_and_leads_only_to_the_web(day: Daemon, open_page: Any) -> None:
    page = open_page(day, at=address_of(MAIN))
    page.locator(".link", has_text="the log").click()
    dialog = page.locator("dialog.link-question")
    assert "https://ci.example.org/tidepool/9912" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    page.locator("dialog.link-question").wait_for(state="detached")
    assert len(page.context.pages) == 1


def test_facts_and_who_writes_to_whom(day: Daemon, open_page: Any) -> None:
    page = open_page(day, at=address_of(MAIN))
    facts = page.locator("facts-panel")
    facts.locator("exchange-graph li").nth(2).wait_for()
    names = facts.locator("exchange-graph li").all_inner_texts()
    assert any("fix-replaced-file" in name for name in names) and any("reviewer" in name for name in names)
    assert "wrote 1 message to reviewer" in " ".join(names)
    shown = facts.inner_text()
    for text in ("claude-opus-4-5", "tidepool", "$0.", 'sessiond send main "..."'):
        assert text in shown, text
    # A page that reads offers nothing that changes anything.
    assert page.locator("facts-panel .dangers, facts-panel input").count() == 0
    assert page.locator("message-composer textarea").is_hidden()
    assert "sessiond web --write" in page.locator("message-composer").inner_text()


def test_keys_alone_find_last_weeks_conversation_and_move_in_it(day: Daemon, open_page: Any) -> None:
    page = open_page(day)
    page.wait_for_selector("search-box", state="attached")
    page.keyboard.press("/")
    page.keyboard.type("fix")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="fix-replaced-file").wait_for()
    page.locator("session-tree input").fill("")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    focused = "() => document.activeElement.querySelector('.title')?.textContent ?? ''"
    assert page.evaluate(focused).startswith("What is left")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => !document.querySelector('session-row[aria-level=\"3\"]')")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused).startswith("What is left")
    # Search everything, and jump to the place.
    page.keyboard.press("Control+k")
    page.keyboard.type("nightly-log")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("412 passed")
    found = page.locator("search-box li.match").first
    found.wait_for()
    # Whose words they are, in a word of the page.
    assert found.locator(".where").inner_text().endswith("· Tool")
    page.keyboard.press("Enter")
    page.locator("message-view.found", has_text="just nightly-log").wait_for()
    page.keyboard.press("k")
    page.wait_for_function("() => document.activeElement.matches('.from-user')")
    page.keyboard.press("?")
    assert "search everything" in page.locator("dialog.keys").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.locator("usage-view table tbody tr").first.wait_for()


_IN_SIGHT = """() => {
  const [found, place] = ["message-view.found", "transcript-view .scroller"].map((one) => document.querySelector(one));
  if (!found) return false;
  const [box, sight] = [found, place].map((one) => one.getBoundingClientRect());
  return box.top >= sight.top - 1 && box.bottom <= sight.bottom + 1;
}"""
# Whatever is still to come of the transcript is there, and has its height.
_SETTLED = """async () => {
  const place = document.querySelector("transcript-view .scroller");
  for (let [same, last] = [0, -1]; same < 10; last = place.scrollHeight) {
    await new Promise(requestAnimationFrame);
    same = last === place.scrollHeight ? same + 1 : 0;
  }
}"""


def test_what_was_found_is_in_sight_below_whatever_is_tall_and_has_one_time(
    day: Daemon, open_page: Any, tmp_path: Path
) -> None:
    key = "agent:coder:tall"
    day.call("sessions.create", key=key, label="tall ones")
    # Their heights are not known before they were in sight.
    tall = "\n\n".join(f"paragraph {number} of many" for number in range(200))
    said = [{"role": "user" if number % 2 else "assistant", "content": tall} for number in range(8)]
    said[5]["content"] = "the needle-in-between itself"
    said += [{"role": "user", "content": "short", "timestamp": 1_577_880_000_000} for _ in range(3)]
    day.call("chat.inject", sessionKey=key, messages=said)
    page = open_page(day)
    for width, height in ((1440, 900), (400, 800)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("() => { location.hash = '#/' }")
        page.wait_for_selector("search-box", state="attached")
        page.keyboard.press("Control+k")
        page.keyboard.type("needle-in-BETWEEN")
        found = page.locator("search-box li.match")
        found.wait_for()
        # Its session, and the very words.
        assert found.locator(".where").inner_text() == "tall ones · You"
        assert found.locator("mark").all_inner_texts() == ["needle-in-between"]
        page.keyboard.press("Enter")
        page.locator("message-view.found", has_text="needle").wait_for()
        page.wait_for_function("() => document.querySelectorAll('message-view').length === 11")
        page.evaluate(_SETTLED)
        assert page.evaluate(_IN_SIGHT), width
        # Not at the end: there is a way to it, and none where one is there.
        pill = page.locator("transcript-view .pill")
        pill.click()
        pill.wait_for(state="hidden")
        page.evaluate(_SETTLED)
        assert pill.is_hidden()
        page.keyboard.press("Control+k")
        page.keyboard.press("Escape")
    # A message that tells a time of its own has that of its record, as in the list: live, and read anew.
    times = page.locator("message-view time")
    assert not [title for title in times.evaluate_all("(all) => all.map((one) => one.title)") if "2020" in title]
    day.call(
        "chat.inject", sessionKey=key, messages=[{"role": "user", "content": "live", "timestamp": 1_577_880_000_000}]
    )
    message(page, "live").wait_for()
    assert "2020" not in str(message(page, "live").locator("time").get_attribute("title"))


def test_the_search_says_what_it_takes_and_why_each_row_is_there(day: Daemon, open_page: Any) -> None:
    page = open_page(day)
    page.wait_for_selector("search-box", state="attached")
    page.keyboard.press("Control+k")
    hint = page.locator("search-box [role=status]")
    assert "One phrase" in hint.inner_text() and "sessiond search --help" in hint.inner_text()
    page.keyboard.type("site WEBP")
    row = page.locator("search-box li.name")
    row.wait_for()
    # A title and a folder, which have the words in any order: each is marked where it stands.
    assert row.locator("mark").all_inner_texts() == ["webp", "site"]
    # One that its key alone has shows the key.
    page.locator("search-box input[type=search]").fill("coder:SUBAGENT")
    page.locator("search-box li.name .where mark", has_text="coder:subagent").wait_for()
    page.locator("search-box input[type=search]").fill("webp. images")
    page.locator("search-box [role=status]", has_text="word for word").wait_for()
    # What is special in a pattern is not special here.
    page.locator("search-box input[type=search]").fill("(static/` to webp.")
    page.locator("search-box [role=status]", has_text="word for word").wait_for()
    page.locator("search-box input[type=search]").fill("`static/` to webp.")
    page.locator("search-box li.match mark", has_text="`static/` to webp.").wait_for()


def test_usage_is_one_view_away(day: Daemon, open_page: Any) -> None:
    page = open_page(day, at="#/usage")
    table = page.locator("usage-view table")
    table.locator("tbody tr").first.wait_for()
    assert "tokens, $" in page.locator("usage-view .total").inner_text()
    assert page.locator("usage-view .chart rect").count() == 30
    page.locator("usage-view select").last.select_option("project")
    assert "tidepool" in table.inner_text()
    page.locator("usage-view select").last.select_option("model")
    assert "claude-opus-4-5" in table.inner_text()


def test_the_head_of_a_session_tells_of_this_one_alone(tmp_path: Path, open_page: Any) -> None:
    page_world.write_day(tmp_path)
    folder = tmp_path / ".codex" / "sessions" / "2026" / "01" / "02"
    folder.mkdir(parents=True)
    codex = "5c0ffee0-0000-4000-8000-000000000002"
    stamp = "2026-01-02T03:04:05.000Z"
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello, Codex"}]}
    lines = [
        {
            "timestamp": stamp,
            "type": "session_meta",
            "payload": {"id": codex, "timestamp": stamp, "cwd": str(tmp_path)},
        },
        {"timestamp": stamp, "type": "response_item", "payload": said},
    ]
    rollout = folder / f"rollout-2026-01-02T03-04-05-{codex}.jsonl"
    rollout.write_text("".join(json.dumps(line) + "\n" for line in lines))
    claude = f"claude:{page_world.CLAUDE_ID}"
    again = page_world.Transcript("agent:coder:again", str(tmp_path), 1_700_000_000_000)
    again.record("custom", customType="sessiond/entry", data={"sessionKey": "agent:coder:again", "continues": claude})
    again.user("Go on")
    again.save(tmp_path / "store")
    daemon = Daemon(tmp_path).start(page_world.CONFIG)
    try:
        page = open_page(daemon, scopes=("list", "read", "send"), at=address_of(claude))
        state = page.locator(".session-head .state")
        state.get_by_text("claude keeps it", exact=True).wait_for()
        page.evaluate("(at) => { location.hash = at }", address_of(f"codex:{codex}"))
        state.get_by_text("codex keeps it", exact=True).wait_for()
        assert "claude" not in state.inner_text()
        assert "codex keeps the session as it is" in page.locator("message-composer .hint").first.inner_text()
        # Nor does the way by the start take the word away.
        page.evaluate("(at) => { location.hash = at }", address_of(CHILD))
        state.get_by_text("done", exact=True).wait_for()
        page.locator("#bar .name").click()
        page.locator("now-view").wait_for()
        page.evaluate("(at) => { location.hash = at }", address_of(CHILD))
        state.get_by_text("done", exact=True).wait_for()
        # One that goes on with another has not begun here.
        page.evaluate("(at) => { location.hash = at }", address_of("agent:coder:again"))
        edge = page.locator("transcript-view .edge", has_text="It goes on with The navigation jumps")
        edge.wait_for()
        assert "The beginning" not in page.locator("transcript-view").inner_text()
        edge.get_by_role("button", name="The navigation jumps").click()
        page.locator("h1", has_text="The navigation jumps").wait_for()
        page.locator("transcript-view .edge", has_text="The beginning.").wait_for()
    finally:
        daemon.stop()
