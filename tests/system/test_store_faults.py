"""The store is killed before each important system call, or the call fails: nothing that was acknowledged is lost.

strace kills a process before its n-th call of a kind, or makes that call fail (`inject=`). Every n is tested until the
steps in `store_steps.py` make no n-th call. Skipped if strace cannot trace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from support import store_steps
from support.patience import PATIENCE_S
from support.sampling import amount, spread
from support.store_checks import check, look

pytestmark = pytest.mark.system

STEPS = Path(store_steps.__file__)
# The outcomes of all steps.
OUTCOMES = 11


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=99", "true"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is not there or may not trace")


def run_with_faults(tmp_path: Path, syscall: str, fault: str, when: int = 300) -> list[dict[str, Any]]:
    """The result of the steps with the fault at each n-th call; in the last one there was no n-th call."""
    done = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={syscall}"),
            *("-e", f"inject={syscall}:{fault}:when={when}"),
            *(sys.executable, str(STEPS), syscall, str(when), str(tmp_path)),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=PATIENCE_S,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(found[-1]["told"]) == OUTCOMES and not found[-1]["killed"]
    return found


@needs_strace
@pytest.mark.parametrize(
    ("syscall", "when", "at_least"),
    spread(
        [
            ("fdatasync", 300, 7),
            ("write", 300, 12),
            ("close", 1200, 30),
            ("renameat", 300, 5),
            ("renameat2", 300, 1),
            ("fsync", 300, 20),
        ],
        1,
    ),
)
def test_a_kill_before_any_system_call_loses_nothing_acknowledged(tmp_path, syscall, when, at_least):
    results = run_with_faults(tmp_path, syscall, "signal=KILL", when)
    assert len(results) > at_least
    for result in results:
        check(result, killed=result["killed"])


@needs_strace
@pytest.mark.parametrize(
    ("syscall", "error", "at_least"),
    spread(
        [
            ("fdatasync", "EIO", 7),
            ("write", "ENOSPC", 12),
            ("write", "EIO", 12),
            ("renameat", "EIO", 5),
            ("renameat2", "EXDEV", 1),
            ("fsync", "EIO", 20),
        ],
        1,
    ),
)
def test_a_failed_system_call_is_an_error_to_the_caller_and_leaves_no_record(tmp_path, syscall, error, at_least):
    results = run_with_faults(tmp_path, syscall, f"error={error}")
    assert len(results) > at_least
    for result in results:
        assert not result["killed"]
        check(result, killed=False)
    failed = {tuple(what) for result in results for what in result["told"] if what[0] in ("failed", "refused")}
    assert failed


_FULL = """
import sys
from pathlib import Path
import trio
from support import store_steps as steps
from support.store_checks import texts
from sessiond.errors import StorageError

async def main(path):
    ballast = path / "ballast"
    written, refused = [], []
    async with steps.open_inline(path / "store") as store:
        session, _ = await store.create("agent:main:main", "main")
        ballast.write_bytes(b"x" * 20_000)
        for number in range(200):
            try:
                await store.append(session, [steps.user_message(f"{number} " + "x" * 700)])
                written.append(f"{number} " + "x" * 700)
            except StorageError as error:
                refused.append(error.data["reason"])
        assert written and refused and set(refused) == {"No space left on device"}, (len(written), set(refused))
        folder, = store.dirty_folders()
        try:
            await store.save(folder)
        except StorageError:
            pass
        ballast.unlink()
        for number in range(5):
            await store.append(session, [steps.user_message(f"room again {number}")])
            written.append(f"room again {number}")
        await store.save(folder)
    async with steps.open_inline(path / "store") as store:
        session = store.catalog.by_key["agent:main:main"]
        assert texts(store, session) == written
    print("ok")

trio.run(main, Path(sys.argv[1]))
"""


def test_a_full_disk_refuses_appends_and_the_store_goes_on_when_there_is_room_again(tmp_path):
    mount = 'mount -t tmpfs -o size=128k tmpfs "$1" 2>/dev/null || exit 77; exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, _FULL],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_kills_at_any_moment_lose_nothing_acknowledged(tmp_path):
    kills = amount(200, 8)
    done = subprocess.run(
        [sys.executable, str(STEPS), "kills", str(kills), str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=PATIENCE_S,
        check=True,
    )
    acknowledged = json.loads(done.stdout)
    assert len(acknowledged) > kills
    found, rows = trio.run(look, tmp_path / "store")
    (written,) = found.values()
    assert len(written) == len(set(written))
    assert set(acknowledged) <= set(written)
    # The messages of each appender are in the order in which it sent them.
    for appender in {text.split()[0] for text in written}:
        own = [text for text in written if text.split()[0] == appender]
        assert own == sorted(own)
    for index in (tmp_path / "store" / "agents").rglob("sessions.json"):
        index.unlink()
    assert trio.run(look, tmp_path / "store") == (found, rows)
    assert {entry.message_count for entry, _ in rows.values()} == {len(written)}
