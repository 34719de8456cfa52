"""What a sandboxed agent sees, tried from inside: as the user of the tests, and as an ordinary one if that is root."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from support.bubblewrap_runtime import OTHER, RELATIVE, UUID, runtime
from support.patience import PATIENCE_S

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.runtimes.exec import ExecRuntime
from sessiond.runtimes.runtime import RunOutcome
from sessiond.runtimes.sandbox import Bubblewrap

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


PROBE = f"""
import json, os, socket
def can(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__ + ' ' + os.strerror(error.errno)
    return True
def write(path):
    with open(path, 'w') as file:
        file.write('x')
def connect(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
def tcp():
    socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 5).close()
store = os.environ['STORE']
print(json.dumps({{
    'attachment': open('{RELATIVE}/notes.txt').read(),
    'write attachment': can(lambda: write('{RELATIVE}/notes.txt')),
    'add attachment': can(lambda: write('{RELATIVE}/new.txt')),
    'attachments': os.listdir('.openclaw/attachments'),
    'write workspace': can(lambda: write('made.txt')),
    'store': sorted(os.listdir(store)),
    'transcript': can(lambda: open(store + '/agents/main/sessions/x.jsonl')),
    'sessiond.sock': can(lambda: connect(store + '/run/sessiond.sock')),
    'agent.sock by its path outside': can(lambda: connect(store + '/run/agent.sock')),
    'agent.sock': can(lambda: connect(os.environ['SESSIOND_SOCKET'])),
    'token': open(os.environ['SESSIOND_TOKEN_FILE']).read(),
    'run': sorted(os.listdir('/run/sessiond')),
    'home': os.listdir(os.environ['HOME']),
    'homes': os.listdir('/home'),
    'real home': can(lambda: os.listdir(os.environ['REAL_HOME'])),
    'tmp': [name for name in os.listdir('/tmp') if not store.startswith('/tmp/' + name)],
    'write /usr': can(lambda: write('/usr/x')),
    'write /': can(lambda: write('/x')),
    'write /etc': can(lambda: write('/etc/x')),
    'shadow': can(lambda: open('/etc/shadow')),
    'processes': len([name for name in os.listdir('/proc') if name.isdigit()]) < 6,
    'network': can(tcp),
    'descriptors': sorted(os.listdir('/proc/self/fd'))[:3] == ['0', '1', '2'] and len(os.listdir('/proc/self/fd')) == 4,
    'capabilities': [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')],
    'owner': os.stat('made.txt').st_uid == os.getuid(),
}}))
"""
NO_FILE = "FileNotFoundError No such file or directory"
READ_ONLY = "OSError Read-only file system"


def expected(network: object) -> dict[str, object]:
    return {
        "attachment": "the attachment",
        "write attachment": READ_ONLY,
        "add attachment": READ_ONLY,
        "attachments": [UUID],
        "write workspace": True,
        "store": ["agents"],
        "transcript": NO_FILE,
        "sessiond.sock": NO_FILE,
        "agent.sock by its path outside": NO_FILE,
        "agent.sock": True,
        "token": "the token",
        "run": ["agent.sock", "token"],
        "home": [],
        "homes": ["agent"],
        "real home": NO_FILE,
        "tmp": [],
        "write /usr": READ_ONLY,
        "write /": READ_ONLY,
        "write /etc": READ_ONLY,
        "shadow": NO_FILE,
        "processes": True,
        "network": network,
        "descriptors": True,
        "capabilities": ["0000000000000000"] * 5,
        "owner": True,
    }


async def probe(sandboxed: Any, store: Path, recorder: Any, *, network: bool) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcome = await runtime(
            "/usr/bin/python3",
            "-c",
            PROBE,
            store=store,
            config=SandboxConfig(network=network),
            STORE=str(store),
            REAL_HOME=str(Path.home()),
            PORT=str(server.getsockname()[1]),
        ).run(sandboxed(), recorder)
    assert outcome.error is None, outcome
    assert outcome.reply is not None
    return json.loads(outcome.reply)


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_inside_is_what_the_run_needs_and_nothing_else(sandboxed, store, recorder) -> None:
    seen = await probe(sandboxed, store, recorder, network=False)
    assert seen == expected("ConnectionRefusedError Connection refused")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_network_is_there_when_the_configuration_says_so(sandboxed, store, recorder) -> None:
    assert await probe(sandboxed, store, recorder, network=True) == expected(True)


@pytest.mark.usefixtures("needs_bubblewrap")
def test_an_ordinary_user_has_the_same_sandbox(store: Path, tmp_path: Path) -> None:
    """This file once more, in a process of its own, as nobody."""
    if os.getuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    python = _python_for_nobody()
    if python is None:
        pytest.skip(
            "an ordinary user cannot read the Python that the tests run in, nor is there another of its version"
        )
    tests, project = Path(__file__).parent, Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "sessiond-tests")
        shutil.copytree(project / "sessiond", copy / "sessiond", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "tests" / "support").mkdir(parents=True)
        home = Path(folder, "home")
        home.mkdir()
        for name in ("test_sandbox.py", "test_sandbox_walls.py", "conftest.py"):
            shutil.copy(tests / name, copy / "tests")
        for name in ("bubblewrap_runtime.py", "patience.py"):
            shutil.copy(project / "tests" / "support" / name, copy / "tests" / "support")
        (copy / "pytest.ini").write_text(
            "[pytest]\ntrio_mode = true\npythonpath = tests\naddopts = --import-mode=importlib -p no:cacheprovider\n"
        )
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        done = subprocess.run(
            [
                *AS_NOBODY,
                python,
                "-m",
                "pytest",
                "-q",
                "-rs",
                "--basetemp",
                str(copy / "tmp"),
                str(copy / "tests"),
                "-k",
                "not ordinary_user and not outlives",
            ],
            cwd=copy,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": os.pathsep.join([str(copy), *_packages()])},
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    if "bubblewrap" in done.stdout:
        pytest.skip("no sandbox for an ordinary user: " + done.stdout.strip().splitlines()[-2])


def _packages() -> list[str]:
    return [path for path in sys.path if path.endswith("-packages")]


def _python_for_nobody() -> str | None:
    """This Python, else the system's of the same version, whichever an ordinary user can start with our packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"
    for python in (sys.executable, f"/usr/bin/python{version}"):
        done = subprocess.run(
            # setpriv starts what its user may not; what that Python starts itself is another matter.
            [*AS_NOBODY, python, "-c", f"import pytest, trio, msgspec, hypothesis; {again}"],
            env={"PYTHONPATH": os.pathsep.join(_packages()), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            check=False,
            capture_output=True,
        )
        if done.returncode == 0:
            return python
    return None


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_attachments_are_also_where_the_spawn_asked_for_them(sandboxed, store, recorder) -> None:
    spec = sandboxed(mount_path="/mnt/in")
    outcome = await runtime("/bin/sh", "-c", "cat /mnt/in/notes.txt; echo x >/mnt/in/y", store=store).run(
        spec, recorder
    )
    assert outcome.error is not None
    assert "Read-only file system" in outcome.error
    assert recorder.deltas == ["the attachment"]


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
@pytest.mark.parametrize("path", ["/", "/usr", "/usr/lib", "/etc/x", "/proc", "/run", "/run/sessiond", "/lib/x"])
async def test_attachments_are_not_mounted_over_something_else(sandboxed, store, recorder, path) -> None:
    outcome = await runtime("true", store=store).run(sandboxed(mount_path=path), recorder)
    assert outcome == RunOutcome(
        error=f"attachments cannot be mounted at {path}: choose a folder of its own, like /mnt/attachments"
    )


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_attachments_are_not_mounted_over_the_workspace(sandboxed, store, recorder) -> None:
    for path in (store, store / "agents" / "main" / "workspace", store / "agents" / "main" / "workspace" / "x"):
        outcome = await runtime("true", store=store).run(sandboxed(mount_path=str(path)), recorder)
        assert outcome.error is not None
        assert outcome.error.startswith("attachments cannot be mounted at ")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_attachments_that_come_later_to_other_sessions_stay_hidden(sandboxed, store, recorder, tmp_path) -> None:
    workspace = tmp_path / "fresh"
    workspace.mkdir()
    spec = sandboxed(workspace=workspace, attachments=None)
    os.mkfifo(workspace / "go")
    script = "echo up; cat go >/dev/null; ls .openclaw/attachments"

    async def come_later() -> None:
        await recorder.arrived.wait()
        (workspace / ".openclaw" / "attachments" / OTHER).mkdir()
        await trio.to_thread.run_sync((workspace / "go").write_text, "go")

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_later)
            assert await runtime("/bin/sh", "-c", script, store=store).run(spec, recorder) == RunOutcome(reply="up")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_link_in_the_place_of_the_attachments_is_refused(sandboxed, store, recorder, tmp_path) -> None:
    workspace = tmp_path / "linked"
    workspace.mkdir()
    (workspace / ".openclaw").symlink_to("/root")
    outcome = await runtime("true", store=store).run(sandboxed(workspace=workspace), recorder)
    assert outcome == RunOutcome(error="a symbolic link stands in the workspace where the attachments are")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_workspace_that_holds_the_store_is_refused(sandboxed, store, recorder) -> None:
    for workspace in (store, store.parent, Path("/")):
        outcome = await runtime("true", store=store).run(sandboxed(workspace=workspace), recorder)
        assert outcome == RunOutcome(error=f"{workspace} holds the daemon's own files, which a sandbox must not see")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_folder_of_the_store_is_not_mounted_read_only_either(sandboxed, store, recorder) -> None:
    config = SandboxConfig(read_only=(store / "agents",))
    outcome = await runtime("true", store=store, config=config).run(sandboxed(), recorder)
    assert outcome == RunOutcome(error=f"{store}/agents holds the daemon's own files, which a sandbox must not see")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_program_outside_the_system_is_there_with_its_packages(sandboxed, store, recorder, tmp_path) -> None:
    package = tmp_path / "npm" / "node_modules" / "agent"
    package.mkdir(parents=True)
    (package / "text").write_text("from the package\n")
    (package / "cli").write_text('#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/text"\n')
    (package / "cli").chmod(0o755)
    (tmp_path / "npm" / "bin").mkdir()
    (tmp_path / "npm" / "bin" / "agent").symlink_to("../node_modules/agent/cli")
    (tmp_path / "npm" / "secret").write_text("not for the agent")
    for command in (str(tmp_path / "npm" / "bin" / "agent"), str(package / "cli")):
        outcome = await runtime(command, store=store).run(sandboxed(), recorder)
        assert outcome == RunOutcome(reply="from the package")
    (tmp_path / "npm" / "bin" / "look").write_text(f"#!/bin/sh\ncat {tmp_path}/npm/secret {tmp_path}/npm/extra\n")
    (tmp_path / "npm" / "bin" / "look").chmod(0o755)
    (tmp_path / "npm" / "extra").write_text("asked for")
    config = SandboxConfig(read_only=(tmp_path / "npm" / "extra",))
    outcome = await runtime("look", store=store, config=config, PATH=f"{tmp_path}/npm/bin:/bin").run(
        sandboxed(), recorder
    )
    assert outcome.error is not None
    assert "No such file" in outcome.error
    assert recorder.deltas[-1] == "asked for"


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_command_that_is_not_there_is_named(sandboxed, store, recorder) -> None:
    outcome = await runtime("no-such-program", store=store).run(sandboxed(), recorder)
    assert outcome == RunOutcome(
        error="command not found: no-such-program (give its full path, or set PATH in the runtime's env)"
    )


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_environment_is_in_no_argv(sandboxed, store, recorder) -> None:
    script = "echo up; tr '\\0' '\\n' </proc/1/cmdline; echo key=$API_KEY"
    outcome = await runtime("/bin/sh", "-c", script, store=store, API_KEY="s3cret").run(sandboxed(), recorder)
    assert outcome.reply is not None
    assert outcome.reply.count("s3cret") == 1
    assert outcome.reply.endswith("key=s3cret")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_memory_has_the_limit_of_the_configuration(sandboxed, store, recorder) -> None:
    def run(mebibytes: int) -> Any:
        config = SandboxConfig(memory_max_bytes=256 << 20)
        code = f"len(bytearray({mebibytes} << 20)); print('fine')"
        return runtime("/usr/bin/python3", "-c", code, store=store, config=config).run(sandboxed(), recorder)

    assert await run(100) == RunOutcome(reply="fine")
    outcome = await run(400)
    assert outcome.error is not None
    assert outcome.error.endswith("MemoryError")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_processes_have_the_limit_of_the_configuration(sandboxed, store, recorder) -> None:
    if os.getuid() == 0:
        pytest.skip("the kernel does not count root's processes")
    code = "import os\nfor n in range(50):\n    if os.fork() == 0: os.read(0, 1); os._exit(0)\nprint('fine')"
    for limit, fine in ((100, True), (20, False)):
        config = SandboxConfig(max_processes=limit)
        outcome = await runtime("/usr/bin/python3", "-c", code, store=store, config=config).run(sandboxed(), recorder)
        assert (outcome.error is None) is fine, outcome


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_an_abort_ends_everything_inside(sandboxed, store, recorder) -> None:
    spec = sandboxed()
    # A number that nobody else sleeps for.
    seconds = 4_000_000 + os.getpid()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            command = runtime("/bin/sh", "-c", f"setsid sleep {seconds} & echo up; exec sleep {seconds}", store=store)
            nursery.start_soon(command.run, spec, recorder)
            await recorder.arrived.wait()
            while _sleepers(seconds) != 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        while _sleepers(seconds):  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_sandboxed_run_outlives_every_thread_of_an_idle_daemon(sandboxed, store, recorder) -> None:
    """Fifteen seconds: Trio lets a worker thread go after ten idle ones, and what it forked went with it."""
    with trio.fail_after(120):
        command = runtime("/bin/sh", "-c", "echo up; sleep 15; echo and still there", store=store)
        assert await command.run(sandboxed(), recorder) == RunOutcome(reply="up\nand still there")


def _sleepers(seconds: int) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes() == f"sleep\0{seconds}\0".encode()
        except OSError:
            continue
    return count


async def test_a_required_sandbox_that_cannot_be_had_is_an_error_and_no_run(sandboxed, store, recorder) -> None:
    command = ExecRuntime(
        RuntimeConfig(type="exec", command=("/bin/sh", "-c", "touch ran")),
        environ={"PATH": os.environ["PATH"]},
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=(), program="no-such-bwrap"),
        sandbox_config=SandboxConfig(),
    )
    spec = sandboxed()
    assert await command.run(spec, recorder) == RunOutcome(
        error="this run needs a sandbox, and there is none: bubblewrap (bwrap) is not installed"
    )
    assert not (spec.workspace / "ran").exists()


async def test_a_bubblewrap_that_may_not_make_namespaces_says_so(tmp_path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    bubblewrap = Bubblewrap(private=(), program=str(refusing))
    assert await bubblewrap.find_problem() == (
        "bubblewrap cannot make a sandbox on this machine: bwrap: No permissions to create new namespace"
    )
    refusing.write_text("#!/bin/sh\nexit 0\n")
    assert await bubblewrap.find_problem() is None, "an administrator has repaired it"
    refusing.unlink()
    assert await bubblewrap.find_problem() is None, "success is remembered"
