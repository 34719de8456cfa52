"""What a machine shows of another one, live, and what never leaves: with real daemons, links and a real nats-server."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.nats_machines import LinkedMachine, linked, linked_for_module, wait_until_together
from support.nats_server import NatsServer
from support.real_daemon import PROGRAM
from support.wire_tap import WireTap

pytestmark = pytest.mark.system

NAMES = ("lap", "mars", "moon")
# Everybody reads everybody's main agent.
SHOWN = {(one, other): 'export = [{agents = ["main"]}]' for one in NAMES for other in NAMES if one != other}
MakeServer = Callable[..., NatsServer]
Shared = tuple[NatsServer, dict[str, LinkedMachine]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with linked_for_module(tmp_path_factory.mktemp("shown"), "tls", NAMES, SHOWN) as made:
        yield made


@pytest.fixture
def shared(started: Shared) -> Shared:
    """Three machines that two tests use, and their server."""
    wait_until_together(started[1])
    return started


@contextmanager
def following(machine: LinkedMachine, *words: str) -> Iterator[Callable[[str], bool]]:
    """Whether a command that follows has printed a text by now."""
    printed: list[str] = []
    process = subprocess.Popen(
        [*PROGRAM, *words], env=machine.daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = process.stdout
    thread = threading.Thread(target=lambda: printed.extend(lines), daemon=True)
    thread.start()

    try:
        yield lambda text: any(text in line for line in printed)
    finally:
        process.terminate()
        process.communicate(timeout=30)
        thread.join()


def test_each_machine_shows_the_sessions_of_the_others_live(shared: Shared) -> None:
    lap, mars, moon = (shared[1][name] for name in NAMES)
    lap.daemon.reply("main", "a walrus on the ice")
    moon.daemon.reply("agent:main:night", "an owl")

    def keys() -> set[str]:
        return {row["key"] for row in mars.call("sessions_list", limit=100)["sessions"]}

    mars.wait_for(lambda: {"lap/agent:main:main", "moon/agent:main:night"} <= keys(), "does not list them")
    row = mars.call("sessions.resolve", key="lap/agent:main:main")
    assert row["key"] == "lap/agent:main:main"
    with (
        following(mars, "history", "lap/agent:main:main", "-f") as in_history,
        following(mars, "watch") as in_watch,
    ):
        mars.wait_for(lambda: in_history("walrus"), "history does not begin")
        mars.wait_for(lambda: mars.call("daemon.status")["subscribers"] >= 3, "nobody follows")
        lap.daemon.reply("main", "a penguin came by")
        mars.wait_for(lambda: in_history("penguin"), "history does not follow")
        mars.wait_for(lambda: in_watch("penguin"), "watch does not follow")
    found = mars.daemon.cli("search", "penguin", "--json")
    assert "lap/agent:main:main" in found.stdout, found
    listed = json.loads(mars.daemon.cli("list", "--json", "--machine", "moon").stdout)
    assert [one["key"] for one in listed["sessions"]] == ["moon/agent:main:night"]
    shared_on = mars.daemon.cli("link", "share", "lap/agent:main:main")
    assert (shared_on.returncode, shared_on.stdout) == (2, "")
    assert "lap/agent:main:main is of another program or machine" in shared_on.stderr
    # Nobody writes into a copy; who may send, sends to the original.
    refused = mars.daemon.failure("sessions.patch", key="lap/agent:main:main", label="mine")
    assert refused["data"]["type"] == "forbidden", refused


def test_rows_of_a_machine_that_is_away_say_since_when(shared: Shared) -> None:
    server, machines = shared
    lap, mars = machines["lap"], machines["mars"]
    lap.daemon.reply("main", "hello")

    def away_since() -> list[int | None]:
        rows = mars.call("sessions_list", limit=100)["sessions"]
        return [row.get("awaySince") for row in rows if row["key"].startswith("lap/")]

    mars.wait_for(lambda: away_since() == [None], "does not list it as there")
    lap.stop_link()
    mars.wait_for(lambda: len(away_since()) == 1 and away_since()[0], "does not see that lap has left")
    lap.start_link()
    mars.wait_for(lambda: away_since() == [None], "does not see that lap is back")
    server.kill()
    mars.wait_for(lambda: all(away_since()), "does not see that the server is gone")
    server.start()
    mars.wait_for(lambda: away_since() == [None], "does not see that the server is back")


def test_what_no_rule_exports_never_leaves_and_what_is_shared_does(tmp_path: Path, nats_server: MakeServer) -> None:
    server = nats_server("open", *NAMES).start()
    rules = {("lap", "mars"): 'export = [{agents = ["main"], labels = ["pub-*"]}]'}
    with WireTap(server) as tap, linked(tmp_path, server, NAMES, rules) as machines:
        lap, mars, moon = (machines[name] for name in NAMES)
        for key, text in (
            ("agent:main:private", "private-walrus"),
            ("agent:ops:main", "ops-walrus"),
            ("agent:main:open", "public-walrus"),
            ("agent:ops:shared", "shared-walrus"),
        ):
            lap.daemon.reply(key, text)
        lap.call("sessions.patch", key="agent:main:open", label="pub-news")
        assert lap.daemon.cli("link", "share", "agent:ops:shared", "--to", "mars").returncode == 0

        def texts() -> bytes:
            return b"".join(mars.replicas("lap").values())

        mars.wait_for(lambda: b"public-walrus" in texts() and b"shared-walrus" in texts(), "has not got them")
        assert lap.daemon.cli("link", "unshare", "agent:ops:shared").returncode == 0
        lap.daemon.reply("agent:ops:shared", "later-walrus")
        mars.wait_for(lambda: b"shared-walrus" not in texts(), "keeps what is shared no more")
        lap.daemon.reply("agent:main:open", "the end of it")
        mars.wait_for(lambda: b"the end of it" in texts(), "has not got the end")
        assert tap.has(b"public-walrus") and tap.has(b"shared-walrus")
        words = (b"private-walrus", b"ops-walrus", b"later-walrus", b"agent:main:private", b"agent:ops:main")
        assert [word for word in words if tap.has(word)] == []
        assert moon.replicas("lap") == {} and not any(".moon." in subject for subject, _ in tap.of_kind("rec"))
