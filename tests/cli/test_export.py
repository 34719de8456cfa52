"""`sessiond export` against a daemon: what history shows, in every form, whole, and masked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.real_daemon import Daemon

from sessiond.clock import parse_iso_ms

pytestmark = pytest.mark.system

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
MANY = 1003  # over one page


@pytest.fixture(scope="module")
def exporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("export"))
    daemon.start()
    daemon.call("sessions.create", key="agent:main:parent", label="The parent")
    daemon.call("sessions.create", key="agent:main:child", parentSessionKey="agent:main:parent")
    said = [{"role": "user", "content": f"number {number}"} for number in range(MANY)]
    for begin in (0, 600):
        daemon.call("chat.inject", sessionKey="agent:main:parent", messages=said[begin : begin + 600])
    daemon.call(
        "chat.inject", sessionKey="agent:main:parent", messages=[{"role": "assistant", "content": f"a {SECRET}"}]
    )
    daemon.call("chat.inject", sessionKey="agent:main:child", messages=[{"role": "user", "content": "of the child"}])
    yield daemon
    daemon.kill()


def test_every_form_has_all_messages_in_order_and_no_secret(exporting: Daemon, tmp_path: Path) -> None:
    for name in ("all.markdown", "all.html", "all.jsonl"):
        done = exporting.cli("export", "agent:main:parent", "-o", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert f"{MANY + 1} messages" in done.stderr
        text = (tmp_path / name).read_text()
        places = [text.index(f"number {number}") for number in range(0, MANY, 100)]
        assert places == sorted(places) and text.count("number ") >= MANY
        assert "sk-ant" in text and SECRET not in text and "of the child" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.html", "all.jsonl", "all.markdown"]
    row, *lines = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert row["session"]["key"] == "agent:main:parent"
    history = exporting.call("chat.history", sessionKey="agent:main:parent", limit=1000)
    assert [line["message"] for line in lines[-1000:-1]] == history["messages"][:-1]
    assert [line["seq"] for line in lines] == list(range(1, MANY + 2))


def test_raw_children_and_the_default_form(exporting: Daemon) -> None:
    done = exporting.cli("export", "agent:main:parent", "--raw", "--with-children")
    assert done.returncode == 0 and done.stdout.startswith("# The parent\n"), done.stderr
    assert SECRET in done.stdout and done.stdout.rindex("> of the child") > done.stdout.index(SECRET)


def test_a_message_has_one_time_everywhere_also_where_it_tells_another(exporting: Daemon) -> None:
    key, own = "agent:main:old", 1_577_880_000_000  # in 2020
    exporting.call("sessions.create", key=key)
    cursor = exporting.call("chat.history", sessionKey=key)["cursor"]
    told = {"role": "user", "content": "said long ago", "timestamp": own}
    exporting.call("chat.inject", sessionKey=key, messages=[told])
    page = exporting.call("chat.history", sessionKey=key)
    assert page["messages"] == [told]
    moment = parse_iso_ms(page["positions"][0]["timestamp"])
    assert moment is not None and moment > own
    [match] = exporting.call("sessions_search", query="said long ago")["matches"]
    [row] = [row for row in exporting.call("sessions_list")["sessions"] if row["key"] == key]
    with exporting.connect() as wire:
        wire.call("sessions.messages.subscribe", key=key, cursor=cursor)
        event = (wire.events or [wire.receive()])[0]["params"]
    assert (match["timestamp"], row["updatedAt"], parse_iso_ms(event["timestamp"])) == (moment, moment, moment)
    for words in (["history", key], ["export", key], ["export", key, "--html"]):
        done = exporting.cli(*words)
        assert "said long ago" in done.stdout and "2020" not in done.stdout, words
    assert json.loads(exporting.cli("export", key, "--jsonl").stdout.splitlines()[1])["timestamp"] == event["timestamp"]


def test_a_wrong_call_is_refused_and_leaves_no_file(exporting: Daemon, tmp_path: Path) -> None:
    done = exporting.cli("export", "agent:main:parent", "--md", "--html")
    assert done.returncode == 2 and "--md and --html exclude each other" in done.stderr
    done = exporting.cli("export", "agent:main:none", "-o", str(tmp_path / "x.txt"))
    assert done.returncode == 4
    done = exporting.cli("export", "agent:main:parent", "-o", str(tmp_path / "no" / "x.txt"))
    assert done.returncode == 1 and "cannot be written: No such file or directory" in done.stderr
    done = exporting.cli("export", "agent:main:parent", "-o", str(tmp_path))
    assert done.returncode == 1 and "it is a folder" in done.stderr
    done = exporting.cli("export", "agent:main:parent", "-o", str(tmp_path / "x.pdf"))
    assert done.returncode == 2 and "ends in .pdf" in done.stderr and "--html" in done.stderr
    assert list(tmp_path.iterdir()) == []
