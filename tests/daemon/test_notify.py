"""sd_notify, with a real datagram socket in the place of the service manager."""

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
from support.rows import check_each

from sessiond.daemon.notify import Notifier, from_environment, logs_to_journal, watchdog_seconds


class ServiceManager:
    """A socket at `address` that receives the notifications of a service."""

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
def service_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    name = f"@sessiond-test-{secrets.token_hex(8)}" if request.param == "abstract" else str(tmp_path / "notify")
    found = ServiceManager(name)
    yield found
    found.close()


@pytest.fixture
def notifier(service_manager: ServiceManager) -> Iterator[Notifier]:
    found = from_environment({"NOTIFY_SOCKET": service_manager.address})
    yield found
    found.close()


def test_start_status_reload_and_stop_are_sent_as_systemd_expects(
    service_manager: ServiceManager, notifier: Notifier
) -> None:
    assert notifier.listening
    assert notifier.extend_timeout(7.5, "reading 10000 transcripts")
    assert notifier.ready("2 sessions")
    assert notifier.alive()
    assert notifier.status("3 sessions")
    assert notifier.notify_stopping("ending 1 run")
    assert service_manager.heard() == [
        "EXTEND_TIMEOUT_USEC=7500000\nSTATUS=reading 10000 transcripts",
        "READY=1\nSTATUS=2 sessions",
        "WATCHDOG=1",
        "STATUS=3 sessions",
        "STOPPING=1\nSTATUS=ending 1 run",
    ]


def test_a_reload_has_the_time_at_which_it_began(service_manager: ServiceManager, notifier: Notifier) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notifier.notify_reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    (datagram,) = service_manager.heard()
    first, _, second = datagram.partition("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= after


def test_a_status_text_cannot_inject_another_variable(service_manager: ServiceManager, notifier: Notifier) -> None:
    assert notifier.status("one\nSTOPPING=1\r\x85two\ud800")
    assert service_manager.heard() == ["STATUS=one STOPPING=1  two?"]


@check_each("address", [None, "", "vsock:2:1", "relative/path", "/" + "x" * 107, "@" + "x" * 107])
def test_without_a_service_manager_nothing_is_sent_and_nothing_fails(address: str | None) -> None:
    notifier = from_environment({} if address is None else {"NOTIFY_SOCKET": address})
    assert not notifier.listening
    assert [notifier.ready(""), notifier.alive(), notifier.notify_reloading(), notifier.notify_stopping("")] == [
        False
    ] * 4
    notifier.close()


def test_the_longest_possible_address_works() -> None:
    service_manager = ServiceManager("@" + secrets.token_hex(53))
    notifier = Notifier(service_manager.address)
    assert len(service_manager.address) == 107
    assert notifier.alive()
    assert service_manager.heard() == ["WATCHDOG=1"]
    notifier.close()
    service_manager.close()


def test_a_service_manager_that_is_gone_or_does_not_read_blocks_nothing(tmp_path: Path) -> None:
    service_manager = ServiceManager(str(tmp_path / "notify"))
    notifier = Notifier(service_manager.address)
    sent = 0
    while notifier.alive():  # until the socket's queue is full
        sent += 1
    assert sent == len(service_manager.heard())
    assert notifier.alive()
    service_manager.close()
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


@check_each(
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
def test_the_watchdog_is_notified_at_half_its_interval_if_its_variables_name_this_process(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert watchdog_seconds(environ, pid=42) == seconds


@given(st.dictionaries(st.sampled_from(["WATCHDOG_USEC", "WATCHDOG_PID"]), st.text()))
def test_any_watchdog_variables_are_read_without_an_error(environ: dict[str, str]) -> None:
    found = watchdog_seconds(environ)
    assert found is None or found > 0


def test_the_log_goes_to_journald_only_if_stderr_is_the_stream_that_the_variable_names(tmp_path: Path) -> None:
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
