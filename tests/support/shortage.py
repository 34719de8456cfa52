"""Descriptors, threads and room that run out, for tests in the daemon's own process."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import trio


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """In this block only `count` descriptors are free."""
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


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """In this block none is free, until the code under test closes one."""
    with free_descriptors(0), ExitStack() as taken:
        with suppress(OSError):
            while True:
                taken.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        yield


@contextmanager
def no_room() -> Iterator[None]:
    """In this block no file gets longer, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def refused_threads() -> Iterator[None]:
    """In this block no thread can start, because its stack would be too large, and idle threads are kept busy."""
    over = threading.Event()
    usual = threading.stack_size(1 << 47)
    try:
        with suppress(RuntimeError):
            while True:
                trio.lowlevel.start_thread_soon(over.wait, lambda _: None)
        yield
    finally:
        threading.stack_size(usual)
        over.set()


@contextmanager
def busy_threads() -> Iterator[None]:
    """In this block all of Trio's usual threads are busy."""
    limiter, others = trio.to_thread.current_default_thread_limiter(), []
    try:
        while limiter.available_tokens:
            others.append(object())
            limiter.acquire_on_behalf_of_nowait(others[-1])
        yield
    finally:
        for other in others:
            limiter.release_on_behalf_of(other)
