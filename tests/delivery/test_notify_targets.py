"""The targets of notifications: real commands and real servers, and what each of them is told."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from delivery.test_http_post import OK, Server, serve, server_of
from msgspec.structs import replace
from support.rows import check_each
from support.shortage import refused_threads

from sessiond.config.notify import NotifyRule
from sessiond.delivery.channels import Delivery, NotDelivered
from sessiond.delivery.notification import Notification
from sessiond.delivery.notify_rules import rules_by_name
from sessiond.delivery.notify_targets import NotifyTargets, with_session_bus

TELL = "import sys, json, os; open(sys.argv[1], 'w').write(json.dumps([sys.argv[2:], dict(os.environ)]))"
NOTIFICATION = Notification(fact_id="f1", rule="", when="waiting", agent_id="main", at=5, question_id="q1")


def targets(rule: NotifyRule, *, answer_s: float = 60, **environ: str) -> tuple[NotifyTargets, Delivery]:
    """The targets of one rule, and a delivery by it."""
    [name] = rules_by_name((rule,))
    delivery = Delivery(
        delivery_id="d1",
        channel="notify:x",
        to=name,
        session_key="agent:main:main",
        text="May I?",
        title="main needs you",
        created_at=1,
        notification=replace(NOTIFICATION, rule=name),
    )
    environ = {"PATH": os.environ["PATH"], **environ}
    return NotifyTargets(lambda: (rule,), environ=environ, cwd=Path("/"), answer_s=answer_s), delivery


def command_rule(*words: str, **fields: Any) -> NotifyRule:
    return NotifyRule(command=(sys.executable, "-c", TELL, *words), **fields)


async def deliver(rule: NotifyRule, **environ: str) -> None:
    found, delivery = targets(rule, **environ)
    await found.deliver(delivery)


async def failure(rule: NotifyRule, **environ: str) -> str:
    with pytest.raises(NotDelivered) as caught:
        await deliver(rule, **environ)
    return str(caught.value)


class TestCommands:
    async def test_placeholders_are_filled_in_once_and_other_braces_stay(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        words = (
            "{title}: {text}",
            "{id} {when} {sessionKey} {agentId} {questionId}",
            "{body}{}{to} {{text}}",
            "$HOME `x`",
        )
        rule = command_rule(str(out), *words)
        found, delivery = targets(rule)
        hostile = replace(delivery, title="{text}{id}", text='-rf "; {title} $(id)')
        await found.deliver(hostile)
        said, _ = json.loads(out.read_text())
        assert said == [
            '{text}{id}: -rf "; {title} $(id)',
            "f1 waiting agent:main:main main q1",
            '{}{to} {-rf "; {title} $(id)}',
            "$HOME `x`",
        ]

    async def test_a_text_that_begins_with_a_dash_is_no_option(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        found, delivery = targets(command_rule(str(out), "{text}", "{title}"))
        await found.deliver(replace(delivery, text="--urgency=critical", title="-i"))
        assert json.loads(out.read_text())[0] == [" --urgency=critical", " -i"]

    async def test_a_command_has_the_variables_of_the_desktop_and_none_of_the_daemons_own(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        desktop = {
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere/bus",
            "XDG_RUNTIME_DIR": "/nowhere",
            "DISPLAY": ":0",
            "WAYLAND_DISPLAY": "wayland-0",
            "XAUTHORITY": "/nowhere/x",
            "LANG": "C.UTF-8",
        }
        await deliver(command_rule(str(out)), **desktop, SESSIOND_TOKEN="t", AWS_SECRET_KEY="s", LD_PRELOAD="")
        _, environ = json.loads(out.read_text())
        environ.pop("LC_CTYPE", None)  # Python's own
        assert environ == {"PATH": os.environ["PATH"], **desktop}

    @check_each(
        ("rule", "reason"),
        [
            (NotifyRule(command=("sh", "-c", "echo sorry >&2; exit 3")), "command exited with status 3: sorry"),
            (NotifyRule(command=("sh", "-c", "kill -9 $$")), "command was killed by SIGKILL"),
            (NotifyRule(command=("no-such-program",)), "command not found: no-such-program"),
        ],
    )
    async def test_a_command_that_fails_acknowledges_nothing(self, rule: NotifyRule, reason: str) -> None:
        assert (await failure(rule)).startswith(reason)

    async def test_a_command_that_does_not_end_is_ended(self) -> None:
        found, delivery = targets(NotifyRule(command=("sleep", "1000")), answer_s=0.2)
        with pytest.raises(NotDelivered, match=r"^the command did not end within 0\.2 s$"):
            await found.deliver(delivery)


class TestPosts:
    async def post(self, rule_fields: dict[str, Any], answer: bytes = OK, **changes: Any) -> tuple[dict[str, str], str]:
        """The headers and the content that a server gets."""
        server = Server(answer)

        async def handle(stream: trio.SocketStream) -> None:
            data = b""
            async with stream:
                while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
                    data += await stream.receive_some(65536)
                server.received.append(data)
                await stream.send_all(answer)

        async with serve(handle, server):
            found, delivery = targets(NotifyRule(url=f"http://127.0.0.1:{server.port}/topic", **rule_fields))
            assert delivery.notification is not None
            notification = replace(delivery.notification, **changes)
            refused: list[NotDelivered] = []
            try:
                await found.deliver(replace(delivery, notification=notification))
            except NotDelivered as error:  # a nursery would put it into a group
                refused.append(error)
        if refused:
            raise refused[0]
        head, _, content = server.received[0].decode().partition("\r\n\r\n")
        lines = [line.partition(": ") for line in head.split("\r\n")[1:]]
        return {name: value for name, _, value in lines}, content

    async def test_json_is_the_default(self) -> None:
        headers, content = await self.post({})
        assert content == (
            '{"id":"f1","when":"waiting","title":"main needs you","text":"May I?","sessionKey":"agent:main:main",'
            '"agentId":"main","questionId":"q1","at":5}'
        )
        assert (headers["Content-Type"], headers["Idempotency-Key"]) == ("application/json", "f1")
        assert headers["User-Agent"].startswith("sessiond/")

    async def test_a_body_comes_last_and_only_where_there_is_one(self) -> None:
        _, content = await self.post({}, body="rm -rf build\n", question_id=None)
        assert content.endswith('"agentId":"main","at":5,"body":"rm -rf build\\n"}')

    async def test_text_is_for_services_that_show_the_content_as_it_is(self) -> None:
        headers, content = await self.post({"format": "text"})
        assert (content, headers["Content-Type"]) == ("main needs you\nMay I?", "text/plain; charset=utf-8")
        assert (await self.post({"format": "text"}, body="all of it"))[1] == "main needs you\nMay I?\n\nall of it"

    async def test_the_headers_of_the_file_are_sent_and_win(self, tmp_path: Path) -> None:
        path = tmp_path / "headers"
        path.write_text("Authorization: Bearer tk\nuser-agent: mine\n")
        path.chmod(0o600)
        headers, _ = await self.post({"headers_file": path})
        assert (headers["Authorization"], headers["user-agent"], headers.get("User-Agent")) == (
            "Bearer tk",
            "mine",
            None,
        )
        with refused_threads(), pytest.raises(NotDelivered, match=r"^no thread can be started$"):
            await self.post({"headers_file": path})
        path.chmod(0o644)
        with pytest.raises(NotDelivered, match="headersFile headers can be read or written by others"):
            await self.post({"headers_file": path})

    @check_each(
        ("status", "reason"),
        [
            ("301 Moved\r\nLocation: /", "127.0.0.1 answered 301; redirects are not followed: set the url it leads to"),
            ("307 Moved\r\nLocation: /", "127.0.0.1 answered 307; redirects are not followed: set the url it leads to"),
            ("401 No", "127.0.0.1 answered 401"),
            ("429 Slow", "127.0.0.1 answered 429"),
            ("500 Oh", "127.0.0.1 answered 500"),
        ],
    )
    async def test_another_status_than_2xx_acknowledges_nothing(self, status: str, reason: str) -> None:
        with pytest.raises(NotDelivered) as caught:
            await self.post({}, f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        assert str(caught.value) == reason

    async def test_a_server_that_is_silent_fails_after_the_time_limit(self) -> None:
        server = Server(b"")

        async def keep_silent(stream: trio.SocketStream) -> None:
            await trio.sleep_forever()

        async with serve(keep_silent, server):
            found, delivery = targets(NotifyRule(url=f"http://127.0.0.1:{server.port}"), answer_s=0.1)
            with pytest.raises(NotDelivered, match=r"^127\.0\.0\.1 did not answer within 0\.1 s$"):
                await found.deliver(delivery)

    async def test_a_path_of_a_url_is_in_no_error(self) -> None:
        async with server_of(OK) as server:
            pass
        assert "secret-topic" not in await failure(NotifyRule(url=f"http://127.0.0.1:{server.port}/secret-topic"))


def _length(data: bytes) -> int:
    for line in data.split(b"\r\n"):
        if line.startswith(b"Content-Length: "):
            return int(line[16:])
    return 0


class TestTheSessionBus:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Iterator[Path]:
        """`/run/user` with the bus of this user."""
        folder = tmp_path / str(os.geteuid())
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as bus:
            os.chdir(folder)  # the path of a socket must be short
            bus.bind("bus")
            os.chdir("/")
            yield tmp_path

    def found(self, run: Path, **environ: str) -> dict[str, str]:
        return with_session_bus(environ, os.geteuid(), run=run)

    def test_a_daemon_without_the_variables_finds_the_bus_where_systemd_puts_it(self, run: Path) -> None:
        folder = run / str(os.geteuid())
        assert self.found(run) == {
            "XDG_RUNTIME_DIR": str(folder),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/bus",
        }
        assert self.found(run, XDG_RUNTIME_DIR=str(folder))["DBUS_SESSION_BUS_ADDRESS"] == f"unix:path={folder}/bus"

    @pytest.mark.skipif(not all(map(shutil.which, ("dbus-daemon", "gdbus"))), reason="no D-Bus")
    async def test_a_program_of_the_desktop_reaches_the_bus_of_the_session(self, short_path: Path) -> None:
        address = f"unix:path={short_path}/bus"
        rule = NotifyRule(
            command=("gdbus", "emit", "--session", "--object-path", "/", "--signal", "a.b.C", "'{questionId}'")
        )
        assert (await failure(rule, XDG_RUNTIME_DIR=str(short_path))).startswith("command exited with status 1")
        command = ["dbus-daemon", "--session", "--nofork", f"--address={address}", "--print-address"]
        async with trio.open_nursery() as nursery:
            bus = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
            assert await bus.stdout.receive_some()  # it listens
            await deliver(rule, XDG_RUNTIME_DIR=str(short_path))
            bus.terminate()

    def test_variables_that_are_there_stay(self, run: Path) -> None:
        own = {"XDG_RUNTIME_DIR": "/elsewhere", "DBUS_SESSION_BUS_ADDRESS": "unix:abstract=x"}
        assert self.found(run, **own) == own

    def test_what_is_not_there_or_not_a_socket_of_this_user_is_not_named(self, run: Path, tmp_path: Path) -> None:
        assert self.found(tmp_path / "none") == {}
        assert with_session_bus({}, 12345, run=run) == {}
        folder = run / str(os.geteuid())
        (folder / "bus").unlink()
        (folder / "bus").write_text("")
        assert self.found(run) == {"XDG_RUNTIME_DIR": str(folder)}
