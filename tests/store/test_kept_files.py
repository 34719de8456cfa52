"""Open transcripts are few, belong to one user at a time, and are closed when nobody wants them any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.rows import check_each
from support.shortage import refused_threads

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store import transcript
from sessiond.store.catalog import Folder, Session
from sessiond.store.kept_files import MOST, KeptFile, KeptFiles
from sessiond.store.transcript import WrittenBytes

Keep = Callable[[str], tuple[Session, KeptFile]]


@pytest.fixture
def files() -> KeptFiles:
    return KeptFiles()


@pytest.fixture
def keep(files: KeptFiles, tmp_path: Path) -> Keep:
    def keep_one(name: str) -> tuple[Session, KeptFile]:
        path = tmp_path / name
        path.write_text("the end of a transcript\n")
        fd = os.open(path, os.O_RDWR)
        status = os.fstat(fd)
        session = Session(key=name, entry=Entry(session_id=name), folder=Folder("main", -1, dialect=V3))
        kept = KeptFile(fd, status.st_ino, status.st_size, status.st_mtime_ns, b"of a transcript\n")
        files.keep(session, kept)
        return session, kept

    return keep_one


def is_open(kept: KeptFile) -> bool:
    try:
        return os.fstat(kept.fd).st_ino == kept.inode
    except OSError:
        return False


def test_the_longest_unused_file_is_closed_beyond_the_limit(files: KeptFiles, keep: Keep) -> None:
    all_kept = [keep(str(number)) for number in range(MOST)]
    assert all(is_open(kept) for _, kept in all_kept)
    first, kept = all_kept[0]
    assert files.take(first) == kept
    files.keep(first, kept)
    keep("one more")
    assert [is_open(kept) for _, kept in all_kept] == [True, False, *[True] * (MOST - 2)]
    files.close()


def test_a_file_that_was_taken_is_nobody_elses(files: KeptFiles, keep: Keep) -> None:
    session, kept = keep("a")
    assert files.take(session) == kept
    assert files.take(session) is None
    files.forget(session)
    files.close()
    assert is_open(kept)
    files.keep(session, kept)
    assert not is_open(kept)


def test_a_forgotten_file_is_closed(files: KeptFiles, keep: Keep) -> None:
    session, kept = keep("a")
    files.forget(session)
    assert not is_open(kept) and files.take(session) is None


def test_a_file_that_was_replaced_is_closed_and_one_that_was_not_stays(files: KeptFiles, keep: Keep) -> None:
    session, kept = keep("a")
    files.forget(session, unless_inode=kept.inode)
    assert is_open(kept) and files.take(session) == kept
    files.keep(session, kept)
    files.forget(session, unless_inode=kept.inode + 1)
    assert not is_open(kept) and files.take(session) is None


def test_a_large_file_is_closed_in_a_thread_or_where_there_is_none_at_once(files: KeptFiles, keep: Keep) -> None:
    def enlarge(session: Session, kept: KeptFile) -> KeptFile:
        os.truncate(kept.fd, 1 << 30)
        large = kept._replace(size=1 << 30)
        files.keep(session, large)
        return large

    session, kept = keep("a")
    large = enlarge(session, kept)
    files.forget(session)
    assert files.take(session) is None
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while is_open(large) and time.monotonic() < deadline:
        pause.wait(0.001)
    assert not is_open(large)
    session, kept = keep("b")
    large = enlarge(session, kept)
    with refused_threads():
        files.forget(session)
        assert not is_open(large)


def test_a_file_that_was_changed_or_replaced_is_not_current(files: KeptFiles, keep: Keep, tmp_path: Path) -> None:
    _, kept = keep("a")
    path = tmp_path / "a"
    assert kept.is_current(path.stat())
    os.utime(path, ns=(0, kept.mtime_ns + 1))
    assert not kept.is_current(path.stat())
    os.utime(path, ns=(0, kept.mtime_ns))
    with path.open("ab") as file:
        file.write(b"more")
    os.utime(path, ns=(0, kept.mtime_ns))
    assert not kept.is_current(path.stat())
    (tmp_path / "other").write_bytes(path.read_bytes()[: kept.size])
    os.utime(tmp_path / "other", ns=(0, kept.mtime_ns))
    assert not kept.is_current((tmp_path / "other").stat())
    files.close()


def test_an_error_of_closing_a_file_reaches_nobody(files: KeptFiles, keep: Keep) -> None:
    sessions = [keep(str(number)) for number in range(3)]
    for _, kept in sessions:
        os.close(kept.fd)  # so that closing it once more fails
    files.forget(sessions[0][0])
    files.close()
    files.keep(sessions[2][0], sessions[2][1])


@check_each("before", [0, 5, 127, 128, 129, 400])
def test_checksums_of_written_bytes_are_those_of_the_file(tmp_path: Path, before: int) -> None:
    lines = [b"x" * size + b"\n" for size in (3, 126, 127, 128, 300)]
    content = b"b" * before + b"".join(lines)
    path = tmp_path / "t"
    path.write_bytes(content)
    text = content[max(0, before - transcript.CHECKED) :]
    written = WrittenBytes(text, before, len(content), 1, 2)
    assert written.data == b"".join(lines)
    with path.open("rb") as file:
        end = before
        for line in lines:
            end += len(line)
            assert written.checksum(end) == transcript.checksum(file.fileno(), end)


def test_a_rewrite_with_the_same_size_and_time_has_another_end(files: KeptFiles, keep: Keep, tmp_path: Path) -> None:
    session, kept = keep("a")
    path = tmp_path / "a"
    assert not files.has_another_end(session, path.stat())
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"X", kept.size - 2)
    os.utime(path, ns=(0, kept.mtime_ns))
    assert kept.is_current(path.stat()) and files.has_another_end(session, path.stat())
    os.utime(path, ns=(0, kept.mtime_ns + 1))
    assert not files.has_another_end(session, path.stat())  # which the status says already
    files.close()
    assert not files.has_another_end(session, path.stat())
