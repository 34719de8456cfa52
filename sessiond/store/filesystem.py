"""What the file system of a folder can do: whether inotify reports all changes, whether reads can do without waiting.

Linux only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

# From statfs(2) and linux/magic.h: file systems that other machines or user-space programs change unseen by the kernel.
_DEAF = {
    0x65735546: "FUSE",
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x00C36400: "Ceph",
    0x786F4256: "a shared folder of VirtualBox",
    0xBACBACBC: "a shared folder of VMware",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}
# Those of this machine's disks that know RWF_NOWAIT: ext4, XFS, Btrfs.
_PROMPT = frozenset({0xEF53, 0x58465342, 0x9123683E})


def deaf_kind(path: str) -> str | None:
    """The name of the path's file system if inotify does not report changes by others there, else None."""
    return _DEAF.get(_magic(path))


def is_prompt(path: str) -> bool:
    """Whether files there can be opened without waiting for another machine or a program, and what is in memory of them
    be read without waiting for the disk. False where that is not known. Waits for the file system itself.
    """
    return _magic(path) in _PROMPT


def _magic(path: str) -> int:
    """The type of the path's file system; 0 where it cannot be found out."""
    statfs = _statfs()
    if statfs is None:
        return 0
    # struct statfs is 120 bytes at most; it begins with f_type, a word of the machine.
    buffer = ctypes.create_string_buffer(256)
    if statfs(os.fsencode(path), buffer) != 0:
        return 0
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


@cache
def _statfs() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "statfs", None)
