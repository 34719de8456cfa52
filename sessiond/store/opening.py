"""Open a store: create it if it is missing, lock it, check its format, read its secret. Synchronous.

The lock is flock(2) on the folder and on a file in it. The process id in the lock file is only for error messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sessiond.clock import Clock
from sessiond.errors import ConfigError, StoreInUse, reason_of, shorten
from sessiond.store import dirfd, layout, making
from sessiond.store.scan import Problem

# The locks of a killed daemon are released only when the kernel has cleaned up the process, and by forked children only
# at their exec.
LOCK_PATIENCE_S = 1.0
_LOOK_AGAIN_S = 0.01


class StoreMarker(msgspec.Struct, frozen=True, rename="camel"):
    format: int
    created_at: int = 0


class OpenStore(msgspec.Struct, frozen=True):
    """A locked store. `secret` has 32 bytes: the Ed25519 seed for tokens, and the key for cursors."""

    path: Path
    root_fd: int
    secret: bytes


@contextmanager
def open_locked(path: Path, clock: Clock) -> Iterator[OpenStore]:
    """The store at `path`. StoreInUse where another process holds it, ConfigError where it cannot be used."""
    with contextlib.ExitStack() as held:
        try:
            root_fd = _open_root(path)
            held.callback(os.close, root_fd)
            lock_fd = lock(root_fd, path, patience_s=LOCK_PATIENCE_S)
            held.callback(os.close, lock_fd)
            _check_format(root_fd, path, clock)
            secret = _read_secret(root_fd)
        except OSError as error:
            what = f" ({Path(error.filename).name})" if isinstance(error.filename, str) else ""
            raise ConfigError(f"the store {path} cannot be opened: {reason_of(error)}{what}") from None
        yield OpenStore(path=path, root_fd=root_fd, secret=secret)


def _open_root(path: Path) -> int:
    # An existing folder is not changed: it may be a symlink, and its mode is the owner's choice.
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # whatever the umask
        with dirfd.closing(dirfd.open_root(folder.parent)) as parent_fd:
            dirfd.fsync_dir(parent_fd)
    return dirfd.open_root(path)


def lock(root_fd: int, path: Path, *, patience_s: float = 0.0) -> int:
    """Lock the store until this descriptor and `root_fd` are closed. StoreInUse where another process holds the lock
    for longer than `patience_s`.

    The folder is locked as well as the file in it. Otherwise a second daemon could start after somebody removed the
    file, or unpacked a backup over a store in use.
    """
    fd = dirfd.open_file(root_fd, layout.LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + patience_s
        while not _is_locked(root_fd, fd):
            if time.monotonic() >= deadline:
                raise StoreInUse(
                    f"the store {path} is in use by {holder(fd)};"
                    " stop that one first, or give this one a store of its own with --store"
                )
            time.sleep(_LOOK_AGAIN_S)  # noqa: TID251 - before the daemon serves; flock has no timeout
    except BaseException:
        os.close(fd)
        raise
    # A full disk must not prevent the start: the process id is only for error messages.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _is_locked(root_fd: int, fd: int) -> bool:
    """Take both locks; False where another process has one of them."""
    if is_held(root_fd):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with contextlib.suppress(OSError):
            fcntl.flock(root_fd, fcntl.LOCK_UN)
        if not isinstance(error, BlockingIOError):
            raise
        return False
    return True


def is_held(root_fd: int) -> bool:
    """Whether another process has locked the folder; if not, this descriptor has locked it now."""
    try:
        fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # some network file systems cannot lock folders; then only the file is locked
    return False


def holder(fd: int) -> str:
    """The process that wrote its id into the lock file last, in words."""
    text = os.pread(fd, 32, 0).strip()
    if not text.isdigit():
        return "another process"
    try:
        words = Path(f"/proc/{int(text)}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    # Without the folders of programs, so that there is room for their arguments.
    command = shorten(" ".join(word.rpartition("/")[2] or word for word in words).strip())
    return f"process {int(text)}" + (f" ({command})" if command else "")


def _check_format(root_fd: int, path: Path, clock: Clock) -> None:
    try:
        fd = dirfd.open_file(root_fd, layout.STORE_FILE, os.O_RDONLY)
    except FileNotFoundError:
        _write_git_ignore(root_fd)
        made = StoreMarker(format=layout.FORMAT, created_at=clock.wall_ms())
        dirfd.write_atomic(root_fd, layout.STORE_FILE, msgspec.json.encode(made) + b"\n")
        return
    with os.fdopen(fd, "rb") as file:
        data = file.read(4096)
    try:
        found = msgspec.json.decode(data, type=StoreMarker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(f'{path / layout.STORE_FILE} is damaged: expected {{"format": 1, "createdAt": ms}}') from None
    if found.format > layout.FORMAT:
        raise ConfigError(
            f"the store {path} has format {found.format}, this sessiond reads up to {layout.FORMAT}; upgrade sessiond"
        )


def _write_git_ignore(root_fd: int) -> None:
    """Write `.gitignore` into a new store, unless there is one."""
    with contextlib.suppress(FileExistsError, dirfd.SymlinkRefused):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(dirfd.open_file(root_fd, layout.GIT_IGNORE, flags), "wb") as file:
            file.write(layout.IGNORED_BY_GIT.encode())


def _read_secret(root_fd: int) -> bytes:
    with dirfd.closing(open_folder(root_fd, (layout.KEYS,))) as keys_fd:
        making.remove_leftovers(keys_fd)
        try:
            fd = dirfd.open_file(keys_fd, layout.SIGNING_KEY, os.O_RDONLY)
        except FileNotFoundError:
            secret = os.urandom(32)
            dirfd.write_atomic(keys_fd, layout.SIGNING_KEY, secret)
            return secret
        with os.fdopen(fd, "rb") as file:
            secret = file.read(64)
    if len(secret) != 32:
        raise ConfigError(
            f"{layout.KEYS}/{layout.SIGNING_KEY} in the store is damaged: it has {len(secret)} bytes, not 32"
        )
    return secret


def open_folder(root_fd: int, parts: Sequence[str]) -> int:
    """A descriptor of a folder in the store. Missing folders are created, and synced when this returns."""
    fd = os.dup(root_fd)
    for part in parts:
        with dirfd.closing(fd) as parent_fd:
            try:
                fd = dirfd.open_dir(parent_fd, part)
            except FileNotFoundError:
                fd = dirfd.open_path_dir(parent_fd, (part,), create=True)
                dirfd.fsync_dir(parent_fd)
    return fd


def open_agent(root_fd: int, agent_id: str) -> int:
    """A descriptor of an agent's sessions folder, which is created if it is missing."""
    # `agents` itself is created at the start only. If it was moved away, a new one would hide it when it comes back.
    with dirfd.closing(dirfd.open_dir(root_fd, layout.AGENTS)) as agents_fd:
        return open_folder(agents_fd, (agent_id, layout.SESSIONS))


def agent_folders(root_fd: int, problems: list[Problem]) -> list[str]:
    """The agents with a usable folder, in order of their ids."""
    found: list[str] = []
    with dirfd.closing(open_folder(root_fd, (layout.AGENTS,))) as agents_fd:
        for name in sorted(os.listdir(agents_fd)):
            if dirfd.is_symlink(agents_fd, name):
                problems.append(Problem(f"{layout.AGENTS}/{_printable(name)}", "a symlink; it is not followed"))
            elif layout.is_agent_folder(name) and _is_usable(agents_fd, name, problems):
                found.append(name)
    return found


def _is_usable(agents_fd: int, name: str, problems: list[Problem]) -> bool:
    where = f"{layout.AGENTS}/{name}"
    try:
        with dirfd.closing(dirfd.open_dir(agents_fd, name)) as agent_fd:
            where = f"{where}/{layout.SESSIONS}"
            with dirfd.closing(dirfd.open_dir(agent_fd, layout.SESSIONS)):
                return True
    except FileNotFoundError:
        return where.endswith(layout.SESSIONS)  # created with the first session
    except dirfd.SymlinkRefused:
        problems.append(Problem(where, "a symlink; it is not followed"))
    except OSError as error:
        problems.append(Problem(where, reason_of(error)))
    return False


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
