"""Whether a daemon that does not answer yet is on its way, and how far: it keeps a file while it starts."""

from __future__ import annotations

import os
import socket

FILE_NAME = "starting"


def progress(socket_path: str) -> str | None:
    """How far the daemon is that will listen at `socket_path` (it may say nothing), None where none is starting."""
    try:
        with open(os.path.join(os.path.dirname(socket_path), FILE_NAME), encoding="utf-8") as file:
            pid, _, text = file.read(4096).partition("\n")
        # A daemon that was killed while it started leaves the file behind.
        with open(f"/proc/{int(pid)}/cmdline", "rb") as file:
            is_ours = b"sessiond" in file.read()
    except (OSError, ValueError):
        return None
    return text.strip() if is_ours else None


def is_listening(socket_path: str) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(socket_path) == 0
