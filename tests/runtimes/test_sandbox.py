"""What a sandboxed agent can see, tried from inside; if the tests run as root, again as an ordinary user."""

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
from support.sampling import amount
from trio._core import _thread_cache

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


async def probe(make_sandboxed_spec: Any, store: Path, recorder: Any, *, network: bool) -> object:
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
        ).run(make_sandboxed_spec(), recorder)
    assert outcome.error is None, outcome
    assert outcome.reply is not None
    return json.loads(outcome.reply)


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_sandbox_contains_what_the_run_needs_and_nothing_else(make_sandboxed_spec, store, recorder) -> None:
    seen = await probe(make_sandboxed_spec, store, recorder, network=False)
    assert seen == expected("ConnectionRefusedError Connection refused")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_network_is_reachable_if_the_configuration_allows_it(make_sandboxed_spec, store, recorder) -> None:
    assert await probe(make_sandboxed_spec, store, recorder, network=True) == expected(True)


@pytest.mark.usefixtures("needs_bubblewrap")
def test_an_ordinary_user_has_the_same_sandbox(store: Path, tmp_path: Path) -> None:
    """Run the tests of the sandbox again, in a process of the user nobody."""
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
        # With what is compiled of it: it is the same Python.
        shutil.copytree(project / "sessiond", copy / "sessiond")
        (copy / "tests" / "support").mkdir(parents=True)
        home = Path(folder, "home")
        home.mkdir()
        for name in ("test_sandbox.py", "test_sandbox_walls.py", "conftest.py"):
            shutil.copy(tests / name, copy / "tests")
        for name in ("bubblewrap_runtime.py", "patience.py", "sampling.py"):
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
            # setpriv can start a Python that its user may not, so let that Python start itself once more.
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
async def test_attachments_are_also_mounted_read_only_at_the_path_that_the_spawn_names(
    make_sandboxed_spec, store, recorder
) -> None:
    spec = make_sandboxed_spec(mount_path="/mnt/in")
    outcome = await runtime("/bin/sh", "-c", "cat /mnt/in/notes.txt; echo x >/mnt/in/y", store=store).run(
        spec, recorder
    )
    assert outcome.error is not None
    assert "Read-only file system" in outcome.error
    assert recorder.deltas == ["the attachment"]


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
@pytest.mark.parametrize("path", ["/", "/usr", "/usr/lib", "/etc/x", "/proc", "/run", "/run/sessiond", "/lib/x"])
async def test_attachments_are_not_mounted_over_system_folders(make_sandboxed_spec, store, recorder, path) -> None:
    outcome = await runtime("true", store=store).run(make_sandboxed_spec(mount_path=path), recorder)
    assert outcome == RunOutcome(
        error=f"attachments cannot be mounted at {path}: choose a folder of its own, like /mnt/attachments"
    )


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_program_starts_in_a_folder_of_the_workspace_and_in_no_other(
    make_sandboxed_spec, store, recorder, tmp_path
) -> None:
    spec = make_sandboxed_spec()
    (spec.workspace / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (spec.workspace / "link").symlink_to(tmp_path / "outside")
    inside = make_sandboxed_spec(cwd=spec.workspace / "project")
    assert await runtime("pwd", store=store).run(inside, recorder) == RunOutcome(reply=str(inside.cwd))
    for outside in (tmp_path / "outside", spec.workspace / "link"):
        outcome = await runtime("pwd", store=store).run(make_sandboxed_spec(cwd=outside), recorder)
        assert "No such file or directory" in (outcome.error or ""), outcome


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_attachments_are_not_mounted_over_the_store_or_the_workspace(
    make_sandboxed_spec, store, recorder
) -> None:
    for path in (store, store / "agents" / "main" / "workspace", store / "agents" / "main" / "workspace" / "x"):
        outcome = await runtime("true", store=store).run(make_sandboxed_spec(mount_path=str(path)), recorder)
        assert outcome.error is not None
        assert outcome.error.startswith("attachments cannot be mounted at ")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_attachments_that_other_sessions_get_during_the_run_stay_hidden(
    make_sandboxed_spec, store, recorder, tmp_path
) -> None:
    workspace = tmp_path / "fresh"
    workspace.mkdir()
    spec = make_sandboxed_spec(workspace=workspace, attachments=None)
    os.mkfifo(workspace / "go")
    script = "echo up; cat go >/dev/null; ls .openclaw/attachments"

    async def add_attachment() -> None:
        await recorder.arrived.wait()
        (workspace / ".openclaw" / "attachments" / OTHER).mkdir()
        await trio.to_thread.run_sync((workspace / "go").write_text, "go")

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add_attachment)
            assert await runtime("/bin/sh", "-c", script, store=store).run(spec, recorder) == RunOutcome(reply="up")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_link_in_place_of_the_attachments_folder_is_refused(
    make_sandboxed_spec, store, recorder, tmp_path
) -> None:
    workspace = tmp_path / "linked"
    workspace.mkdir()
    (workspace / ".openclaw").symlink_to("/root")
    outcome = await runtime("true", store=store).run(make_sandboxed_spec(workspace=workspace), recorder)
    assert outcome == RunOutcome(error="a symbolic link stands in the workspace where the attachments are")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_workspace_that_contains_the_store_is_refused(make_sandboxed_spec, store, recorder) -> None:
    for workspace in (store, store.parent, Path("/")):
        outcome = await runtime("true", store=store).run(make_sandboxed_spec(workspace=workspace), recorder)
        assert outcome == RunOutcome(error=f"{workspace} holds the daemon's own files, which a sandbox must not see")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_folder_of_the_store_cannot_be_mounted_even_read_only(make_sandboxed_spec, store, recorder) -> None:
    config = SandboxConfig(read_only=(store / "agents",))
    outcome = await runtime("true", store=store, config=config).run(make_sandboxed_spec(), recorder)
    assert outcome == RunOutcome(error=f"{store}/agents holds the daemon's own files, which a sandbox must not see")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_program_outside_the_system_folders_is_mounted_with_its_package_only(
    make_sandboxed_spec, store, recorder, tmp_path
) -> None:
    package = tmp_path / "npm" / "node_modules" / "agent"
    package.mkdir(parents=True)
    (package / "text").write_text("from the package\n")
    (package / "cli").write_text('#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/text"\n')
    (package / "cli").chmod(0o755)
    (tmp_path / "npm" / "bin").mkdir()
    (tmp_path / "npm" / "bin" / "agent").symlink_to("../node_modules/agent/cli")
    (tmp_path / "npm" / "secret").write_text("not for the agent")
    for command in (str(tmp_path / "npm" / "bin" / "agent"), str(package / "cli")):
        outcome = await runtime(command, store=store).run(make_sandboxed_spec(), recorder)
        assert outcome == RunOutcome(reply="from the package")
    (tmp_path / "npm" / "bin" / "look").write_text(f"#!/bin/sh\ncat {tmp_path}/npm/secret {tmp_path}/npm/extra\n")
    (tmp_path / "npm" / "bin" / "look").chmod(0o755)
    (tmp_path / "npm" / "extra").write_text("asked for")
    config = SandboxConfig(read_only=(tmp_path / "npm" / "extra",))
    outcome = await runtime("look", store=store, config=config, PATH=f"{tmp_path}/npm/bin:/bin").run(
        make_sandboxed_spec(), recorder
    )
    assert outcome.error is not None
    assert "No such file" in outcome.error
    assert recorder.deltas[-1] == "asked for"


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_error_names_a_command_that_is_not_found(make_sandboxed_spec, store, recorder) -> None:
    outcome = await runtime("no-such-program", store=store).run(make_sandboxed_spec(), recorder)
    assert outcome == RunOutcome(
        error="command not found: no-such-program (give its full path, or set PATH in the runtime's env)"
    )


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_environment_is_not_passed_as_arguments(make_sandboxed_spec, store, recorder) -> None:
    script = "echo up; tr '\\0' '\\n' </proc/1/cmdline; echo key=$API_KEY"
    outcome = await runtime("/bin/sh", "-c", script, store=store, API_KEY="s3cret").run(make_sandboxed_spec(), recorder)
    assert outcome.reply is not None
    assert outcome.reply.count("s3cret") == 1
    assert outcome.reply.endswith("key=s3cret")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_memory_is_limited_as_configured(make_sandboxed_spec, store, recorder) -> None:
    def run(mebibytes: int) -> Any:
        config = SandboxConfig(memory_max_bytes=256 << 20)
        code = f"len(bytearray({mebibytes} << 20)); print('fine')"
        return runtime("/usr/bin/python3", "-c", code, store=store, config=config).run(make_sandboxed_spec(), recorder)

    assert await run(100) == RunOutcome(reply="fine")
    outcome = await run(400)
    assert outcome.error is not None
    assert outcome.error.endswith("MemoryError")


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_the_number_of_processes_is_limited_as_configured(make_sandboxed_spec, store, recorder) -> None:
    if os.getuid() == 0:
        pytest.skip("the kernel does not count root's processes")
    code = "import os\nfor n in range(50):\n    if os.fork() == 0: os.read(0, 1); os._exit(0)\nprint('fine')"
    for limit, fine in ((100, True), (20, False)):
        config = SandboxConfig(max_processes=limit)
        outcome = await runtime("/usr/bin/python3", "-c", code, store=store, config=config).run(
            make_sandboxed_spec(), recorder
        )
        assert (outcome.error is None) is fine, outcome


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_an_abort_ends_every_process_in_the_sandbox(make_sandboxed_spec, store, recorder) -> None:
    spec = make_sandboxed_spec()
    # A duration that no other process sleeps for.
    seconds = 4_000_000 + os.getpid()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            command = runtime("/bin/sh", "-c", f"setsid sleep {seconds} & echo up; exec sleep {seconds}", store=store)
            nursery.start_soon(command.run, spec, recorder)
            await recorder.arrived.wait()
            while _count_sleepers(seconds) != 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        while _count_sleepers(seconds):  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")
async def test_a_sandboxed_run_outlives_every_thread_of_an_idle_daemon(
    make_sandboxed_spec, store, recorder, monkeypatch
) -> None:
    """15 s, because Trio ends a worker thread after 10 idle seconds, and what that thread had forked ended with it.

    By default a tenth of both.
    """
    monkeypatch.setattr(_thread_cache, "IDLE_TIMEOUT", amount(10, 1))
    with trio.fail_after(120):
        command = runtime("/bin/sh", "-c", f"echo up; sleep {amount(15, 2)}; echo and still there", store=store)
        assert await command.run(make_sandboxed_spec(), recorder) == RunOutcome(reply="up\nand still there")


def _count_sleepers(seconds: int) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes() == f"sleep\0{seconds}\0".encode()
        except OSError:
            continue
    return count


async def test_without_bubblewrap_a_sandboxed_run_is_an_error_and_does_not_start(
    make_sandboxed_spec, store, recorder
) -> None:
    command = ExecRuntime(
        RuntimeConfig(type="exec", command=("/bin/sh", "-c", "touch ran")),
        environ={"PATH": os.environ["PATH"]},
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=(), program="no-such-bwrap"),
        sandbox_config=SandboxConfig(),
    )
    spec = make_sandboxed_spec()
    assert await command.run(spec, recorder) == RunOutcome(
        error="this run needs a sandbox, and there is none: bubblewrap (bwrap) is not installed"
    )
    assert not (spec.workspace / "ran").exists()


async def test_a_bubblewrap_that_may_not_create_namespaces_is_reported_until_it_works(tmp_path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    bubblewrap = Bubblewrap(private=(), program=str(bwrap))
    assert await bubblewrap.find_problem() == (
        "bubblewrap cannot make a sandbox on this machine: bwrap: No permissions to create new namespace"
    )
    bwrap.write_text("#!/bin/sh\nexit 0\n")
    assert await bubblewrap.find_problem() is None, "it works now"
    bwrap.unlink()
    assert await bubblewrap.find_problem() is None, "success is remembered"
