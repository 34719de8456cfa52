"""The power goes at any step of a store's life: what was acknowledged before is on the disk.

The store lives on an ext4 file system in a file. What a copy of that file holds is what the disk held at that moment:
data that was never synced is not in it. Every copy is mounted, its journal replayed as after a real cut, and the store
opened. A plain skip where loop mounts are not allowed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from support.patience import PATIENCE_S

pytestmark = pytest.mark.system

_CUT = """
import json, subprocess, sys
from contextlib import contextmanager
from pathlib import Path
import trio
from support import store_checks
from support import store_steps

folder, durable = Path(sys.argv[1]), sys.argv[2] == "sync"

@contextmanager
def mounted(image, options):
    where = folder / "mounted"
    where.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-o", options, image, where], stderr=subprocess.DEVNULL).returncode:
        raise SystemExit(77)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)

def copied(image):
    copy = folder / f"cut-{len(cuts)}.img"
    subprocess.run(["cp", "--sparse=always", image, copy], check=True)
    return copy

image = folder / "disk.img"
with image.open("wb") as file:
    file.truncate(24 << 20)
subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
told, cuts = [], []

def cut():
    cuts.append((copied(image), list(told)))

def tell(*what):
    told.append(what)
    cut()

async def with_cuts(function, *args):
    result = function(*args)
    cut()
    return result

# A commit every hour: nothing reaches the disk but by a sync.
with mounted(image, "loop,commit=3600") as where:
    trio.run(lambda: store_steps.run_steps(where / "store", tell, run_sync=with_cuts, durable=durable))

lost = 0
for copy, known in cuts:
    with mounted(copy, "loop") as where:
        if durable:
            store_checks.check({"store": str(where / "store"), "told": known}, killed=True)
        else:
            said = [what[-1] for what in known if what[0] == "message"]
            there = [text for texts in trio.run(store_checks.look, where / "store")[0].values() for text in texts]
            lost += len(set(said) - set(there))
    copy.unlink()
print(json.dumps({"cuts": len(cuts), "told": len(told), "lost": lost}))
"""


def cut(folder: str, durability: str) -> dict[str, int]:
    """What a life with so many cuts lost."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("unshare") is None:
        pytest.skip("a loop mount takes root, mkfs.ext4 and unshare")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", _CUT, folder, durability],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("no loop mounts here")
    assert done.returncode == 0, done.stderr
    result: dict[str, int] = json.loads(done.stdout)
    return result


def test_a_power_cut_at_any_step_loses_nothing_acknowledged(tmp_path):
    result = cut(str(tmp_path), "sync")
    assert result["cuts"] > result["told"] == 11
    assert result["lost"] == 0


def test_without_syncs_a_power_cut_loses_messages_so_the_cut_is_a_real_one(tmp_path):
    assert cut(str(tmp_path), "os")["lost"] > 0
