"""Put a command into a bubblewrap sandbox, or say why that cannot be done.

Does not decide which runs are sandboxed. Starts only the probe. Source: security.md, "The sandbox".

What is inside: /usr and a few files of /etc, read-only; the workspace, writable; the run's own attachments,
read-only; agent.sock and the run's token below /run/sessiond; private /tmp, /home, /proc and /dev; the agent program
itself and `sandbox.readOnly`, read-only (`mounts`). Nothing else: not the store, not sessiond.sock, not the user's
home, not the attachments of other sessions in the same workspace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import trio

from sessiond.config.settings import SandboxConfig
from sessiond.runtimes.mounts import HOME, USR_TWINS, Mounts, NoSandbox, find_program, passes_through
from sessiond.runtimes.runtime import RunSpec
from sessiond.store import dirfd

# The size limit of each tmpfs, which takes memory of the machine.
_TMPFS_BYTES = 1 << 30
_PROBE_S = 10.0
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
# What programs need to resolve names, check certificates and print. Nothing that only root may read: if the daemon runs
# as root, so does the sandboxed program.
_ETC = (
    *("group", "host.conf", "hosts", "gai.conf", "localtime", "nsswitch.conf", "passwd", "protocols", "resolv.conf"),
    *("services", "timezone", "mime.types", "terminfo", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("ca-certificates", "pki", "ssl/certs", "ssl/openssl.cnf"),
)


class SandboxedCommand(msgspec.Struct, frozen=True):
    """A sandboxed command line. `fds` are the descriptors that bubblewrap inherits, by the number used in `argv`.

    bubblewrap closes them before it executes the command.
    """

    argv: tuple[str, ...]
    fds: Mapping[int, int]


class Bubblewrap:
    """The `bwrap` program, probed before its first use.

    `private` are the daemon's own folders (the store, the folder of its sockets): no folder that contains one is
    mounted.
    """

    def __init__(self, private: Sequence[Path], program: str = "bwrap") -> None:
        self._private = tuple(path.resolve() for path in private)
        self._program = program
        self._options: frozenset[str] | None = None

    async def find_problem(self) -> str | None:
        """Why this machine cannot run a sandbox; None if it can. Success is cached, a failure is probed again.

        OSError if the machine lacks the resources to start the probe.
        """
        if self._options is not None:
            return None
        program = shutil.which(self._program)
        if program is None:
            return "bubblewrap (bwrap) is not installed"
        try:
            with trio.fail_after(_PROBE_S):
                help_text = (await _run([program, "--help"])).stdout.decode("utf-8", "replace")
                trial = await _run([program, *_NAMESPACES, "--unshare-net", *_system(), "--proc", "/proc", "/bin/true"])
        except (trio.TooSlowError, OSError) as error:
            if isinstance(error, OSError) and dirfd.is_shortage(error):
                raise
            return f"bubblewrap does not run ({type(error).__name__})"
        if trial.returncode != 0:
            said = trial.stderr.decode("utf-8", "replace").strip() or f"exit status {trial.returncode}"
            return f"bubblewrap cannot make a sandbox on this machine: {said[-300:]}"
        self._options = frozenset(word for word in help_text.split() if word.startswith("--"))
        return None

    @contextmanager
    def wrap(self, argv: Sequence[str], spec: RunSpec, config: SandboxConfig, path: str) -> Iterator[SandboxedCommand]:
        """`argv` in a sandbox. NoSandbox. Call `find_problem` first.

        `path` is the PATH in which the program is looked up. The environment is passed on as it is, not as arguments,
        which every user of the machine could read.
        """
        assert self._options is not None
        program = find_program(argv[0], path, spec.workspace)
        with ExitStack() as stack:
            mounts = Mounts(stack, self._private, by_fd="--ro-bind-fd" in self._options)
            mounts.program(program, spec.workspace)
            workspace = spec.workspace.resolve()
            inside = [extra for extra in config.read_only if passes_through(extra, workspace)]
            for extra in config.read_only:
                if extra not in inside:
                    mounts.read_only(extra)
            mounts.workspace(spec)
            for extra in inside:
                mounts.read_only_inside(extra, spec.workspace)
            command = (*_limits(config), str(program), *argv[1:])
            yield SandboxedCommand(
                (self._program, *self._start(config), *mounts.args, *_end(spec), *command), mounts.fds
            )

    def _start(self, config: SandboxConfig) -> list[str]:
        assert self._options is not None
        args = ["--die-with-parent", "--new-session", *_NAMESPACES, "--cap-drop", "ALL", "--hostname", "sandbox"]
        if not config.network:
            args.append("--unshare-net")
        if "--disable-userns" in self._options:
            args.append("--disable-userns")
        size = ["--size", str(_TMPFS_BYTES)] if "--size" in self._options else []
        # Remounted read-only: root may write to files in /proc/sys even without capabilities, and the owner of the
        # namespace to some of them.
        args += [*_system(), "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
        for folder in ("/tmp", "/home"):  # noqa: S108
            args += [*size, "--tmpfs", folder]
        return [*args, "--dir", str(HOME), "--dir", "/var", "--symlink", "../tmp", "/var/tmp"]  # noqa: S108


def _end(spec: RunSpec) -> list[str]:
    return ["--remount-ro", "/", "--chdir", str(spec.cwd or spec.workspace), "--"]


def _system() -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for name in USR_TWINS:
        path = Path("/", name)
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            args += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        if Path("/etc", name).exists():
            args += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    return args


def _limits(config: SandboxConfig) -> list[str]:
    """The prlimit command that runs inside the sandbox, where processes are counted per user namespace.

    Memory is limited by RLIMIT_DATA, for each process. RLIMIT_AS would also count address space that V8 only reserves,
    so that no Node program could start. The kernel does not limit the number of root's processes.
    """
    limits = []
    if config.memory_max_bytes is not None:
        limits.append(f"--data={config.memory_max_bytes}")
    if config.max_processes is not None:
        limits.append(f"--nproc={config.max_processes}")
    if limits and not Path("/usr/bin/prlimit").exists():
        raise NoSandbox("sandbox.memoryMaxBytes and maxProcesses need the program prlimit (util-linux)")
    return ["/usr/bin/prlimit", *limits, "--"] if limits else []


async def _run(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The daemon's environment, with HOME, TMPDIR and SHELL of the sandbox and without XDG variables."""
    kept = {name: value for name, value in environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": str(HOME), "TMPDIR": "/tmp", "SHELL": "/bin/sh"}  # noqa: S108
