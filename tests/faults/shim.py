"""Compile the shim of `shim.c`, and control it: which call below a folder gets a fault, and which one."""

from __future__ import annotations

import atexit
import ctypes
import enum
import errno
import functools
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.forked_daemon import DaemonForkServer

SOURCE = Path(__file__).with_name("shim.c")


class Mode(enum.IntEnum):
    """As in shim.c."""

    COUNT = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    FAIL = 3
    HALF = 4
    STALL = 5


class Kind(enum.IntFlag):
    """What calls need from the disk: free space, a sync, or anything else. As in shim.c."""

    GROW = 1
    SYNC = 2
    OTHER = 4


ALL = Kind.GROW | Kind.SYNC | Kind.OTHER
_GROWING = ("create", "truncate", "write", "rename", "link", "mkdir")


class Over(enum.IntEnum):
    """What happens to writes over existing bytes after the fault. As in shim.c."""

    WHOLE = 0
    SHORT = 1
    TORN = 2


class Point(NamedTuple):
    """One fault: what happens at the n-th call. `forever`: also at every later call of these kinds. `over`: what
    happens to later overwrites, as when an append is blanked out.
    """

    mode: Mode
    number: int
    error: int = 0
    forever: Kind = Kind(0)
    over: Over = Over.WHOLE

    def __str__(self) -> str:
        what = self.mode.name.lower().replace("_", " ")
        if self.mode is Mode.FAIL:
            what = errno.errorcode[self.error]
        kinds = {Kind(0): "at", Kind.GROW: "disk full from", Kind.SYNC: "every sync from"}
        taken_back = {Over.WHOLE: "", Over.SHORT: ", blanked out by half", Over.TORN: ", killed while blanking out"}
        return f"{what} {kinds.get(self.forever, 'every call from')} {self.number}{taken_back[self.over]}"


class Call(NamedTuple):
    """One call that was made: `to` of a rename or link, the offset and bytes of a write."""

    number: int
    name: str
    path: str
    to: str
    offset: int
    data: bytes

    @property
    def kind(self) -> Kind:
        """What it needs of the disk."""
        return Kind.GROW if self.name in _GROWING else Kind.SYNC if self.name == "sync" else Kind.OTHER

    def __str__(self) -> str:
        more = f" -> {self.to}" if self.to else f" {len(self.data)} at {self.offset}" if self.data else ""
        return f"{self.name} {self.path}{more}"


class _Fields(ctypes.Structure):
    _fields_ = [
        ("counter", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("hit", ctypes.c_uint64),
        ("mode", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("forever", ctypes.c_uint32),
        ("logging", ctypes.c_uint32),
        ("over", ctypes.c_uint32),
        ("root", ctypes.c_char * 512),
    ]


def _compile_shim() -> bytes | None:
    """The shared object; None without gcc or if the shim does not compile on this machine."""
    if shutil.which("gcc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "shim.so")
        command = ["gcc", "-Wall", "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-lpthread"]
        done = subprocess.run(command, capture_output=True, check=False)
        return made.read_bytes() if done.returncode == 0 else None


@functools.cache
def shim_server() -> DaemonForkServer | None:
    """The fork server of this process with the shim before its libc; None where there can be none."""
    compiled = _compile_shim()
    if compiled is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder, "shim.so")
        shim.write_bytes(compiled)
        made = DaemonForkServer({**os.environ, "LD_PRELOAD": str(shim)})
        # It has loaded the shim when it answers.
        made.ask(None)
    atexit.register(made.close)
    return made


class Control:
    """Controls the shim of one process through shared memory."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.path, self.log_path = folder / "control", folder / "calls"
        self.path.write_bytes(bytes(ctypes.sizeof(_Fields)))
        self.log_path.write_bytes(b"")
        fd = os.open(self.path, os.O_RDWR)
        self._map = mmap.mmap(fd, ctypes.sizeof(_Fields))
        os.close(fd)
        self._fields = _Fields.from_buffer(self._map)
        self._fields.root = os.fsencode(root)

    def count_below(self, root: Path) -> None:
        """Count only calls that change this file, or one below this folder."""
        self._fields.root = os.fsencode(root)

    def close(self) -> None:
        del self._fields
        self._map.close()

    def arm(self, point: Point | None) -> None:
        """Count from zero and log, and inject the fault of this point, if any."""
        fields = self._fields
        fields.first = 0
        fields.counter = fields.hit = fields.over = 0
        fields.logging = True
        if point is not None:
            fields.mode, fields.error, fields.forever = point.mode, point.error, point.forever
            fields.over = point.over
            fields.first = point.number

    def disarm(self) -> None:
        """Inject no more faults, and let a call go on that is held up; counting continues."""
        self._fields.first = self._fields.over = 0

    @property
    def counter(self) -> int:
        """The number of calls since it was armed."""
        return int(self._fields.counter)

    @property
    def hit(self) -> int:
        """The number of calls that got the fault."""
        return int(self._fields.hit)

    def calls(self) -> list[Call]:
        """Every call that was made while logging was on."""
        data = self.log_path.read_bytes()
        found: list[Call] = []
        at = 0
        while at < len(data):
            end = data.index(b"\n", at)
            number, name, path, to, offset, size = data[at:end].decode().split("\t")
            at = end + 1 + int(size)
            found.append(Call(int(number), name, path, to, int(offset), data[end + 1 : at]))
        return found
