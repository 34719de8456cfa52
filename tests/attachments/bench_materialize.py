"""The cost of attachments compared with plainly writing and syncing the same files, in the same run."""

from __future__ import annotations

import base64
import os
import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sessiond.attachments.decode import Attachment, prepare
from sessiond.attachments.materialize import materialize
from sessiond.config.settings import AttachmentsConfig

ROUNDS = 30
FILES = [os.urandom(102_400) for _ in range(10)]


def write_plainly(folder: Path) -> None:
    folder.mkdir()
    for number, data in enumerate(FILES):
        fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)


def measure_s(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@pytest.mark.benchmark
def test_ten_attachments_cost_less_than_three_times_their_plain_files(tmp_path: Path) -> None:
    items = [
        Attachment(name=f"f{number}", content=base64.b64encode(data).decode(), encoding="base64")
        for number, data in enumerate(FILES)
    ]

    def write_attachments() -> None:
        materialize(prepare(items, AttachmentsConfig()), tmp_path, str(uuid.uuid4()))

    # Alternately, so that other work on the disk slows both down.
    pairs = [
        (measure_s(partial(write_plainly, tmp_path / str(number))), measure_s(write_attachments))
        for number in range(ROUNDS)
    ]
    bare_s, ours_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"bare {bare_s * 1e3:.2f} ms, ours {ours_s * 1e3:.2f} ms, {ours_s / bare_s:.2f} times")
    assert ours_s < 3 * bare_s
