"""Record the transcripts that programs write, for the tests of their dialects.

    python tests/agents/record_transcripts.py BIN [gemini|opencode|pi]...

BIN is a folder with the programs (`npm install @google/gemini-cli opencode-ai @earendil-works/pi-coding-agent`, the
newest ones: the versions pinned in conftest.py are older). Writes tests/golden/sources/<program>/, scrubbed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
GOLDEN = HERE.parent / "golden" / "sources"
TOOL = "please RUN echo forty-two"
PAUSE = threading.Event()

from support.scrub_transcripts import Scrubber  # noqa: E402

# An extension for pi: goes back to the second message with a summary, and writes what extensions write.
PI_EXTENSION = """
export default function (pi) {
  pi.registerCommand("back", { description: "go back", handler: async (args, ctx) => {
    const typed = ctx.sessionManager.getEntries().filter((e) => e.type === "message" && e.message.role === "user");
    await ctx.navigateTree(typed[1].id, { summarize: true });
    pi.sendMessage({ customType: "note", content: "an injected note", display: true });
    pi.appendEntry("state", { count: 1 });
  }});
}
"""


class Place:
    """A home and a workspace of a program, with a model server."""

    def __init__(self, folder: Path, binaries: Path, agents: Any, name: str) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.server = agents.ModelServer(folder / "requests.jsonl")
        path = f"{binaries}:{agents.PATH}"
        self.env = {"HOME": str(self.home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8"}
        self.env |= agents.PROGRAMS[name].setup(self.home, self.server.port)
        self.model: str = agents.PROGRAMS[name].model
        self.scrubber = Scrubber(
            {
                str(self.home): "/home/user",
                str(self.work): "/workspace",
                str(folder): "/folder",
                str(self.work).lstrip("/"): "workspace",
                str(self.work).replace("/", "-"): "-workspace",
                f":{self.server.port}": ":8080",
            },
            frozenset({"sections", "toolsAdded", "systemMessage"}),
        )

    def run(self, *argv: str, given: str = "", until: Callable[[], bool] | None = None) -> None:
        """Run a program to its end, with `given` on its standard input; with `until`, interrupt it then."""
        process = subprocess.Popen(argv, cwd=self.work, env=self.env, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        while until is not None and process.poll() is None:
            if until():
                process.send_signal(2)
                break
            PAUSE.wait(0.1)
        print(f"{argv[0]}: status {process.wait(120)}")

    def save(self, name: str, source: Path) -> None:
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.scrubber.scrub_lines(source.read_text()))

    def has_request(self, text: str) -> bool:
        return any(text in json.dumps(request) for request in self.server.requests())


def record_pi(place: Place) -> None:
    settings = {"compaction": {"keepRecentTokens": 1}}
    (place.home / ".pi" / "agent" / "settings.json").write_text(json.dumps(settings))
    extension = place.home / "back.ts"
    extension.write_text(PI_EXTENSION)
    process = subprocess.Popen(
        ["pi", "--mode", "rpc", "--model", place.model, "-e", str(extension)],
        cwd=place.work,
        env=place.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def send(**command: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()

    def wait(kind: str, command: str | None = None) -> Any:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event.get("type") == kind and event.get("command") == command:
                return event
        return None

    def call(**command: Any) -> Any:
        send(**command)
        return wait("response", command["type"])

    def prompt(message: str) -> None:
        send(type="prompt", message=message)
        wait("agent_end")

    prompt(TOOL)
    call(type="bash", command="echo by-hand")
    send(type="prompt", message="please HANG now")
    wait("message_update")
    send(type="abort")
    wait("agent_end")
    prompt("and again")
    print("compact:", call(type="compact").get("error"))
    prompt("after the compaction")
    call(type="set_session_name", name="Birds in the yard")
    call(type="prompt", message="/back")
    prompt("on the other branch")
    call(type="set_thinking_level", level="high")
    entries = call(type="get_entries")["data"]["entries"]
    typed = [one["id"] for one in entries if one["type"] == "message" and one["message"]["role"] == "user"]
    call(type="fork", entryId=typed[1])
    prompt("in the fork")
    process.stdin.close()
    process.wait(60)
    first, fork = sorted((place.home / ".pi" / "agent" / "sessions").glob("*/*.jsonl"))
    place.save("pi/session.jsonl", first)
    place.save("pi/fork.jsonl", fork)


def record_gemini(place: Place) -> None:
    gemini = ("gemini", "-m", place.model, "--yolo")
    settings = place.home / ".gemini" / "settings.json"
    plain = settings.read_text()

    def chats() -> list[Path]:
        return sorted((place.home / ".gemini" / "tmp").glob("*/chats/*.jsonl"), key=os.path.getmtime)

    def scene(name: str) -> None:
        place.save(f"gemini/{name}.jsonl", chats()[-1])
        for path in chats():
            path.unlink()

    place.run(*gemini, "-p", TOOL)
    place.save("gemini/tool.jsonl", chats()[-1])
    PAUSE.wait(61 - time.time() % 60)  # what resumes within a minute writes into the same file
    place.run(*gemini, "--resume", "latest", "-p", "and again")
    scene("resumed")
    place.run(*gemini, "-p", TOOL)
    settings.write_text(json.dumps({**json.loads(plain), "model": {"compressionThreshold": 0.00001}}))
    place.run(*gemini, "--resume", "latest", "-p", "and again")
    settings.write_text(plain)
    scene("compressed")
    task = json.dumps({"agent_name": "generalist", "prompt": TOOL})
    place.run(*gemini, "-p", f"please CALL invoke_agent {task}")
    (child,) = (place.home / ".gemini" / "tmp").glob("*/chats/*/*.jsonl")
    place.save("gemini/subagent.jsonl", child)
    scene("delegating")


def record_opencode(place: Place) -> None:
    run = ("opencode", "run", "--model", place.model)
    place.run(*run, given=TOOL)
    place.run(*run, "--continue", given="and again")
    place.run(*run, "--continue", "--fork", given="in the fork")
    task = json.dumps({"description": "count birds", "prompt": TOOL, "subagent_type": "general"})
    place.run(*run, given=f"please CALL task {task}")
    hang = "please HANG now"
    place.run(*run, "--title", "Birds in the yard", given=hang, until=lambda: place.has_request(hang))
    database = place.home / ".local" / "share" / "opencode" / "opencode.db"
    (GOLDEN / "opencode").mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(database) as connection:
        (GOLDEN / "opencode" / "opencode.sql").write_text("\n".join(dump_opencode(connection, place.scrubber)) + "\n")


def dump_opencode(connection: sqlite3.Connection, scrubber: Scrubber) -> Iterator[str]:
    """The tables that a reader may use, as SQL, with one row of `event` a line."""
    for table in ("event", "session", "message", "part"):
        (schema,) = connection.execute("select sql from sqlite_master where type = 'table' and name = ?", (table,))
        yield f"{' '.join(schema[0].split())};"
        for row in connection.execute(f"select * from {table} order by rowid"):
            values = [scrub_cell(value, scrubber) for value in row]
            yield f"insert into {table} values ({', '.join(map(quote, values))});"
    for (index,) in connection.execute("select sql from sqlite_master where type = 'index' and tbl_name = 'event'"):
        if index is not None:
            yield f"{' '.join(index.split())};"


def scrub_cell(value: Any, scrubber: Scrubber) -> Any:
    if not isinstance(value, str):
        return value
    if value[:1] in "{[":
        return json.dumps(scrubber.scrub(json.loads(value)), separators=(",", ":"))
    return scrubber.scrub(value)


def quote(value: Any) -> str:
    return "null" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


RECORDERS = {"gemini": record_gemini, "opencode": record_opencode, "pi": record_pi}


def load_agents() -> Any:
    """The module conftest.py of this folder."""
    loader = importlib.util.spec_from_file_location("agents", HERE / "conftest.py")
    assert loader is not None and loader.loader is not None
    agents = importlib.util.module_from_spec(loader)
    sys.modules["agents"] = agents
    loader.loader.exec_module(agents)
    return agents


def main(binaries: Path, names: list[str]) -> None:
    agents = load_agents()
    for name in names or sorted(RECORDERS):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            place = Place(Path(folder), binaries, agents, name)
            try:
                RECORDERS[name](place)
            finally:
                place.server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
