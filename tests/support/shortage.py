"""Descriptors that run out, for tests in the daemon's own process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """While this lasts so many are left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fds = set(map(int, os.listdir("/proc/self/fd")))
    filled = [os.open("/dev/null", os.O_RDONLY) for number in range(max(fds)) if number not in fds]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fds) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filled:
            os.close(fd)
