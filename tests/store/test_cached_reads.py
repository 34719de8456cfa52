"""Reads that do not wait for the disk: what they give is what is in the file, and they give up on all else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from sessiond.store.cached_reads import CachedReads, NotCached
from sessiond.store.filesystem import is_prompt

CONTENT = bytes(range(256)) * 1000
needs_prompt = pytest.mark.skipif(
    not is_prompt(tempfile.gettempdir()), reason="the temporary folder is not on ext4, XFS or Btrfs"
)


@pytest.fixture
def fd() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(CONTENT)
        file.flush()
        yield file.fileno()


@needs_prompt
def test_what_is_in_memory_is_read(fd: int) -> None:
    reads = CachedReads(fd, len(CONTENT))
    assert reads.pread(1000, 0) + reads.pread(5, 77_777) == CONTENT[:1000] + CONTENT[77_777:77_782]


@needs_prompt
def test_no_more_bytes_are_read_than_were_allowed(fd: int) -> None:
    reads = CachedReads(fd, 1000)
    assert len(reads.pread(600, 0) + reads.pread(400, 600)) == 1000
    with pytest.raises(NotCached):
        reads.pread(1, 1000)


@needs_prompt
def test_a_file_that_is_shorter_than_it_was_is_not_filled_up(fd: int) -> None:
    reads = CachedReads(fd, 1 << 20)
    assert reads.pread(10, len(CONTENT) - 10) == CONTENT[-10:]
    with pytest.raises(NotCached):
        reads.pread(11, len(CONTENT) - 10)


@needs_prompt
def test_what_is_not_in_memory_is_not_waited_for(fd: int) -> None:
    os.fsync(fd)
    for _ in range(1000):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            CachedReads(fd, len(CONTENT)).pread(len(CONTENT), 0)
        except NotCached:
            return
        # The disk was quicker with reading ahead than the call.
    raise AssertionError("what was taken out of memory was read each time")


def test_what_cannot_be_read_without_waiting_is_not_read() -> None:
    reading, writing = os.pipe()  # a descriptor that has no offsets
    try:
        with pytest.raises(NotCached):
            CachedReads(reading, 100).pread(1, 0)
    finally:
        os.close(reading)
        os.close(writing)
