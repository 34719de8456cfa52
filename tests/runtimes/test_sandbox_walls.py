"""What a sandboxed agent cannot do, tried from inside by a hostile one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from support.bubblewrap_runtime import OTHER, RELATIVE, UUID, runtime
from support.patience import PATIENCE_S

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.runtimes import mounts
from sessiond.runtimes.exec import ExecRuntime
from sessiond.runtimes.runtime import RunOutcome
from sessiond.runtimes.sandbox import Bubblewrap

pytestmark = pytest.mark.usefixtures("needs_bubblewrap", "agent_socket")

# Each attempt must fail. Those that succeed are printed.
ATTEMPTS = f"""
import ctypes, json, os, shutil, signal, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)
def run(*argv):
    subprocess.run(argv, check=True, capture_output=True)
def write(path):
    with open(path, 'a') as file:
        file.write('')
def proc_files():
    opened = []
    for folder, folders, files in os.walk('/proc'):
        folders[:] = [name for name in folders if not name.isdigit() and name not in ('self', 'thread-self')]
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
                opened.append(os.path.join(folder, name))
            except OSError:
                pass
    if not opened:
        raise OSError('nothing')
    return opened
def abstract():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(chr(0) + os.environ['ABSTRACT'])
attempts = {{
    'move .openclaw': lambda: os.rename('.openclaw', 'away'),
    'move .openclaw up': lambda: shutil.move('.openclaw', '/tmp/away'),
    'move attachments': lambda: os.rename('.openclaw/attachments', '.openclaw/away'),
    'move own attachments': lambda: os.rename('{RELATIVE}', '.openclaw/attachments/away'),
    'exchange .openclaw': lambda: (os.mkdir('other'), call('renameat2', -100, b'.openclaw', -100, b'other', 2)),
    'remove .openclaw': lambda: shutil.rmtree('.openclaw'),
    'link over .openclaw': lambda: os.symlink('/', '.openclaw'),
    'see attachments of others': lambda: os.stat('.openclaw/attachments/{OTHER}'),
    'unmount the cover': lambda: call('umount2', b'.openclaw/attachments', 2),
    'a mount of its own': lambda: call('mount', b'none', b'/tmp', b'tmpfs', 0, None),
    'a mount made writable': lambda: call('mount', b'none', b'/usr', None, 4128, None),
    'a user namespace': lambda: call('unshare', 0x10000000),
    'a user namespace by a program': lambda: run('unshare', '--user', '--map-root-user', 'true'),
    'another bubblewrap': lambda: run('bwrap', '--ro-bind', '/', '/', 'true'),
    'a root of its own': lambda: os.chroot('/tmp'),
    'a device': lambda: os.mknod('/tmp/device', 0o20666, os.makedev(1, 3)),
    'files of /proc': proc_files,
    'the kernel log': lambda: open('/dev/kmsg'),
    'a disk': lambda: open('/dev/' + os.environ['DISK']) if os.environ['DISK'] else os.stat('/none'),
    'processes outside': lambda: os.kill(int(os.environ['OUTSIDE']), 0),
    'a descriptor that leads out': lambda: os.stat('/proc/self/fd/10'),
    'abstract sockets outside': abstract,
    'the host name': lambda: call('sethostname', b'x', 1),
    'the clock': lambda: os.stat('/dev/rtc'),
    'write /run': lambda: write('/run/x'),
    'write /run/sessiond': lambda: write('/run/sessiond/x'),
    'remove the socket': lambda: os.unlink('/run/sessiond/agent.sock'),
    'write the token': lambda: write('/run/sessiond/token'),
    'terminal': lambda: open('/dev/tty'),
    'more rights': lambda: run('su', '-c', 'true'),
}}
done = {{}}
for name, attempt in attempts.items():
    try:
        done[name] = repr(attempt())
    except (OSError, subprocess.CalledProcessError):
        pass
print(json.dumps([len(attempts), done]))
"""


def find_block_device() -> str:
    """The name of a block device of this machine, or an empty string."""
    return next((name for name in os.listdir("/sys/block")), "")


@pytest.mark.parametrize("network", [False, True])
async def test_every_attempt_to_leave_the_sandbox_fails(
    make_sandboxed_spec: Any, store: Path, recorder: Any, network: bool
) -> None:
    import socket

    name = f"sessiond-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        outcome = await runtime(
            *("/usr/bin/python3", "-c", ATTEMPTS),
            store=store,
            config=SandboxConfig(network=network),
            OUTSIDE=str(os.getpid()),
            STORE=str(store),
            DISK=find_block_device(),
            ABSTRACT=name,
        ).run(make_sandboxed_spec(), recorder)
    assert outcome.error is None, outcome
    assert outcome.reply is not None
    attempts, done = json.loads(outcome.reply)
    assert attempts >= 30
    # The README says what a shared network leaves open.
    assert list(done) == (["abstract sockets outside"] if network else [])
    attachments = store / "agents" / "main" / "workspace" / ".openclaw" / "attachments"
    assert (attachments / UUID / "notes.txt").read_text() == "the attachment"
    assert (attachments / OTHER / "notes.txt").read_text() == "of another session"


async def test_the_sandbox_works_with_a_bubblewrap_without_the_disable_userns_option(
    make_sandboxed_spec: Any, store: Path, recorder: Any, tmp_path: Path
) -> None:
    command = old_bubblewrap(tmp_path, store, "disable-userns", "/bin/echo", "fine")
    assert await command.run(make_sandboxed_spec(), recorder) == RunOutcome(reply="fine")


async def test_the_sandbox_has_exactly_these_environment_variables(
    make_sandboxed_spec: Any, store: Path, recorder: Any
) -> None:
    command = ExecRuntime(
        RuntimeConfig(type="exec", command=("/usr/bin/env",), env={"OWN": "of the agent"}),
        environ={
            "PATH": "/usr/bin:/bin",
            "HOME": "/home/somebody",
            "XDG_CONFIG_HOME": "/home/somebody/.config",
            "XDG_RUNTIME_DIR": "/run/user/1000",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
            "SSH_AUTH_SOCK": "/tmp/agent",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "http_proxy": "http://user:password@proxy",
            "TMPDIR": "/home/somebody/tmp",
            "SHELL": "/home/somebody/sh",
            "LD_PRELOAD": "/home/somebody/lib.so",
            "LANG": "C.UTF-8",
            "SESSIOND_TOKEN": "another",
        },
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=(store,)),
        sandbox_config=SandboxConfig(network=False),
    )
    outcome = await command.run(make_sandboxed_spec(), recorder)
    assert outcome.reply is not None, outcome
    workspace = str(store / "agents" / "main" / "workspace")
    assert dict(line.split("=", 1) for line in outcome.reply.splitlines()) == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/agent",
        "TMPDIR": "/tmp",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "OWN": "of the agent",
        "PWD": workspace,
        "SESSIOND_SOCKET": "/run/sessiond/agent.sock",
        "SESSIOND_TOKEN_FILE": "/run/sessiond/token",
        "SESSIOND_SESSION_KEY": "agent:main:main",
        "SESSIOND_RUN_ID": "11111111-1111-4111-8111-111111111111",
    }


def old_bubblewrap(folder: Path, store: Path, without: str, *command: str) -> ExecRuntime:
    """A runtime whose bubblewrap lacks the option `without`, as older versions do."""
    program = folder / "old-bwrap"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --help ]; then bwrap --help | grep -v -e "{without}"; exit; fi\n'
        f'for word; do case $word in *{without}*) echo "Unknown option $word" >&2; exit 1;; esac; done\n'
        'exec bwrap "$@"\n'
    )
    program.chmod(0o755)
    return ExecRuntime(
        RuntimeConfig(type="exec", command=command),
        environ={"PATH": os.environ["PATH"]},
        max_record_bytes=8 << 20,
        bubblewrap=Bubblewrap(private=(store,), program=str(program)),
        sandbox_config=SandboxConfig(network=False),
    )


async def test_a_bubblewrap_without_bind_fd_refuses_attachments_and_hides_those_of_others(
    make_sandboxed_spec: Any, store: Path, recorder: Any, tmp_path: Path
) -> None:
    script = "ls -A .openclaw; mv .openclaw away 2>/dev/null && echo moved; touch made; echo up"
    command = old_bubblewrap(tmp_path, store, "bind-fd", "/bin/sh", "-c", script)
    assert await command.run(make_sandboxed_spec(), recorder) == RunOutcome(
        error="attachments: this needs a bubblewrap that knows --ro-bind-fd (0.10 or newer)"
    )
    assert await command.run(make_sandboxed_spec(attachments=None), recorder) == RunOutcome(reply="up")
    assert (store / "agents" / "main" / "workspace" / "made").exists()


@pytest.mark.parametrize("way", ["link", "folder link", "link to link", "PATH", "link outside", "interpreter"])
async def test_a_program_linked_from_the_workspace_to_the_outside_is_refused(
    make_sandboxed_spec: Any, store: Path, recorder: Any, tmp_path: Path, way: str
) -> None:
    workspace = store / "agents" / "main" / "workspace"
    outside = tmp_path / "outside"
    (outside / "bin").mkdir(parents=True)
    (outside / "bin" / "tool").write_text("#!/bin/sh\necho secret")
    (outside / "bin" / "tool").chmod(0o755)
    command, env = str(workspace / "tool"), {}
    match way:
        case "link":
            (workspace / "tool").symlink_to(outside / "bin" / "tool")
        case "folder link":
            (workspace / "bin").symlink_to(outside / "bin")
            command = "./bin/tool"
        case "link to link":
            (workspace / "tool").symlink_to("one")
            (workspace / "one").symlink_to(outside / "bin" / "tool")
        case "PATH":
            (workspace / "tool").symlink_to(outside / "bin" / "tool")
            command, env = "tool", {"PATH": f"{workspace}:/usr/bin:/bin"}
        case "link outside":
            (workspace / "tool").symlink_to(outside / "bin" / "tool")
            (tmp_path / "entry").symlink_to(workspace / "tool")
            command = str(tmp_path / "entry")
        case "interpreter":
            (workspace / "tool").symlink_to("/usr/bin/env")
    outcome = await runtime(command, store=store, **env).run(make_sandboxed_spec(), recorder)
    if way == "interpreter":
        assert outcome.error is None, "a link to a program that the sandbox contains anyway is allowed"
        return
    assert outcome.error is not None
    assert "leads out of the workspace" in outcome.error
    assert outcome.reply is None


@pytest.mark.parametrize(
    "path",
    [
        *("/home", "/home/agent", "/home/agent/.bashrc", "/home/agent/.config/git", "/home/agent/x/.npmrc"),
        *("/tmp/.X11-unix", "/var/.hidden"),
    ],
)
async def test_attachments_are_not_mounted_over_home_or_hidden_files(
    make_sandboxed_spec: Any, store: Path, recorder: Any, path: str
) -> None:
    outcome = await runtime("true", store=store).run(make_sandboxed_spec(mount_path=path), recorder)
    assert outcome == RunOutcome(
        error=f"attachments cannot be mounted at {path}: choose a folder of its own, like /mnt/attachments"
    )


async def test_a_folder_of_the_workspace_can_be_read_only_but_a_link_in_it_cannot(
    make_sandboxed_spec: Any, store: Path, recorder: Any, tmp_path: Path
) -> None:
    workspace = store / "agents" / "main" / "workspace"
    (workspace / "sources").mkdir()
    config = SandboxConfig(network=False, read_only=(workspace / "sources",))
    script = "touch made; touch sources/made 2>/dev/null || echo no; mv sources away 2>/dev/null || echo no"
    outcome = await runtime("/bin/sh", "-c", script, store=store, config=config).run(make_sandboxed_spec(), recorder)
    assert outcome == RunOutcome(reply="no\nno")
    (workspace / "sources").rmdir()
    (workspace / "sources").symlink_to(tmp_path)
    outcome = await runtime("true", store=store, config=config).run(make_sandboxed_spec(), recorder)
    assert outcome.error is not None
    assert outcome.error.endswith("is no file or folder of the workspace itself: a link could lead anywhere")


def test_passes_through_follows_every_link_of_a_path(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "in").symlink_to("workspace/sub")
    (workspace / "sub" / "out").symlink_to(tmp_path / "other")
    (tmp_path / "loop").symlink_to("loop")
    for path, through in {
        workspace: True,
        workspace / "sub": True,
        tmp_path / "in" / "out": True,
        tmp_path / "in": True,
        tmp_path / "other": False,
        tmp_path / "loop": False,
        tmp_path / "workspace-2": False,
        Path("/"): False,
        tmp_path / "other" / ".." / "workspace" / "x": True,
    }.items():
        assert mounts.passes_through(path, workspace) is through, path


async def test_kernel_settings_cannot_be_changed_through_proc(
    make_sandboxed_spec: Any, store: Path, recorder: Any
) -> None:
    before = Path("/proc/sys/kernel/printk").read_text()  # noqa: ASYNC240
    script = (
        f"echo {before.split()[0]} >/proc/sys/kernel/printk || echo no; echo 5 >/proc/self/oom_score_adj || echo no"
    )
    with trio.fail_after(PATIENCE_S):
        outcome = await runtime("/bin/sh", "-c", script, store=store).run(make_sandboxed_spec(), recorder)
    assert outcome == RunOutcome(reply="no\nno")
