"""Real agent programs from the npm registry, which use a model server on loopback. Run by `just test-agents`."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

HERE = Path(__file__).parent
ACP_SCHEMA = "https://registry.npmjs.org/@agentclientprotocol/sdk/-/sdk-2.4.0.tgz"
PATH = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")


class ModelServer:
    """The stub model server as a process; `requests()` are the bodies that it got so far."""

    def __init__(self, log: Path) -> None:
        self._log = log
        command = [sys.executable, str(HERE / "model_server.py"), "--log", str(log)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Program(msgspec.Struct, frozen=True):
    """A package of the registry, and how its program is configured to use the model server."""

    name: str
    package: str
    version: str
    model: str
    setup: Callable[[Path, int], dict[str, str]]
    extra: tuple[str, ...] = ()
    # A script of the package that installs the program, which npm no longer runs by itself.
    installer: str | None = None


def _claude(home: Path, port: int) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ANTHROPIC_API_KEY": "stub",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _codex(home: Path, port: int) -> dict[str, str]:
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex" / "config.toml").write_text(
        'model_provider = "local"\n[model_providers.local]\nname = "local"\nwire_api = "responses"\n'
        f'base_url = "http://127.0.0.1:{port}/v1"\nenv_key = "STUB_KEY"\n'
    )
    return {"STUB_KEY": "stub"}


def _gemini(home: Path, port: int) -> dict[str, str]:
    (home / ".gemini").mkdir(exist_ok=True)
    (home / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    return {
        "GEMINI_API_KEY": "stub",
        "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


def _opencode(home: Path, port: int) -> dict[str, str]:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    options = {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "stub"}
    config = {"autoupdate": False, "share": "disabled", "provider": {"anthropic": {"options": options}}}
    (folder / "opencode.json").write_text(json.dumps({**config, "small_model": "anthropic/claude-sonnet-4-5"}))
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _pi(home: Path, port: int) -> dict[str, str]:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_text(
        json.dumps({"providers": {"anthropic": {"baseUrl": f"http://127.0.0.1:{port}"}}})
    )
    return {"PI_OFFLINE": "1", "ANTHROPIC_API_KEY": "stub"}


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "claude",
            "@anthropic-ai/claude-code",
            "2.1.329",
            "claude-sonnet-4-5",
            _claude,
            ("--allowedTools", "Bash"),
            "install.cjs",
        ),
        # Its own sandbox does not work from a temporary folder.
        Program("codex", "@openai/codex", "0.169.0", "gpt-5", _codex, ("--dangerously-bypass-approvals-and-sandbox",)),
        Program("gemini", "@google/gemini-cli", "0.61.0", "gemini-2.5-pro", _gemini, ("--yolo",)),
        Program("opencode", "opencode-ai", "1.18.33", "anthropic/claude-sonnet-4-5", _opencode),
        Program("pi", "@mariozechner/pi-coding-agent", "0.73.1", "anthropic/claude-sonnet-4-5", _pi),
    )
}


def install(program: Program) -> Path | str:
    """The program's path, after installing it if needed; or why it cannot be installed."""
    folder = _install(
        f"{program.name}-{program.version}",
        [f"{program.package}@{program.version}"],
        program.package,
        program.installer,
    )
    return folder if isinstance(folder, str) else folder / ".bin" / program.name


def _install(name: str, packages: list[str], package: str, installer: str | None = None) -> Path | str:
    """The folder `node_modules` with these packages; or why they cannot be installed."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return "npm is not installed"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "sessiond" / "test-agents" / name
    if (folder / "done").exists():
        return folder / "node_modules"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text("{}")
    steps = [[npm, "install", "--no-audit", "--no-fund", *packages]]
    if installer is not None:
        steps.append([node, str(folder / "node_modules" / package / installer)])
    for step in steps:
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            return f"{package} cannot be installed: {done.stderr.strip()[-300:]}"
    (folder / "done").touch()
    return folder / "node_modules"


# The adapters of programs that do not speak ACP themselves, with the variable that names the program. That of Claude
# Code needs a newer Node.js than many systems have.
ADAPTERS = {
    "claude": ("@agentclientprotocol/claude-agent-acp", "0.101.0", "CLAUDE_CODE_EXECUTABLE", "22.23.3"),
    "codex": ("@agentclientprotocol/codex-acp", "2.6.0", "CODEX_PATH", None),
}
_NODE = f"node-linux-{ {'x86_64': 'x64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"


def install_adapter(program: Program, path: Path) -> tuple[list[str], dict[str, str]] | str:
    """The `command` of an agent that speaks ACP and the variables that it needs; or why it cannot be installed."""
    if program.name not in ADAPTERS:
        return [str(path)], {}
    package, version, variable, node = ADAPTERS[program.name]
    packages = [f"{package}@{version}", *([f"{_NODE}@{node}"] if node is not None else [])]
    folder = _install(f"{program.name}-acp-{version}", packages, package)
    if isinstance(folder, str):
        return folder
    adapter = str(folder / ".bin" / package.rpartition("/")[2])
    command = [adapter] if node is None else [str(folder / _NODE / "bin" / "node"), adapter]
    return command, {variable: str(path)}


@pytest.fixture
def speaker(program: Program, program_path: Path) -> tuple[list[str], dict[str, str]]:
    """The `command` and the variables of `program` as an agent that speaks ACP."""
    found = install_adapter(program, program_path)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(params=sorted(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.fixture
def program_path(program: Program) -> Path:
    path = install(program)
    if isinstance(path, str):
        pytest.skip(path)
    return path


@pytest.fixture
def acpx() -> Path:
    """A client of the Agent Client Protocol for the command line."""
    path = install(Program("acpx", "acpx", "0.19.1", "", lambda home, port: {}))
    if isinstance(path, str):
        pytest.skip(path)
    return path


@pytest.fixture
def acp_schema() -> dict[str, Any]:
    """The schema of the Agent Client Protocol, version 1."""
    try:
        packed = httpx.get(ACP_SCHEMA, timeout=60).raise_for_status().content
    except httpx.HTTPError as error:
        pytest.skip(f"the schema cannot be fetched from the npm registry: {error}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        file = archive.extractfile("package/schema/v1/schema.json")
        assert file is not None
        schema: dict[str, Any] = json.load(file)
    return schema


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelServer]:
    server = ModelServer(tmp_path / "requests.jsonl")
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder
