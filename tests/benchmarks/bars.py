"""How long a client waits for each call, beside bare files, SQLite and a bare echo of the same run. `just bench`.

    python tests/benchmarks/bars.py [--python PYTHON] [--check | --quiet] [--sync-us N] [ROW...]

measures the daemon of this checkout, or that of another interpreter. Medians; ours and the baseline
in turn, because the speed of a machine drifts, the ratio less. `--check` fails where a ratio is over its limit,
which is several times what was seen: only a defect exceeds it, however busy the machine is. `--quiet` fails where a bar
itself is missed; for a machine on which nothing else runs. `--sync-us` is for other disks than that of this machine.
"""

# ruff: noqa: B023 - what is measured is called in the round of the loop that made it.

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from bar_measures import (
    MS,
    TEXT,
    Figure,
    InstalledDaemon,
    bare_echo,
    call_on,
    daemon_of,
    daemon_wire,
    in_turn,
    inject,
    make_sessions,
    median_ms,
    rate_of_bare_files,
    rate_of_clients,
    rate_of_sqlite,
    request,
    round_trip,
    synced_writes,
    wait_for_index,
)
from slower_disk import run_again_with
from support.real_daemon import Daemon

from sessiond.daemon.saver import BYTES_PER_S


def append_one() -> Iterator[Figure]:
    with daemon_of() as daemon, bare_echo() as echo, synced_writes(daemon.folder) as write, daemon_wire(daemon) as sock:
        daemon.call("sessions.create", key="agent:main:one")
        line = inject("agent:main:one")

        def base() -> None:
            write()
            round_trip(echo, line)

        ours, bare, ratio = in_turn(lambda: median_ms(call_on(sock, line), 200), lambda: median_ms(base, 200))
        yield Figure("durable append, 1 client", ours, "ms", 2.5 * bare, bare, ratio, 8)


def append_many() -> Iterator[Figure]:
    # On a busy machine the sixteen threads of the bare files get far more of it than a daemon and its clients.
    for clients, sessions, bar, least in ((16, 16, 3500, 0.04), (16, 1, 8000, 0.04), (64, 1, 10_000, 0.05)):
        with daemon_of() as daemon:
            keys = [f"agent:main:c{number}" for number in range(sessions)]
            for key in keys:
                daemon.call("sessions.create", key=key)
            lines = [inject(keys[number % sessions]) for number in range(clients)]
            ours, bare, ratio = in_turn(
                lambda: rate_of_clients(daemon.socket, lines), lambda: rate_of_bare_files(daemon.folder)
            )
            what = f"append, {clients} clients in {sessions} sessions"
            yield Figure(f"{what} (bare files)", ours, "/s", bar, bare, ratio, -least)
            ours, bare, ratio = in_turn(
                lambda: rate_of_clients(daemon.socket, lines), lambda: rate_of_sqlite(daemon.folder, clients), 3
            )
            yield Figure(f"{what} (SQLite FULL)", ours, "/s", bare, bare, ratio, -0.3)


def lists() -> Iterator[Figure]:
    for count in (100, 100_000):
        with daemon_of(fill=lambda store, count=count: make_sessions(store, count)) as daemon, bare_echo() as echo:
            wait_for_index(daemon)
            time.sleep(1 if count < 1000 else 10)  # what a first start leaves to do is done
            with daemon_wire(daemon) as sock:
                size = len(round_trip(sock, request("sessions_list", limit=200)))
                base = call_on(echo, b'"result"' + b"x" * (size - 20) + b"\n")
                for what, bar, limit, line in (
                    ("list 200", 0.6, 40, request("sessions_list", limit=200)),
                    ("list 200 with titles and last messages", 4.0, 40, request("sessions.list", limit=200)),
                ):
                    ours, bare, ratio = in_turn(
                        lambda line=line: median_ms(call_on(sock, line), 20), lambda: median_ms(base, 20)
                    )
                    yield Figure(f"{what}, {count:,} sessions", ours, "ms", bar, bare, ratio, limit)


def histories() -> Iterator[Figure]:
    with daemon_of() as daemon, bare_echo() as echo, daemon_wire(daemon) as sock:
        for megabytes in (10, 100, 1000):
            key = f"agent:main:h{megabytes}"
            daemon.call("sessions.create", key=key)
            path = Path(next(row["transcriptPath"] for row in daemon.rows() if row["key"] == key))
            grow(path, megabytes)
            daemon.wait_for(lambda: folded(daemon, key) == path.stat().st_size, "the transcript is not folded")
            line = request("sessions_history", sessionKey=key, limit=200)
            size = len(round_trip(sock, line))
            base = call_on(echo, b'"result"' + b"x" * (size - 20) + b"\n")
            ours, bare, ratio = in_turn(lambda: median_ms(call_on(sock, line), 20), lambda: median_ms(base, 20))
            yield Figure(f"history 200 of {megabytes} MB", ours, "ms", 1.2, bare, ratio, 25)


def folded(daemon: Daemon, key: str) -> int:
    """Up to where the transcript is folded, as `daemon.status` has it; the size where it says nothing of that."""
    rows = [row for row in daemon.rows() if row["key"] == key]
    time.sleep(0.5)
    again = [row for row in daemon.rows() if row["key"] == key]
    done = rows == again and rows[0].get("messageCount", 1) > 0
    return Path(again[0]["transcriptPath"]).stat().st_size if done else -1


def grow(path: Path, megabytes: int) -> None:
    with path.open("ab") as file:
        total, number = 0, 0
        while total < megabytes * 1_000_000:
            said = {"role": "user" if number % 2 else "assistant", "content": f"{number} " + TEXT * 2}
            stamp = f"2026-01-01T10:{number // 60 % 60:02d}:{number % 60:02d}.000Z"
            line = json.dumps({"type": "message", "id": f"{number:016x}", "timestamp": stamp, "message": said})
            total += file.write(line.encode() + b"\n")
            number += 1


def pushes() -> Iterator[Figure]:
    for followers, bar, limit in ((1, 1.0, 12), (100, 2.5, 30)):
        with daemon_of() as daemon, synced_writes(daemon.folder) as write, ExitStack() as stack:
            key = "agent:main:push"
            daemon.call("sessions.create", key=key)
            socks = []
            for _ in range(followers):
                sock = stack.enter_context(daemon_wire(daemon))
                assert b'"subscribed":true' in round_trip(sock, request("sessions.messages.subscribe", key=key))
                socks.append(sock)
            asking = stack.enter_context(daemon_wire(daemon))
            selector = stack.enter_context(selectors.DefaultSelector())
            for sock in socks:
                selector.register(sock, selectors.EVENT_READ)
            line = inject(key)

            def push() -> None:
                asking.sendall(line)
                came: set[object] = set()
                while len(came) < len(socks):
                    for ready, _ in selector.select(10):
                        if cast("socket.socket", ready.fileobj).recv(65536).endswith(b"\n"):
                            came.add(ready.fileobj)

            def measured() -> float:
                took = []
                for _ in range(60):
                    began = time.perf_counter()
                    push()
                    took.append(time.perf_counter() - began)
                    asking.recv(65536)
                return statistics.median(took) * MS

            ours, bare, ratio = in_turn(measured, lambda: median_ms(write, 60))
            yield Figure(f"own append pushed to the last of {followers}", ours, "ms", bar, bare, ratio, limit)


def patches() -> Iterator[Figure]:
    with daemon_of() as daemon, synced_writes(daemon.folder) as write, daemon_wire(daemon) as sock:
        daemon.call("sessions.create", key="agent:main:one")
        numbers = iter(range(1_000_000))

        def patch() -> None:
            answer = round_trip(sock, request("sessions.patch", key="agent:main:one", label=f"label {next(numbers)}"))
            assert b'"result"' in answer

        ours, bare, ratio = in_turn(lambda: median_ms(patch, 100), lambda: median_ms(write, 100))
        yield Figure("patch", ours, "ms", 0.7, bare, ratio, 12)


def sends() -> Iterator[Figure]:
    with daemon_of() as daemon, synced_writes(daemon.folder) as write, daemon_wire(daemon) as sock:
        for number in range(16):
            daemon.reply(f"agent:main:send{number}", "warm")
        line = request("sessions_send", sessionKey="agent:main:send0", message=TEXT)
        ours, bare, ratio = in_turn(lambda: median_ms(call_on(sock, line), 60), lambda: median_ms(write, 60))
        yield Figure("sessions_send with echo, 1 client", ours, "ms", 2.5, bare, ratio, 30)
        lines = [request("sessions_send", sessionKey=f"agent:main:send{n}", message=TEXT) for n in range(16)]
        ours, bare, ratio = in_turn(
            lambda: rate_of_clients(daemon.socket, lines), lambda: rate_of_bare_files(daemon.folder)
        )
        yield Figure("sessions_send with echo, 16 clients", ours, "/s", 600, bare, ratio, -0.01)


def process_of(daemon: Daemon) -> Path:
    assert daemon.process is not None
    return Path(f"/proc/{daemon.process.pid}")


def written_bytes() -> Iterator[Figure]:
    with daemon_of(fill=lambda store: make_sessions(store, 10_000, 1)) as daemon, daemon_wire(daemon) as sock:
        wait_for_index(daemon)
        call = call_on(sock, inject("agent:main:s5"))
        call()
        time.sleep(3)

        def written() -> int:
            lines = (process_of(daemon) / "io").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))

        before, began, count = written(), time.perf_counter(), 0
        while time.perf_counter() - began < 20:
            call()
            count += 1
            time.sleep(0.2)
        took = time.perf_counter() - began
        each = (written() - before) / count
        # The index, which is saved every few minutes, adds its share, whether it was saved just now or not.
        each = max(each, 420 + BYTES_PER_S * took / count)
        yield Figure("bytes an append at 5/s, 10,000 sessions", each, "bytes", 4096, 420, each / 420, 20)


def starts() -> Iterator[Figure]:
    for count, first_s, complete_s, memory in ((10_000, 0.4, 0.5, 55), (100_000, 0.6, 2, 180)):
        with daemon_of(fill=lambda store, count=count: make_sessions(store, count, 1)) as daemon:
            wait_for_index(daemon)
            time.sleep(count / 10_000)
            took, complete, resident = [], [], []
            imports = []
            for _ in range(3):
                daemon.stop()
                began = time.perf_counter()
                subprocess.run([InstalledDaemon.python, "-c", "import trio, msgspec, structlog"], check=True)
                imports.append(time.perf_counter() - began)
                began = time.perf_counter()
                daemon.process = daemon._run(daemon.command())
                daemon.wait_for(lambda: answers(daemon), "it does not answer")
                took.append(time.perf_counter() - began)
                daemon.wait_for(lambda: len(daemon.rows()) == 200 and ready(daemon), "not complete")
                complete.append(time.perf_counter() - began)
                time.sleep(3)
                resident.append(resident_mb(daemon))
            base = statistics.median(imports)
            ours = statistics.median(took)
            what = f"{count:,} sessions"
            yield Figure(f"start, {what}: first answer", ours, "s", first_s, base, ours / base, 10)
            ours = statistics.median(complete)
            yield Figure(f"start, {what}: complete", ours, "s", complete_s, base, ours / base, 20 * complete_s + 2)
            ours = statistics.median(resident)
            yield Figure(f"memory, {what}", ours, "MB", memory, 30, ours / 30, memory / 30 * 1.5)


def answers(daemon: Daemon) -> bool:
    try:
        return daemon.call("ping") == {}
    except OSError:
        return False


def ready(daemon: Daemon) -> bool:
    """Whether every session is known. A daemon that says nothing of it answers only when they are."""
    return not daemon.call("daemon.status").get("loading", False)


def resident_mb(daemon: Daemon) -> float:
    status = (process_of(daemon) / "status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def idle() -> Iterator[Figure]:
    with daemon_of(fill=lambda store: make_sessions(store, 1000, 1)) as daemon:
        wait_for_index(daemon)
        # What a start leaves to do is done, its worker threads have ended, and the deadlines of its connections have
        # passed: Trio wakes up for them also when what they limited is over.
        time.sleep(35)

        def switches() -> dict[str, int]:
            """How often each thread gave up the processor."""
            found = {}
            for task in (process_of(daemon) / "task").iterdir():
                lines = (task / "status").read_text().splitlines()
                found[task.name] = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
            return found

        before = switches()
        time.sleep(20)
        woken = sum(count - before.get(thread, 0) for thread, count in switches().items())
        yield Figure("wake-ups in 20 idle seconds", woken, "", 0, 1, woken, 5)


ROWS: dict[str, Callable[[], Iterator[Figure]]] = {
    "append": append_one,
    "appends": append_many,
    "list": lists,
    "history": histories,
    "push": pushes,
    "patch": patches,
    "send": sends,
    "bytes": written_bytes,
    "start": starts,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="which, else all")
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose sessiond is measured")
    parser.add_argument("--check", action="store_true", help="fail where a ratio is over its limit")
    parser.add_argument("--quiet", action="store_true", help="fail where a bar is missed")
    parser.add_argument("--sync-us", type=int, metavar="N", help="each sync takes so many microseconds longer")
    given = parser.parse_args()
    if given.sync_us:
        run_again_with(given.sync_us)
    InstalledDaemon.python = given.python
    held = True
    for name in given.rows or ROWS:
        for figure in ROWS[name]():
            print(figure, flush=True)
            held = held and (figure.meets_bar if given.quiet else figure.holds)
    if (given.check or given.quiet) and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
