"""The link as a process: one on a store, what it ends for and what it waits for, reloads, and an end that comes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.link_stand_ins import run_until, settle
from support.nats_machines import LinkedMachine, linked, wait_until_there
from support.nats_server import NatsServer
from support.sampling import whole_only
from support.shortage import no_room

from sessiond.errors import ConfigError, StorageError
from sessiond.link.bus import _cancellable, open_bus
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.copy_states import CopyStates
from sessiond.link.identity import load_identity, new_identity
from sessiond.link.program import LinkProgram, end_task, hold_store, load_config
from sessiond.link.running import RunningLink
from sessiond.link.sent_places import SentPlaces
from sessiond.link.status import read_status

MakeServer = Callable[..., NatsServer]
OPEN = {("lap", "mars"): 'send = ["*"]', ("mars", "lap"): 'send = ["*"]'}


def run_link(machine: LinkedMachine) -> tuple[int, str]:
    """A link that ends by itself: its exit code and what it says."""
    done = machine.daemon.cli("link", "run", "--store", str(machine.store), "--config", str(machine.daemon.config))
    return done.returncode, done.stderr


def configured() -> str:
    """The configuration of a machine that knows another one."""
    return (
        '[link]\nname = "lap"\nserver = "nats://127.0.0.1:4222"\n'
        f'[[link.peers]]\nname = "mars"\nkey = "{new_identity().public.text}"\n'
    )


@pytest.mark.system
def test_one_link_runs_on_a_store_and_a_configuration_without_machines_ends_it(
    tmp_path: Path, nats_server: MakeServer
) -> None:
    with linked(tmp_path, nats_server().start(), ["lap", "mars"], OPEN, with_links=False) as machines:
        lap = machines["lap"]
        lap.start_link()
        assert lap.link is not None
        lap.wait_for(lambda: read_status(lap.store), "has not begun")
        code, said = run_link(lap)
        assert code == 69 and f"another link runs on the store {lap.store}: process {lap.link.pid}" in said
        assert lap.stop_link() == 0
        whole = lap.daemon.config.read_text()
        lap.daemon.config.write_text(lap.agents)
        code, said = run_link(lap)
        assert code == 78 and "names no other machine" in said
        lap.daemon.config.write_text(whole.replace('key = "sdl1-', 'key = "sdl1-x'))
        code, said = run_link(lap)
        assert code == 78 and "the key of mars is not what" in said


@pytest.mark.parametrize("is_there", [False, True])
def test_before_there_is_a_store_a_link_says_how_to_make_one(tmp_path: Path, is_there: bool) -> None:
    store = tmp_path / "store"
    if is_there:
        store.mkdir(0o700)
    with pytest.raises(ConfigError, match=r"is no store of sessiond yet: start the daemon once \(sessiond serve\)"):
        with hold_store(store):
            pass
    assert store.exists() is is_there


@pytest.mark.system
def test_a_reload_takes_the_new_configuration_and_keeps_the_old_one_where_it_is_bad(
    tmp_path: Path, nats_server: MakeServer
) -> None:
    server = nats_server().start()
    with linked(tmp_path, server, ["lap", "mars"], {("lap", "mars"): 'send = ["*"]'}) as machines:
        lap, mars = machines["lap"], machines["mars"]
        assert lap.link is not None and mars.link is not None
        refused = lap.send("mars/agent:ops:main", "one")
        assert "nobody on lap may send to sessions on mars; what has to be added on mars" in refused["error"]
        good = mars.daemon.config.read_text()
        mars.daemon.config.write_text(good.replace("[[link.peers]]", '[[link.peers]]\nsend = "everything"'))
        mars.link.send_signal(signal.SIGHUP)
        mars.wait_for(lambda: "configuration not reloaded; the old one stays" in mars.link_log.read_text(), "is silent")
        lap_key = next(line for line in good.splitlines() if line.startswith('key = "sdl1-'))
        bad = [
            (good.replace(lap_key, lap_key.replace("sdl1-", "sdl1-x")), "the key of lap is not what"),
            (good.replace("[link]", '[link]\nnkeySeed = "/nowhere/seed"'), "/nowhere/seed cannot be read"),
        ]
        for text, reason in bad:
            mars.daemon.config.write_text(text)
            mars.link.send_signal(signal.SIGHUP)
            mars.wait_for(lambda reason=reason: reason in mars.link_log.read_text(), f"does not say: {reason}")
        assert mars.link.poll() is None
        mars.daemon.config.write_text(good.replace("[[link.peers]]", '[[link.peers]]\nsend = ["agent:ops:*"]'))
        for process in (mars.link, mars.daemon.process):
            assert process is not None
            process.send_signal(signal.SIGHUP)
        mars.wait_for(lambda: "[info     ] configuration reloaded" in mars.link_log.read_text(), "does not reload")
        wait_until_there(mars, ["lap"])
        mars.wait_for(lambda: lap.send("mars/agent:ops:main", "two")["status"] == "ok", "does not let it send")


@pytest.mark.system
def test_a_link_whose_last_machine_was_taken_out_of_the_configuration_ends_at_the_reload(
    tmp_path: Path, nats_server: MakeServer
) -> None:
    with linked(tmp_path, nats_server().start(), ["lap", "mars"], OPEN) as machines:
        lap, mars = machines["lap"], machines["mars"]
        mars.daemon.config.write_text(mars.agents)
        said = "the link here takes it with: systemctl --user reload sessiond-link, or SIGHUP"
        assert said in mars.daemon.cli("config", "reload").stderr
        assert mars.stop_link(signal.SIGHUP) == 78
        assert "link" not in mars.daemon.cli("config", "reload").stderr
        assert "names no other machine" in mars.link_log.read_text()
        lap.wait_for(lambda: not lap.status().machines["mars"], "does not see that mars has left")


def test_a_reload_that_is_asked_for_while_a_link_ends_is_not_lost(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(configured())
    seen: list[bool] = []

    class Program(LinkProgram):
        async def _serve(self) -> None:
            seen.append(self._reload.is_set())
            self._reload.set()  # SIGHUP comes when this link is told to end
            if len(seen) == 2:
                self._stop.set()

    run_until(lambda: Program(tmp_path, config, None).run())
    assert seen == [False, True]


@pytest.mark.system
@whole_only("test_what_was_still_to_be_sent_to_a_server_that_is_gone_does_not_keep_a_client_from_its_end")
def test_a_link_that_is_told_to_end_ends_with_the_server_there_or_away(tmp_path: Path, nats_server: MakeServer) -> None:
    server = nats_server().start()
    with linked(tmp_path, server, ["lap", "mars"], OPEN) as machines:
        mars = machines["mars"]
        for is_away in (False, True, False, True):
            server.kill() if is_away else None
            assert mars.stop_link() in (0, -signal.SIGTERM)
            server.start() if is_away else None
            mars.start_link()
            wait_until_there(mars, ["lap"])


@pytest.mark.system
def test_a_link_without_server_and_daemon_says_so_once_and_goes_on(tmp_path: Path, nats_server: MakeServer) -> None:
    server = nats_server().start()
    with linked(tmp_path, server, ["lap", "mars"], OPEN, with_links=False) as machines:
        lap, mars = machines["lap"], machines["mars"]
        server.kill()
        mars.daemon.stop()
        mars.start_link()
        for words in ("nothing listens there; is nats-server running?", "sessiond is not running"):
            mars.wait_for(lambda words=words: words in mars.link_log.read_text(), f"does not say: {words}")
        assert mars.daemon.cli("link", "status").returncode == 1
        server.start()
        lap.start_link()
        wait_until_there(lap, ["mars"])
        sent = lap.send("mars/agent:ops:main", "hello", timeout_s=0)
        mars.daemon.start()
        end = lap.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)
        assert end["reply"].strip() == "ops heard: hello"
        text = mars.link_log.read_text()
        assert text.count("nothing listens there") == 1 and text.count("sessiond is not running") == 1, text


@pytest.mark.system
def test_status_says_who_is_there_and_what_was_asked_also_after_the_link(
    tmp_path: Path, nats_server: MakeServer
) -> None:
    with linked(tmp_path, nats_server().start(), ["lap", "mars"], OPEN) as machines:
        lap, mars = machines["lap"], machines["mars"]
        none = lap.daemon.cli("link", "status", "--store", str(tmp_path))
        assert none.returncode == 1 and "no link has run" in none.stderr
        assert lap.send("mars/agent:ops:main", "hello")["status"] == "ok"
        mars.wait_for(lambda: mars.status().commands == {"lap": {"answered": 1}}, "has not counted it")
        mars.wait_for(lambda: mars.status().daemon, "does not say that its daemon is there")
        shown = mars.daemon.cli("link", "status")
        assert shown.returncode == 0, shown
        first, second = shown.stdout.splitlines()
        assert first.startswith("mars on 127.0.0.1:") and first.endswith("; there: lap")
        assert second.split() == ["lap", "there;", "commands", "from", "it:", "1", "answered"]
        mars.stop_link()
        lap.wait_for(lambda: not lap.status().machines["mars"], "does not see that mars has left")
        stopped = json.loads(mars.daemon.cli("link", "status", "--json").stdout)
        assert (stopped["running"], stopped["name"]) == (False, "mars")
        written = mars.store / "link" / "status.json"
        for age_s, when in ((150, "2m ago"), (90 * 86_400, r"20\d\d-\d\d-\d\d")):
            os.utime(written, times=2 * (time.time() - age_s,))
            shown = mars.daemon.cli("link", "status")
            assert re.match(f"no link runs; this was so {when}: mars on 127.0.0.1:", shown.stdout), shown


@pytest.mark.system
def test_a_link_that_starts_on_a_full_disk_waits_for_room(tmp_path: Path, nats_server: MakeServer) -> None:
    with linked(tmp_path, nats_server().start(), ["lap", "mars"], OPEN, with_links=False) as machines:
        mars = machines["mars"]
        with no_room():
            process = mars.link = subprocess.Popen(
                mars.link_command(), env=mars.daemon.environ, stderr=subprocess.PIPE, process_group=0
            )
        assert process.stderr is not None
        with process.stderr as said:
            first = said.readline().decode()
            assert "the link waits until it can use its files" in first and "commands.db cannot be opened" in first
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            machines["lap"].start_link()
            wait_until_there(mars, ["lap"])


def test_a_ledger_that_cannot_be_read_is_said_in_the_status(tmp_path: Path) -> None:
    """Or `link status` would show for ever what was so before."""
    (tmp_path / "keys").mkdir(0o700)
    load_identity(tmp_path, make=True)
    config = tmp_path / "config.toml"
    config.write_text(configured())

    async def body() -> None:
        link = RunningLink(tmp_path, load_config(config), None, say_status=lambda _line: None)
        async with open_bus(link._settings, lambda _state: None) as bus:
            link._build(bus)
            await link._ledger.do(CommandLedger.accept, "mars", "c1", b"body", 1)
            assert (await link._status()).trouble is None
            link._ledger._ledger._db.execute("drop table totals")
            status = await link._status()
        assert status.trouble == "commands.db cannot be written or read: no such table: totals"
        assert status.commands == {"mars": {"waiting": 1}}, "as it was"

    run_until(body)


def test_a_link_whose_files_cannot_be_opened_can_be_told_to_end_and_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").mkdir(0o700)
    load_identity(tmp_path, make=True)
    config = tmp_path / "config.toml"
    config.write_text(configured())
    monkeypatch.setattr("sessiond.link.program._OPEN_AGAIN_S", 0.001)
    tried: list[Path] = []

    class Full(SentPlaces):
        def __init__(self, store: Path) -> None:
            tried.append(store)
            if len(tried) == 3:
                program._stop.set()
            raise StorageError("no room")

    program: LinkProgram

    async def body() -> None:
        nonlocal program
        program = LinkProgram(tmp_path, config, None)
        monkeypatch.setattr("sessiond.link.running.SentPlaces", Full)
        await program.run()
        assert len(tried) == 3
        CommandLedger(tmp_path / "link").close()
        CopyStates(tmp_path).close()

    run_until(body)


def test_a_cancellation_that_a_library_takes_for_an_answer_is_not_lost() -> None:
    async def body() -> None:
        waits = asyncio.Event()

        async def flush() -> str:
            try:
                await waits.wait()
            except asyncio.CancelledError:
                return "as if nothing had been"
            return "flushed"

        task = asyncio.create_task(_cancellable(flush()))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waits.set()
        assert await _cancellable(flush()) == "flushed"

    run_until(body)


def test_the_single_error_of_a_group_is_what_a_link_ended_with() -> None:
    async def body() -> None:
        async def fail() -> None:
            raise ValueError("the reason")

        async def grouped() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())

        task = asyncio.create_task(grouped())
        await settle()
        with pytest.raises(ValueError, match="the reason"):
            await end_task(task)
        endless = asyncio.create_task(asyncio.Event().wait())
        await settle()
        await end_task(endless)
        assert endless.cancelled()

    run_until(body)
