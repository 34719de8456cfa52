"""A client that the official OpenRPC generator creates from `rpc.discover`, compiled, with a real daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.lasting_connections import free_port
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents
GENERATOR = "@open-rpc/generator@1.22.3"
# The requirements of the generated package.json, in versions that are compatible with each other.
PACKAGES = (
    *("@open-rpc/client-js@1.7.1", "@open-rpc/meta-schema@1.14.9", "@open-rpc/schema-utils-js@1.15.0"),
    *("@types/json-schema@7.0.3", "@types/lodash@4.14.149", "@types/ws@6.0.4", "@types/node@14.18.63"),
    *("lodash@4.17.21", "typescript@4.2.4"),
)
SCRIPT = """
const [port, token] = process.argv.slice(2);
// The library cannot send the token, which the handshake needs.
const WebSocket = require("ws");
class WithToken extends WebSocket {
  constructor(address) {
    super(address, { headers: { authorization: `Bearer ${token}` } });
  }
}
require.cache[require.resolve("ws")].exports = WithToken;
const { default: Client } = require("./build/index.js");
const client = new Client({ transport: { type: "websocket", host: "127.0.0.1", port: Number(port), path: "/ws" } });
const events = [];
client.onNotification((event) => events.push(event.method));
(async () => {
  const met = await client.initialize(1, { name: "generated" }, token);
  await client["sessions.subscribe"]();
  const sent = await client["chat.send"]("main", "hello");
  const ended = await client["agent.wait"](sent.runId);
  const listed = await client.sessions_list(null, 1);
  const page = await client.sessions_history("main", 10);
  const refused = await client["sessions.preview"]([]).catch((errors) => errors.length);
  const missing = await client.sessions_history("agent:main:none").catch((error) => error.code);
  console.log(JSON.stringify({ met, ended, listed, page, refused, missing, events }));
  process.exit(0);
})().catch((error) => {
  console.error(JSON.stringify(error), String(error));
  process.exit(1);
});
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture
def tools() -> Path:
    """A folder with the generator in `generator`, and the packages of its clients in `client`."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    tools = cache / "sessiond" / "test-agents" / "openrpc-generator-1.22.3"
    for name, packages in (("generator", (GENERATOR,)), ("client", PACKAGES)):
        folder = tools / name
        if (folder / "done").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise two packages have their own copies, with incompatible types.
        (folder / "package.json").write_text(json.dumps({"overrides": {"@open-rpc/meta-schema": "1.14.9"}}))
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            pytest.skip(f"{packages[0]} cannot be installed: {done.stderr.strip()[-300:]}")
        (folder / "done").touch()
    return tools


def generate(document: dict[str, Any], folder: Path, tools: Path) -> Path:
    """The generated client, compiled.

    Three faults of the generator are corrected in its output: properties with a dot in their names need quotes;
    `sessions_list` and `sessions.list` are one name to it, so that the second is left out; and it checks params by name
    as if they were by position.
    """
    folder.mkdir()
    methods = [method for method in document["methods"] if method["name"] != "sessions.list"]
    (folder / "openrpc.json").write_text(json.dumps({**document, "methods": methods}))
    generator = str(tools / "generator/node_modules/.bin/open-rpc-generator")
    run(generator, "generate", "-t", "client", "-l", "typescript", "-n", "generated", "-d", "openrpc.json", cwd=folder)
    client = folder / "client/typescript"
    source = client / "src/index.ts"
    text = re.sub(r"^  public (\w+(?:\.\w+)+): ", r'  public "\1": ', source.read_text(), flags=re.MULTILINE)
    by_name = '_.zipObject(_.map(methodObject.params, "name"), params) as any'
    assert text.count("validate(methodName, params)") == 1
    source.write_text(text.replace("validate(methodName, params)", f"validate(methodName, {by_name})"))
    (client / "node_modules").symlink_to(tools / "client/node_modules")
    run(str(tools / "client/node_modules/.bin/tsc"), cwd=client)
    return client


def test_a_generated_client_calls_the_daemon(tmp_path: Path, tools: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.port = free_port()
    agent = 'agents.list = [{ id = "main", runtime = { type = "echo" } }]'
    daemon.start(f'{agent}\nhttp.listen = "127.0.0.1:{daemon.port}"\n')
    try:
        client = generate(daemon.call("rpc.discover"), tmp_path / "client", tools)
        daemon.call("sessions.create", key="main")
        token = daemon.call("tokens.mint", scopes=["list", "read", "send"], sessionKey="main")["token"]
        (client / "try.js").write_text(SCRIPT)
        said = json.loads(run("node", "try.js", str(daemon.port), token, cwd=client))
    finally:
        daemon.kill()
    assert said["met"]["caller"]["scopes"] == ["list", "read", "send"]
    assert said["ended"]["status"] == "ok"
    assert [row["key"] for row in said["listed"]["sessions"]] == ["main"]
    assert [message["role"] for message in said["page"]["messages"]] == ["user", "assistant"]
    assert {"session.message", "sessions.changed"} <= set(said["events"])
    # The client itself refuses by the schema; the daemon's own errors reach the caller.
    assert (said["refused"], said["missing"]) == (1, -32002)
