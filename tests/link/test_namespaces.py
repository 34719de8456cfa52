"""Three machines in three network namespaces, a real nats-server with TLS in a fourth, and cables that are pulled."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from support import nats_server as servers
from support.namespaces import network, why_none
from support.nats_machines import linked
from support.nats_server import NatsServer
from support.sampling import whole_only

pytestmark = pytest.mark.system

NAMES = ("lap", "mars", "moon")
OPEN = {
    (one, other): 'export = [{agents = ["*"]}]\nsend = ["*"]\nspawn = ["*"]'
    for one in NAMES
    for other in NAMES
    if one != other
}
MakeServer = Callable[..., NatsServer]


@whole_only("test_an_agent_asks_one_on_another_machine_and_spawns_one_with_a_file")
def test_machines_that_have_only_the_server_in_common(
    tmp_path: Path, nats_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    with network(NAMES) as net:
        program = tmp_path / "nats-server"
        words = " ".join([*net.prefix("switch"), servers.PROGRAM])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(servers, "PROGRAM", str(program))
        server = nats_server("tls", *NAMES, host=net.server_host).start()
        with linked(tmp_path, server, NAMES, OPEN, net=net) as machines:
            lap, mars, moon = (machines[name] for name in NAMES)
            assert lap.send("mars/agent:ops:main", "hello")["reply"].strip() == "ops heard: hello"
            table = [{"name": "t.csv", "content": base64.b64encode(b"1,2\n").decode(), "encoding": "base64"}]
            spawned = lap.call("sessions_spawn", agentId="moon/counter", task="count", attachments=table)
            assert lap.call("agent.wait", runId=spawned["runId"], timeoutMs=60_000)["reply"].strip() == "4"

            net.pull_cable("mars")
            sent = lap.send("mars/agent:ops:main", "while you were away", timeout_s=0)
            mars.daemon.reply("main", "said without a cable")
            lap.wait_for(lambda: not lap.status().machines["mars"], "does not see that mars is away")
            assert lap.call("agent.wait", runId=sent["runId"], timeoutMs=0)["status"] == "running"
            net.plug_in("mars")
            end = lap.call("agent.wait", runId=sent["runId"], timeoutMs=120_000)
            assert end["reply"].strip() == "ops heard: while you were away"
            for one in (lap, moon):
                one.wait_for(
                    lambda one=one: one.replicas("mars") == mars.originals(), "has not got what was said meanwhile"
                )
