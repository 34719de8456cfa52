"""Write checked attachments into a workspace, all of them or none. Does not judge names or contents.

The agent that works in the workspace may be hostile: every path is opened relative to a descriptor and no symlink is
followed. The manifest is written last, so a folder with a manifest is complete. Source: runs.md, "Attachments".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sessiond.attachments.decode import PreparedFiles
from sessiond.attachments.names import MANIFEST
from sessiond.attachments.remove import FOLDERS, discard
from sessiond.errors import Forbidden, SessiondError, StorageError, quote
from sessiond.store import dirfd
from sessiond.store.parallel_sync import sync_together

# How many files are written before they are synced; bounds the number of open descriptors.
_BATCH = 32
# The manifest before it gets its name. No attachment has this name, because none begins with a dot.
_NEW_MANIFEST = dirfd.TEMP_PREFIX + MANIFEST


class ReceiptFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One file as it was written. `sha256` is lower-case hex."""

    name: Annotated[str, Meta(description="The name of the file.")]
    bytes: Annotated[int, Meta(description="Its size in bytes.")]
    sha256: Annotated[str, Meta(description="The SHA-256 of its content, in hexadecimal.")]
    mime_type: Annotated[str | None, Meta(description="Its MIME type, as given by the caller.")] = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The files that were written, as in the answer of `sessions_spawn` and in the manifest. Has no absolute path."""

    rel_dir: Annotated[str, Meta(description="The folder of the files, relative to the agent's workspace.")]
    count: Annotated[int, Meta(description="How many files there are.")]
    total_bytes: Annotated[int, Meta(description="Their total size in bytes.")]
    files: Annotated[tuple[ReceiptFile, ...], Meta(description="The files.")]

    @property
    def attachments_id(self) -> str:
        """The id that `remove_attachments` takes."""
        return self.rel_dir.rpartition("/")[2]


def materialize(prepared: PreparedFiles, workspace: Path, attachments_id: str) -> Receipt:
    """Write the files and the manifest to `.openclaw/attachments/<id>` below `workspace`; synced when it returns.

    Forbidden (code `attachments_symlink`) if one of the folders is a symlink; StorageError (code
    `attachments_write_failed`) for every other failure, also if the id is taken. After an error nothing is left behind.
    """
    try:
        with contextlib.ExitStack() as stack:
            root = stack.enter_context(dirfd.closing(dirfd.open_root(workspace)))
            parent = stack.enter_context(dirfd.closing(_open_parent(root)))
            return _write_folder(parent, attachments_id, prepared)
    except OSError as error:
        raise _refusal(error) from error


def _write_folder(parent: int, attachments_id: str, prepared: PreparedFiles) -> Receipt:
    try:
        folder = dirfd.make_dir(parent, attachments_id)
    except FileExistsError:
        raise  # another call created it, so it must not be removed
    except OSError:
        discard(parent, attachments_id)
        raise
    try:
        with dirfd.closing(folder):
            receipt = _write_files(folder, prepared, attachments_id)
            # After all is synced, and by rename: whoever sees the manifest sees it and the files complete.
            dirfd.rename(folder, _NEW_MANIFEST, folder, MANIFEST)
            sync_together((folder, parent))
    except BaseException:
        discard(parent, attachments_id)
        raise
    return receipt


def _write_files(folder: int, prepared: PreparedFiles, attachments_id: str) -> Receipt:
    """Write and sync the files, and the manifest under a temporary name."""
    hashes: list[str] = []
    left = prepared.files
    while True:
        batch, left = left[:_BATCH], left[_BATCH:]
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(_new_file(folder, file.name, file.data)) for file in batch]
            # Computed while the disk is busy.
            hashes += [hashlib.sha256(file.data).hexdigest() for file in batch]
            if not left:
                receipt = _receipt(prepared, hashes, attachments_id)
                fds.append(stack.enter_context(_new_file(folder, _NEW_MANIFEST, _manifest(receipt))))
            sync_together(fds)
        if not left:
            return receipt


@contextlib.contextmanager
def _new_file(folder: int, name: str, data: bytes) -> Iterator[int]:
    """Write a file that is not synced yet; its descriptor, which is open as long as the context lasts."""
    fd = dirfd.open_file(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with dirfd.closing(fd):
        dirfd.write_all(fd, data)
        _start_writing(fd)
        yield fd


def _start_writing(fd: int) -> None:
    """Start writing `fd` to disk without waiting for it, while the next file is prepared."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        # The only call in the standard library that starts write-back on Linux. It does not drop dirty pages.
        advise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _open_parent(root: int) -> int:
    try:
        return dirfd.open_path_dir(root, FOLDERS)
    except FileNotFoundError:
        with dirfd.closing(dirfd.open_path_dir(root, FOLDERS[:1], create=True)) as middle:
            os.close(dirfd.open_path_dir(middle, FOLDERS[1:], create=True))
            dirfd.fsync_dir(middle)
        dirfd.fsync_dir(root)
        return dirfd.open_path_dir(root, FOLDERS)


def _receipt(prepared: PreparedFiles, hashes: list[str], attachments_id: str) -> Receipt:
    return Receipt(
        rel_dir="/".join((*FOLDERS, attachments_id)),
        count=len(prepared.files),
        total_bytes=prepared.total_bytes,
        files=tuple(
            ReceiptFile(
                name=file.name,
                bytes=len(file.data),
                sha256=sha256,
                mime_type=file.mime_type,
            )
            for file, sha256 in zip(prepared.files, hashes, strict=True)
        ),
    )


def _manifest(receipt: Receipt) -> bytes:
    return msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n"


def _refusal(error: OSError) -> SessiondError:
    if isinstance(error, dirfd.SymlinkRefused):
        return Forbidden(
            f"The attachments were not written: {quote(error.filename)} in the workspace is a symbolic link.",
            code="attachments_symlink",
            name=error.filename,
        )
    reason = os.strerror(error.errno) if error.errno else "the write failed"
    return StorageError(f"The attachments were not written: {reason}.", code="attachments_write_failed", reason=reason)
