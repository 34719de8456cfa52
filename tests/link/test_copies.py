"""Two machines on a real server: what one appends is in the copy of the other, whatever is cut, replaced or killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.copied_transcripts import copies_in
from support.nats_machines import LinkedMachine, linked, linked_for_module
from support.nats_server import NatsServer
from support.nats_stream import count_messages, limit_bytes, purge, read_messages
from support.sampling import amount, whole_only

pytestmark = pytest.mark.system

# Mars gets all of lap's sessions but those of one agent; lap gets nothing of mars.
EXPORT = {("lap", "mars"): 'export = [{agents = ["main", "ops"]}, {agents = ["counter"], labels = ["pub-*"]}]'}
Machines = dict[str, LinkedMachine]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """For tests that compare all copies with all originals, whatever others have left."""
    with linked_for_module(tmp_path_factory.mktemp("copies"), "open", ["lap", "mars"], EXPORT) as (_, made):
        yield made


@pytest.fixture
def server(nats_server: Any) -> NatsServer:
    running: NatsServer = nats_server("open").start()
    return running


@pytest.fixture
def machines(tmp_path: Path, server: NatsServer) -> Iterator[Machines]:
    with linked(tmp_path, server, ["lap", "mars"], EXPORT) as made:
        yield made


def wait_until_equal(machines: Machines, wanted: Callable[[], dict[str, bytes]] | None = None) -> None:
    lap, mars = machines["lap"], machines["mars"]
    mars.wait_for(lambda: copies_in(mars, "lap") == (wanted or lap.originals)(), "the copies are not the originals")


def transcript_of(machine: LinkedMachine, key: str) -> Path:
    row = machine.call("sessions.resolve", key=key)
    [path] = machine.store.glob(f"agents/*/sessions/{row['sessionId']}.jsonl")
    return path


def inject(machine: LinkedMachine, key: str, text: str) -> None:
    machine.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": text}])


def test_what_is_appended_here_is_in_the_copy_there_and_no_more(shared: Machines) -> None:
    lap, mars = shared["lap"], shared["mars"]
    lap.daemon.reply("main", "hello")
    lap.daemon.reply("agent:ops:one", "to ops")
    wait_until_equal(shared)
    lap.daemon.reply("main", "x" * amount(900_000, 300_000))
    inject(lap, "agent:ops:one", "y" * amount(3_000_000, 600_000))
    wait_until_equal(shared)
    mars.daemon.reply("main", "of mars")
    lap.daemon.reply("main", "later than that")
    wait_until_equal(shared)
    assert lap.replicas("mars") == {}
    copy = next((mars.store / "machines" / "lap").glob("agents/ops/sessions/*.jsonl"))
    assert copy.stat().st_mode & 0o777 == 0o600


def test_an_original_that_is_cut_replaced_reset_or_deleted_is_so_there_too(shared: Machines) -> None:
    machines, lap = shared, shared["lap"]
    before = len(lap.originals())
    for key in ("agent:main:cut", "agent:main:replaced", "agent:main:reset", "agent:main:deleted"):
        inject(lap, key, "one") if key == "main" else lap.daemon.reply(key, "one")
        lap.daemon.reply(key, "two")
    wait_until_equal(machines)

    cut = transcript_of(lap, "agent:main:cut")
    lines = cut.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:-2]))
    wait_until_equal(machines)
    lap.daemon.reply("agent:main:cut", "another one")
    wait_until_equal(machines)

    replaced = transcript_of(lap, "agent:main:replaced")
    fresh = replaced.with_suffix(".tmp")
    fresh.write_bytes(replaced.read_bytes().replace(b"two", b"TWO"))
    fresh.chmod(0o600)
    fresh.rename(replaced)
    wait_until_equal(machines)

    lap.call("sessions.reset", key="agent:main:reset")
    wait_until_equal(machines)
    lap.call("sessions.delete", key="agent:main:deleted")
    wait_until_equal(machines)
    assert len(lap.originals()) == before + 3


@whole_only("test_a_link_that_runs_sees_what_has_changed")
def test_a_session_comes_with_its_label_or_its_mark_and_goes_with_it(machines: Machines) -> None:
    lap = machines["lap"]
    key = "agent:counter:secret"
    lap.call("sessions.create", key=key)
    inject(lap, key, "nobody else's business")
    lap.daemon.reply("main", "hello")
    main, secret = transcript_of(lap, "main"), transcript_of(lap, key)

    def copies(*paths: Path) -> dict[str, bytes]:
        return {path.stem: path.read_bytes() for path in paths}

    wait_until_equal(machines, lambda: copies(main))
    lap.call("sessions.patch", key=key, label="pub-1")
    wait_until_equal(machines, lambda: copies(main, secret))
    lap.call("sessions.patch", key=key, label="private")
    inject(lap, key, "written after the label was taken away")
    wait_until_equal(machines, lambda: copies(main))
    config = ("--config", str(lap.daemon.config))
    shared = lap.daemon.cli("link", "share", key, "--to", "mars", *config)
    assert shared.returncode == 0, shared.stderr
    wait_until_equal(machines, lambda: copies(main, secret))
    inject(lap, key, "shared")
    wait_until_equal(machines, lambda: copies(main, secret))
    assert lap.daemon.cli("link", "unshare", key, *config).returncode == 0
    wait_until_equal(machines, lambda: copies(main))


@whole_only("test_what_no_rule_exports_never_leaves_and_what_is_shared_does")
def test_nothing_that_no_rule_exports_lies_on_the_server(machines: Machines, server: NatsServer) -> None:
    lap, mars = machines["lap"], machines["mars"]
    mars.stop_link()
    key = "agent:counter:secret"
    lap.call("sessions.create", key=key)
    inject(lap, key, "nobody-elses-business")
    lap.call("sessions.patch", key=key, label="private")
    mars.daemon.reply("main", "only-of-mars")
    lap.daemon.reply("main", "for everybody")
    inject(lap, key, "nobody-elses-business")
    lap.daemon.reply("main", "the last one")
    lap.wait_for(lambda: b"the last one" in b"".join(read_messages(server)), "the exported one is not there")
    stored = b"".join(read_messages(server))
    secret = transcript_of(lap, key)
    for text in (b"nobody-elses-business", b"only-of-mars", b"private", b"agent:counter", secret.stem.encode()):
        assert text not in stored
    mars.start_link()
    wait_until_equal(machines, lambda: {path.stem: path.read_bytes() for path in [transcript_of(lap, "main")]})


def test_what_another_machine_has_answered_is_exported_by_no_rule(tmp_path: Path, server: NatsServer) -> None:
    names = ["lap", "mars", "moon"]
    rules = {("lap", "mars"): 'export = [{agents = ["*"]}, {cwd = ["*"]}]', ("moon", "lap"): 'send = ["*"]'}
    with linked(tmp_path, server, names, rules) as machines:
        lap, mars = machines["lap"], machines["mars"]
        assert lap.send("moon/agent:ops:main", "between lap and moon")["status"] == "ok"
        lap.daemon.reply("main", "for mars as well")
        main = transcript_of(lap, "main")
        mars.wait_for(lambda: mars.replicas("lap").get(main.stem) == main.read_bytes(), "has no copy")
        assert list(mars.replicas("lap")) == [main.stem]


def test_what_happens_while_a_link_or_a_daemon_is_away_is_made_up_for(shared: Machines) -> None:
    machines, lap, mars = shared, shared["lap"], shared["mars"]
    before, key = len(lap.originals()), "agent:main:away"
    lap.daemon.reply(key, "hello")
    lap.daemon.reply("agent:ops:old", "hello")
    wait_until_equal(machines)
    mars.stop_link()
    lap.daemon.reply(key, "mars sleeps")
    lap.stop_link()
    lap.daemon.reply(key, "nobody is there")
    lap.daemon.reply("agent:ops:new", "nobody is there")
    lap.call("sessions.delete", key="agent:ops:old")
    path = transcript_of(lap, key)
    lap.daemon.kill()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    lap.start_link()
    mars.start_link()
    lap.daemon.start()
    wait_until_equal(machines)
    assert len(lap.originals()) == before + 2


@whole_only("test_every_copy_is_equal_after_links_daemons_and_the_server_were_killed")
def test_an_emptied_stream_and_copies_that_were_deleted_are_made_up_for(machines: Machines, server: NatsServer) -> None:
    lap, mars = machines["lap"], machines["mars"]
    for number in range(5):
        lap.daemon.reply(f"agent:ops:n{number}", "hello")
    wait_until_equal(machines)
    mars.stop_link()
    for number in range(7):
        lap.daemon.reply(f"agent:ops:n{number}", "written while mars sleeps")
    lap.wait_for(lambda: count_messages(server) >= 7, "nothing is in the stream")
    purge(server)
    for path in list((mars.store / "machines").rglob("*.jsonl"))[:3]:
        path.unlink()
    mars.start_link()
    wait_until_equal(machines)


@whole_only("test_a_full_stream_says_so_at_once_and_goes_on_when_there_is_room")
def test_a_full_stream_is_waited_for(machines: Machines, server: NatsServer) -> None:
    lap, mars = machines["lap"], machines["mars"]
    mars.stop_link()
    limit_bytes(server, 700_000)
    for number in range(4):
        lap.daemon.reply(f"agent:ops:n{number}", f"{number}" * 200_000)
    lap.wait_for(lambda: "sessions wait to be sent" in lap.link_log.read_text(), "the stream is not full")
    mars.start_link()
    wait_until_equal(machines)


def test_a_copy_that_somebody_has_changed_is_made_anew(shared: Machines) -> None:
    lap, mars = shared["lap"], shared["mars"]
    lap.daemon.reply("agent:main:changed", "hello")
    wait_until_equal(shared)
    [copy] = (mars.store / "machines" / "lap").rglob(transcript_of(lap, "agent:main:changed").name)
    with copy.open("ab") as file:
        file.write(json.dumps({"type": "message", "note": "not of lap"}).encode() + b"\n")
    lap.daemon.reply("agent:main:changed", "again")
    wait_until_equal(shared)
