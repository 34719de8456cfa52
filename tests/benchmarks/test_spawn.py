"""A spawn with ten attachments of 100 KiB, compared with writing and syncing the same files. `just bench`."""

from __future__ import annotations

import base64
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.benchmark

FILES, SIZE, ROUNDS = 10, 100 * 1024, 25
MOST = 3.0
# No program is attached for the agent, so that only the acceptance is measured, without the runs of earlier rounds.
CONFIG = """
[agents.defaults]
queueTtlSeconds = 3600
[agents.defaults.subagents]
maxChildrenPerAgent = 1000

[[agents.list]]
id = "main"
runtime = { type = "attached" }
"""


def write_files_s(folder: Path, contents: list[bytes]) -> float:
    """Seconds to create and sync a folder with these files."""
    began = time.perf_counter()
    folder.mkdir()
    for number, content in enumerate(contents):
        fd = os.open(folder / f"file{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, content)
        os.fsync(fd)
        os.close(fd)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - began


def spawn_s(sock: socket.socket, encode: Callable[[Any], bytes], contents: list[bytes]) -> float:
    """Seconds from the first byte of the request to the last one of the answer."""
    files: list[dict[str, Any]] = []
    for number, content in enumerate(contents):
        text = {"content": base64.b64encode(content).decode(), "encoding": "base64"}
        files.append({"name": f"file{number}", **(text if encode is not cbor2.dumps else {"content": content})})
    params = {"task": "read them", "attachments": files}
    request = encode({"jsonrpc": "2.0", "id": 1, "method": "sessions_spawn", "params": params})
    began = time.perf_counter()
    sock.sendall(request)
    answer = sock.recv(65536)
    took = time.perf_counter() - began
    assert b"accepted" in answer, answer
    return took


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize(("codec", "encode"), [("ndjson", line), ("cbor", cbor2.dumps)])
def test_a_spawn_with_ten_attachments_takes_less_than_three_times_the_bare_files(
    daemon: Daemon, tmp_path: Path, codec: str, encode: Callable[[Any], bytes]
) -> None:
    daemon.start(CONFIG)
    ours, base = [], []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(daemon.socket))
        for number in range(ROUNDS):
            contents = [os.urandom(SIZE) for _ in range(FILES)]
            ours.append(spawn_s(sock, encode, contents))
            base.append(write_files_s(tmp_path / f"bare{number}", contents))
    ratio = statistics.median(one / other for one, other in zip(ours, base, strict=True))
    one, other = statistics.median(ours) * 1000, statistics.median(base) * 1000
    print(f"\nspawn with {FILES} x {SIZE // 1024} KiB over {codec}: {one:.1f} ms, bare {other:.1f} ms: {ratio:.2f}x")
    assert ratio < MOST
