"""The port of the owner's page: over restarts, where another program has taken it, and at its end."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from support.owner_page import CLIENT, open_page
from support.real_daemon import Daemon
from support.rows import check_each
from trio.testing import MockClock

from sessiond.daemon.page_port import NOTE, PagePort
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.listener import bind_tcp
from sessiond.transports.serve import Server


def port_of(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.system
def test_a_page_goes_on_after_the_daemon_was_killed_and_ends_with_web_close(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path).start()
    page = open_page(daemon)
    assert (daemon.run / NOTE).stat().st_mode & 0o777 == 0o600
    for end in (daemon.kill, daemon.stop):
        end()
        daemon.start()
        daemon.wait_for(lambda: not refuses(port_of(page.address)), "the port of the page is not there again")
        assert page.call("ping")["result"] == {}
    closed = daemon.call("http.close")
    assert closed == {"revoked": 1, "closed": True}
    daemon.wait_for(lambda: refuses(port_of(page.address)), "the port of the page is still there")
    assert not (daemon.run / NOTE).exists()
    assert daemon.call("http.close") == {"revoked": 0, "closed": False}
    # A new page has a new port, and the daemon that starts next has none of the old one.
    again = open_page(daemon)
    assert again.call("ping")["result"] == {}
    daemon.call("http.close")
    daemon.stop()
    daemon.start()
    assert daemon.call("http.close")["closed"] is False
    daemon.stop()


@pytest.mark.system
def test_the_port_of_the_configuration_serves_the_page_and_stays_open(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = Daemon(tmp_path).start(f'[http]\nlisten = "127.0.0.1:{port}"\n')
    page = open_page(daemon)
    assert page.address == f"http://127.0.0.1:{port}/"
    assert not (daemon.run / NOTE).exists()
    assert daemon.call("http.close") == {"revoked": 1, "closed": False}
    assert CLIENT.get(f"{page.address}healthz").status_code == 200
    assert page.call("ping")["error"]["type"] == "unauthenticated"
    daemon.stop()


class Served:
    """A server without methods, and a clock whose minutes the test moves along with Trio's own."""

    def __init__(self, folder: Path) -> None:
        dispatcher = Dispatcher((), object(), limits=Limits(), on_fault=lambda *_: None)
        self.server = Server(
            dispatcher,
            ActiveConnections(),
            authenticate=lambda _: pytest.fail("no token"),
            peer_uid=lambda _: 0,
            with_room=lambda accept: accept(),
        )
        self.port = PagePort(self.server, [], folder, self.wall_ms)

    def wall_ms(self) -> int:
        return int(trio.current_time() * 1000)


async def started(nursery: trio.Nursery, folder: Path) -> PagePort:
    served = Served(folder)
    await nursery.start(served.server.serve, [])
    nursery.start_soon(served.port.run)
    await trio.testing.wait_all_tasks_blocked()
    return served.port


async def test_the_port_closes_when_the_last_page_has_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        port = await started(nursery, tmp_path)
        now_ms = int(trio.current_time() * 1000)
        number = port_of(port.open(now_ms + 60_000))
        assert port_of(port.open(now_ms + 5 * 86_400_000)) == number
        for _ in range(4):
            await trio.sleep(86_399)
        assert not refuses(number) and (tmp_path / NOTE).exists()
        for _ in range(2):
            await trio.sleep(86_399)
        assert refuses(number) and not (tmp_path / NOTE).exists()
        assert port.close() is False
        # It opens again.
        again = port_of(port.open(int(trio.current_time() * 1000) + 1000))
        assert not refuses(again)
        nursery.cancel_scope.cancel()
    assert refuses(again)
    assert (tmp_path / NOTE).exists()


@check_each(
    "note",
    [
        b"",
        b"{}",
        b"null",
        b"\xff",
        b'{"port": "x", "untilMs": 1}',
        b'{"port": 0, "untilMs": 9999999999999}',
        b'{"port": 65536, "untilMs": 9999999999999}',
        b'{"port": 22.5, "untilMs": 9999999999999}',
        b'{"port": 4000, "untilMs": 0}',
        b"[" * 100_000,
    ],
)
async def test_a_note_that_is_none_is_passed_over(tmp_path: Path, note: bytes) -> None:
    (tmp_path / NOTE).write_bytes(note)
    async with trio.open_nursery() as nursery:
        port = await started(nursery, tmp_path)
        assert port.close() is False
        nursery.cancel_scope.cancel()


async def test_a_note_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b'{"port": 4000, "untilMs": 9999999999999}')
    (tmp_path / NOTE).symlink_to(tmp_path / "elsewhere")
    async with trio.open_nursery() as nursery:
        port = await started(nursery, tmp_path)
        assert port.close() is False
        nursery.cancel_scope.cancel()


async def test_a_port_that_another_program_has_taken_stays_its_own(tmp_path: Path) -> None:
    taken = bind_tcp("127.0.0.1:0")
    number = taken.address[1]
    (tmp_path / NOTE).write_bytes(b'{"port": %d, "untilMs": 9999999999999}' % number)
    async with trio.open_nursery() as nursery:
        port = await started(nursery, tmp_path)
        assert port.close() is False
        assert port_of(port.open(9999999999999)) != number
        nursery.cancel_scope.cancel()
    taken.close()
