"""Subscriptions while the daemon is killed, connections are lost, and other programs write the transcripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.concurrent_appenders import ConcurrentAppenders
from support.real_daemon import Daemon
from support.sampling import amount, pick, spread
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS, SubscribedConnection, curl

pytestmark = pytest.mark.system

KEY = "agent:main:live"


class Watch:
    """`sessiond watch --json` as a process; its events are kept as they come."""

    def __init__(self, daemon: Daemon, *arguments: str) -> None:
        self.daemon = daemon
        self.events: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "sessiond", "watch", "--json", *arguments]
        self.process = subprocess.Popen(command, env=daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.events.extend(map(json.loads, self.process.stdout))

    def wait_for_text(self, text: str) -> None:
        """Wait until a message with this text has been printed."""
        self.daemon.wait_for(lambda: text in self.texts, f"{text} was never printed")

    @property
    def texts(self) -> list[str]:
        """The messages, in the order in which they were printed."""
        return [event["message"]["content"] for event in list(self.events) if event["event"] == "session.message"]

    def end(self) -> None:
        self.process.kill()
        self._reader.join()
        self.process.communicate()


@contextmanager
def run_watch(daemon: Daemon, *arguments: str) -> Iterator[Watch]:
    watch = Watch(daemon, *arguments)
    try:
        yield watch
    finally:
        watch.end()


def create_session(daemon: Daemon, key: str = KEY) -> Path:
    """Create a session; returns its transcript."""
    daemon.call("sessions.create", key=key)
    return Path(next(row["transcriptPath"] for row in daemon.rows() if row["key"] == key))


def line(text: str) -> bytes:
    return json.dumps({"type": "message", "id": text, "message": {"role": "user", "content": text}}).encode() + b"\n"


def write(path: Path, *texts: str) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"".join(map(line, texts)))


def inject(daemon: Daemon, *texts: str, key: str = KEY) -> None:
    daemon.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text} for text in texts])


@pytest.mark.parametrize("arguments", pick([(KEY,), ()], __name__))
def test_watch_reconnects_after_kills_and_neither_misses_nor_repeats_messages(
    daemon: Daemon, arguments: tuple[str, ...]
) -> None:
    daemon.start()
    path = create_session(daemon)
    with run_watch(daemon, *arguments) as watch:
        # Inject until it follows; it does not print what came before.
        texts = iter(range(10_000))
        while not watch.texts:
            inject(daemon, f"warm {next(texts)}")
        first = int(watch.texts[0].split()[1])
        expected = [f"warm {number}" for number in range(first, next(texts))]
        for round_ in range(3):
            inject(daemon, f"{round_} own")
            write(path, f"{round_} another program's")
            daemon.kill()
            write(path, f"{round_} while it was dead", f"{round_} and more")
            daemon.start()
            inject(daemon, f"{round_} after the restart")
            expected += [f"{round_} own", f"{round_} another program's", f"{round_} while it was dead"]
            expected += [f"{round_} and more", f"{round_} after the restart"]
            watch.wait_for_text(f"{round_} after the restart")
        assert watch.texts == expected
        assert watch.process.poll() is None


def test_history_f_reconnects_after_a_kill_and_neither_misses_nor_repeats_messages(daemon: Daemon) -> None:
    daemon.start()
    path = create_session(daemon)
    inject(daemon, "before")
    command = [sys.executable, "-m", "sessiond", "history", KEY, "-f"]
    with subprocess.Popen(command, env=daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        printed: list[bytes] = []

        def read_up_to(text: bytes) -> None:
            assert process.stdout is not None
            while not printed or text not in printed[-1]:
                printed.append(process.stdout.readline())
                assert printed[-1], printed

        read_up_to(b"before")
        daemon.wait_for(lambda: daemon.call("daemon.status")["subscribers"], "it does not follow")
        # The daemon counts a subscriber a moment before that gets its answer.
        inject(daemon, "followed")
        read_up_to(b"followed")
        daemon.kill()
        write(path, "while it was dead")
        daemon.start()
        inject(daemon, "afterwards")
        read_up_to(b"afterwards")
        process.kill()
    output = b"".join(printed)
    for text in (b"before", b"followed", b"while it was dead", b"afterwards"):
        assert output.count(text) == 1, text


@pytest.mark.parametrize("transport", spread(sorted(SUBSCRIBED_CONNECTIONS), 2))
def test_a_subscription_gives_the_same_messages_over_every_transport(daemon: Daemon, transport: str) -> None:
    daemon.start()
    path = create_session(daemon)
    cursor = daemon.call("sessions_history", sessionKey=KEY)["cursor"]
    inject(daemon, "1")
    write(path, "2", "3")
    connection: type[SubscribedConnection] = SUBSCRIBED_CONNECTIONS[transport]
    with connection(daemon) as subscriber:
        subscriber.call("sessions.messages.subscribe", key=KEY, cursor=cursor)
        inject(daemon, "4")
        with path.open("ab", buffering=0) as file:
            file.write(line("5")[:25])
            file.write(line("5")[25:])
        assert subscriber.next_texts(5) == ["1", "2", "3", "4", "5"]


def test_server_sent_events_give_the_same_messages(daemon: Daemon) -> None:
    daemon.start()
    path = create_session(daemon)
    cursor = daemon.call("sessions_history", sessionKey=KEY)["cursor"]
    inject(daemon, "1")
    write(path, "2", "3")
    with curl(daemon, f"/sessions/{KEY}/history?follow=1", f"Last-Event-ID: {cursor}") as stream:
        inject(daemon, "4")
        write(path, "5")
        assert [stream.next()[2]["message"]["content"] for _ in range(5)] == ["1", "2", "3", "4", "5"]


def test_appends_damage_and_rewrites_by_other_programs_become_events(daemon: Daemon) -> None:
    daemon.start("[limits]\nmaxRecordBytes = 65536\n")
    path = create_session(daemon)
    with daemon.connect() as wire:
        wire.call("sessions.messages.subscribe", key=KEY)
        wire.call("sessions.subscribe")

        def next_text() -> str:
            text: str = wire.event("session.message")["message"]["content"]
            return text

        write(path, "one")
        assert next_text() == "one"
        with path.open("ab", buffering=0) as file:
            file.write(b"\0" * 100 + b"\n" + line("x" * 70_000) + line("two")[:30])
            assert daemon.call("ping") == {}
            file.write(line("two")[30:])
        assert next_text() == "two"
        assert wire.event("sessions.changed")["row"]["corruptRecords"] == 2
        kept = path.read_bytes().splitlines(keepends=True)[:2]
        os.truncate(path, sum(map(len, kept)))
        assert wire.event("session.resync")["reason"] == "rewritten"
        assert next_text() == "one"
        (path.parent / "new").write_bytes(b"".join(kept) + line("replaced"))
        (path.parent / "new").rename(path)
        assert wire.event("session.resync")["reason"] == "rewritten"
        assert [next_text(), next_text()] == ["one", "replaced"]
        fresh = daemon.store / "agents" / "fresh" / "sessions" / "0f0f0f0f-0000-4000-8000-000000000001.jsonl"
        fresh.parent.mkdir(parents=True)
        header = {"type": "session", "version": 3, "id": fresh.stem, "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"}
        fresh.write_bytes(json.dumps(header).encode() + b"\n" + line("of a new agent"))
        event = wire.event("session.message")
        assert (event["sessionKey"], event["seq"]) == (f"agent:fresh:import:{fresh.stem}", 1)


def test_records_of_four_processes_arrive_once_and_in_order_over_lost_connections(daemon: Daemon) -> None:
    daemon.start()
    appenders = ConcurrentAppenders(
        daemon, ("agent:main:a", "agent:main:b"), records=amount(12_000, 1_500), cuts=amount(15, 2)
    )
    appenders.run()
    appenders.check()


def test_a_slow_subscriber_gets_every_record_of_concurrent_appenders(daemon: Daemon) -> None:
    daemon.start("[limits]\nmaxQueuedEvents = 16\n")
    appenders = ConcurrentAppenders(
        daemon, ("agent:main:a", "agent:main:b"), records=amount(12_000, 3_000), cuts=amount(5, 2)
    )
    # Far more than the socket and the queue of the subscriber hold.
    appenders.read_after = appenders.records // 2
    appenders.run()
    appenders.check()
    assert appenders.resyncs > 0


def test_an_idle_daemon_is_not_woken(daemon: Daemon) -> None:
    daemon.start()
    create_session(daemon)
    assert daemon.process is not None
    tasks = Path(f"/proc/{daemon.process.pid}/task")

    def switches() -> int:
        found = [file.read_text() for file in tasks.glob("*/status")]
        return sum(int(row.split()[1]) for text in found for row in text.splitlines() if "ctxt_switches" in row)

    with daemon.connect() as wire:
        wire.call("sessions.subscribe")
        # The index is saved a second after the last change, and an idle thread ends after ten seconds.
        daemon.wait_for((daemon.store / "agents" / "main" / "sessions" / "sessions.json").exists, "no index")
        wire.socket.settimeout(2)

        def is_quiet() -> bool:
            before = switches()
            # Not `wire.receive`: its file refuses to read on after a time-out.
            with pytest.raises(TimeoutError):
                wire.socket.recv(1)
            return switches() - before <= 4

        # Unfinished work ends sooner or later, on a slow machine later; a daemon that polls is never quiet.
        daemon.wait_for(is_quiet, "it is woken all the time")
