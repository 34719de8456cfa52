"""The mounts of one sandboxed run, as options of bubblewrap.

The agent can write to the workspace, so nothing in it is mounted by its path, which could lead anywhere: only by a
descriptor that was opened without following links.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from sessiond.attachments.remove import FOLDERS
from sessiond.runtimes.runtime import RunSpec
from sessiond.store import dirfd

HOME = Path("/home/agent")
SOCKET = Path("/run/sessiond/agent.sock")
TOKEN_FILE = Path("/run/sessiond/token")
# The descriptors passed to bubblewrap are numbered from here on.
_FIRST_FD = 10
# Symlinks into /usr on most systems, separate folders on some.
USR_TWINS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_ROOTS = tuple(Path("/", name) for name in ("usr", *USR_TWINS))
_FORBIDDEN_MOUNTS = (*_SYSTEM_ROOTS, *(Path("/", name) for name in ("etc", "proc", "dev", "sys", "run/sessiond")))
# The kernel's limit of symlinks in one path.
_MAX_LINKS = 40


class NoSandbox(Exception):
    """A sandbox is required and cannot be set up. The message is for people."""


class Mounts:
    """Collects mounts. Sources in a workspace are opened, so that they cannot be exchanged before they are mounted.

    `private` are the daemon's own folders; `by_fd`: this version of bubblewrap can mount descriptors.
    """

    def __init__(self, stack: ExitStack, private: Sequence[Path], *, by_fd: bool) -> None:
        self.args: list[str] = []
        self.fds: dict[int, int] = {}
        self._stack = stack
        self._private = private
        self._by_fd = by_fd

    def program(self, program: Path, workspace: Path) -> None:
        """Mount the program, unless it is visible anyway: its file, or the whole node_modules folder that it is in."""
        real, workspace = program.resolve(), workspace.resolve()
        there = (*_SYSTEM_ROOTS, workspace)
        if not _is_below(real, there):
            if passes_through(program, workspace):
                raise NoSandbox(
                    f"{program} leads out of the workspace, where the agent could make it lead anywhere; "
                    "name the program by its path outside"
                )
            parts = real.parts
            if "node_modules" in parts:
                there = (*there, real := Path(*parts[: parts.index("node_modules") + 1]))
            self._refuse_private(real, inside=True)
            self.args += ["--ro-bind", str(real), str(real)]
        if program != program.resolve() and not _is_below(program, there):
            # A symlink, not a second mount: Node looks for packages next to the real file.
            self.args += ["--symlink", str(program.resolve()), str(program)]

    def read_only(self, path: Path) -> None:
        """Mount a file or folder of `sandbox.readOnly` outside the workspace, at its own path."""
        if not path.exists():
            raise NoSandbox(f"{path} is to be mounted read-only (sandbox.readOnly) and does not exist")
        self._refuse_private(path.resolve(), inside=True)
        self.args += ["--ro-bind", str(path), str(path)]

    def read_only_inside(self, path: Path, workspace: Path) -> None:
        """Mount a file or folder of `sandbox.readOnly` in the workspace, which is mounted already, over itself."""
        try:
            root = self._open(dirfd.open_root(workspace))
            *folders, name = path.relative_to(workspace).parts
            folder = self._open(dirfd.open_path_dir(root, folders))
            fd = self._open(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise dirfd.SymlinkRefused(name)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and dirfd.is_shortage(error):
                raise
            raise NoSandbox(
                f"{path} (sandbox.readOnly) is no file or folder of the workspace itself: a link could lead anywhere"
            ) from None
        self._bind("--ro-bind", fd, path, "sandbox.readOnly in the workspace")

    def workspace(self, spec: RunSpec) -> None:
        """Mount the workspace, the run's attachments, the socket and the token."""
        self._refuse_private(spec.workspace.resolve())
        try:
            root = self._open(dirfd.open_root(spec.workspace))
            # Created now, so that the mount over it also hides attachments that other sessions get later.
            os.close(dirfd.open_path_dir(root, FOLDERS, create=True))
            if self._by_fd:
                self._bind("--bind", root, spec.workspace)
            else:
                self.args += ["--bind", os.readlink(f"/proc/self/fd/{root}"), str(spec.workspace)]
            self._hide_attachments(spec, root)
            self._attachments(spec, root)
        except dirfd.SymlinkRefused:
            raise NoSandbox("a symbolic link stands in the workspace where the attachments are") from None
        except OSError as error:
            if dirfd.is_shortage(error):
                raise
            raise NoSandbox(f"the workspace cannot be mounted: {os.strerror(error.errno or 0)}") from None
        self.args += ["--ro-bind", str(spec.socket), str(SOCKET)]
        if spec.token_file is not None:
            self.args += ["--ro-bind", str(spec.token_file), str(TOKEN_FILE)]

    def _hide_attachments(self, spec: RunSpec, root: int) -> None:
        """Mount an empty file system over all attachments. Neither it nor its mount point can be moved from inside."""
        outer = spec.workspace / FOLDERS[0]
        if self._by_fd:
            # The parent is made a mount point too, or it could be moved away together with the hiding mount.
            self._bind("--bind", self._open(dirfd.open_dir(root, FOLDERS[0])), outer)
            self.args += ["--tmpfs", str(spec.workspace.joinpath(*FOLDERS))]
        else:
            self.args += ["--tmpfs", str(outer)]

    def _attachments(self, spec: RunSpec, root: int) -> None:
        relative = (spec.attachments or {}).get("relDir")
        if not relative:
            return
        folder = self._open(dirfd.open_path_dir(root, relative.strip("/").split("/")))
        self._bind("--ro-bind", folder, spec.workspace / relative)
        if spec.mount_path is not None:
            # bubblewrap closes a descriptor after one mount.
            self._bind("--ro-bind", self._open(os.dup(folder)), _mount_point(spec))

    def _open(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def _bind(self, option: str, fd: int, target: Path, what: str = "attachments") -> None:
        if not self._by_fd:
            # The agent can write there and could exchange the folder before bubblewrap mounts it by path.
            raise NoSandbox(f"{what}: this needs a bubblewrap that knows --ro-bind-fd (0.10 or newer)")
        number = _FIRST_FD + len(self.fds)
        self.args += [f"{option}-fd", str(number), str(target)]
        self.fds[number] = fd

    def _refuse_private(self, source: Path, *, inside: bool = False) -> None:
        """Raise NoSandbox if `source` contains one of the daemon's folders; with `inside` also if it is in one."""
        for private in self._private:
            if private.is_relative_to(source) or (inside and source.is_relative_to(private)):
                raise NoSandbox(f"{source} holds the daemon's own files, which a sandbox must not see")


def find_program(word: str, path: str, workspace: Path) -> Path:
    """The absolute path of the program. Looked up outside the sandbox, so that the error can say what was not found."""
    found = shutil.which(str(workspace / word) if "/" in word else word, path=path)
    if found is None:
        raise NoSandbox(f"command not found: {word} (give its full path, or set PATH in the runtime's env)")
    return Path(os.path.abspath(found))


def passes_through(path: Path, folder: Path) -> bool:
    """Whether looking up `path`, following its links, passes through `folder` (resolved)."""
    return any(step.is_relative_to(folder) for step in _steps(path))


def _steps(path: Path) -> Iterator[Path]:
    """Every path that the lookup of `path` visits, before following its links."""
    here, links = Path("/"), 0
    rest = [*reversed(Path(os.path.abspath(path)).parts[1:])]
    while rest:
        part = rest.pop()
        here = here.parent if part == ".." else here / part
        yield here
        if here.is_symlink() and (links := links + 1) <= _MAX_LINKS:
            target = Path(os.readlink(here))
            here = Path("/") if target.is_absolute() else here.parent
            rest += [*reversed(target.parts[1:] if target.is_absolute() else target.parts)]


def _is_below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _mount_point(spec: RunSpec) -> Path:
    target = Path(spec.mount_path or "/")
    nested = target.is_relative_to(spec.workspace) or spec.workspace.is_relative_to(target)
    taken = any(target.is_relative_to(root) or root.is_relative_to(target) for root in _FORBIDDEN_MOUNTS)
    # Programs take dot files for the user's own settings.
    hidden = HOME.is_relative_to(target) or any(part.startswith(".") for part in target.parts)
    if not target.is_absolute() or nested or taken or hidden:
        raise NoSandbox(f"attachments cannot be mounted at {target}: choose a folder of its own, like /mnt/attachments")
    return target
