"""Check a store without a daemon, and repair it. `report` changes nothing without `fix`.

Synchronous; `sessiond doctor --offline` prints the result, and `daemon.doctor` makes the same checks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sessiond.clock import Clock, iso_ms
from sessiond.errors import ConfigError, StoreInUse
from sessiond.store import checks, dirfd, filesystem, layout, opening, repair
from sessiond.store.checks import EntryOf
from sessiond.store.finding import Finding, Findings

# The default of limits.maxRecordBytes, since the configuration is not read here.
RECORD_LIMIT = 8 * 2**20


def report(store: Path, *, fix: bool = False) -> dict[str, Any]:
    """`{"findings": [{"level", "thing", "what", "hint"?}]}`; with `fix` what was done comes first.

    `level` is `ok`, `warn` or `error`; `thing` a path below the store, or `store`.
    """
    findings: list[Finding] = []
    try:
        if fix:
            findings += [Finding("ok", "repaired", what) for what in _fix(store)]
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            findings += [found for found in inspect(root_fd, Clock().wall_ms(), RECORD_LIMIT) if found is not None]
    except StoreInUse as error:
        findings.append(Finding("error", "store", str(error), "its own daemon repairs it: sessiond doctor --fix"))
    except (OSError, ConfigError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        findings.append(Finding("error", "store", f"{store} cannot be opened: {reason}"))
    return {"findings": [msgspec.to_builtins(found) for found in findings]}


def inspect(root_fd: int, now_ms: int, record_limit: int, live: EntryOf | None = None) -> Findings:
    """Make every check, one after the other; yields None wherever it may be interrupted. `live` returns the entries in
    memory when a daemon checks its own store.
    """
    holder = holder_of(root_fd)
    yield Finding("ok", layout.LOCK_FILE, "no daemon has this store" if holder is None else f"{holder} has this store")
    kind = filesystem.deaf_kind(f"/proc/self/fd/{root_fd}")
    if kind is not None:
        what = f"it lies on {kind}, where the kernel does not hear of what other machines write: it is polled"
        yield Finding("warn", "store", what, "put it on a local disk")
    yield from checks.check_store(root_fd, in_use=holder is not None)
    yield from checks.check_tree(root_fd)
    yield from checks.check_indexes(root_fd, now_ms, in_use=holder is not None)
    yield from checks.check_outbox(root_fd)
    yield from checks.check_transcripts(root_fd, record_limit, live)


def holder_of(root_fd: int) -> str | None:
    """The process that has locked the store, in words; None where none has."""
    # The check takes the lock for a moment, for which a starting daemon waits.
    with contextlib.suppress(OSError):
        with dirfd.closing(dirfd.open_file(root_fd, layout.LOCK_FILE, os.O_RDWR)) as fd:
            if opening.is_held(fd):
                return opening.holder(fd)
    with contextlib.suppress(OSError):
        # A new descriptor, because a daemon that checks its own store holds the lock through the given one.
        with dirfd.closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)) as fd:
            if opening.is_held(fd):
                return "another process"
    return None


def fix(store: Path) -> list[str]:
    """Repair the store after a backup into `backups/`; what was done. StoreInUse while a daemon has locked it."""
    return _fix(store)


def _fix(store: Path) -> list[str]:
    with dirfd.closing(dirfd.open_root(store)) as root_fd, dirfd.closing(opening.lock(root_fd, store)):
        return list(repair_store(root_fd, Clock(), indexes=True, record_limit=RECORD_LIMIT))


def repair_store(
    root_fd: int, clock: Clock, *, indexes: bool, record_limit: int, older_than_ns: int | None = None
) -> Iterator[str]:
    """Repair with the lock held by the caller; yields what was done. Without any repair no backup is made."""
    now_ms = clock.wall_ms()
    repairs = repair.plan(root_fd, now_ms, indexes=indexes, record_limit=record_limit, older_than_ns=older_than_ns)
    if not repairs:
        return
    stamp = iso_ms(now_ms).replace(":", "-")
    with dirfd.closing(repair.back_up(root_fd, repairs, stamp)) as backup_fd:
        yield f"{layout.BACKUPS}/{stamp}: a backup was made first"
        yield from repair.apply(root_fd, backup_fd, repairs, record_limit)
