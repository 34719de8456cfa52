"""Three machines on a real nats-server, with real daemons and links: messages and sub-agents between them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nats_machines import (
    AGENTS,
    LinkedMachine,
    linked,
    linked_for_module,
    wait_until_there,
    wait_until_together,
)
from support.nats_server import NatsServer
from support.sampling import pick, whole_only
from support.wire_tap import WireTap

from sessiond.link.command_wire import MachineCommand, PartOf, encode
from sessiond.link.envelope import Envelopes
from sessiond.link.identity import load_identity, new_identity, parse_public
from sessiond.link.subjects import stream_subject

pytestmark = pytest.mark.system

NAMES = ("lap", "mars", "moon")
PAIRS = [(one, other) for one in NAMES for other in NAMES if one != other]
# Everybody lets everybody send and spawn.
OPEN = dict.fromkeys(PAIRS, 'send = ["*"]\nspawn = ["*"]')
# An agent that asks another machine, as a model would by its tools.
ASKER = f"""
[[agents.list]]
id = "asker"
runtime = {{ type = "exec", command = ["{sys.executable}", "-m", "sessiond", "send", "mars/agent:ops:main", "-"] }}
"""
SLOW = """
[[agents.list]]
id = "slow"
runtime = { type = "exec", command = ["sleep", "600"] }
"""
MakeServer = Callable[..., NatsServer]
Shared = tuple[NatsServer, dict[str, LinkedMachine]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with linked_for_module(tmp_path_factory.mktemp("open"), "open", NAMES, OPEN, agents=AGENTS + SLOW) as made:
        yield made


@pytest.fixture
def shared(started: Shared) -> Shared:
    """Three machines that several tests use, and their server."""
    wait_until_together(started[1])
    return started


def last_reply(machine: LinkedMachine, key: str) -> str:
    page = machine.call("sessions_history", sessionKey=key, limit=50)
    said = [message for message in page["messages"] if message["role"] == "assistant"]
    return "".join(block.get("text", "") for block in said[-1]["content"])


def user_messages(machine: LinkedMachine, key: str) -> list[dict[str, Any]]:
    page = machine.call("sessions_history", sessionKey=key, limit=50)
    return [message for message in page["messages"] if message["role"] == "user"]


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_an_agent_asks_one_on_another_machine_and_spawns_one_with_a_file(
    tmp_path: Path, nats_server: MakeServer, mode: str
) -> None:
    server = nats_server(mode, *NAMES).start()
    with linked(tmp_path, server, NAMES, OPEN, agents=AGENTS + ASKER) as machines:
        lap, mars = machines["lap"], machines["mars"]
        lap.daemon.reply("agent:asker:main", "how is the build?")
        assert last_reply(lap, "agent:asker:main").strip() == "ops heard: how is the build?"
        heard = user_messages(mars, "agent:ops:main")[-1]
        assert heard["provenance"]["machine"] == "lap"
        assert heard["provenance"]["machineSessionKey"] == "agent:asker:main"
        table = base64.b64encode(b"one,two\n").decode()
        spawned = lap.call(
            "sessions_spawn",
            agentId="moon/counter",
            task="count",
            attachments=[{"name": "t.csv", "content": table, "encoding": "base64"}],
        )
        end = lap.call("agent.wait", runId=spawned["runId"], timeoutMs=60_000)
        assert (end["status"], end["reply"].strip()) == ("ok", "8")

        def announcement() -> list[dict[str, Any]]:
            all_messages = user_messages(lap, "agent:main:main")
            return [one for one in all_messages if one.get("provenance", {}).get("sourceTool") == "subagent_announce"]

        lap.wait_for(announcement, "is told of no end")
        said = announcement()[0]["content"]
        text = said if isinstance(said, str) else said[0]["text"]
        assert text.startswith("Status: ok") and "\nResult: 8\n" in text


def test_a_machine_that_sleeps_gets_its_messages_when_it_wakes(shared: Shared) -> None:
    lap, mars = shared[1]["lap"], shared[1]["mars"]
    mars.call("sessions.create", key="agent:ops:night")
    mars.stop_link()
    lap.wait_for(lambda: not lap.status().machines["mars"], "does not see that mars sleeps")
    runs = [lap.send("mars/agent:ops:night", f"number {number}", timeout_s=0)["runId"] for number in range(3)]
    assert lap.call("agent.wait", runId=runs[0], timeoutMs=0)["status"] == "running"
    # Neither the sender's link nor its daemon has to stay awake for it.
    lap.stop_link()
    lap.daemon.stop()
    lap.daemon.start()
    mars.start_link()
    lap.start_link()
    ends = [lap.call("agent.wait", runId=run, timeoutMs=60_000) for run in runs]
    assert [end["reply"].strip() for end in ends] == [f"ops heard: number {number}" for number in range(3)]
    assert len(user_messages(mars, "agent:ops:night")) == 3


@whole_only("test_a_long_answer_comes_in_parts_in_any_order")
def test_long_messages_replies_and_files_travel_in_parts(tmp_path: Path, nats_server: MakeServer) -> None:
    server = nats_server("open", *NAMES).start()
    with WireTap(server) as tap, linked(tmp_path, server, NAMES, OPEN, link="encrypt = true") as machines:
        lap = machines["lap"]
        long = "word " * 160_000
        sent = lap.send("mars/agent:ops:main", long + "end")
        assert sent["status"] == "ok" and sent["reply"].strip() == f"ops heard: {long}end"
        assert len(tap.of_kind("cmd")) >= 4 and len(tap.of_kind("ans")) >= 4
        table = base64.b64encode(bytes(1_000_000)).decode()
        files = [{"name": f"{name}.csv", "content": table, "encoding": "base64"} for name in "abc"]
        spawned = lap.call("sessions_spawn", agentId="moon/counter", task="count", attachments=files)
        end = lap.call("agent.wait", runId=spawned["runId"], timeoutMs=60_000)
        assert end["reply"].strip() == "3000000"
        assert max(len(data) for _, data in tap.messages) < 300_000


def test_a_run_that_is_stopped_is_stopped_over_there(shared: Shared) -> None:
    lap, mars = shared[1]["lap"], shared[1]["mars"]
    sent = lap.send("mars/agent:slow:main", "take your time", timeout_s=0)
    mars.wait_for(lambda: mars.call("daemon.status")["liveRuns"] == 1, "does not begin")
    # A daemon and a link that go for a moment stop nothing.
    lap.stop_link()
    lap.daemon.stop()
    lap.daemon.start()
    lap.start_link()
    wait_until_there(lap, ["mars"])
    lap.wait_for(lambda: lap.status().waiting_there == 1, "does not wait for it again")
    assert mars.call("daemon.status")["liveRuns"] == 1
    lap.call("chat.abort", sessionKey=sent["sessionKey"], runId=sent["runId"])
    mars.wait_for(lambda: mars.call("daemon.status")["liveRuns"] == 0, "goes on")
    assert lap.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)["status"] == "aborted"


def test_a_run_that_is_stopped_while_both_links_are_away_is_stopped_over_there(shared: Shared) -> None:
    lap, mars = shared[1]["lap"], shared[1]["mars"]
    sent = lap.send("mars/agent:slow:main", "take your time", timeout_s=0)
    mars.wait_for(lambda: mars.call("daemon.status")["liveRuns"] == 1, "does not begin")
    mars.stop_link()
    lap.stop_link()
    lap.call("chat.abort", sessionKey=sent["sessionKey"], runId=sent["runId"])
    assert lap.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)["status"] == "aborted"
    said = "stopping a run there"
    before = lap.link_log.read_text().count(said)
    lap.start_link()
    lap.wait_for(lambda: lap.link_log.read_text().count(said) > before, "does not know that it was stopped")
    assert mars.call("daemon.status")["liveRuns"] == 1
    mars.start_link()
    mars.wait_for(lambda: mars.call("daemon.status")["liveRuns"] == 0, "goes on")


@whole_only("test_a_machine_does_what_its_rule_says_and_no_more")
def test_a_machine_does_what_the_rule_says_and_no_more(tmp_path: Path, nats_server: MakeServer) -> None:
    server = nats_server("open", *NAMES).start()
    rules = {("mars", "lap"): 'send = ["agent:ops:*"]\nspawn = ["ops"]'}
    with linked(tmp_path, server, NAMES, rules) as machines:
        lap, mars, moon = (machines[name] for name in NAMES)
        assert lap.send("mars/agent:ops:main", "hello")["reply"].strip() == "ops heard: hello"
        for target in ("mars/agent:main:main", "mars/main", "mars/agent:lap:main", "mars/agent:moon:moon/main"):
            refused = lap.send(target, "hello")
            assert refused["status"] == "error" and refused["error"].startswith("mars: "), refused
        spawned = lap.call("sessions_spawn", agentId="mars/counter", task="x")
        end = lap.call("agent.wait", runId=spawned["runId"], timeoutMs=60_000)
        assert end["status"] == "error" and "mars: " in end["error"]
        refused = lap.send("moon/agent:ops:main", "hello")
        assert "nobody on lap may send to sessions on moon" in refused["error"]
        refused = moon.send("mars/agent:ops:main", "hello")
        assert "nobody on moon may send to sessions on mars" in refused["error"]
        keys = {row["key"] for row in mars.call("sessions_list", limit=100)["sessions"]}
        assert not any(key.startswith(("agent:main:", "agent:counter:")) for key in keys - {"main"}), keys


def test_what_an_operator_forges_or_repeats_changes_nothing(shared: Shared) -> None:
    server, machines = shared
    key = "agent:ops:forged"
    with WireTap(server) as tap:
        lap, mars, moon = (machines[name] for name in NAMES)
        mars.call("sessions.create", key=key)
        assert lap.send(f"mars/{key}", "first")["status"] == "ok"
        assert lap.send(f"mars/{key}", "second")["status"] == "ok"
        genuine = [*tap.of_kind("cmd"), *tap.of_kind("ans")]
        assert len(genuine) >= 4
        before = {name: one.originals() for name, one in machines.items()}
        # All that was ever sent once more, the newest first; and under the subjects of others.
        for subject, data in reversed(genuine):
            tap.publish(subject, data)
            words = subject.split(".")
            tap.publish(".".join([words[0], words[2], words[1], *words[3:]]), data)
            tap.publish(".".join([words[0], words[1], "moon", *words[3:]]), data)
        command = encode(MachineCommand(method="send", target=key, message="forged"))
        of_mars = parse_public(load_identity(mars.store).public.text, "mars")
        for identity in (new_identity(), load_identity(moon.store)):
            forged = Envelopes("lap", identity, {"mars": of_mars}).pack("mars", "cmd", "r1", PartOf(), command)
            tap.publish(stream_subject("lap", "mars", "cmd", "r1"), forged)
        # One that the operator has kept for years: nobody here knows any more that it was carried out.
        signed = Envelopes("lap", load_identity(lap.store), {"mars": of_mars})
        for parts in (PartOf(sent_at=1_700_000_000_000), PartOf()):
            tap.publish(stream_subject("lap", "mars", "cmd", "r0"), signed.pack("mars", "cmd", "r0", parts, command))
        sealed = bytearray(genuine[0][1])
        sealed[-70] ^= 1
        tap.publish(genuine[0][0], bytes(sealed))
        tap.publish(genuine[0][0], b"")
        for one in (lap, mars, moon):  # what comes behind them was handled after them
            other = "mars" if one is not mars else "lap"
            assert one.send(f"{other}/agent:counter:main", "third")["runId"]
        texts = [str(message["content"]) for message in user_messages(mars, key)]
        assert len(texts) == 2 and not any("forged" in text for text in texts)
        for name, one in machines.items():
            now = one.originals()
            assert all(now[session].startswith(data) for session, data in before[name].items())
        mars.wait_for(lambda: mars.status().dropped.get("signature", 0) >= 3, "has counted no forged message")
        mars.wait_for(lambda: mars.status().dropped.get("time", 0) == 2, "has counted no command of long ago")
        mars.wait_for(lambda: mars.status().dropped.get("form", 0) >= 1, "has counted no message without a form")
        moon.wait_for(lambda: moon.status().dropped.get("receiver", 0) >= 1, "has counted no message for another")


def test_encrypted_messages_leave_the_server_nothing_to_read(
    tmp_path: Path, nats_server: MakeServer, shared: Shared
) -> None:
    plain_server, plain = shared
    plain["mars"].call("sessions.create", key="agent:ops:plain")
    with WireTap(plain_server) as tap:
        assert plain["lap"].send("mars/agent:ops:plain", "zebra-crossing")["status"] == "ok"
        assert tap.has(b"zebra-crossing"), "the tap hears what is not encrypted"
    server = nats_server("open", *NAMES).start()
    rules = {**OPEN, ("lap", "mars"): f'{OPEN["lap", "mars"]}\nexport = [{{ agents = ["main"] }}]'}
    with (
        WireTap(server) as tap,
        linked(tmp_path / "sealed", server, ["lap", "mars"], rules, link="encrypt = true") as machines,
    ):
        lap, mars = machines["lap"], machines["mars"]
        reply = lap.send("mars/agent:ops:main", "okapi-crossing")["reply"].strip()
        assert reply == "ops heard: okapi-crossing"
        mars.stop_link()  # what it does not take stays on the server
        lap.send("mars/agent:ops:main", "tapir-crossing", timeout_s=0)
        lap.wait_for(lambda: len(tap.of_kind("cmd")) >= 2, "has sent nothing")
        lap.daemon.reply("main", "lynx-crossing")
        lap.wait_for(lambda: tap.of_kind("rec"), "does not copy its session")
        session = lap.call("sessions.resolve", key="main")["sessionId"].encode()
        words = (b"okapi", b"tapir", b"ops heard", b"agent:ops", b"sessions_send", b"agent:main", b"lynx", session)
        assert [word for word in words if tap.has(word)] == []
        mars.start_link()
        wait_until_there(mars, ["lap"])
        mars.wait_for(lambda: len(user_messages(mars, "agent:ops:main")) == 2, "has not got the second one")
