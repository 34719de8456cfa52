"""Sessions of other machines: who gets a message, where a question is answered, and since when the machine is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.page_world import address_of
from support.real_daemon import Daemon
from support.replicas import ID, STARTED_MS, custom, header, line, replica_path, write_replica

KEY = "mars/agent:ops:main"
ANSWERS = ("list", "read", "send", "answer")
QUESTION = {
    "id": "00000000000000aa",
    "title": "May I go on?",
    "options": [{"id": "yes", "label": "Yes", "kind": "allow_once"}],
    "askedAt": STARTED_MS,
}


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with a session of another machine, in which a question is open."""
    parts = header(ID.format(1)), line("look at the log"), custom("sessiond/question", **QUESTION)
    write_replica(replica_path(tmp_path / "store", ID.format(1)), *parts)
    made = Daemon(tmp_path).start()
    yield made
    made.stop()


def test_who_gets_a_message_and_whether_the_machine_is_there_is_said_as_it_changes(
    linked: Daemon, open_page: Any
) -> None:
    page = open_page(linked, scopes=ANSWERS, at=address_of(KEY))
    hint = page.locator("message-composer span.hint")
    row = page.locator("session-row")
    hint.filter(has_text="mars is away since").wait_for()
    assert hint.inner_text().endswith("The message is kept and sent when it is back.")
    row.filter(has_text="mars (away)").wait_for()
    with linked.connect() as link:
        link.call("machines.report", machine="mars", present=True)
        # Nothing else tells of it.
        hint.filter(has_text="The message goes to its agent on mars.").wait_for()
        row.filter(has_text="mars").filter(has_not_text="away").wait_for()
    hint.filter(has_text="mars is away since").wait_for()
    row.filter(has_text="mars (away)").wait_for()


def test_a_question_of_another_machine_says_where_it_is_answered(linked: Daemon, open_page: Any) -> None:
    for at in ("", address_of(KEY)):
        for scopes in (ANSWERS, ("list", "read")):
            page = open_page(linked, scopes=scopes, at=at)
            card = page.locator("question-card >> visible=true").filter(has_text="May I go on?")
            card.filter(has_text="Only mars takes the answer: sessiond answer 00000000").wait_for()
            assert card.locator("input, .options *").count() == 0
            assert "sessiond web --write" not in card.inner_text()
