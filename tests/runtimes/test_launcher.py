"""The processes of a run end with it, even those that left its process group, and with the daemon if that is killed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from support.patience import PATIENCE_S
from support.sampling import amount, spread

from sessiond.runtimes import keeper, launcher, process
from sessiond.runtimes.launcher import ProgramCommand

# Ways to leave the run: setsid leaves the process group and session; a second fork also leaves the parent.
LEAVERS = {
    "setsid": "setsid sh -c 'echo $$ >{name}; echo; exec sleep 600' >&- 2>&- &",
    "daemon": "(setsid sh -c 'echo $$ >{name}; exec sleep 600' >&- 2>&- &) &",
    "nested": "setsid sh -c '(setsid sh -c \"echo \\$\\$ >{name}; exec sleep 600\" >&- 2>&- &) & exit' &",
}
WAIT_FOR_PID = "while ! [ -s {name} ]; do sleep 0.01; done; "


def command(script: str, cwd: Path) -> ProgramCommand:
    return ProgramCommand(argv=("/bin/sh", "-c", script), env={"PATH": os.environ["PATH"]}, cwd=cwd)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")


async def run_script(
    script: str, cwd: Path, on_output: Callable[[bytes], None] = lambda _: None, **fields: float
) -> int:
    async def read(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        on_output(data)

    return (await process.run(command(script, cwd), read, **fields)).status


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


def read_pid(path: Path) -> int:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


@pytest.mark.parametrize("leaver", LEAVERS)
async def test_a_process_that_leaves_the_group_ends_with_its_run(leaver: str, workspace: Path) -> None:
    script = LEAVERS[leaver].format(name="left") + WAIT_FOR_PID.format(name="left")
    assert await run_script(script, workspace) == 0
    assert not is_alive(read_pid(workspace / "left"))


@pytest.mark.parametrize("leaver", spread(list(LEAVERS), 1))
async def test_a_process_that_left_the_group_ends_with_an_aborted_run(leaver: str, workspace: Path) -> None:
    script = LEAVERS[leaver].format(name="left") + WAIT_FOR_PID.format(name="left") + "echo up; exec sleep 600"
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_script, script, workspace, lambda _: nursery.cancel_scope.cancel())
    assert not is_alive(read_pid(workspace / "left"))


async def test_a_process_that_left_the_group_gets_sigterm_before_it_is_killed(workspace: Path) -> None:
    polite = "setsid sh -c 'trap \"echo asked >asked; exit\" TERM; echo $$ >left; while :; do sleep 0.01; done' &"
    await run_script(polite + WAIT_FOR_PID.format(name="left"), workspace, kill_grace_s=20.0, pipe_grace_s=0.0)
    assert (workspace / "asked").read_text() == "asked\n"


async def test_a_process_that_ignores_sigterm_is_killed_with_all_that_it_forks_meanwhile(workspace: Path) -> None:
    stubborn = (
        "setsid sh -c 'trap \"\" TERM; echo $$ >left; while :; do (setsid sleep 600 &); sleep 0.01; done' >&- 2>&- &"
    )
    before = set(keeper.descendants(os.getpid()))
    await run_script(stubborn + WAIT_FOR_PID.format(name="left"), workspace, kill_grace_s=0.1, pipe_grace_s=0.0)
    assert not is_alive(read_pid(workspace / "left"))
    assert [
        pid for pid, _started in set(keeper.descendants(os.getpid())) - before if "sleep" in _command_line(pid)
    ] == []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_a_program_that_kills_its_keeper_is_killed_with_the_processes_that_left(workspace: Path) -> None:
    leaver = LEAVERS["daemon"].format(name="left") + WAIT_FOR_PID.format(name="left")
    with trio.fail_after(PATIENCE_S):
        status = await run_script(leaver + "echo $$ >me; kill -KILL $PPID; exec sleep 600", workspace)
    assert status == -signal.SIGKILL
    await until(lambda: not is_alive(read_pid(workspace / "me")))
    await until(lambda: not is_alive(read_pid(workspace / "left")))


async def test_a_program_that_kills_its_keeper_at_once_counts_as_started_and_killed(workspace: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        # Some of them are faster than the keeper says that it has started them.
        for _ in range(20):
            assert await run_script("kill -KILL $PPID; exec sleep 600", workspace) == -signal.SIGKILL


async def test_a_program_starts_where_few_files_may_be_open(workspace: Path) -> None:
    """In a process of its own: this one may have more open, and its fork server has the limit that it had then."""
    code = (
        "import resource, sys, trio; from pathlib import Path; from sessiond.runtimes import process\n"
        "from sessiond.runtimes.launcher import ProgramCommand\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "async def read(data): pass\n"
        "command = ProgramCommand(argv=('sh', '-c', 'exit 7'), env={'PATH': '/usr/bin:/bin'}, cwd=Path(sys.argv[1]))\n"
        "print(trio.run(process.run, command, read).status)"
    )
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process([sys.executable, "-c", code, str(workspace)], capture_stdout=True)
    assert done.stdout == b"7\n"


async def test_a_program_that_stops_its_keeper_is_ended_like_any_other(workspace: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        assert await run_script("kill -STOP $PPID; exit 7", workspace) == 7
        leaver = LEAVERS["setsid"].format(name="left") + WAIT_FOR_PID.format(name="left")
        stopping = "echo $$ >me; while :; do kill -STOP $PPID; sleep 0.01; done"
        assert await run_script(leaver + stopping, workspace) == -signal.SIGKILL
    for name in ("me", "left"):
        await until(lambda name=name: not is_alive(read_pid(workspace / name)))


async def test_a_fork_server_that_was_killed_is_started_again(workspace: Path) -> None:
    await run_script("ps -o ppid= $PPID >server", workspace)
    server = int((workspace / "server").read_text())
    os.kill(server, signal.SIGKILL)
    await until(lambda: not is_alive(server))
    assert await run_script("exit 3", workspace) == 3


async def test_the_parent_of_a_program_is_another_process_with_a_single_thread(workspace: Path) -> None:
    """`bwrap --die-with-parent` dies with the thread that forked it, and an idle worker thread of the daemon ends."""
    await run_script("ls /proc/$PPID/task | wc -l >threads; echo $PPID >parent", workspace)
    assert (workspace / "threads").read_text().strip() == "1"
    assert read_pid(workspace / "parent") != os.getpid()


async def test_many_programs_start_at_once_also_after_one_that_cannot_be_started(workspace: Path) -> None:
    """Programs are started by the fork server, so starts need no worker thread and do not wait for each other."""
    with pytest.raises(launcher.CannotStart, match="command not found: no-such"):
        await process.run(ProgramCommand(argv=("no-such",), env={}, cwd=workspace), None)  # type: ignore[arg-type]
    count, statuses = amount(20, 8), []

    async def run_one(number: int) -> None:
        statuses.append(await run_script(f"exit {number}", workspace))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(run_one, number)
    assert sorted(statuses) == list(range(count))


async def test_an_inherited_file_descriptor_has_the_requested_number(workspace: Path) -> None:
    (workspace / "file").write_text("through the descriptor\n")
    output: list[bytes] = []

    async def read(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        output.append(data)

    fd = os.open(workspace / "file", os.O_RDONLY)
    base = command("cat /proc/self/fd/10; ls /proc/self/fd | wc -l", workspace)
    await process.run(ProgramCommand(argv=base.argv, env=base.env, cwd=workspace, inherited={10: fd}), read)
    os.close(fd)
    # Descriptors 0, 1, 2 and 10, and that of `ls` itself.
    assert b"".join(output).split() == [b"through", b"the", b"descriptor", b"5"]


DAEMON = """
import os, sys, trio
from pathlib import Path
from sessiond.runtimes import process
from sessiond.runtimes import launcher
async def ignore(data):
    await trio.lowlevel.checkpoint()
async def main():
    async with launcher.open_fork_server(os.open(sys.argv[2], os.O_RDONLY)):
        command = launcher.ProgramCommand(argv=("/bin/sh", "-c", sys.argv[1]), env=dict(os.environ), cwd=Path.cwd())
        await process.run(command, ignore)
trio.run(main)
"""


async def test_after_a_kill_of_the_daemon_the_next_one_waits_until_all_programs_have_ended(workspace: Path) -> None:
    leavers = "".join(LEAVERS[one].format(name=one) + WAIT_FOR_PID.format(name=one) for one in LEAVERS)
    script = leavers + "trap '' TERM; echo $$ >me; while :; do sleep 0.01; done"
    argv = [sys.executable, "-c", DAEMON, script, str(workspace)]
    daemon = subprocess.Popen(argv, cwd=workspace)  # noqa: ASYNC220
    await until(lambda: read_pid(workspace / "me"))
    pids = [read_pid(workspace / name) for name in ("me", *LEAVERS)]
    assert all(map(is_alive, pids))
    lock = os.open(workspace, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    daemon.kill()
    daemon.wait()
    async with launcher.open_fork_server(lock) as has_lock:
        assert has_lock
        assert not any(map(is_alive, pids))
        # The fork server started now holds the lock.
        assert await run_script("exit 0", workspace) == 0
    os.close(lock)


async def test_the_daemon_starts_even_if_the_lock_is_never_released(workspace: Path, autojump_clock: object) -> None:
    held, lock = os.open(workspace, os.O_RDONLY), os.open(workspace, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    async with launcher.open_fork_server(lock) as has_lock:
        assert not has_lock
    os.close(held)
    os.close(lock)
