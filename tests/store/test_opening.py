"""Opening a store: one process at a time, a known format, and modes that keep other users out."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.forked_daemon import fork_server
from support.patience import PATIENCE_S

from sessiond.errors import ConfigError, StoreInUse
from sessiond.store import dirfd, doctor, opening
from sessiond.store.loading import load_sessions
from sessiond.store.opening import open_locked


def modes(store: Path) -> dict[str, str]:
    """The mode of everything in the store, by path; `""` is the store itself."""
    everything = [store, *store.rglob("*")]
    return {str(path.relative_to(store)): oct(path.stat().st_mode & 0o7777) for path in sorted(everything)}


def test_a_new_store_has_a_format_file_a_lock_and_a_secret(tmp_path, clock):
    with open_locked(tmp_path / "a" / "store", clock) as store:
        assert store.path == tmp_path / "a" / "store"
        assert json.loads((store.path / "store.json").read_text()) == {"format": 1, "createdAt": clock.wall_ms()}
        assert (store.path / "store.lock").read_text() == f"{os.getpid()}\n"
        assert (store.path / "keys" / "signing.key").read_bytes() == store.secret
        assert len(store.secret) == 32
        secret = store.secret
    with open_locked(tmp_path / "a" / "store", clock) as again:
        assert again.secret == secret


_MAKE = """
import os, sys, trio
from pathlib import Path
sys.path.insert(0, "tests")
from support.store_listeners import SilentListener
from sessiond.model.keys import KeyRules
from sessiond.store.store import Message, open_store
os.umask(int(sys.argv[2], 8))
async def main():
    settings = dict(durable=True, record_limit=1 << 20, rules=KeyRules())
    async with open_store(Path(sys.argv[1]), listener=SilentListener, **settings) as store:
        for key in ("agent:main:main", "agent:main:cron:x"):
            session, _ = await store.create(key, "main", [Message({"role": "user", "content": "hi"})])
        await store.archive(session)
        for folder in store.dirty_folders():
            await store.save(folder)
trio.run(main)
"""


@pytest.mark.parametrize("umask", ["0", "022", "0777"])
def test_files_are_0600_and_folders_0700_whatever_the_umask(tmp_path, umask):
    store = tmp_path / "above" / "store"
    done = fork_server().run([str(store), umask], os.environ, code=_MAKE)
    assert done.returncode == 0, done.stderr
    found = modes(store)
    assert len(found) == 14
    assert found == {path: "0o700" if (store / path).is_dir() else "0o600" for path in found}
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o700


def test_an_existing_folder_keeps_its_mode(tmp_path, clock):
    store = tmp_path / "store"
    store.mkdir(mode=0o750)
    store.chmod(0o750)
    with open_locked(store, clock):
        assert store.stat().st_mode & 0o777 == 0o750


def test_the_store_may_be_a_symlink(tmp_path, clock):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with open_locked(tmp_path / "link", clock):
        assert (tmp_path / "real" / "store.json").exists()


_HOLD = """
import sys
from pathlib import Path
from sessiond.clock import Clock
from sessiond.store.opening import open_locked
with open_locked(Path(sys.argv[1]), Clock()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_store_and_touches_nothing(tmp_path, clock):
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.rglob("*") if path.is_file()}
        with pytest.raises(StoreInUse) as refused, open_locked(store, clock):
            pass
        assert str(refused.value).startswith(f"the store {store} is in use by process {holder.pid} (")
        assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
        holder.stdin.close()
    with open_locked(store, clock):
        pass


def test_a_store_stays_locked_when_its_lock_file_is_removed_or_replaced(tmp_path, clock):
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (store / "store.lock").unlink()
        for _ in range(2):  # the second time there is a lock file that no process has locked
            with pytest.raises(StoreInUse, match="in use by another process"), open_locked(store, clock):
                pass
            with dirfd.closing(dirfd.open_root(store)) as root_fd:
                assert doctor.holder_of(root_fd) == "another process"
        (store / "new.lock").write_text("1\n")
        (store / "new.lock").rename(store / "store.lock")
        with pytest.raises(StoreInUse), open_locked(store, clock):
            pass
        holder.stdin.close()
    with open_locked(store, clock):
        pass


def test_a_failed_lock_leaves_the_folder_unlocked(tmp_path):
    (tmp_path / "store.lock").touch()
    with (tmp_path / "store.lock").open() as other, dirfd.closing(dirfd.open_root(tmp_path)) as root_fd:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreInUse):
            opening.lock(root_fd, tmp_path)
        with dirfd.closing(dirfd.open_root(tmp_path)) as another_fd:
            assert not opening.is_held(another_fd)


def test_opening_waits_for_a_holder_that_is_about_to_exit(tmp_path):
    store = tmp_path / "store"
    with (
        subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder,
        ThreadPoolExecutor() as threads,
    ):
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            waiting = threads.submit(opening.lock, root_fd, store, patience_s=60)
            holder.kill()
            os.close(waiting.result(timeout=PATIENCE_S))
    assert 0.2 <= opening.LOCK_PATIENCE_S <= 5


def test_the_kernel_lock_decides_and_not_the_pid_in_the_file(tmp_path, clock):
    store = tmp_path / "store"
    with open_locked(store, clock):
        pass
    (store / "store.lock").write_text(f"{os.getppid()}\n")
    with open_locked(store, clock):
        pass


def test_a_holder_without_a_pid_is_reported_as_another_process(tmp_path, clock):
    store = tmp_path / "store"
    with open_locked(store, clock):
        (store / "store.lock").write_text("")
        with pytest.raises(StoreInUse, match="in use by another process;"), open_locked(store, clock):
            pass


@pytest.mark.parametrize("content", ['{"format": 2, "createdAt": 1}', '{"format": 2}'])
def test_a_newer_format_is_refused_and_not_changed(tmp_path, clock, content):
    store = tmp_path / "store"
    store.mkdir()
    (store / "store.json").write_text(content)
    with pytest.raises(ConfigError, match=r"has format 2, this sessiond reads up to 1; upgrade sessiond"):
        with open_locked(store, clock):
            pass
    assert (store / "store.json").read_text() == content
    assert not (store / "agents").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format":"1"}', b"{}"])
def test_a_damaged_store_file_is_refused(tmp_path, clock, content):
    store = tmp_path / "store"
    store.mkdir()
    (store / "store.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"store\.json is damaged"), open_locked(store, clock):
        pass


@pytest.mark.parametrize("size", [0, 31, 33, 100])
def test_a_damaged_secret_is_refused_and_kept(tmp_path, clock, size):
    store = tmp_path / "store"
    with open_locked(store, clock):
        pass
    (store / "keys" / "signing.key").write_bytes(b"x" * size)
    with pytest.raises(ConfigError, match=r"signing\.key in the store is damaged"), open_locked(store, clock):
        pass
    assert (store / "keys" / "signing.key").stat().st_size == size


@pytest.mark.parametrize("name", ["store.lock", "store.json", "keys"])
def test_a_symlink_in_the_store_is_not_followed(tmp_path, clock, name):
    store, outside = tmp_path / "store", tmp_path / "outside"
    store.mkdir()
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (store / name).symlink_to(outside if name == "keys" else outside / "file")
    with pytest.raises(ConfigError, match=f"symbolic link.*{name}"), open_locked(store, clock):
        pass
    assert (outside / "file").read_text() == "untouched"
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_a_path_that_cannot_be_a_store_is_refused_with_a_clear_message(tmp_path, clock):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"the store .* cannot be opened: (Not a directory|File exists)"):
            with open_locked(path, clock):
                pass


async def test_a_store_whose_agents_cannot_be_listed_is_refused_with_a_clear_message(opener):
    async with opener(loads=False) as store:
        agents = store.path / "agents"
        agents.write_text("")
        with pytest.raises(ConfigError, match=r"the store .* cannot be read: Not a directory"):
            await load_sessions(store, None)


def test_an_error_raised_while_the_store_is_open_is_passed_on_unchanged(tmp_path, clock):
    with pytest.raises(OSError, match="mine"), open_locked(tmp_path / "store", clock):
        raise OSError("mine")
    with open_locked(tmp_path / "store", clock):
        pass


def test_agents_are_listed_and_other_entries_are_ignored_or_reported(tmp_path):
    agents = tmp_path / "agents"
    for name in ("b", "a", "no-sessions", "Not An Agent"):
        (agents / name).mkdir(parents=True)
    for name in ("a", "b"):
        (agents / name / "sessions").mkdir()
    (agents / "linked").symlink_to("a")
    (agents / "half").mkdir()
    (agents / "half" / "sessions").symlink_to("../a/sessions")
    (agents / "odd").mkdir()
    (agents / "odd" / "sessions").write_text("")
    (agents / "file").write_text("")
    os.symlink("a", os.fsencode(agents) + b"/\xff")
    problems: list[object] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert opening.agent_folders(fd, problems) == ["a", "b", "no-sessions"]
    finally:
        os.close(fd)
    assert sorted((problem.path, problem.reason) for problem in problems) == [
        ("agents/\\xff", "a symlink; it is not followed"),
        ("agents/file", "Not a directory"),
        ("agents/half/sessions", "a symlink; it is not followed"),
        ("agents/linked", "a symlink; it is not followed"),
        ("agents/odd/sessions", "Not a directory"),
    ]


def test_the_holder_of_the_store_is_described_by_its_command(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", "read line", "/a/long/way/to/bin/sessiond", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process, (tmp_path / "lock").open("w+b") as file:
        file.write(f"{process.pid}\n".encode())
        file.flush()
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
            pass  # it has been started, and its command line is not set yet
        assert opening.holder(file.fileno()) == f"process {process.pid} (sh -c read line sessiond serve)"
        assert process.stdin is not None
        process.stdin.close()
