"""The outbox on disk: one file for each delivery that nobody has acknowledged. Synchronous; knows files, sends nothing.

Source: store.md, "Layout" (`outbox/<deliveryId>.json`).
"""

from __future__ import annotations

import contextlib
import os
import re

import msgspec

from sessiond.runs.channels import Delivery
from sessiond.store import dirfd, layout

_SUFFIX = ".json"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")
MAX_FILE_BYTES = 64 * 1024 * 1024


class OutboxFiles:
    """The folder, opened below the store's descriptor. `sync` is `store.durability`."""

    def __init__(self, root_fd: int, *, sync: bool) -> None:
        self._fd = dirfd.open_path_dir(root_fd, (layout.OUTBOX,), create=True)
        self._sync = sync

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> tuple[list[Delivery], list[str]]:
        """The deliveries, oldest first, and the names of files that hold none. What a crash left half done goes."""
        found: list[Delivery] = []
        bad: list[str] = []
        for name in sorted(os.listdir(self._fd)):
            if name.startswith(dirfd.TEMP_PREFIX):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._fd)
                continue
            delivery = self._read(name)
            if delivery is None:
                bad.append(name)
            else:
                found.append(delivery)
        found.sort(key=lambda delivery: (delivery.created_at, delivery.delivery_id))
        return found, bad

    def _read(self, name: str) -> Delivery | None:
        try:
            fd = dirfd.open_file(self._fd, name, os.O_RDONLY)
            with os.fdopen(fd, "rb") as file:
                delivery = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=Delivery)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return delivery if _name(delivery.delivery_id) == name else None

    def write(self, delivery: Delivery) -> None:
        """Put the delivery's file in place, whole; on disk when this returns. OSError."""
        data = msgspec.json.format(msgspec.json.encode(delivery), indent=1)
        dirfd.write_atomic(self._fd, _name(delivery.delivery_id), data, sync=self._sync)

    def remove(self, delivery_id: str) -> None:
        """The delivery is over. OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name(delivery_id), dir_fd=self._fd)
        if self._sync:
            dirfd.fsync_dir(self._fd)


def _name(delivery_id: str) -> str:
    if not _ID.fullmatch(delivery_id):
        return ""
    return delivery_id + _SUFFIX
