"""Run a program again, and all that it starts, as on a disk whose syncs take longer: `bars.py --sync-us`.

How the daemon stands beside SQLite and bare files is a matter of the disk: those that sync one after the other wait for
each sync, and those that join them do not. Disks of virtual machines take 0.1 ms, others up to ten.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_MARK = "SESSIOND_BENCH_SYNC_US"
_SOURCE = """
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int sync_and_wait(long call, int fd) {
    int result = syscall(call, fd);
    const char *text = getenv("SESSIOND_BENCH_SYNC_US");
    long us = text ? atol(text) : 0;
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&rest, NULL);
    return result;
}
int fdatasync(int fd) { return sync_and_wait(SYS_fdatasync, fd); }
int fsync(int fd) { return sync_and_wait(SYS_fsync, fd); }
"""


def run_again_with(sync_us: int) -> None:
    """Replace this process by one in which each sync takes so much longer; return where it is that one."""
    if _MARK in os.environ:
        return
    with tempfile.TemporaryDirectory(prefix="bars-") as name:
        library = Path(name) / "slower_disk.so"
        compiler = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library)]
        subprocess.run(compiler, input=_SOURCE, text=True, check=True)
        environment = {**os.environ, _MARK: str(sync_us), "LD_PRELOAD": str(library)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)
