"""A real `systemd --user` for a test, with its own processes, mounts, home and user; it leaves nothing behind.

Root makes the namespaces; the manager and everything below it is an ordinary user. Knows nothing of sessiond.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from support.patience import PATIENCE_S

USER = "sessiond-test"
UID = 61_423
HOME = Path("/home") / USER
RUNTIME = Path(f"/run/user/{UID}")
_MANAGERS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")

# Run as root in namespaces of its own. `/run/systemd/system` is how systemd knows that it is in charge of a machine;
# without `/run/systemd/unit-root` every directive that needs mounts ends in 226/NAMESPACE.
_SETUP = r"""
set -eu
mount --make-rprivate /
# Unmount the old /proc instead of mounting over it: with a complete /proc hidden below, the kernel would let programs
# mount another one although the visible one is partly covered, and the test would not see what breaks.
umount -l /proc
mount -t proc proc /proc
stage=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$stage"
# Folders that the user must reach are bind-mounted aside, because a folder above them may be closed to the user.
number=0
for path in $EXPOSED; do
    number=$((number + 1)); mkdir "$stage/$number"; mount --bind "$path" "$stage/$number"
done
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /home
for closed in $CLOSED; do mount -t tmpfs -o mode=755 tmpfs "$closed"; done
number=0
for path in $EXPOSED; do
    number=$((number + 1)); mkdir -p "$path"; mount --bind "$stage/$number" "$path"
done
mkdir -p /run/systemd/system /run/systemd/unit-root /run/systemd/journal /run/lock /run/dbus "$RUNTIME" "$HOME_DIR"
cp /etc/passwd /etc/group /run/
echo "$NAME:x:$ID:$ID::$HOME_DIR:/bin/sh" >> /run/passwd
echo "$NAME:x:$ID:" >> /run/group
mount --bind /run/passwd /etc/passwd
mount --bind /run/group /etc/group
chown "$ID:$ID" "$RUNTIME" "$HOME_DIR"; chmod 700 "$RUNTIME" "$HOME_DIR"
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/user
chown -R "$ID:$ID" /sys/fs/cgroup/user
echo $$ > /sys/fs/cgroup/user/cgroup.procs
$AS_USER "$MANAGER" --user --log-target=console --log-level=info &
wait
"""


def find_problem() -> str | None:
    """Why this machine cannot run a private systemd; None if it can."""
    if os.geteuid() != 0:
        return "a systemd of its own needs root to make the namespaces"
    tools = [tool for tool in ("unshare", "nsenter", "setpriv", "mount", "systemctl") if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)}"
    if _manager() is None:
        return "systemd is not installed"
    if _cgroup2() is None:
        return "there is no cgroup2 file system to write to"
    probe = ["unshare", "--mount", "--cgroup", "--pid", "--fork", "mount", "-t", "tmpfs", "t", "/run"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no namespaces to be had: {tried.stderr.strip()}"


def _manager() -> str | None:
    return next((path for path in _MANAGERS if os.access(path, os.X_OK)), None)


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(",") and os.access(where, os.W_OK):
            return Path(where)
    return None


class PrivateSystemd:
    """Starts on entering; on leaving it ends with all its processes. `exposed` are folders that the user must reach."""

    def __init__(self, exposed: Iterable[Path], log: Path) -> None:
        self._exposed = _outermost(exposed)
        self._log = log
        self._environment = {
            "HOME": str(HOME),
            "USER": USER,
            "LANG": "C.UTF-8",
            "PATH": f"{HOME}/.local/bin:/usr/bin:/bin",
            "XDG_RUNTIME_DIR": str(RUNTIME),
        }
        self._cgroup: Path | None = None
        self._outer: subprocess.Popen[bytes] | None = None
        self._inner = 0

    def __enter__(self) -> Self:
        base = _cgroup2()
        assert base is not None
        self._cgroup = base / f"sessiond-test-{os.getpid()}"
        self._cgroup.mkdir()
        environment = os.environ | {
            "EXPOSED": " ".join(map(str, self._exposed)),
            "CLOSED": " ".join(map(str, _closed(self._exposed))),
            "RUNTIME": str(RUNTIME),
            "HOME_DIR": str(HOME),
            "NAME": USER,
            "ID": str(UID),
            "MANAGER": str(_manager()),
            "AS_USER": " ".join(self._as_user()),
        }
        join = f"echo $$ > {self._cgroup}/cgroup.procs; exec "
        unshare = "unshare --mount --cgroup --pid --fork --kill-child /bin/bash -c "
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                ["/bin/bash", "-c", join + unshare + '"$0"', _SETUP],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._inner = self._wait_for_inner()
            self.wait_until(lambda: self.run("systemctl", "--user", "is-system-running").stdout.strip() == "running")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        if self._inner:
            _kill(self._inner)  # PID 1 of the namespace: the kernel ends all the others
        _kill(self._outer.pid)
        self._outer.wait()
        if self._cgroup is not None:
            for folder in sorted(self._cgroup.rglob("*"), reverse=True):
                if folder.is_dir():
                    _remove_cgroup(folder)
            _remove_cgroup(self._cgroup)

    def run(self, *command: str, timeout: float = 30, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run the command as the user inside. Does not raise on failure: check `returncode`. `extra` is environment."""
        inside = ["nsenter", f"--target={self._inner}", "--mount", "--pid", "--", *self._as_user(extra)]
        return subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL
        )

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Start the command as the user inside, with pipes for its input and output."""
        inside = ["nsenter", f"--target={self._inner}", "--mount", "--pid", "--", *self._as_user()]
        return subprocess.Popen([*inside, *command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def path(self, path: Path) -> Path:
        """The path under which the test can reach a path of the inside."""
        return Path(f"/proc/{self._inner}/root") / path.relative_to("/")

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a file that belongs to the user, and create the folders above it."""
        made = self.run("mkdir", "-p", str(path.parent))
        assert made.returncode == 0, made.stderr
        file = self.path(path)
        file.write_text(text)
        os.chown(file, UID, UID)
        file.chmod(mode)

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        found = self.run("systemctl", "--user", "show", unit, f"--property={','.join(names)}").stdout
        return dict(line.split("=", 1) for line in found.splitlines())

    def wait_until(self, condition: object, seconds: float = PATIENCE_S) -> None:
        """Ask `condition()` until it is true. AssertionError with the manager's log after `seconds`."""
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"the condition is not true after {seconds} s\n{self.log()}"
            time.sleep(0.1)  # each question is several processes

    def log(self) -> str:
        """The end of the manager's log."""
        return self._log.read_text(errors="replace")[-4000:]

    def _as_user(self, extra: dict[str, str] | None = None) -> list[str]:
        variables = [f"{name}={value}" for name, value in (self._environment | (extra or {})).items()]
        identity = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
        return [*identity, "env", "-i", *variables]

    def _wait_for_inner(self) -> int:
        """The process id, outside, of the first process inside."""
        assert self._outer is not None
        pid = self._outer.pid
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._outer.poll() is None:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/root{RUNTIME}/systemd/private").exists():
                return int(children[0])
            time.sleep(0.02)
        raise AssertionError(f"systemd did not start\n{self.log()}")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _remove_cgroup(folder: Path) -> None:
    """Remove a control group. This fails until the kernel has removed its last process, which takes a moment."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """The folders without those that lie in another one, and without those that every user can reach anyway."""
    found = sorted({path.resolve() for path in paths} | {path.absolute() for path in paths})
    outer = [path for path in found if not any(other in path.parents for other in found)]
    return [path for path in outer if not path.is_relative_to("/usr")]


def _closed(paths: Iterable[Path]) -> list[Path]:
    """The highest folder above each path that other users may not enter."""
    closed = set()
    for path in paths:
        above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        closed.update(above[:1])
    return sorted(closed)
