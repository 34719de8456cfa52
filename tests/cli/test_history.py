"""`sessiond history`: as many messages as were asked for, whatever fits into a page of the daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.real_daemon import Daemon

from sessiond.cli.history import _join_pages
from sessiond.cli.terminal.message import OMITTED, text_of
from sessiond.sessions import history

MIB = 1 << 20
system = pytest.mark.system


def append(daemon: Daemon, *texts: str) -> None:
    for text in texts:
        daemon.call("chat.inject", sessionKey="main", messages=[{"role": "user", "content": text}])


def shown_texts(out: str) -> list[str]:
    return [line.split()[2] for line in out.splitlines()]


@system
def test_messages_that_fill_several_pages_are_all_shown(daemon: Daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key="agent:main:main")
    append(daemon, *(letter * (MIB // 2) for letter in "abcde"))
    whole = [letter * (MIB // 2) for letter in "bcde"]
    out = daemon.cli("history", "main", "-n", "4")
    assert shown_texts(out.stdout) == whole
    page = json.loads(daemon.cli("history", "main", "-n", "4", "--json").stdout)
    assert [one["content"] for one in page["messages"]] == whole
    assert [one["seq"] for one in page["positions"]] == [2, 3, 4, 5]
    before = daemon.cli("history", "main", "--before", page["nextCursor"])
    assert (shown_texts(before.stdout), before.stderr) == (["a" * (MIB // 2)], "")
    raw = daemon.cli("history", "main", "--raw", "-n", "2000").stdout.splitlines()
    path = Path(daemon.cli("path", "main").stdout.strip())
    assert [json.loads(line) for line in raw] == [json.loads(line) for line in path.read_text().splitlines()]


@system
def test_a_message_that_is_too_long_for_a_page_says_its_size_and_where_it_is(daemon: Daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key="agent:main:main")
    append(daemon, "x" * (3 * MIB), "short")
    lines = daemon.cli("history", "main").stdout.splitlines()
    assert [line.split(None, 2)[2] for line in lines] == [
        '(a message of 3.0 MiB, too long for this page: "sessiond export" has it)',
        "short",
    ]


def test_only_what_the_daemon_omitted_is_shown_as_omitted() -> None:
    assert OMITTED == history.OMITTED
    for message in (
        {"content": OMITTED},
        {"content": "x", "omitted": {"bytes": 5}},
        {"content": OMITTED, "omitted": 5},
    ):
        assert text_of(message) == message["content"]


@system
def test_bad_lines_are_told_of_beside_the_lines_as_well(daemon: Daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key="agent:main:main")
    append(daemon, "one")
    path = Path(daemon.cli("path", "main").stdout.strip())
    with path.open("ab") as file:
        file.write(b"{torn\n")
    append(daemon, "two")
    raw = daemon.cli("history", "main", "--raw")
    assert len(raw.stdout.splitlines()) == len(path.read_text().splitlines()) - 1
    assert raw.stderr == "  skipped 1 bad line; see: sessiond doctor\n"


def test_pages_that_follow_each_other_are_one() -> None:
    def page(number: int, **others: object) -> dict[str, object]:
        fields = {"messages": [number], "positions": [number], "hasMore": True, "bytes": 2, "skipped": 1}
        return {
            **fields,
            "contentRedacted": False,
            "cursor": f"end {number}",
            "nextCursor": f"start {number}",
            **others,
        }

    older = page(1, runs=["r"], contentRedacted=True)
    newer = page(2, markers=["m"], queued=["q"])
    both = {"messages": [1, 2], "positions": [1, 2], "hasMore": True, "bytes": 4, "skipped": 2, "contentRedacted": True}
    others = {"cursor": "end 2", "nextCursor": "start 1", "runs": ["r"], "markers": ["m"], "queued": ["q"]}
    assert _join_pages([newer, older]) == both | others
    del older["nextCursor"]
    first = {**both, **others, "hasMore": False}
    del first["nextCursor"]
    assert _join_pages([newer, {**older, "hasMore": False}]) == first
