"""Removal from a hostile workspace: everything inside is removed or reported, and nothing outside is touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.record import record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.attachments import remove
from sessiond.attachments.decode import PreparedFile, PreparedFiles
from sessiond.attachments.materialize import materialize
from sessiond.attachments.remove import RemovalReport, discard, remove_attachments
from sessiond.store import dirfd

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
REL = f".openclaw/attachments/{ID}"
GONE = RemovalReport(removed=True)
MISSING = RemovalReport(removed=False, missing=True)


@pytest.fixture
def folder(workspace: Path) -> Path:
    """The attachments folder of one spawn, with a file in it."""
    materialize(PreparedFiles((PreparedFile("a", b"text"),)), workspace, ID)
    return workspace / REL


def snapshot(folder: Path) -> dict[str, tuple[str, int, bytes]]:
    """Every path with its kind and mode, its number of links, and its content."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        look = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(look.st_mode) else b""
        links = look.st_nlink if stat.S_ISREG(look.st_mode) else 0
        found[str(path)] = (stat.filemode(look.st_mode), links, content)
    return found


def remove_all(workspace: Path) -> None:
    """Remove the folder and assert that nothing is left of it, in its parent, or open in this process."""
    before = len(os.listdir("/dev/fd"))
    assert remove_attachments(workspace, ID) == GONE
    assert os.listdir(workspace / ".openclaw/attachments") == []
    assert len(os.listdir("/dev/fd")) == before


def test_written_files_are_removed_and_removing_them_again_is_not_an_error(workspace: Path, folder: Path) -> None:
    remove_all(workspace)
    assert remove_attachments(workspace, ID) == MISSING


def test_the_folder_of_another_spawn_is_not_removed(workspace: Path, folder: Path) -> None:
    other = "1" + ID[1:]
    materialize(PreparedFiles((PreparedFile("a", b"text"),)), workspace, other)
    before = snapshot(folder.parent / other)
    assert remove_attachments(workspace, ID) == GONE
    assert snapshot(folder.parent / other) == before


@pytest.mark.parametrize("missing", ["", ".openclaw", ".openclaw/attachments"])
def test_a_missing_folder_is_reported_as_missing(workspace: Path, folder: Path, missing: str) -> None:
    shutil.rmtree(workspace / missing)
    assert remove_attachments(workspace, ID) == MISSING


def test_a_folder_that_was_moved_away_is_reported_as_missing(workspace: Path, folder: Path) -> None:
    (workspace / ".openclaw").rename(workspace / "away")
    (workspace / ".openclaw" / "attachments").mkdir(parents=True)
    assert remove_attachments(workspace, ID) == MISSING
    assert (workspace / "away" / "attachments" / ID).is_dir()


def test_an_id_that_is_a_path_is_refused(workspace: Path, folder: Path) -> None:
    before = snapshot(workspace)
    for bad in ("..", ".", "", "a/b", f"../attachments/{ID}", "/"):
        with pytest.raises(dirfd.BadComponent):
            remove_attachments(workspace, bad)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("target", ["outside", "outside/precious", "inside", "nowhere", "/", "self"])
def test_a_symlink_in_place_of_the_folder_is_removed_and_its_target_is_not(
    workspace: Path, folder: Path, outside: Path, target: str
) -> None:
    shutil.rmtree(folder)
    (folder.parent / "inside").mkdir()
    (folder.parent / "inside" / "kept").touch()
    places: dict[str, Path | str] = {
        "outside": outside,
        "outside/precious": outside / "precious",
        "inside": "inside",
        "self": ID,
    }
    folder.symlink_to(places.get(target, target))
    before = snapshot(outside), snapshot(folder.parent / "inside")
    assert remove_attachments(workspace, ID) == GONE
    assert not folder.is_symlink()
    assert (snapshot(outside), snapshot(folder.parent / "inside")) == before


@pytest.mark.parametrize("parent", [".openclaw", ".openclaw/attachments"])
def test_a_symlink_in_place_of_a_parent_is_reported_and_not_removed(
    workspace: Path, folder: Path, outside: Path, parent: str
) -> None:
    elsewhere = outside / "elsewhere"
    (workspace / parent).rename(elsewhere)
    (workspace / parent).symlink_to(elsewhere)
    before = snapshot(outside)
    assert remove_attachments(workspace, ID) == RemovalReport(False, ((REL, "a symbolic link stands there"),), 1)
    assert snapshot(outside) == before


@pytest.mark.parametrize("parent", [".openclaw", ".openclaw/attachments"])
def test_a_file_in_place_of_a_parent_is_reported(workspace: Path, folder: Path, parent: str) -> None:
    shutil.rmtree(workspace / parent)
    (workspace / parent).touch()
    assert remove_attachments(workspace, ID) == RemovalReport(False, ((REL, "Not a directory"),), 1)


def test_a_file_or_fifo_in_place_of_the_folder_is_removed(workspace: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()
    remove_all(workspace)
    os.mkfifo(folder)
    remove_all(workspace)


def test_symlinks_inside_are_removed_and_their_targets_are_not(workspace: Path, folder: Path, outside: Path) -> None:
    (folder / "sub").mkdir()
    targets: list[Path | str] = ["/", "..", ".", outside, outside / "precious", "nowhere", "loop", workspace]
    for number, target in enumerate(targets):
        (folder / f"link{number}").symlink_to(target)
        (folder / "sub" / f"link{number}").symlink_to(target)
    (folder / "loop").symlink_to("loop")
    before = snapshot(outside)
    remove_all(workspace)
    assert snapshot(outside) == before


def test_a_hard_link_is_removed_and_the_file_outside_is_not(workspace: Path, folder: Path, outside: Path) -> None:
    before = snapshot(outside)
    os.link(outside / "precious", folder / "link")
    remove_all(workspace)
    assert snapshot(outside) == before


def test_fifos_and_sockets_are_removed_without_being_opened(workspace: Path, folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "shut", mode=0)
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # a socket path has 107 bytes at most
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        listener.listen()
        listener.setblocking(False)
        remove_all(workspace)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.skipif(os.geteuid() != 0, reason="device files need root")
def test_device_files_are_removed_without_being_opened(workspace: Path, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("device files need root")
    try:
        os.mknod(folder / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        # No driver has this number: opening it would fail.
        os.mknod(folder / "none", stat.S_IFBLK | 0o600, os.makedev(240, 99))
    except PermissionError:
        pytest.skip("device files cannot be made here")
    remove_all(workspace)


@pytest.mark.parametrize("mode", [0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600])
def test_folders_of_any_mode_are_removed(workspace: Path, folder: Path, mode: int) -> None:
    for name in ("full", "empty"):
        (folder / name / "inner").mkdir(parents=True)
    (folder / "full" / "inner" / "f").touch()
    for shut in (folder / "full" / "inner", folder / "full", folder / "empty", folder):
        shut.chmod(mode)
    remove_all(workspace)


@pytest.mark.parametrize("mode", [0, 0o500])
@pytest.mark.parametrize("parent", [".openclaw", ".openclaw/attachments"])
def test_the_folder_is_removed_whatever_the_mode_of_its_parents(
    workspace: Path, folder: Path, parent: str, mode: int
) -> None:
    (workspace / parent).chmod(mode)
    assert remove_attachments(workspace, ID) == GONE
    (workspace / parent).chmod(0o700)
    assert os.listdir(workspace / ".openclaw/attachments") == []


# By default both depths and both modes, in two pairs.
@pytest.mark.parametrize(
    ("depth", "mode"), spread([(200, 0o700), (200, 0), (amount(1000, 500), 0o700), (amount(1000, 500), 0)], 2)
)
def test_a_deep_tree_is_removed_with_few_descriptors(workspace: Path, folder: Path, depth: int, mode: int) -> None:
    import resource

    fds = [dirfd.open_root(folder)]
    try:
        for level in range(depth):
            os.mkdir("d", dir_fd=fds[-1])
            fds.append(dirfd.open_dir(fds[-1], "d"))
            os.close(dirfd.open_file(fds[-1], f"f{level}", os.O_WRONLY | os.O_CREAT))
            os.symlink("/", "link", dir_fd=fds[-1])
            with dirfd.closing(fds.pop(0)) as above:
                os.fchmod(above, mode if level else 0o700)
    finally:
        for fd in fds:
            os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 50, hard))
    try:
        assert remove_attachments(workspace, ID) == GONE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir(folder.parent) == []


def test_ten_thousand_files_are_removed(workspace: Path, folder: Path) -> None:
    for number in range(amount(10_000, 1_000)):
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY))
    remove_all(workspace)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb", b"-rf", b"*", b" ", b"x" * 255, "\u202e".encode()])
def test_a_file_with_any_name_is_removed(workspace: Path, folder: Path, name: bytes) -> None:
    os.mkdir(os.path.join(os.fsencode(folder), name))
    os.close(os.open(os.path.join(os.fsencode(folder), name, name), os.O_CREAT | os.O_WRONLY))
    remove_all(workspace)


Tree = st.recursive(
    st.sampled_from(["file", "link out", "link up", "link nowhere", "fifo", "hard link", "shut file"]),
    lambda inner: st.tuples(st.sampled_from([0o700, 0o500, 0]), st.lists(inner, max_size=4)),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(trees=st.lists(Tree, max_size=4))
def test_any_tree_is_removed_and_nothing_outside_is_touched(
    workspace: Path, outside: Path, trees: list[object]
) -> None:
    def build(place: Path, trees: list[object]) -> None:
        for number, kind in enumerate(trees):
            path = place / str(number)
            match kind:
                case "file":
                    path.touch()
                case "shut file":
                    path.touch(mode=0)
                case "link out":
                    path.symlink_to(outside)
                case "link up":
                    path.symlink_to("..")
                case "link nowhere":
                    path.symlink_to("nowhere")
                case "fifo":
                    os.mkfifo(path)
                case "hard link":
                    os.link(outside / "precious", path)
                case (int(mode), list(inner)):
                    path.mkdir()
                    build(path, inner)
                    path.chmod(mode)

    before = snapshot(outside)
    (workspace / REL).mkdir(parents=True)
    build(workspace / REL, trees)
    remove_all(workspace)
    assert snapshot(outside) == before


def test_another_users_folder_is_reported_and_the_rest_is_removed(workspace: Path, folder: Path) -> None:
    if os.geteuid() == 0 or os.getuid() != 0:
        pytest.skip("needs root, for a folder of root's in an ordinary user's")
    os.seteuid(0)
    (folder / "theirs").mkdir(mode=0o755)
    (folder / "theirs" / "f").touch()
    (folder / "empty").mkdir(mode=0o755)
    os.seteuid(65534)
    assert remove_attachments(workspace, ID) == RemovalReport(False, ((f"{REL}/theirs/f", "Permission denied"),), 1)
    assert os.listdir(folder) == ["theirs"]
    os.seteuid(0)
    shutil.rmtree(folder / "theirs")
    os.seteuid(65534)
    remove_all(workspace)


@pytest.fixture
def immutable(folder: Path) -> Iterator[Callable[..., None]]:
    """A function that sets the immutable attribute; skips the test where that is not possible."""
    chattr = shutil.which("chattr")
    if chattr is None or os.geteuid() != 0:
        pytest.skip("chattr +i needs root and chattr")
    paths: list[Path] = []

    def make(*some: Path) -> None:
        for path in some:
            done = subprocess.run([chattr, "+i", str(path)], check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no immutable files here: {done.stderr.strip()}")
            paths.append(path)

    try:
        yield make
    finally:
        subprocess.run([chattr, "-i", *map(str, reversed(paths))], check=True)


def test_an_immutable_file_is_reported_by_name_and_the_rest_is_removed(
    workspace: Path, folder: Path, immutable: Callable[..., None]
) -> None:
    (folder / "sub").mkdir()
    for name in ("b", "sub/kept", "sub/goes"):
        (folder / name).touch()
    strange = folder / "sub" / os.fsdecode(b"\xff")
    strange.touch()
    immutable(folder / "sub" / "kept", strange)
    reason = "not permitted (immutable, or somebody else's)"
    report = remove_attachments(workspace, ID)
    assert (report.removed, sorted(report.left), report.left_count) == (
        False,
        [(f"{REL}/sub/\\xff", reason), (f"{REL}/sub/kept", reason)],
        2,
    )
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "sub", "sub/kept", str(strange.relative_to(folder)),
    ]  # fmt: skip


def test_a_file_that_was_immutable_is_removed_at_the_next_sweep(workspace: Path, folder: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["chattr", "+i", str(folder / "a")], check=False).returncode:
        pytest.skip("chattr +i needs root and a file system that knows it")
    try:
        assert remove_attachments(workspace, ID).removed is False
    finally:
        subprocess.run(["chattr", "-i", str(folder / "a")], check=True)
    remove_all(workspace)


def test_an_immutable_folder_is_reported_with_its_content(
    workspace: Path, folder: Path, immutable: Callable[..., None]
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "f").touch()
    (folder / "empty").mkdir()
    immutable(folder / "full", folder / "empty")
    reason = "not permitted (immutable, or somebody else's)"
    report = remove_attachments(workspace, ID)
    assert (report.removed, sorted(report.left), report.left_count) == (
        False,
        [(f"{REL}/empty", reason), (f"{REL}/full/f", reason)],
        2,
    )


def test_a_report_names_a_hundred_paths_and_counts_all(
    workspace: Path, folder: Path, immutable: Callable[..., None]
) -> None:
    for number in range(150):
        (folder / f"f{number}").touch()
    immutable(folder)
    report = remove_attachments(workspace, ID)
    assert (report.removed, len(report.left), report.left_count) == (False, 100, 152)


def test_discarding_a_folder_twice_is_not_an_error(workspace: Path, folder: Path) -> None:
    with dirfd.closing(dirfd.open_root(folder.parent)) as parent:
        discard(parent, ID)
        discard(parent, ID)
    assert os.listdir(folder.parent) == []


MOUNTS = """
    import json, os, subprocess, sys
    from pathlib import Path
    from sessiond.attachments.remove import remove_attachments

    workspace, folder, outside = map(Path, sys.argv[1:4])

    def mount(*arguments):
        subprocess.run(["mount", *map(str, arguments)], check=True)

    for name in ("tmpfs", "bind", "deep/bind", "goes"):
        (folder / name).mkdir(parents=True)
    (folder / "bound-file").touch()
    (folder / "goes" / "f").touch()
    mount("-t", "tmpfs", "tmpfs", folder / "tmpfs")
    (folder / "tmpfs" / "kept").touch()
    mount("--bind", outside, folder / "bind")
    mount("--bind", outside, folder / "deep" / "bind")
    mount("--bind", outside / "precious", folder / "bound-file")
    first = remove_attachments(workspace, sys.argv[4])
    kept = sorted(os.listdir(folder)), os.listdir(folder / "tmpfs"), sorted(os.listdir(outside))
    for name in ("tmpfs", "bind", "deep/bind", "bound-file"):
        subprocess.run(["umount", str(folder / name)], check=True)
    second = remove_attachments(workspace, sys.argv[4])
    folder.mkdir()
    mount("--bind", outside, folder)
    third = remove_attachments(workspace, sys.argv[4])
    reports = [[report.removed, sorted(report.left)] for report in (first, second, third)]
    print(json.dumps([*reports, kept, sorted(os.listdir(outside))]))
"""


def test_a_mount_inside_is_not_removed_and_is_reported(tmp_path: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*namespace, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("no mount namespace here")
    folder, outside = tmp_path / REL, tmp_path / "outside"
    folder.mkdir(parents=True)
    (outside / "sub").mkdir(parents=True)
    (outside / "precious").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [*namespace, sys.executable, "-c", textwrap.dedent(MOUNTS), str(tmp_path), str(folder), str(outside), ID]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    reason = "another file system is mounted there"
    assert json.loads(done.stdout) == [
        [False, [[f"{REL}/{name}", reason] for name in ("bind", "bound-file", "deep/bind", "tmpfs")]],
        [True, []],
        [False, [[REL, reason]]],
        [["bind", "bound-file", "deep", "tmpfs"], ["kept"], ["precious", "sub"]],
        ["precious", "sub"],
    ]


@check_each(
    ("number", "sentence"),
    [
        (errno.EPERM, "not permitted (immutable, or somebody else's)"),
        (errno.EBUSY, "another file system is mounted there"),
        (errno.ELOOP, "a symbolic link stands there"),
        (errno.EACCES, "Permission denied"),
        (errno.EROFS, "Read-only file system"),
        (None, "Input/output error"),
    ],
)
def test_every_error_number_has_a_plain_reason(number: int | None, sentence: str) -> None:
    error = OSError() if number is None else OSError(number, "what the kernel said")
    assert remove._sentence(error) == sentence


def test_the_parent_folder_is_synced_after_the_removal(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    folder = workspace.joinpath(*remove.FOLDERS, ID)
    folder.mkdir(parents=True)
    (folder / "a").write_text("one")
    calls = record(
        tmp_path / "shim",
        workspace,
        f"""
from pathlib import Path
from sessiond.attachments.remove import remove_attachments
assert remove_attachments(Path(root), "{ID}").removed
assert remove_attachments(Path(root), "{ID}").missing
""",
    )
    last = [(call.name, Path(call.path).name) for call in calls][-2:]
    assert last == [("remove", folder.name), ("sync", "attachments")]
    assert [call.name for call in calls].count("sync") == 1
