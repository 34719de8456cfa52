"""Record what the agent programs print, for the tests of the presets.

    python tests/agents/record.py [claude|codex|gemini|opencode|pi]...

Writes tests/golden/presets/<program>-<scene>.jsonl (the output, without this machine's paths, ids and times) and
<program>-<scene>.events.json (the events that the preset reads from it; check them before a commit).
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from sessiond.runtimes.output import LinesOutput, NativeSession
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.runtime import RunSpec

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "presets"
SCENES = {
    "hello": "say hello",
    "tool": "please RUN echo forty-two",
    "failing-tool": "please RUN ls /no/such/folder",
    "resumed": "and again",
}
GONE = "00000000-0000-4000-8000-000000000000"


def scrub(text: str, places: dict[str, str]) -> str:
    """`text` with paths, ids and times of this machine replaced by made-up ones; equal ones stay equal."""
    for place, name in places.items():
        text = text.replace(place, name)
    seen: dict[str, str] = {}

    def uuid(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"00000000-0000-4000-8000-{len(seen) + 1:012}")

    def ident(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"{match[1]}_{len(seen) + 1:026}")

    text = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid, text)
    text = re.sub(r"\b(ses|prt|msg)_[0-9A-Za-z]{20,}", ident, text)
    text = re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "2026-01-01T00:00:00.000Z", text)
    text = re.sub(r"(?<!\d)1[789]\d{11}(?!\d)", "1767225600000", text)
    text = re.sub(r"/cc-socks/\d+", "/cc-socks/1", text)
    return re.sub(r'("[a-z_]*(?:_ms|duration)[a-z_]*":)\d+', r"\g<1>1", text)


def run(name: str, spec: RunSpec, env: dict[str, str], command: list[str]) -> str:
    argv = PRESETS[name].command(spec, command)
    done = subprocess.run(
        argv, input=spec.message, cwd=spec.workspace, env=env, capture_output=True, text=True, check=False
    )
    print(f"{name}: status {done.returncode} {done.stderr.strip()[-200:]}")
    return done.stdout


def events(name: str, spec: RunSpec, output: str) -> list[Any]:
    lines = LinesOutput(PRESETS[name].parser(spec), 8 << 20)
    return [*lines.feed(output.encode()), *lines.end()]


def main(names: list[str]) -> None:
    loader = importlib.util.spec_from_file_location("agents", HERE / "conftest.py")
    assert loader is not None and loader.loader is not None
    agents = importlib.util.module_from_spec(loader)
    sys.modules["agents"] = agents
    loader.loader.exec_module(agents)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in names or sorted(PRESETS):
        program = agents.PROGRAMS[name]
        path = agents.install(program)
        assert isinstance(path, Path), path
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            record(Path(folder), program, path, agents)


def record(folder: Path, program: Any, path: Path, agents: Any) -> None:
    name, native = program.name, None
    (folder / "home").mkdir()
    (folder / "workspace").mkdir()
    server = agents.ModelServer(folder / "requests.jsonl")
    env = {"HOME": str(folder / "home"), "PATH": agents.PATH, "TERM": "dumb", "LANG": "C.UTF-8"}
    env.update(program.setup(folder / "home", server.port))
    places = {str(folder / "home"): "/home/user", str(folder / "workspace"): "/workspace", str(server.port): "8080"}
    places |= {re.sub(r"\W|_", "-", place): re.sub(r"\W", "-", name) for place, name in places.items()}
    for scene, message in {**SCENES, "gone": "hello"}.items():
        gone = GONE if name != "opencode" else "ses_00000000000000000000000000"
        known = {"resumed": native, "gone": gone}.get(scene)
        spec = RunSpec(
            run_id="r",
            session_key="agent:main:main",
            session_id="s",
            agent_id="main",
            message=message,
            workspace=folder / "workspace",
            socket=folder / "agent.sock",
            model=program.model,
            native_session_id=known,
        )
        raw = run(name, spec, env, [str(path), *program.extra])
        said = [event.session_id for event in events(name, spec, raw) if isinstance(event, NativeSession)]
        native = said[-1] if said else native
        if not raw:
            continue
        clean = scrub(raw, places)
        known_clean = scrub(known, {}) if known is not None else None
        spec = msgspec.structs.replace(spec, native_session_id=known_clean, workspace=Path("/workspace"))
        (GOLDEN / f"{name}-{scene}.jsonl").write_text(clean)
        found = [{"event": type(event).__name__, **msgspec.to_builtins(event)} for event in events(name, spec, clean)]
        shown = msgspec.json.format(msgspec.json.encode({"nativeSessionId": known_clean, "events": found}), indent=1)
        (GOLDEN / f"{name}-{scene}.events.json").write_bytes(shown + b"\n")
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
