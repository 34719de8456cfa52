"""The outbox on disk: one file for each unacknowledged delivery. Synchronous; sends nothing.

Source: store.md, "Layout" (`outbox/<deliveryId>.json`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re

import msgspec

from sessiond.delivery.channels import Delivery
from sessiond.model import lax
from sessiond.store import dirfd, layout

_SUFFIX = ".json"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")


class OutboxFiles:
    """The folder `outbox`, opened below the store's descriptor for each operation, because it may be replaced.

    `sync`: files are synced (`store.durability`).
    """

    def __init__(self, root_fd: int, *, sync: bool) -> None:
        self._root_fd = os.dup(root_fd)
        self._sync = sync
        # If the folder cannot be created now, the operations that need it raise.
        with contextlib.suppress(OSError):
            os.close(self._folder())

    def close(self) -> None:
        os.close(self._root_fd)

    def _folder(self) -> int:
        return dirfd.open_path_dir(self._root_fd, (layout.OUTBOX,), create=True)

    def read(self) -> tuple[list[Delivery], list[str]]:
        """The deliveries, oldest first, and the names of files that hold none. Removes leftovers of a crash.

        OSError if the folder does not exist and cannot be created.
        """
        with dirfd.closing(self._folder()) as folder:
            return self._read_all(folder)

    def _read_all(self, folder: int) -> tuple[list[Delivery], list[str]]:
        found: list[Delivery] = []
        bad: list[str] = []
        for name in sorted(os.listdir(folder)):
            if name.startswith(dirfd.TEMP_PREFIX):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                continue
            delivery = self._read(folder, name)
            if delivery is None:
                bad.append(name)
            else:
                found.append(delivery)
        found.sort(key=lambda delivery: (delivery.created_at, delivery.delivery_id))
        return found, bad

    @staticmethod
    def _read(folder: int, name: str) -> Delivery | None:
        try:
            with dirfd.closing(dirfd.open_file(folder, name, os.O_RDONLY)) as fd:
                data = dirfd.read_file(fd, layout.MAX_DELIVERY_BYTES)
        except OSError:
            return None
        if data is None:
            return None
        delivery = lax.convert(lax.decode(data), Delivery)
        if delivery is None or delivery.delivery_id + _SUFFIX != name or not _ID.fullmatch(delivery.delivery_id):
            return None
        return delivery

    def write(self, delivery: Delivery) -> None:
        """Write the delivery's file atomically; on disk when this returns, where that matters. OSError."""
        data = msgspec.json.format(msgspec.json.encode(delivery), indent=1)
        with dirfd.closing(self._folder()) as folder:
            dirfd.write_atomic(folder, _name(delivery.delivery_id), data, sync=self._sync and _outlasts(delivery))

    def remove(self, delivery_id: str) -> None:
        """Remove the file of a settled delivery. OSError."""
        with dirfd.closing(self._folder()) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_name(delivery_id), dir_fd=folder)
            if self._sync:
                dirfd.fsync_dir(folder)


def _outlasts(delivery: Delivery) -> bool:
    """Whether it is of use after a power cut. A question is withdrawn then, and the person is told sooner without."""
    return delivery.notification is None or delivery.notification.question_id is None


def _name(delivery_id: str) -> str:
    if not _ID.fullmatch(delivery_id):
        raise OSError(errno.EINVAL, "a delivery's id names no file")
    return delivery_id + _SUFFIX
