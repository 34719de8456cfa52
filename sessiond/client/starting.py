"""Whether a daemon that does not answer yet is starting, and its progress, from the file that it keeps meanwhile."""

from __future__ import annotations

import os
import socket

FILE_NAME = "starting"


def start_progress(socket_path: str) -> str | None:
    """The progress of the daemon that will listen at `socket_path` (may be empty), None where none is starting."""
    try:
        with open(os.path.join(os.path.dirname(socket_path), FILE_NAME), encoding="utf-8") as file:
            pid, _, text = file.read(4096).partition("\n")
        # A daemon that was killed during its start has left the file behind.
        with open(f"/proc/{int(pid)}/cmdline", "rb") as file:
            is_ours = b"sessiond" in file.read()
    except (OSError, ValueError):
        return None
    return text.strip() if is_ours else None


def is_listening(socket_path: str) -> bool:
    """Whether a server accepts connections there."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(socket_path) == 0
