"""Open a store: make it where it is missing, lock it, check its format, read its secret. Synchronous.

The lock is the kernel's (flock), held by the open descriptor; the process id written into the lock file only serves to
name the holder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sessiond.clock import Clock
from sessiond.errors import ConfigError, StoreInUse
from sessiond.store import dirfd, layout
from sessiond.store.scan import Problem


class _StoreFile(msgspec.Struct, frozen=True, rename="camel"):
    format: int
    created_at: int


class Opened(msgspec.Struct, frozen=True):
    """A locked store. `secret` is 32 bytes: the Ed25519 seed of its tokens, and the key of its cursors."""

    path: Path
    root_fd: int
    secret: bytes


@contextmanager
def opened(path: Path, clock: Clock) -> Iterator[Opened]:
    """The store at `path`. StoreInUse where another process holds it, ConfigError where it cannot be used."""
    try:
        # Not exist_ok: the mode counts only for what is made here, and a store may be a symlink to a folder.
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        root_fd = dirfd.open_root(path)
    except OSError as error:
        raise ConfigError(f"the store {path} cannot be opened: {os.strerror(error.errno or 5)}") from None
    try:
        lock_fd = _lock(root_fd, path)
        try:
            _check_format(root_fd, path, clock)
            yield Opened(path=path, root_fd=root_fd, secret=_secret(root_fd))
        finally:
            os.close(lock_fd)
    finally:
        os.close(root_fd)


def _lock(root_fd: int, path: Path) -> int:
    fd = dirfd.open_file(root_fd, layout.LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(fd)
        os.close(fd)
        raise StoreInUse(
            f"the store {path} is in use by {holder}; stop that one first, or give this one a store of its own with --store"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).strip()
    if not text.isdigit():
        return "another process"
    try:
        command = Path(f"/proc/{int(text)}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"process {int(text)}" + (f" ({command[:80]})" if command else "")


def _check_format(root_fd: int, path: Path, clock: Clock) -> None:
    try:
        fd = dirfd.open_file(root_fd, layout.STORE_FILE, os.O_RDONLY)
    except FileNotFoundError:
        made = _StoreFile(format=layout.FORMAT, created_at=clock.wall_ms())
        dirfd.write_atomic(root_fd, layout.STORE_FILE, msgspec.json.encode(made) + b"\n")
        return
    with os.fdopen(fd, "rb") as file:
        data = file.read(4096)
    try:
        found = msgspec.json.decode(data, type=_StoreFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(f'{path / layout.STORE_FILE} is damaged: expected {{"format": 1, "createdAt": ms}}') from None
    if found.format > layout.FORMAT:
        raise ConfigError(
            f"the store {path} has format {found.format}, this sessiond reads up to {layout.FORMAT}; upgrade sessiond"
        )


def _secret(root_fd: int) -> bytes:
    keys_fd = dirfd.open_path_dir(root_fd, (layout.KEYS,), create=True)
    try:
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
    finally:
        os.close(keys_fd)


def agent_folders(root_fd: int, problems: list[Problem]) -> list[str]:
    """The agents that have a sessions folder, in order of name."""
    agents_fd = dirfd.open_path_dir(root_fd, (layout.AGENTS,), create=True)
    found: list[str] = []
    try:
        with os.scandir(agents_fd) as entries:
            for item in entries:
                if item.is_symlink():
                    problems.append(Problem(f"{layout.AGENTS}/{item.name}", "a symlink; it is not followed"))
                elif item.is_dir(follow_symlinks=False) and layout.is_agent_folder(item.name):
                    if dirfd.is_symlink(agents_fd, f"{item.name}/{layout.SESSIONS}"):
                        problems.append(
                            Problem(f"{layout.AGENTS}/{item.name}/{layout.SESSIONS}", "a symlink; it is not followed")
                        )
                    else:
                        found.append(item.name)
    finally:
        os.close(agents_fd)
    return sorted(found)
