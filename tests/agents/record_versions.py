"""Record the transcripts of Claude Code and Codex, of the newest versions and of older ones that wrote other forms.

    python tests/agents/record_versions.py FOLDER [claude|codex]...

FOLDER/<program>-<version>/ are the installed versions; what is missing there is installed from the registry. Writes
tests/golden/sources/<program>/<version>/, scrubbed, with bookkeeping cut to a few kB a line.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record_transcripts import GOLDEN, PAUSE, Place, load_agents
from support.scrub_transcripts import Scrubber

PACKAGES = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex"}
TOOLS = "please\nRUN echo forty-two\nRUN ls /no/such/folder"
DELEGATED = "please RUN echo seven"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
# Below these members of bookkeeping every text is the maker's.
FOREIGN = frozenset(
    {
        *("addedLines", "base_instructions", "content", "developer_instructions", "digests", "instructions", "message"),
        *("names", "rendered", "shape", "skillLines", "snapshot", "state", "systemPrompt", "text", "tools"),
        *("commit", "pr", "addedNames", "addedTypes", "builtInTypes", "user_instructions"),
    }
)
SHOWN = frozenset({"assistant", "user", "response_item", "message", "function_call", "function_call_output"})
# Scenes that another file of the version begins with, or that a version next to it writes alike.
REPEATED = frozenset({"plain", "resumed"})
LEFT_OUT = {
    "2.1.330": REPEATED | {"delegating"},
    "2.0.53": REPEATED | {"tools"},
    "0.169.0": REPEATED,
    "0.153.4": REPEATED | {"tools", "aborted"},
    "0.98.0": REPEATED | {"tools", "compacted"},
}
MAX_CHARS, MAX_ITEMS, LONG_LINE_BYTES = 300, 3, 4000


def shorten(value: Any) -> Any:
    """A decoded line of bookkeeping with long texts cut and long lists without their later items."""
    if isinstance(value, dict):
        return {name: shorten(item) for name, item in list(value.items())[:40]}
    if isinstance(value, list):
        return [shorten(item) for item in value[:MAX_ITEMS]]
    return value[:MAX_CHARS] if isinstance(value, str) else value


class VersionPlace(Place):
    """A place where one version of a program writes."""

    def __init__(self, folder: Path, binaries: Path, agents: Any, name: str, version: str) -> None:
        super().__init__(folder, binaries, agents, name)
        self.name, self.version = name, version
        # As Claude Code names folders.
        self.scrubber.add_place(re.sub("[^0-9A-Za-z]", "-", str(self.work)), "-workspace")
        self.foreign = Scrubber({**self.scrubber.places, os.uname().release: "6.1.0"}, FOREIGN)

    def save_lines(self, name: str, source: Path) -> None:
        """Save a transcript for the tests, unless it is left out."""
        if name.removesuffix(".jsonl") in LEFT_OUT.get(self.version, ()):
            return
        path = GOLDEN / self.name / self.version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for line in source.read_text().splitlines():
                body = json.loads(line)
                is_shown = body.get("type") in SHOWN
                if not is_shown and len(line) > LONG_LINE_BYTES:
                    body = shorten(body)
                scrubber = self.scrubber if is_shown else self.foreign
                file.write(scrubber.scrub_lines(json.dumps(body)))

    def talk(self, *argv: str, stdin: str = "", until: Callable[[], bool] | None = None) -> None:
        """Run the program; with `until`, interrupt it as soon as that is true."""
        process = subprocess.Popen(argv, cwd=self.work, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        while until is not None and process.poll() is None:
            if until():
                process.send_signal(signal.SIGINT)
                break
            PAUSE.wait(0.1)
        print(f"{' '.join(argv)[:60]!r}: status {process.wait(120)}")


def newest(files: list[Path]) -> Path:
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def record_claude(place: VersionPlace) -> None:
    place.env |= {"CLAUDE_CODE_MAX_RETRIES": "0"}
    projects = place.home / ".claude" / "projects"
    claude = ("claude", "-p", "--model", place.model, "--output-format", "json", "--allowedTools=Bash,Task,Agent,Read")

    def last() -> Path:
        return newest([path for path in projects.glob("*/*.jsonl") if not path.name.startswith("agent-")])

    is_old = place.version < "2.1"

    def scene(name: str, prompt: str, *more: str, until: Callable[[], bool] | None = None) -> Path:
        place.talk(*claude, *more, stdin=prompt, until=until)
        place.save_lines(f"{name}.jsonl", last())
        return last()

    first = scene("plain", "plain words please", *([] if is_old else ["--name", "the birds"]))
    resume = ("--resume", first.stem)
    scene("resumed", "and again", *resume)
    if not is_old:
        scene("fork", "in the fork", *resume, "--fork-session")
    place.talk(*claude, *resume, stdin="/compact")
    scene("compacted", "after the compaction", "--resume", last().stem)
    scene("tools", TOOLS)
    task: dict[str, Any] = {"description": "count birds", "prompt": DELEGATED, "subagent_type": "general-purpose"}
    task |= {} if is_old else {"run_in_background": False}
    parent = scene("delegating", f"please CALL {'Task' if is_old else 'Agent'} {json.dumps(task)}")
    if is_old:
        # Between the versions that wrote a sub-agent among its parent's lines and those that give it a folder, its file
        # lay beside the parent's.
        for child in parent.parent.glob("agent-*.jsonl"):
            if parent.stem in child.read_text() and "tool_result" in child.read_text():
                place.save_lines("subagent.jsonl", child)
        return
    (child,) = (parent.parent / parent.stem / "subagents").glob("*.jsonl")
    place.save_lines("subagent.jsonl", child)
    (place.work / "dot.png").write_bytes(base64.b64decode(PICTURE))
    scene("image", f'CALL Read {{"file_path": "{place.work}/dot.png"}}')
    scene("aborted", "please HANG now", until=lambda: place.has_request("please HANG"))
    scene("command", "/context")
    scene("delegating-renamed", "/rename Birds in the yard", "--resume", parent.stem)
    record_typed_meanwhile(place, claude)
    place.save_lines("meanwhile.jsonl", last())
    record_terminal(place)
    place.save_lines("terminal.jsonl", last())
    place.env["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
    scene("failed", "to nobody")


def record_typed_meanwhile(place: VersionPlace, claude: tuple[str, ...]) -> None:
    """A picture, a slow tool, and a message that is typed while the tool runs."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    argv = [*claude, "--output-format", "stream-json", "--input-format", "stream-json", "--verbose"]
    process = subprocess.Popen(argv, cwd=place.work, env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None

    def say(content: Any) -> None:
        assert process.stdin is not None
        body = {"type": "user", "message": {"role": "user", "content": content}}
        process.stdin.write(json.dumps(body).encode() + b"\n")
        process.stdin.flush()

    def wait(sign: bytes) -> None:
        assert process.stdout is not None
        while sign not in (line := process.stdout.readline()) and line:
            pass

    say([{"type": "text", "text": "see this picture"}, image])
    wait(b'"type":"result"')
    say("RUN sleep 3; echo done")
    wait(b'"tool_use"')
    PAUSE.wait(1)
    say("while you work")
    wait(b'"type":"result"')
    process.stdin.close()
    process.wait(60)


def record_terminal(place: VersionPlace) -> None:
    """What a person at a terminal does: commands of the shell, an interruption, a title, another beginning."""
    settings = place.home / ".claude.json"
    known = json.loads(settings.read_text()) if settings.exists() else {}
    place.env |= {"ANTHROPIC_API_KEY": "sk-ant-stub-00000000000000000000000000", "TERM": "xterm-256color"}
    projects = {str(place.work): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
    known |= {"hasCompletedOnboarding": True, "theme": "dark", "projects": projects}
    known |= {"customApiKeyResponses": {"approved": ["0" * 20], "rejected": []}}
    settings.write_text(json.dumps(known))
    child, terminal = pty.fork()
    if not child:
        os.chdir(place.work)
        os.execvpe("claude", ["claude", "--model", place.model, "--allowedTools=Bash"], place.env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def drain(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    os.read(terminal, 65536)
                except OSError:
                    return

    def press(keys: str, seconds: float) -> None:
        os.write(terminal, keys.encode())
        drain(seconds)

    def say(text: str, seconds: float = 4) -> None:
        press(text, 0.5)
        press("\r", seconds)

    drain(8)
    say("hello from the terminal")
    say("!echo by-hand")
    say(TOOLS.replace("\n", " "))
    say("please HANG now")
    press("\x1b", 2)
    press("\x15", 1)
    say("/rename Birds at the terminal")
    say("/compact", 8)
    say("after the compaction")
    say("/exit")
    os.close(terminal)
    os.waitpid(child, 0)


def record_codex(place: VersionPlace) -> None:
    sessions = place.home / ".codex" / "sessions"
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", place.model)
    codex = ("codex", "exec", *options)

    def last() -> Path:
        return newest(list(sessions.glob("*/*/*/*.jsonl")))

    def scene(name: str, *argv: str, until: Callable[[], bool] | None = None) -> Path:
        place.talk(*codex, *argv, until=until)
        place.save_lines(f"{name}.jsonl", last())
        return last()

    is_first = place.version in ("0.20.0", "0.47.0")
    scene("tools", TOOLS)
    if place.version == "0.20.0":
        return
    first = scene("plain", "plain words please")
    native = first.stem[-36:]
    scene("aborted", "please HANG now", until=lambda: place.has_request("please HANG"))
    if is_first:
        return
    scene("resumed", "resume", native, "and again")
    compact = ("-c", "model_auto_compact_token_limit=50")
    scene("compacted", "resume", native, *compact, "please\nRUN echo three")
    if place.version == "0.153.4":
        return
    if place.version == "0.98.0":
        newer = place.env["PATH"].replace("codex-0.98.0", "codex-0.169.0")
        place.talk("env", f"PATH={newer}", *codex, "resume", native, "by the newer program")
        place.save_lines("continued-by-0.169.jsonl", first)
        return
    scene("fork", "fork", native, "in the fork")
    (place.work / "dot.png").write_bytes(base64.b64decode(PICTURE))
    scene("image", "--image=dot.png", "see the picture")
    patch = "*** Begin Patch\n*** Add File: birds.txt\n+heron\n*** End Patch"
    scene("patch", f"CALL apply_patch {json.dumps({'input': patch})}")
    record_app_server(place, sessions)


class AppServer:
    """Codex's app server: what only it does."""

    def __init__(self, place: VersionPlace) -> None:
        self.process = subprocess.Popen(
            ["codex", "app-server"], cwd=place.work, env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.fixed = {"cwd": str(place.work), "model": place.model, "approvalPolicy": "never"}
        self.call("initialize", clientInfo={"name": "recorder", "version": "1"}, capabilities={"experimentalApi": True})
        self.send(method="initialized")

    def send(self, **body: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(body).encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, name: str, value: Any, thread: str | None = None) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            body = json.loads(line)
            if body.get(name) == value and thread in (None, body.get("params", {}).get("threadId")):
                return body
        raise EOFError(value)

    def call(self, method: str, **params: Any) -> Any:
        self.send(id=method, method=method, params=params)
        return self.wait("id", method)["result"]

    def start(self, mode: str) -> str:
        started = self.call("thread/start", historyMode=mode, sandbox="danger-full-access", **self.fixed)
        return str(started["thread"]["id"])

    def turn(self, thread: str, text: str) -> None:
        self.call("turn/start", threadId=thread, input=[{"type": "text", "text": text}])
        self.wait("method", "turn/completed", thread)


def record_app_server(place: VersionPlace, sessions: Path) -> None:
    """The older mode of history, names, a compaction on request, a fork that copies, a sub-agent."""
    server = AppServer(place)

    def save(name: str, thread: str) -> None:
        place.save_lines(f"{name}.jsonl", newest(list(sessions.glob(f"*/*/*/*{thread}.jsonl"))))

    for mode in ("legacy", "paginated"):
        thread = server.start(mode)
        server.turn(thread, TOOLS)
        server.call("thread/name/set", threadId=thread, name="Birds in the yard")
        server.call("thread/compact/start", threadId=thread)
        server.wait("method", "turn/completed", thread)
        server.turn(thread, "after the compaction")
        save(mode, thread)
        if mode == "legacy":
            fork = str(server.call("thread/fork", threadId=thread)["thread"]["id"])
            server.turn(fork, "in the fork")
            save("legacy-fork", fork)
    record_subagent(server, sessions, save)
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(60)


def record_subagent(server: AppServer, sessions: Path, save: Callable[[str, str], None]) -> None:
    """A session that delegates, and the one of its sub-agent."""
    thread = server.start("paginated")
    before = set(sessions.glob("*/*/*/*.jsonl"))
    server.turn(thread, f"CALL multi_agent_v1/spawn_agent {json.dumps({'message': DELEGATED})}")
    (child,) = {path for path in sessions.glob("*/*/*/*.jsonl") if thread not in path.name} - before
    while "task_complete" not in child.read_text():
        PAUSE.wait(0.1)
    save("delegating", thread)
    save("subagent", child.stem[-36:])


VERSIONS = {
    "claude": (record_claude, ("2.1.330", "2.0.53", "2.0.20", "1.0.60")),
    "codex": (record_codex, ("0.169.0", "0.153.4", "0.98.0", "0.47.0", "0.20.0")),
}


def install(folder: Path, name: str, version: str) -> Path:
    """The folder with the program, after installing it if needed."""
    place = folder / f"{name}-{version}"
    if not (place / "node_modules" / ".bin" / name).exists():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", str(place), f"{PACKAGES[name]}@{version}"], check=True)
        installer = place / "node_modules" / PACKAGES[name] / "install.cjs"
        if installer.exists():
            subprocess.run(["node", str(installer)], check=True)
    return place / "node_modules" / ".bin"


def main(folder: Path, names: list[str]) -> None:
    agents = load_agents()
    for name in names or sorted(VERSIONS):
        recorder, versions = VERSIONS[name]
        for version in versions:
            binaries = install(folder, name, version)
            with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
                place = VersionPlace(Path(scratch), binaries, agents, name, version)
                try:
                    recorder(place)
                finally:
                    place.server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
