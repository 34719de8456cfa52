"""`sessiond export` against a daemon: what history shows, in every form, whole, and masked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon
from support.patience import PATIENCE_S
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


def test_a_reader_that_ends_early_and_a_full_disk_are_told_without_a_traceback(exporting: Daemon) -> None:
    command = f"{sys.executable} -m sessiond export agent:main:parent"
    for line, said in (
        (f"{command} --html >/dev/full", "sessiond: cannot write the output: No space left on device\n"),
        (f"{command} -o /dev/stdout >/dev/full", "sessiond: /dev/stdout cannot be written: No space left on device\n"),
        (f"set -o pipefail; {command} --html | head -c 1", ""),
    ):
        done = subprocess.run(["bash", "-c", line], env=exporting.environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, said), line
    assert Path("/dev/stdout").is_symlink()


def test_json_lines_of_any_session_are_json_that_a_terminal_may_see(exporting: Daemon) -> None:
    key, text = "agent:main:\u00e9", "\x1b[2J \x9b2J \u202eevil \x7f \u2028 \u00e9 \U0001f600"
    exporting.call("sessions.create", key=key)
    exporting.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])
    for option in ("--json", "--jsonl"):
        done = exporting.cli("export", key, option, "-o", "-")
        assert json.loads(done.stdout.split("\n")[1])["message"]["content"] == text
        assert done.stdout.replace("\n", "").isprintable()


def test_ctrl_c_leaves_no_file(fake: FakeDaemon, tmp_path: Path) -> None:
    asked = threading.Event()

    def answer(*_: object) -> object:
        asked.set()
        return NO_ANSWER

    row = {"key": "main", "sessionId": "x", "title": "t"}
    fake.answers |= {"sessions.resolve": lambda *_: row, "sessions_list": lambda *_: {"sessions": [row]}}
    fake.answers |= {"sessions_history": answer, "questions.list": lambda *_: {"questions": []}}
    (folder := tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "sessiond", "export", "main", "-o", str(folder / "x.html")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SESSIOND_SOCKET": str(fake.path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
        assert asked.wait(PATIENCE_S)
        assert len(list(folder.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert list(folder.iterdir()) == []


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
