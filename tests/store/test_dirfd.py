"""File operations below a directory descriptor: what they open, what they refuse, and what is left after a failure."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.store import dirfd


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd:
        yield fd


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """A umask that removes even the owner's permissions."""
    before = os.umask(0o777)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def read(path: Path) -> bytes:
    return path.read_bytes()


@check_each("name", ["", ".", "..", "a/b", "/", "a\0b", "x" * 256, "é" * 128, "\ud800"])
def test_a_name_that_is_not_a_single_component_is_refused(name: str) -> None:
    with pytest.raises(dirfd.BadComponent):
        dirfd.check_component(name)


@check_each("name", ["a", "...", "x" * 255, "é" * 127, "a b", "-", "\x01"])
def test_a_single_component_is_accepted(name: str) -> None:
    assert dirfd.check_component(name) == name


@given(st.text())
def test_an_accepted_component_never_leaves_its_folder(name: str) -> None:
    try:
        dirfd.check_component(name)
    except dirfd.BadComponent:
        return
    assert os.path.basename(name) == name
    assert os.path.normpath(os.path.join("/x", name)) == f"/x/{name}"


def test_the_root_itself_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with dirfd.closing(dirfd.open_root(tmp_path / "link")) as fd:
        assert os.fstat(fd).st_ino == (tmp_path / "real").stat().st_ino


@pytest.mark.parametrize("target", ["real", "file", "nowhere", "/"])
def test_a_symlink_in_place_of_a_folder_is_refused(root: int, tmp_path: Path, target: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(dirfd.SymlinkRefused) as caught:
        dirfd.open_dir(root, "link")
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, "link")


def test_a_file_in_place_of_a_folder_is_not_reported_as_a_symlink(root: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        dirfd.open_dir(root, "file")


def test_a_created_folder_has_its_mode_whatever_the_umask(root: int, tmp_path: Path, strict_umask: None) -> None:
    os.close(dirfd.make_dir(root, "new"))
    os.close(dirfd.make_dir(root, "open", 0o755))
    assert (mode_of(tmp_path / "new"), mode_of(tmp_path / "open")) == (0o700, 0o755)


def test_a_folder_of_mode_000_is_given_a_mode_without_being_opened(root: int, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut").chmod(0)
    dirfd.chmod_below(root, "shut", 0o700)
    assert mode_of(tmp_path / "shut") == 0o700


def test_setting_a_folders_mode_follows_no_link_and_changes_no_file(root: int, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to("shut")
    (tmp_path / "file").touch(mode=0o400)
    with pytest.raises(dirfd.SymlinkRefused):
        dirfd.chmod_below(root, "link", 0o700)
    with pytest.raises(NotADirectoryError):
        dirfd.chmod_below(root, "file", 0o700)
    assert (mode_of(tmp_path / "shut"), mode_of(tmp_path / "file")) == (0o500, 0o400)


def test_creating_an_existing_folder_reports_that_it_exists(root: int) -> None:
    os.close(dirfd.make_dir(root, "new"))
    with pytest.raises(FileExistsError):
        dirfd.make_dir(root, "new")


def test_a_path_of_folders_is_created_and_can_be_opened_again(root: int, tmp_path: Path) -> None:
    made = dirfd.open_path_dir(root, ["a", "b", "c"], create=True)
    again = dirfd.open_path_dir(root, ["a", "b", "c"])
    with dirfd.closing(made), dirfd.closing(again):
        assert os.fstat(made).st_ino == os.fstat(again).st_ino == (tmp_path / "a/b/c").stat().st_ino
    with dirfd.closing(dirfd.open_path_dir(root, [])) as same:
        assert os.fstat(same).st_ino == tmp_path.stat().st_ino
    with pytest.raises(FileNotFoundError):
        dirfd.open_path_dir(root, ["a", "x", "c"])


@pytest.mark.parametrize("create", [False, True])
def test_a_symlink_in_the_middle_of_a_path_is_refused(root: int, tmp_path: Path, create: bool) -> None:
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    (tmp_path / "a").symlink_to("elsewhere")
    with pytest.raises(dirfd.SymlinkRefused):
        dirfd.open_path_dir(root, ["a", "b", "c"], create=create)
    assert list((tmp_path / "elsewhere" / "b").iterdir()) == []


def test_walking_a_path_leaks_no_descriptor(root: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("/")
    before = len(os.listdir("/dev/fd"))
    for parts in (["a", "missing"], ["a", "link"], ["a", ".."]):
        with pytest.raises((OSError, dirfd.BadComponent)):
            dirfd.open_path_dir(root, parts)
    assert len(os.listdir("/dev/fd")) == before


def test_a_created_file_has_its_mode_whatever_the_umask(root: int, tmp_path: Path, strict_umask: None) -> None:
    with dirfd.closing(dirfd.open_file(root, "new", os.O_WRONLY | os.O_CREAT)) as fd:
        dirfd.write_all(fd, b"x")
    assert mode_of(tmp_path / "new") == 0o600


def test_an_existing_file_keeps_its_mode(root: int, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    os.close(dirfd.open_file(root, "old", os.O_RDWR | os.O_CREAT | os.O_APPEND))
    assert mode_of(tmp_path / "old") == 0o640


def test_exclusive_creation_refuses_an_existing_name(root: int, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("old", "link"):
        with pytest.raises(FileExistsError):
            dirfd.open_file(root, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert read(tmp_path / "old") == b"kept"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("target", ["file", "nowhere"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC])
def test_a_symlink_in_place_of_a_file_is_refused(root: int, tmp_path: Path, target: str, flags: int) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(dirfd.SymlinkRefused):
        dirfd.open_file(root, "link", flags)
    assert read(tmp_path / "file") == b"kept"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_anything_but_a_regular_file_is_refused_without_blocking(root: int, tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket path has 107 bytes at most
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        for name in ("fifo", "folder", "socket"):
            with pytest.raises(dirfd.NotRegularFile):
                dirfd.open_file(root, name, flags)


def test_an_opened_file_is_not_inherited_by_child_processes(root: int) -> None:
    with dirfd.closing(dirfd.open_file(root, "f", os.O_WRONLY | os.O_CREAT)) as fd:
        assert not os.get_inheritable(fd)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("data", [b"whole", [b"wh", bytearray(b"ol"), memoryview(b"e")]])
def test_an_atomic_write_replaces_the_whole_file(root: int, tmp_path: Path, sync: bool, data: bytes) -> None:
    (tmp_path / "f").write_bytes(b"an older and longer content")
    dirfd.write_atomic(root, "f", data, sync=sync)
    assert (read(tmp_path / "f"), mode_of(tmp_path / "f")) == (b"whole", 0o600)
    assert os.listdir(tmp_path) == ["f"]


def test_an_atomic_write_replaces_a_symlink_and_not_its_target(root: int, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / "f").symlink_to("target")
    dirfd.write_atomic(root, "f", b"new")
    assert (read(tmp_path / "target"), read(tmp_path / "f")) == (b"kept", b"new")
    assert not (tmp_path / "f").is_symlink()


def test_an_atomic_write_that_fails_leaves_the_old_file_alone(root: int, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "no space")

    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(OSError, match="no space"):
        dirfd.write_atomic(root, "f", chunks())
    assert read(tmp_path / "f") == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_an_atomic_write_takes_the_longest_name(root: int, tmp_path: Path) -> None:
    dirfd.write_atomic(root, "x" * 255, b"fits")
    assert read(tmp_path / ("x" * 255)) == b"fits"


def test_renaming_moves_between_folders_and_replaces_the_target(root: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"old")
    with dirfd.closing(dirfd.open_dir(root, "sub")) as sub:
        dirfd.rename(root, "a", sub, "b")
    assert read(tmp_path / "sub" / "b") == b"new"
    assert not (tmp_path / "a").exists()


def test_renaming_without_replacing_keeps_the_target(root: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        dirfd.rename(root, "a", root, "b", replace=False)
    dirfd.rename(root, "a", root, "c", replace=False)
    assert {p.name: read(p) for p in tmp_path.iterdir()} == {"b": b"b", "c": b"a"}


_MOVED = """
import os, sys
from sessiond.store import dirfd
source, target = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:])
try:
    print(dirfd.move(source, target, "f", True))
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize(
    ("failing", "printed", "is_moved"),
    [
        ([], "True", True),
        (["fsync:error=EIO"], str(errno.EIO), False),
        (["fsync:error=EIO", "renameat2:error=EIO:when=2+"], "True", True),
    ],
)
def test_a_move_returns_whether_the_file_is_moved(tmp_path: Path, failing: list[str], printed: str, is_moved: bool):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "f").write_text("precious")
    inject = [part for one in failing for part in ("-e", f"inject={one}")]
    trace = tmp_path / "trace"
    command = ["strace", "-qq", "-o", str(trace), "-e", "trace=fsync,renameat2", *inject, sys.executable, "-c", _MOVED]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run([*command, source, target], env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("strace is not there")
    if done.returncode:
        pytest.skip("strace may not trace")
    assert done.stdout.strip() == printed
    assert ((source / "f").exists(), (target / "f").exists()) == (not is_moved, is_moved)
    calls = [line.partition("(")[0] for line in trace.read_text().splitlines() if "(" in line]
    # A move that is undone is synced too: the disk may already have stored the move.
    assert is_moved or calls == ["renameat2", "fsync", "renameat2", "fsync", "fsync"]


def test_renaming_refuses_a_path(root: int) -> None:
    for src, dst in (("a/b", "c"), ("a", "../c")):
        with pytest.raises(dirfd.BadComponent):
            dirfd.rename(root, src, root, dst)


@check_each("code", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EAGAIN])
def test_a_shortage_or_a_disk_error_counts_as_temporary(code):
    assert dirfd.is_passing(OSError(code, os.strerror(code)))


@check_each("code", [errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.EINVAL])
def test_an_error_about_the_file_itself_does_not_count_as_temporary(code):
    assert not dirfd.is_passing(OSError(code, os.strerror(code)))


SIZES = [(0, 0, True), (5, 5, True), (6, 5, False), (3 << 20, 3 << 20, True)]


@check_each(("size", "limit", "whole"), SIZES)
def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path, size, limit, whole):
    (tmp_path / "f").write_bytes(b"x" * size)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    with dirfd.closing(fd):
        assert dirfd.read_file(fd, limit) == (b"x" * size if whole else None)


def test_a_sparse_file_over_the_limit_is_not_read_at_all(tmp_path):
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 40)
    with dirfd.closing(os.open(tmp_path / "f", os.O_RDONLY)) as fd:
        assert dirfd.read_file(fd, 1 << 20) is None
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0


def test_a_path_below_the_root_is_opened_for_reading_only(root: int, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.jsonl").write_bytes(b"text")
    with dirfd.closing(dirfd.open_below(root, "a/b/c.jsonl")) as fd:
        assert os.read(fd, 10) == b"text"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"x")
    assert dirfd.status_below(root, "a/b/c.jsonl").st_size == 4


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c.jsonl"])
def test_no_symlink_below_the_root_is_followed_wherever_it_stands(root: int, tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "b").mkdir(parents=True)
    (elsewhere / "b" / "c.jsonl").write_bytes(b"secret")
    (elsewhere / "c.jsonl").write_bytes(b"secret")
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to({"a": elsewhere, "a/b": elsewhere, "a/b/c.jsonl": elsewhere / "c.jsonl"}[link])
    with pytest.raises(dirfd.SymlinkRefused):
        dirfd.open_below(root, "a/b/c.jsonl")
    if link != "a/b/c.jsonl":
        with pytest.raises(dirfd.SymlinkRefused):
            dirfd.status_below(root, "a/b/c.jsonl")
    else:
        assert stat.S_ISLNK(dirfd.status_below(root, "a/b/c.jsonl").st_mode)


@check_each("path", ["", "/etc/passwd", "a//b", "../x", "a/../../x", "a/.", "a/", "a\0b"])
def test_a_path_that_could_lead_out_of_the_root_is_refused(root: int, path: str) -> None:
    for operation in (dirfd.open_below, dirfd.status_below):
        with pytest.raises((dirfd.BadComponent, FileNotFoundError)):
            operation(root, path)
