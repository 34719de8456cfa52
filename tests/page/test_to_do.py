"""What one does on the page: each only with the right to it, dangerous things asked once, and nothing typed is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.page_world import CHILD, CLAUDE_ID, MAIN, AttachedAgent, address_of, write
from support.real_daemon import Daemon

if TYPE_CHECKING:
    pass

WRITE = ("list", "read", "send", "spawn")


def test_a_run_is_followed_live_steered_and_stopped(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=WRITE, at=address_of(MAIN))
    write(page, "How is it going?")
    page.keyboard.press("Enter")
    agent.begin()
    page.locator("message-view", has_text="How is it going?").wait_for()
    page.locator(".session-head .state", has_text="running").wait_for()
    assert page.locator(".group .title").first.inner_text() == "Running"
    agent.tell("tool", phase="start", toolCallId="t1", name="Bash", args={"command": "just test"})
    page.locator("live-text tool-call", has_text="just test").wait_for()
    agent.tell("delta", text="All **tests** pass.\n\nNow I wri")
    live = page.locator("live-text")
    live.locator("rich-text strong", has_text="tests").wait_for()
    # Text is added to the node that is there: what is selected stays so.
    page.evaluate("() => { window.node = document.querySelector('live-text .body > p').firstChild }")
    agent.tell("delta", text="te the note.")
    live.get_by_text("Now I write the note.").wait_for()
    assert page.evaluate("() => window.node.isConnected && window.node.data === 'Now I write the note.'")
    assert page.locator("message-composer").get_by_role("button", name="Steer").is_visible()
    agent.end("All **tests** pass.\n\nNow I write the note.")
    page.locator("message-view.from-assistant", has_text="Now I write the note.").wait_for()
    page.wait_for_function("() => document.querySelector('live-text').hidden")
    # Another one is stopped: the button asks once.
    write(page, "And now?")
    page.keyboard.press("Enter")
    agent.begin()
    stop = page.locator("message-composer").get_by_role("button", name="Stop")
    stop.click()
    page.locator("message-composer").get_by_role("button", name="Stop the run?").click()
    page.locator(".run.aborted").wait_for()


def test_stop_ends_the_run_that_is_shown_and_what_waits_is_answered_next(
    day: Daemon, open_page: Any, agent: AttachedAgent
) -> None:
    page = open_page(day, scopes=(*WRITE, "admin"), at=address_of(MAIN))
    for text in ("the one that is stopped", "the one that waits"):
        write(page, text)
        page.keyboard.press("Enter")
        page.locator(".from-user", has_text=text).wait_for()
        page.wait_for_function("() => document.querySelector('message-composer textarea').value === ''")
    first = agent.begin()
    page.locator(".queued", has_text="the one that waits").wait_for()
    # What would end both says so.
    facts = page.locator("facts-panel")
    facts.get_by_role("button", name="Reset").click()
    facts.get_by_role("button", name="1 waiting message dropped").wait_for()
    page.keyboard.press("Escape")
    composer = page.locator("message-composer")
    composer.get_by_role("button", name="Stop").click()
    composer.get_by_role("button", name="Stop the run?").click()
    second = agent.begin()
    assert (second["message"], second["runId"] != first["runId"]) == ("the one that waits", True)
    agent.end("I did not forget it.")
    page.locator("message-view.from-assistant", has_text="I did not forget it.").wait_for()
    assert page.locator("message-view", has_text="the one that waits").count() == 1
    assert composer.locator(".problem").count() == 0


def test_a_run_is_steered(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=WRITE, at=address_of(MAIN))
    write(page, "Release it")
    page.keyboard.press("Enter")
    agent.begin()
    write(page, "But not before the tests pass")
    page.locator("message-composer").get_by_role("button", name="Steer").click()
    assert agent.take_steer() == "But not before the tests pass"
    page.locator("message-view.from-user", has_text="But not before").wait_for()
    page.wait_for_function("() => document.querySelector('message-composer textarea').value === ''")
    agent.end("Then I wait for the tests.")
    page.locator("message-view.from-assistant", has_text="Then I wait for the tests.").wait_for()
    page.locator("message-composer").get_by_role("button", name="Steer").wait_for(state="hidden")
    # The message went into the run: it had one answer.
    said = [record["message"]["content"] for record in day.records(MAIN) if record["type"] == "message"]
    assert sum("But not before" in str(content) for content in said) == 1
    assert page.locator("message-view", has_text="But not before").count() == 1


def test_a_run_and_its_sub_agents_are_killed(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=(*WRITE, "admin"), at=address_of(MAIN))
    write(page, "Begin something long")
    page.keyboard.press("Enter")
    agent.begin()
    facts = page.locator("facts-panel")
    facts.get_by_role("button", name="Kill").click()
    # It asks once, and Escape takes it back.
    page.keyboard.press("Escape")
    assert day.call("sessions_list", search="agent:main:main")["sessions"][0]["status"] == "running"
    facts.get_by_role("button", name="Kill").click()
    facts.get_by_role("button", name="Kill it and all below?").click()
    page.locator(".session-head .state", has_text="stopped").wait_for()
    page.locator(".run.aborted").last.wait_for()
    facts.get_by_role("button", name="Kill").wait_for(state="detached")


def test_a_session_is_reset(day: Daemon, open_page: Any) -> None:
    key = "agent:coder:reset"
    day.reply(key, "forget this")
    before = next(one for one in day.rows() if one["key"] == key)["sessionId"]
    page = open_page(day, scopes=(*WRITE, "admin"), at=address_of(key))
    page.locator("message-view", has_text="forget this").first.wait_for()
    facts = page.locator("facts-panel")
    facts.get_by_role("button", name="Reset").click()
    facts.get_by_role("button", name="Begin anew?").click()
    page.locator("transcript-view", has_text="Nothing was said here yet.").wait_for()
    page.wait_for_function("() => !document.querySelector('message-view')")
    assert next(one for one in day.rows() if one["key"] == key)["sessionId"] != before
    # One goes on in the new one.
    write(page, "something new")
    page.keyboard.press("Enter")
    page.locator("message-view.from-assistant", has_text="something new").wait_for()
    assert page.locator("message-view", has_text="forget this").count() == 0


def test_who_reads_above_is_not_moved(day: Daemon, open_page: Any) -> None:
    key = "agent:reviewer:main"
    said = [{"role": "user", "content": f"line {number}\n" * 5} for number in range(150)]
    day.call("chat.inject", sessionKey=key, messages=said)
    page = open_page(day, at=address_of(key))
    page.locator("message-view", has_text="line 149").wait_for()
    pane = page.locator("transcript-view .scroller")
    # The half of what comes at once is its end.
    page.wait_for_function("() => document.querySelectorAll('message-view').length > 60")
    pane.evaluate("(pane) => { pane.scrollTop = pane.scrollHeight / 2 }")
    page.wait_for_function("() => !document.querySelector('.pill').hidden")
    # The heights of messages that were never seen are guesses until their turn comes, some frames later.
    look = """async (pane) => {
      const first = () => {
        const top = pane.getBoundingClientRect().top;
        const all = [...document.querySelectorAll("message-view")];
        const seen = all.find((one) => one.getBoundingClientRect().bottom > top);
        return [seen.dataset.seq, Math.round(seen.getBoundingClientRect().top - top)];
      };
      let seen = first();
      for (let frames = 0; frames < 10; frames++) {
        await new Promise(requestAnimationFrame);
        const now = first();
        if (`${now}` !== `${seen}`) frames = 0;
        seen = now;
      }
      return seen;
    }"""
    before = pane.evaluate(look)
    day.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": "something new"}])
    page.locator(".pill", has_text="1 new message").wait_for()
    assert pane.evaluate(look) == before
    page.locator(".pill").click()
    page.locator("message-view", has_text="something new").wait_for()
    page.wait_for_function("() => document.querySelector('.pill').hidden")


def test_a_draft_is_kept_and_an_error_stands_where_it_happened(day: Daemon, open_page: Any) -> None:
    page = open_page(day, scopes=WRITE, at=address_of(CHILD))
    write(page, "half a thou")
    page.evaluate("(at) => { location.hash = at }", address_of(MAIN))
    page.wait_for_function("() => document.querySelector('message-composer textarea').value === ''")
    page.reload()
    page.evaluate("(at) => { location.hash = at }", address_of(CHILD))
    page.wait_for_function("() => document.querySelector('message-composer textarea')?.value === 'half a thou'")
    # What cannot be sent stays, and the reason stands beside it.
    day.call("sessions.patch", key=CHILD, sendPolicy="deny")
    page.locator("message-composer").get_by_role("button", name="Send").click()
    assert "was not sent" in page.locator("message-composer .problem").inner_text()
    assert page.locator("message-composer textarea").input_value() == "half a thou"
    day.call("sessions.patch", key=CHILD, sendPolicy=None)
    page.locator("message-composer").get_by_role("button", name="Send").click()
    page.locator("message-view.from-user", has_text="half a thou").wait_for()
    assert page.locator("message-composer textarea").input_value() == ""


def test_a_foreign_session_says_how_to_go_on(day: Daemon, open_page: Any) -> None:
    page = open_page(day, scopes=WRITE, at=address_of(f"claude:{CLAUDE_ID}"))
    page.locator(".session-head", has_text="claude keeps it").wait_for()
    assert "goes on in a copy" in page.locator("message-composer .hint").first.inner_text()
    assert f"claude --resume {CLAUDE_ID}" in page.locator("facts-panel .command").inner_text()
    write(page, "Go on, please")
    page.keyboard.press("Enter")
    # No agent here can: the daemon's sentence says what to add.
    assert "claude" in page.locator("message-composer .problem").inner_text()


def test_a_task_with_a_dropped_file_is_spawned(day: Daemon, open_page: Any, agent: AttachedAgent) -> None:
    page = open_page(day, scopes=WRITE)
    page.get_by_role("button", name="New task").wait_for()
    drop = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["one,two"], "table.csv", { type: "text/csv" }));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop)
    form = page.locator("spawn-form dialog")
    form.locator(".file", has_text="table.csv").wait_for()
    form.get_by_label("What is to be done").fill("Count the rows")
    form.get_by_label("Agent").select_option("main")
    form.get_by_label("Label").fill("rows")
    page.keyboard.press("Control+Enter")
    agent.begin()
    page.locator("h1", has_text="rows").wait_for()
    page.locator("message-view", has_text="Count the rows").first.wait_for()
    child = next(one for one in day.rows() if one.get("label") == "rows")
    # While its run lasts: a child that is over has no files.
    copies = [copy.read_text() for copy in day.store.rglob("table.csv")]
    agent.end("Two.")
    assert (child["spawnedBy"], copies) == (MAIN, ["one,two"])


def test_a_sub_agent_is_called_by_its_task(day: Daemon, open_page: Any) -> None:
    page = open_page(day)
    page.locator("session-row").first.wait_for()
    day.call("sessions_spawn", task="Count the lines of the log\nof today", agentId="coder")
    row = page.locator("session-row:has(.title:text-is('Count the lines of the log'))")
    row.wait_for()
    row.click()
    page.locator("h1", has_text="Count the lines of the log").wait_for()
    page.reload()
    row.wait_for()


def test_only_a_page_that_may_do_everything_labels_resets_and_deletes(day: Daemon, open_page: Any) -> None:
    key = "agent:coder:todo"
    day.reply(key, "hello")
    assert open_page(day, scopes=WRITE, at=address_of(key)).locator("facts-panel .dangers").count() == 0
    page = open_page(day, scopes=("list", "read", "send", "admin"), at=address_of(key))
    facts = page.locator("facts-panel")
    facts.get_by_label("Label").fill("named")
    facts.get_by_role("button", name="Set label").click()
    page.locator("h1", has_text="named").wait_for()
    facts.get_by_role("button", name="Delete").click()
    assert [one["key"] for one in day.rows() if one["key"] == key]
    facts.get_by_role("button", name="Delete?").click()
    page.wait_for_function(
        "() => ![...document.querySelectorAll('session-row')].some((one) => /named/.test(one.innerText))"
    )
    assert not [one["key"] for one in day.rows() if one["key"] == key]


def test_a_conversation_and_a_command_are_copied(day: Daemon, open_page: Any) -> None:
    page = open_page(day, at=address_of(CHILD), permissions=["clipboard-read", "clipboard-write"])
    page.locator("message-view").first.wait_for()
    page.get_by_role("button", name="Copy as Markdown").click()
    page.locator(".session-head", has_text="Copied").wait_for()
    text = page.evaluate("() => navigator.clipboard.readText()")
    assert text.startswith("# fix-replaced-file\n\n**Session agent:main:main**")
    assert "> Bash `just test tests/test_tail.py -x`" in text
