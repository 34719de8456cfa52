"""Put a command into a bubblewrap sandbox, or say why that cannot be done.

Knows what a sandboxed agent sees and what it does not. Does not decide which runs are sandboxed, and starts only the
probe. Source: runs.md, "Runtimes"; security.md.

What is inside: /usr and a few files of /etc, read-only; the workspace, writable; the run's own attachments,
read-only; agent.sock and the run's token below /run/sessiond; private /tmp, /home, /proc and /dev; the agent program
itself and `sandbox.readOnly`, read-only. Nothing else: not the store, not sessiond.sock, not the user's home, not the
attachments of other sessions in the same workspace.
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

from sessiond.config import SandboxConfig
from sessiond.runs.runtime import RunSpec
from sessiond.store import dirfd

HOME = Path("/home/agent")
SOCKET = Path("/run/sessiond/agent.sock")
TOKEN_FILE = Path("/run/sessiond/token")
# A full tmpfs is memory of the machine.
_TMPFS_BYTES = 1 << 30
_PROBE_S = 10.0
# Descriptors are known to bubblewrap by numbers from here on.
_FIRST_FD = 10
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
# On most systems links into /usr, on some folders of their own.
_USR_TWINS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs need to resolve names, check certificates and print; nothing that only root may read, since a daemon
# that runs as root is root to its own files in there.
_ETC = (
    *("group", "host.conf", "hosts", "gai.conf", "localtime", "nsswitch.conf", "passwd", "protocols", "resolv.conf"),
    *("services", "timezone", "mime.types", "terminfo", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("ca-certificates", "pki", "ssl/certs", "ssl/openssl.cnf"),
)
_SYSTEM_ROOTS = tuple(Path("/", name) for name in ("usr", *_USR_TWINS))
_FORBIDDEN_MOUNTS = (*_SYSTEM_ROOTS, *(Path("/", name) for name in ("etc", "proc", "dev", "sys", "run/sessiond")))
_ATTACHMENTS = (".openclaw", "attachments")


class NoSandbox(Exception):
    """A sandbox is required and cannot be had; the message says why, for a person."""


class Box(msgspec.Struct, frozen=True):
    """A command in its sandbox, and the descriptors that bubblewrap inherits (it closes them before the command).

    `fds` says which, by the number that stands in `argv`.
    """

    argv: tuple[str, ...]
    fds: Mapping[int, int]


class Bubblewrap:
    """The `bwrap` program, probed before its first use.

    `private` are the daemon's own folders (the store, the folder of its sockets): nothing that holds one is mounted.
    """

    def __init__(self, private: Sequence[Path], program: str = "bwrap") -> None:
        self._private = tuple(path.resolve() for path in private)
        self._program = program
        self._options: frozenset[str] | None = None

    async def unavailable(self) -> str | None:
        """Why there is no sandbox on this machine, None where there is. Success is remembered, failure asked again."""
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
            return f"bubblewrap does not run ({type(error).__name__})"
        if trial.returncode != 0:
            said = trial.stderr.decode("utf-8", "replace").strip() or f"exit status {trial.returncode}"
            return f"bubblewrap cannot make a sandbox on this machine: {said[-300:]}"
        self._options = frozenset(word for word in help_text.split() if word.startswith("--"))
        return None

    @contextmanager
    def box(self, argv: Sequence[str], spec: RunSpec, config: SandboxConfig, path: str) -> Iterator[Box]:
        """`argv` in its sandbox; `unavailable` has been asked before. Raises NoSandbox.

        `path` is the PATH in which the program is looked up. The environment is not touched: it is the clean one
        already, and in an argv everybody on the machine could read it.
        """
        assert self._options is not None
        program = _program(argv[0], path, spec.workspace)
        with ExitStack() as stack:
            mounts = _Mounts(stack, self._private, by_fd="--ro-bind-fd" in self._options)
            mounts.program(program, spec.workspace.resolve())
            for extra in config.read_only:
                mounts.read_only(extra)
            mounts.workspace(spec)
            command = (*_limits(config), str(program), *argv[1:])
            yield Box((self._program, *self._start(config), *mounts.args, *_end(spec), *command), mounts.fds)

    def _start(self, config: SandboxConfig) -> list[str]:
        assert self._options is not None
        args = ["--die-with-parent", "--new-session", *_NAMESPACES, "--cap-drop", "ALL", "--hostname", "sandbox"]
        if not config.network:
            args.append("--unshare-net")
        if "--disable-userns" in self._options:
            args.append("--disable-userns")
        size = ["--size", str(_TMPFS_BYTES)] if "--size" in self._options else []
        args += [*_system(), "--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/tmp", *size, "--tmpfs", "/home"]  # noqa: S108
        return [*args, "--dir", str(HOME), "--dir", "/var", "--symlink", "../tmp", "/var/tmp"]  # noqa: S108


class _Mounts:
    """Collects mounts; each source is opened once, so that nobody can exchange it before bubblewrap mounts it."""

    def __init__(self, stack: ExitStack, private: Sequence[Path], *, by_fd: bool) -> None:
        self.args: list[str] = []
        self.fds: dict[int, int] = {}
        self._stack = stack
        self._private = private
        self._by_fd = by_fd

    def program(self, program: Path, workspace: Path) -> None:
        """The program, where it is not there anyway: itself, or all of the node_modules that it is in."""
        real = program.resolve()
        there = (*_SYSTEM_ROOTS, workspace)
        if not _below(real, there):
            parts = real.parts
            if "node_modules" in parts:
                there = (*there, real := Path(*parts[: parts.index("node_modules") + 1]))
            self._keep_out(real, inside=True)
            self.args += ["--ro-bind", str(real), str(real)]
        if program != program.resolve() and not _below(program, there):
            # Not a mount of the link's target: Node looks for a program's packages where its file really is.
            self.args += ["--symlink", str(program.resolve()), str(program)]

    def read_only(self, path: Path) -> None:
        """A file or folder of the configuration, where it is."""
        if not path.exists():
            raise NoSandbox(f"{path} is to be mounted read-only (sandbox.readOnly) and does not exist")
        self._keep_out(path.resolve(), inside=True)
        self.args += ["--ro-bind", str(path), str(path)]

    def workspace(self, spec: RunSpec) -> None:
        """The workspace, the run's attachments, the socket and the token."""
        self._keep_out(spec.workspace.resolve())
        try:
            root = self._open(dirfd.open_root(spec.workspace))
            # There before the sandbox is, so that attachments that come later in other sessions are hidden as well.
            os.close(dirfd.open_path_dir(root, _ATTACHMENTS, create=True))
            self._bind("--bind", root, spec.workspace)
            self.args += ["--tmpfs", str(spec.workspace.joinpath(*_ATTACHMENTS))]
            self._attachments(spec, root)
        except dirfd.SymlinkRefused:
            raise NoSandbox("a symbolic link stands in the workspace where the attachments are") from None
        except OSError as error:
            raise NoSandbox(f"the workspace cannot be mounted: {os.strerror(error.errno or 0)}") from None
        self.args += ["--ro-bind", str(spec.socket), str(SOCKET)]
        if spec.token_file is not None:
            self.args += ["--ro-bind", str(spec.token_file), str(TOKEN_FILE)]

    def _attachments(self, spec: RunSpec, root: int) -> None:
        relative = (spec.attachments or {}).get("relDir")
        if not relative:
            return
        folder = self._open(dirfd.open_path_dir(root, relative.strip("/").split("/")))
        self._bind("--ro-bind", folder, spec.workspace / relative)
        if spec.mount_path is not None:
            # A descriptor serves one mount: bubblewrap closes it.
            self._bind("--ro-bind", self._open(os.dup(folder)), _mount_point(spec))

    def _open(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def _bind(self, option: str, fd: int, target: Path) -> None:
        if self._by_fd:
            number = _FIRST_FD + len(self.fds)
            self.args += [f"{option}-fd", str(number), str(target)]
            self.fds[number] = fd
        else:
            # Before bubblewrap 0.10 a descriptor would stay open inside, and lead out: only its path then.
            self.args += [option, os.readlink(f"/proc/self/fd/{fd}"), str(target)]

    def _keep_out(self, source: Path, *, inside: bool = False) -> None:
        """Refuse what holds one of the daemon's folders; with `inside` also what is in one."""
        for private in self._private:
            if private.is_relative_to(source) or (inside and source.is_relative_to(private)):
                raise NoSandbox(f"{source} holds the daemon's own files, which a sandbox must not see")


def _below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _mount_point(spec: RunSpec) -> Path:
    target = Path(spec.mount_path or "/")
    nested = target.is_relative_to(spec.workspace) or spec.workspace.is_relative_to(target)
    taken = any(target.is_relative_to(root) or root.is_relative_to(target) for root in _FORBIDDEN_MOUNTS)
    if not target.is_absolute() or ".." in target.parts or nested or taken:
        raise NoSandbox(f"attachments cannot be mounted at {target}: choose a folder of its own, like /mnt/attachments")
    return target


def _end(spec: RunSpec) -> list[str]:
    return ["--remount-ro", "/", "--chdir", str(spec.workspace), "--"]


def _system() -> list[str]:
    args = ["--ro-bind", "/usr", "/usr"]
    for name in _USR_TWINS:
        path = Path("/", name)
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            args += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        if Path("/etc", name).exists():
            args += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    return args


def _program(word: str, path: str, workspace: Path) -> Path:
    """The program's path. Looked up out here: inside, "not found" could mean anything."""
    found = shutil.which(str(workspace / word) if "/" in word else word, path=path)
    if found is None:
        raise NoSandbox(f"command not found: {word} (give its full path, or set PATH in the runtime's env)")
    return Path(os.path.abspath(found))


def _limits(config: SandboxConfig) -> list[str]:
    """prlimit inside the sandbox, where processes are counted per user namespace.

    Memory is RLIMIT_DATA, for each process: RLIMIT_AS counts what V8 merely reserves, so no Node program would start.
    The kernel does not count root's processes.
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
    """The daemon's environment with the folders of the sandbox in it."""
    kept = {name: value for name, value in environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": str(HOME), "TMPDIR": "/tmp", "SHELL": "/bin/sh"}  # noqa: S108
