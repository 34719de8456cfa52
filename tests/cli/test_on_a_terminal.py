"""What differs on a terminal: colour, width, indented JSON, a progress line. With a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon
from support.forked_daemon import ForkedProcess, fork_server
from support.patience import PATIENCE_S
from support.sampling import WHOLE

ROW = {"key": "agent:main:" + "x" * 60, "updatedAt": 0, "messageCount": 2, "status": "ok", "sessionId": "s"}


def start(words: list[str], environ: dict[str, str], terminal: int) -> subprocess.Popen[bytes] | ForkedProcess:
    """`sessiond WORDS` on this terminal."""
    if not WHOLE and not any(name.startswith("PYTHON") for name in environ):
        files = dict.fromkeys(("stdin", "stdout", "stderr"), os.ttyname(terminal))
        return ForkedProcess(fork_server(), fork_server().ask({"words": words, "environ": environ, **files}))
    command = [sys.executable, "-m", "sessiond", *words]
    return subprocess.Popen(command, env=environ, stdin=terminal, stdout=terminal, stderr=terminal)


@pytest.fixture
def terminal(fake: FakeDaemon) -> Callable[..., str]:
    """`terminal("list", NO_COLOR="1")`: both outputs together as a terminal of 40 columns gets them.

    `watch` is called with all that is shown so far.
    """

    def run(*words: str, watch: Callable[[bytes], object] = lambda shown: None, **environment: str) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        plain = {"PATH": os.environ["PATH"], "TERM": "xterm", "SESSIOND_SOCKET": str(fake.path), "LANG": "C.UTF-8"}
        started = start([*words], {**plain, **environment}, theirs)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 65536):
                shown += data
                watch(shown)
        started.wait(PATIENCE_S)
        os.close(ours)
        return shown.decode().replace("\r\n", "\n")

    return run


def answer_with_one_session(fake: FakeDaemon) -> None:
    fake.answers["sessions_list"] = lambda *_: {"sessions": [ROW], "hasMore": False, "visibility": "all"}


def test_a_table_fits_and_has_colour(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    answer_with_one_session(fake)
    assert terminal("list").splitlines()[1] == "\x1b[1magent:main:xxxxxx…\x1b[0m  \x1b[32mok    \x1b[0m  1970-01-01"


def test_search_matches_are_in_view_and_coloured_at_any_width(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    text = "word " * 40 + "the Heron is grey" + " word" * 40
    match = {"sessionKey": ROW["key"], "cursor": "c", "timestamp": 0, "role": "assistant", "snippet": text}
    fake.answers["sessions_search"] = lambda *_: {"matches": [match], "hasMore": False, "contentRedacted": False}
    for columns in ("30", "40", "80", "200"):
        assert "\x1b[1;31mHeron\x1b[0m" in terminal("search", "heron", COLUMNS=columns)
        plain = terminal("search", "heron", COLUMNS=columns, NO_COLOR="1").splitlines()
        assert "Heron" in plain[1] and "\x1b" not in plain[1] and len(plain[1]) <= int(columns)


def test_matches_show_as_they_are_found_with_how_far_the_search_is(
    fake: FakeDaemon, terminal: Callable[..., str]
) -> None:
    match = {"sessionKey": "k", "cursor": "c", "timestamp": 0, "role": "user", "snippet": "a heron"}
    short = {"hasMore": True, "contentRedacted": False, "progress": {"lookedAt": 2048, "total": 4096}}
    pages = [
        {"matches": [match], "nextCursor": "1", **short},
        {"matches": [], "nextCursor": "2", **short},
        {"matches": [{**match, "snippet": "one more heron"}], "hasMore": False},
    ]
    fake.answers["sessions_search"] = lambda params, _: pages[int(params.get("cursor", 0))]
    shown = terminal("search", "heron", NO_COLOR="1", COLUMNS="80")
    progress = "\r\x1b[Ksearching \u2026 2.0 KiB of 4.0 KiB\r\x1b[K"
    titles, first, rest = shown.split("\n", 2)
    assert titles.split() == ["TIME", "SESSION", "ROLE", "TEXT"]
    assert first.endswith("user  a heron")
    assert rest.startswith(progress * 2)
    assert rest.removeprefix(progress * 2).endswith("user  one more heron\n")


def test_ctrl_c_ends_a_search_in_the_daemon(fake: FakeDaemon) -> None:
    asked, gone = threading.Event(), threading.Event()

    def answer(*_: object) -> object:
        asked.set()
        return NO_ANSWER

    fake.answers["sessions_search"] = answer
    fake.when_closed = gone.set
    command = [sys.executable, "-m", "sessiond", "search", "x"]
    environ = {"PATH": os.environ["PATH"], "SESSIOND_SOCKET": str(fake.path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        assert asked.wait(PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert gone.wait(PATIENCE_S), "its connection is closed, which cancels what it asked"


def answer_with_sessions(fake: FakeDaemon, count: int) -> None:
    rows = [{**ROW, "key": f"agent:main:{number}"} for number in range(count)]
    fake.answers["sessions_list"] = lambda *_: {"sessions": rows, "hasMore": False, "visibility": "all"}


def test_a_cost_is_marked_that_is_only_that_of_a_part(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    sums = dict.fromkeys(("inputTokens", "outputTokens", "cacheRead", "cacheWrite"), 10) | {"totalTokens": 40}
    costs = ({"costUsd": 12}, {"costUsd": 0.001, "unpricedTokens": 30}, {"unpricedTokens": 40}, {"costUsd": 0.005})
    models = [{**sums, **cost, "model": f"\x1b[2J\u202e{number}"} for number, cost in enumerate(costs)]
    totals = {**sums, "totalTokens": 160, "costUsd": 12.006, "unpricedTokens": 70}
    fake.answers["sessions.usage"] = lambda *_: {"totals": totals, "byModel": models}
    _, *rows, dash, plus = terminal("usage", "--by", "model", NO_COLOR="1", COLUMNS="100").splitlines()
    assert [row.split()[6] for row in rows] == ["$12.00", "<$0.01+", "-", "$0.01", "$12.01+"]
    assert rows[0].startswith("\\x1b[2J\\u202e0") and rows[0].rstrip().endswith("█" * 24)
    assert (dash[:4], plus[:4]) == ("  -:", "  +:")
    del models[1:3], totals["unpricedTokens"]
    assert len(terminal("usage", "--by", "model", NO_COLOR="1", COLUMNS="100").splitlines()) == 4


def test_output_higher_than_the_terminal_goes_through_the_pager(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    answer_with_sessions(fake, 30)
    shown = terminal("list", PAGER="sed 's/^/paged: /'").splitlines()
    assert len(shown) == 31
    assert all(line.startswith("paged: ") for line in shown)
    assert terminal("list", SESSIOND_PAGER="head -n 1", PAGER="no").count("\n") == 1
    answer_with_sessions(fake, 5)
    assert "paged" not in terminal("list", PAGER="sed 's/^/paged: /'")


@pytest.mark.parametrize("pager", ["cat", "no-such-pager"])
def test_without_a_pager_output_is_printed_directly(fake: FakeDaemon, terminal: Callable[..., str], pager: str) -> None:
    answer_with_sessions(fake, 30)
    assert "agent:main:29" in terminal("list", PAGER=pager)


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_nothing_is_paged_on_a_terminal_of_unknown_kind(
    fake: FakeDaemon, terminal: Callable[..., str], kind: str
) -> None:
    answer_with_sessions(fake, 30)
    assert "paged" not in terminal("list", PAGER="sed 's/^/paged: /'", TERM=kind)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_turned_off(fake: FakeDaemon, terminal: Callable[..., str], environment: dict[str, str]) -> None:
    answer_with_one_session(fake)
    shown = terminal("list", **environment)
    assert "\x1b" not in shown and "…" in shown


def test_the_columns_variable_overrides_the_window_size(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    answer_with_one_session(fake)
    assert "…" not in terminal("list", COLUMNS="200")


def test_json_is_indented_on_a_terminal(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    fake.answers["ping"] = lambda *_: {"a": {"b": 1}}
    assert terminal("call", "ping") == '{\n  "a": {\n    "b": 1\n  }\n}\n'


def test_a_wait_shows_its_duration_and_leaves_only_the_reply(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    waits = 0
    fake.answers["chat.send"] = lambda *_: {"runId": "r1", "status": "accepted"}

    def wait(params: dict[str, Any], _connection: object) -> dict[str, Any]:
        nonlocal waits
        waits += params["timeoutMs"] == 1000  # each second the line is written anew
        if waits == 2:
            return {"runId": "r1", "status": "ok", "reply": "done"}
        threading.Event().wait(params["timeoutMs"] / 1000)
        return {"runId": "r1", "status": "running"}

    fake.answers["agent.wait"] = wait
    shown = terminal("send", "main", "x", "--timeout", "600")
    assert re.fullmatch(r"\r\x1b\[Kwaiting for main … [0-9.ms ]+s\r\x1b\[Kdone\n", shown), shown


def test_an_inbox_is_shown_readably(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    kept = {"text": "first\nsecond", "from": "agent:main:mcp:ada", "timestamp": "2020-01-01T12:00:00.000Z", "id": "a"}
    page = {"sessionKey": "agent:main:mcp:bea", "messages": [kept], "cursor": "9-1-x", "hasMore": True}
    fake.answers["sessions_inbox"] = lambda *_: page
    shown = terminal("inbox", "mcp:bea", NO_COLOR="1", TZ="UTC").splitlines()
    assert shown == [
        "2020-01-01 12:00:00 from agent:main:mcp:ada",
        "  first",
        "  second",
        "  there are more: the same again",
    ]


def test_what_waits_for_a_terminal_is_in_the_list_of_inboxes(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    fake.answers["sessions_list"] = lambda *_: {"sessions": [{"key": "agent:main:mcp:bea"}]}
    fake.answers["sessions_inbox"] = lambda *_: {"messages": [], "hasMore": False}
    shown = terminal("inbox", NO_COLOR="1", TZ="UTC").splitlines()
    assert [line.split()[:2] for line in shown[:2]] == [["KEY", "UNREAD"], ["agent:main:mcp:bea", "0"]]
    fake.answers["hooks.list"] = lambda *_: {"waiting": [{"sessionKey": "claude:b7", "unread": 2, "hasMore": False}]}
    shown = terminal("inbox", NO_COLOR="1", TZ="UTC").splitlines()
    assert shown[2].split()[:2] == ["claude:b7", "2"]


def test_long_work_shows_a_progress_line_and_removes_it(fake: FakeDaemon, terminal: Callable[..., str]) -> None:
    shown = threading.Event()
    fake.answers["sessions.prune"] = lambda *_: shown.wait(PATIENCE_S) and {"removed": []}
    watch: Any = lambda text: b"archive" in text and shown.set()  # noqa: E731
    line, _, rest = terminal("prune", "--older-than", "1d", watch=watch).rpartition("\r\x1b[K")
    assert line.startswith("\r\x1b[Klooking through the archive … ")
    assert rest == "  nothing is that old\n"


def test_without_a_terminal_long_work_shows_no_progress_line(fake: FakeDaemon) -> None:
    fake.answers["sessions_search"] = lambda *_: threading.Event().wait(1.5) or {"matches": []}
    command = [sys.executable, "-m", "sessiond", "search", "x"]
    environ = {"PATH": os.environ["PATH"], "SESSIOND_SOCKET": str(fake.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "  nothing found\n")
