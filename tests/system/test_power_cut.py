"""After a power cut at any step, everything that the store acknowledged before is on the disk.

The store is on an ext4 file system within an image file. A copy of the image contains what the disk contained at that
moment, without data that was not synced. Each copy is mounted, which replays its journal as after a real power cut,
and the store is opened. Skipped if loop mounts are not allowed.
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

def copy_image(image):
    copy = folder / f"cut-{len(cuts)}.img"
    subprocess.run(["cp", "--sparse=always", image, copy], check=True)
    return copy

image = folder / "disk.img"
with image.open("wb") as file:
    file.truncate(24 << 20)
subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
outcomes, cuts = [], []

def cut():
    cuts.append((copy_image(image), list(outcomes)))

def tell(*what):
    outcomes.append(what)
    cut()

async def with_cuts(function, *args):
    result = function(*args)
    cut()
    return result

# With a commit interval of an hour, only a sync writes to the disk.
with mounted(image, "loop,commit=3600") as where:
    trio.run(lambda: store_steps.run_steps(where / "store", tell, run_sync=with_cuts, durable=durable))

lost = 0
for copy, known in cuts:
    with mounted(copy, "loop") as where:
        if durable:
            store_checks.check({"store": str(where / "store"), "told": known}, killed=True)
        else:
            sent = [what[-1] for what in known if what[0] == "message"]
            there = [text for texts in trio.run(store_checks.look, where / "store")[0].values() for text in texts]
            lost += len(set(sent) - set(there))
    copy.unlink()
print(json.dumps({"cuts": len(cuts), "outcomes": len(outcomes), "lost": lost}))
"""


def run_with_cuts(folder: str, durability: str) -> dict[str, int]:
    """Run the store's steps with a power cut after each; returns the numbers of cuts, outcomes and lost messages."""
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
    result = run_with_cuts(str(tmp_path), "sync")
    assert result["cuts"] > result["outcomes"] == 11
    assert result["lost"] == 0


def test_without_syncs_a_power_cut_loses_messages(tmp_path):
    # So the cut is a real one: the test above would notice a missing sync.
    assert run_with_cuts(str(tmp_path), "os")["lost"] > 0
