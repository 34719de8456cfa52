"""What `sessiond export` writes of recorded sessions of every program holds what the daemon's history has: all of it,
in its order, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.page_world import MAIN, Transcript
from support.questions import OPTIONS
from support.real_daemon import Daemon
from support.recorded_home import write_recorded_home
from support.sampling import WHOLE

from sessiond import cli

pytestmark = pytest.mark.system
T = 1_795_000_000_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("recorded"))
    count = write_recorded_home(daemon.folder)
    write_asking(daemon.store)
    daemon.start()

    def is_whole() -> bool:
        rows = daemon.call("sessions_list", limit=200)["sessions"]
        return len(rows) == count + 1 and not any(row.get("partial") for row in rows)

    daemon.wait_for(is_whole, "not every session was read whole")
    yield daemon
    daemon.kill()


def write_asking(store: Path) -> None:
    """A session whose agent asks about a call before the message with it is written; files, a run without a reply."""
    asking = Transcript(MAIN, "/home/ada", T)
    asking.user("clean up")
    for number, note in enumerate(("use make clean", None)):
        question = {"id": f"{number:016x}", "title": f"Bash: rm -rf build{number}", "options": OPTIONS}
        asked = {**question, "askedAt": asking.at_ms + 1000, "toolCallId": f"call{number}"}
        asking.record("custom", customType="sessiond/question", data=asked)
        answer = {"questionId": question["id"], "outcome": "answered", "optionId": "no", "by": "owner", "road": "cli"}
        given = answer | {"at": asking.at_ms + 2000} | ({"note": note} if note else {})
        asking.record("custom", customType="sessiond/answer", data=given)
        call = {"type": "toolCall", "id": f"call{number}", "name": "Bash", "arguments": {"command": "rm -rf build"}}
        asking.say(f"I remove build{number}", call)
    asking.run("error", "The program ended with exit status 1")
    asking.save(store)


class Articles(HTMLParser):
    """The articles of a page: who speaks, and the text below the heading, without the lines that only fold it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)
        if tag == "article":
            self.found.append(("", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "article" not in self._open or "summary" in self._open:
            return
        who, text = self.found[-1]
        if "b" in self._open:
            self.found[-1] = (who + data, text)
        elif "h2" not in self._open:
            self.found[-1] = (who, text + " " + data)


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


def message_text(message: dict[str, Any]) -> str:
    """All that a message says, its calls as JSON, as plainly as can be; without the marks of fenced code."""
    content = message.get("content", message.get("output"))
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = []
    for block in blocks:
        match block["type"]:
            case "text":
                texts.append(re.sub(r"(?m)^ {0,3}(```|~~~).*$", "", block["text"]))
            case "thinking":
                texts.append(block["thinking"])
            case "toolCall":
                told = block["arguments"]
                texts.append(told if isinstance(told, str) else json.dumps(told, ensure_ascii=False, indent=2))
            case kind:
                assert kind == "image", kind
                known = block.get("mimeType") == "image/png"
                texts.append("" if known else f"image {block.get('mimeType', '')}")
    return " ".join(texts)


def whole_history(daemon: Daemon, key: str) -> dict[str, list[Any]]:
    """The messages, markers and ends of runs of a session."""
    page = daemon.call("sessions_history", sessionKey=key, limit=1000, maxBytes=16 << 20, includeTools=True,
                       includeRuns=True)  # fmt: skip
    assert not page["hasMore"]
    return {name: page.get(name) or [] for name in ("messages", "markers", "runs")}


def test_exports_of_every_program_hold_what_history_has_and_nothing_else(
    recorded: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in recorded.environ.items():
        monkeypatch.setenv(name, value)
    rows = recorded.call("sessions_list", limit=200)["sessions"]
    assert {row.get("source") for row in rows} == {"sessiond", "claude", "codex", "gemini", "opencode", "pi"}
    # By default one of each program; those of one are written by the same code.
    for row in rows if WHOLE else {row["source"]: row for row in rows}.values():
        texts = {}
        for form in ("html", "md", "jsonl"):
            file = tmp_path / f"x.{form}"
            assert cli.run(["export", row["key"], "--raw", "-o", str(file)]) == 0
            texts[form] = file.read_text()
        check_forms(texts, whole_history(recorded, row["key"]), row["key"])


def check_forms(texts: dict[str, str], history: dict[str, list[Any]], key: str) -> None:
    lines = [json.loads(line) for line in texts["jsonl"].splitlines()]
    assert [line["message"] for line in lines if "message" in line] == history["messages"], key
    assert [line["marker"] for line in lines if "marker" in line] == history["markers"], key
    articles = [one for one in Articles(texts["html"]).found if one[0] not in ("note", "run", "question", "answer")]
    assert len(articles) == len(history["messages"]), key
    for (who, text), message in zip(articles, history["messages"], strict=True):
        assert who == ("tool" if message["role"] in ("toolResult", "bashExecution") else message["role"]), key
        assert words(text) == words(message_text(message)), (key, message)
    spoken = sum((words(message_text(message)) for message in history["messages"]), Counter())
    assert not spoken - words(texts["md"]), key


def read_form(folder: Path, form: str) -> str:
    return (folder / f"x.{form}").read_text()


def test_what_was_asked_stands_in_every_form_where_history_has_it(
    recorded: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in recorded.environ.items():
        monkeypatch.setenv(name, value)
    for form in ("html", "md", "jsonl"):
        assert cli.run(["export", MAIN, "-o", str(tmp_path / f"x.{form}")]) == 0
    shown = recorded.cli("history", MAIN).stdout
    expected = ["user", *(["assistant", "question", "answer"] * 2), "run"]
    assert [line.split()[2] for line in shown.splitlines() if re.match(r"\d{4}-", line)] == expected
    assert [who for who, _ in Articles(read_form(tmp_path, "html")).found] == expected
    assert re.findall(r"(?m)^## (\w+) ·", read_form(tmp_path, "md")) == expected
    lines = [json.loads(line) for line in read_form(tmp_path, "jsonl").splitlines()][1:]
    kinds = [line["message"]["role"] if "message" in line else next(iter(line)) for line in lines]
    assert kinds == expected
    assert (lines[2]["question"]["title"], lines[3]["answer"]["note"]) == ("Bash: rm -rf build0", "use make clean")
    assert lines[3]["answer"]["questionId"] == lines[2]["question"]["id"]
    for form in ("html", "md"):
        text = read_form(tmp_path, form)
        assert all(said in text for said in ("No (reject once), by the owner (cli): use make clean", "exit status 1"))
