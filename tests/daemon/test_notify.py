"""The service manager's side of sd_notify, played by a real datagram socket."""

from __future__ import annotations

import io
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.daemon.notify import Notifier, from_environment, logs_to_journal, watchdog_seconds


class Manager:
    """A socket at `address` that hears what a service says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(("\0" + address[1:]) if address.startswith("@") else address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(65536).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@sessiond-test-{secrets.token_hex(8)}" if request.param == "abstract" else str(tmp_path / "notify")
    found = Manager(name)
    yield found
    found.close()


@pytest.fixture
def notifier(manager: Manager) -> Iterator[Notifier]:
    found = from_environment({"NOTIFY_SOCKET": manager.address})
    yield found
    found.close()


def test_a_life_is_told_in_datagrams_as_systemd_reads_them(manager: Manager, notifier: Notifier) -> None:
    assert notifier.listening
    assert notifier.extend_timeout(7.5, "reading 10000 transcripts")
    assert notifier.ready("2 sessions")
    assert notifier.alive()
    assert notifier.status("3 sessions")
    assert notifier.notify_stopping("ending 1 run")
    assert manager.heard() == [
        "EXTEND_TIMEOUT_USEC=7500000\nSTATUS=reading 10000 transcripts",
        "READY=1\nSTATUS=2 sessions",
        "WATCHDOG=1",
        "STATUS=3 sessions",
        "STOPPING=1\nSTATUS=ending 1 run",
    ]


def test_a_reload_carries_the_time_at_which_it_began(manager: Manager, notifier: Notifier) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notifier.notify_reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    (datagram,) = manager.heard()
    first, _, second = datagram.partition("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= after


def test_a_status_never_smuggles_in_another_variable(manager: Manager, notifier: Notifier) -> None:
    assert notifier.status("one\nSTOPPING=1\r\x85two\ud800")
    assert manager.heard() == ["STATUS=one STOPPING=1  two?"]


@pytest.mark.parametrize("address", [None, "", "vsock:2:1", "relative/path", "/" + "x" * 107, "@" + "x" * 107])
def test_without_a_manager_nothing_is_said_and_nothing_fails(address: str | None) -> None:
    notifier = from_environment({} if address is None else {"NOTIFY_SOCKET": address})
    assert not notifier.listening
    assert [notifier.ready(""), notifier.alive(), notifier.notify_reloading(), notifier.notify_stopping("")] == [
        False
    ] * 4
    notifier.close()


def test_the_longest_address_is_used() -> None:
    manager = Manager("@" + secrets.token_hex(53))
    notifier = Notifier(manager.address)
    assert len(manager.address) == 107
    assert notifier.alive()
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.close()
    manager.close()


def test_a_manager_that_is_gone_or_deaf_stops_nobody(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier(manager.address)
    sent = 0
    while notifier.alive():  # until the socket's queue is full
        sent += 1
    assert sent == len(manager.heard())
    assert notifier.alive()
    manager.close()
    assert not notifier.alive()
    (tmp_path / "notify").unlink()
    assert not notifier.alive()
    notifier.close()
    assert not notifier.listening
    assert not notifier.alive()


def test_children_do_not_inherit_the_socket(notifier: Notifier) -> None:
    held = [name for name in os.listdir("/proc/self/fd") if _is_inheritable(int(name))]
    assert all(int(name) <= 2 or not _is_socket(int(name)) for name in held)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the listing's own descriptor
        return False


def _is_socket(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "1"}, 0.0000005),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "1e6"}, None),
        ({"WATCHDOG_USEC": "٣"}, None),
        ({"WATCHDOG_USEC": "9" * 5000}, None),
    ],
)
def test_the_watchdog_wants_half_its_time_and_only_if_its_variables_name_us(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert watchdog_seconds(environ, pid=42) == seconds


@given(st.dictionaries(st.sampled_from(["WATCHDOG_USEC", "WATCHDOG_PID"]), st.text()))
def test_any_watchdog_variables_are_read_without_a_fault(environ: dict[str, str]) -> None:
    found = watchdog_seconds(environ)
    assert found is None or found > 0


def test_journald_is_known_by_the_very_stream_that_the_variable_names(tmp_path: Path) -> None:
    ours, journal = socket.socketpair()
    stat = os.fstat(ours.fileno())
    named = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
    assert logs_to_journal(ours.fileno(), named)
    with os.fdopen(os.dup(ours.fileno()), "w") as stream:
        assert logs_to_journal(stream, named)
    assert not logs_to_journal(stream, named)  # closed
    assert not logs_to_journal(journal.fileno(), named)
    assert not logs_to_journal(ours.fileno(), {})
    assert not logs_to_journal(io.StringIO(), named)
    with (tmp_path / "log").open("w") as file:
        stat = os.fstat(file.fileno())
        assert not logs_to_journal(file, {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"})
    ours.close()
    journal.close()
