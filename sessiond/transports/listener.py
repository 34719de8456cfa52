"""The listening sockets: their paths, binding them safely or taking them over from systemd, and removing them.

Knows paths, modes and file descriptors; knows nothing of connections. Everything here is synchronous and runs under
the store lock, before the daemon serves.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sessiond.errors import ConfigError, quote

ListenerName = Literal["sessiond", "agent", "http"]

_MAX_PATH_BYTES = 107  # sun_path holds 108 with its NUL
# Clients with a non-blocking connect get an error when it is full. The kernel clamps it to net.core.somaxconn.
_BACKLOG = 4096
_FIRST_FD = 3  # sd_listen_fds(3)


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """Where the two Unix sockets are. `private`: their folder is the daemon's own, which it creates or corrects."""

    sessiond: Path
    agent: Path
    private: bool


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket. `file_id` is (device, inode) of the socket file, None where the daemon did not create it."""

    name: ListenerName
    socket: socket.socket
    path: Path | None = None
    file_id: tuple[int, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The TCP address and port that were bound."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Stop listening, and unlink the socket file if it is still the one that the daemon created."""
        self.socket.close()
        if self.path is None or self.file_id is None:
            return
        try:
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self.file_id:
                self.path.unlink()
        except FileNotFoundError:
            return


def socket_paths(environ: Mapping[str, str], store: Path) -> SocketPaths:
    """Where the sockets are: `$SESSIOND_SOCKET`, else `$XDG_RUNTIME_DIR/sessiond/`, else `<store>/run/`.

    Source: protocol.md, "Where it listens".
    """
    if chosen := environ.get("SESSIOND_SOCKET"):
        path = Path(chosen).absolute()
        if path.name == "agent.sock":
            raise ConfigError(f"SESSIOND_SOCKET={chosen}: agent.sock is the name of the agents' socket beside it.")
        return SocketPaths(path, path.with_name("agent.sock"), private=False)
    runtime = Path(environ.get("XDG_RUNTIME_DIR") or "")
    folder = runtime / "sessiond" if runtime.is_absolute() and runtime.is_dir() else store.absolute() / "run"
    return SocketPaths(folder / "sessiond.sock", folder / "agent.sock", private=True)


def open_listeners(
    environ: MutableMapping[str, str], store: Path, http_listen: str | None = None
) -> tuple[Listener, ...]:
    """Every listener of the daemon: the owner's socket, the agents' socket, and TCP if `http_listen` is given.

    Sockets passed by systemd are used, the others are bound. Raises ConfigError; then nothing stays open.
    """
    opened = take_inherited(environ, os.getpid())
    try:
        missing = [name for name in ("sessiond", "agent") if name not in opened]
        if missing:
            paths = socket_paths(environ, store)
            for name in missing:
                path = paths.sessiond if name == "sessiond" else paths.agent
                check_length(path)
                prepare_folder(path.parent, private=paths.private)
                opened[name] = bind_unix(path, "sessiond" if name == "sessiond" else "agent")
        if http_listen:
            opened["http"] = bind_tcp(http_listen)
    except BaseException:
        for listener in opened.values():
            listener.close()
        raise
    return tuple(opened.values())


def take_inherited(environ: MutableMapping[str, str], pid: int) -> dict[str, Listener]:
    """The sockets passed by systemd, by name. Removes their variables from `environ`, so that no child gets them."""
    for_pid, fd_count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if for_pid != str(pid) or not fd_count.isdecimal() or not int(fd_count):
        return {}
    found: dict[str, Listener] = {}
    for index in range(int(fd_count)):
        name = names[index] if index < len(names) else ""
        sock = socket.socket(fileno=_FIRST_FD + index)
        sock.set_inheritable(False)
        sock.setblocking(False)
        if name not in ("sessiond", "agent") or name in found:
            raise ConfigError(
                f"systemd handed over a socket named {quote(name or 'nothing')}; "
                "FileDescriptorName= must be sessiond for one and agent for the other."
            )
        if sock.family != socket.AF_UNIX or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"the socket {name} that systemd handed over is no listening Unix socket.")
        found[name] = Listener("sessiond" if name == "sessiond" else "agent", sock, Path(sock.getsockname()))
    return found


def check_length(path: Path) -> None:
    """Raise ConfigError for a Unix socket path of more than 107 bytes."""
    length = len(os.fsencode(path))
    if length > _MAX_PATH_BYTES:
        raise ConfigError(
            f"{path}: the path of a socket may have {_MAX_PATH_BYTES} bytes, this one has {length}; "
            "choose a shorter one with SESSIOND_SOCKET."
        )


def prepare_folder(folder: Path, *, private: bool) -> None:
    """Create the folder of the sockets, or check that nobody else can write to it. Raises ConfigError.

    A folder chosen by the owner (not `private`) is refused rather than changed: others may be meant to read it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # whatever the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{folder}: the folder of the sockets cannot be made: {error.strerror}.") from None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a symbolic link or no folder" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
        raise ConfigError(f"{folder}: this cannot be the folder of the sockets: {reason}.") from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise ConfigError(f"{folder}: the folder of the sockets belongs to another user (uid {found.st_uid}).")
        if stat.S_IMODE(found.st_mode) & 0o077:
            if not private:
                raise ConfigError(f"{folder}: others may enter the folder of the sockets; {_remedy(folder, found)}.")
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _remedy(folder: Path, found: os.stat_result) -> str:
    # A sticky folder, such as /tmp, is shared on purpose: changing its mode would break the system.
    if not found.st_mode & stat.S_ISVTX:
        return f"run chmod 700 {folder}"
    return f"choose one that is not shared, such as SESSIOND_SOCKET={folder / 'sessiond' / 'sessiond.sock'}"


def bind_unix(path: Path, name: ListenerName) -> Listener:
    """Listen at `path`, with mode 0600 from its creation on. A socket on which nobody listens is replaced."""
    _clear_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # At bind the file gets the mode of the descriptor, less the umask; chmod then makes it exactly 0600.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fspath(path))
        path.chmod(0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        found = path.lstat()
    except OSError as error:
        sock.close()
        raise ConfigError(f"{path}: the socket cannot be made: {error.strerror}.") from None
    return Listener(name, sock, path, (found.st_dev, found.st_ino))


def bind_tcp(listen: str) -> Listener:
    """Listen on a loopback address, `127.0.0.1:7433` or `[::1]:7433`. Raises ConfigError for any other."""
    host, separator, port = listen.rpartition(":")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not separator or not 0 <= number <= 65535:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"http.listen = {quote(listen)}: write an address and a port, such as 127.0.0.1:7433."
        ) from None
    if not address.is_loopback:
        raise ConfigError(f"http.listen = {quote(listen)}: only a loopback address may be listened on.")
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((str(address), number))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"http.listen = {quote(listen)}: {error.strerror}.") from None
    return Listener("http", sock)


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path}: this is no socket; move it away, or choose another path with SESSIOND_SOCKET.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(os.fspath(path))
    if outcome != errno.ECONNREFUSED:
        raise ConfigError(f"{path}: another program answers there; choose another path with SESSIOND_SOCKET.")
    path.unlink(missing_ok=True)
