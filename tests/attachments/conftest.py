"""A workspace for hostile changes; where the tests run as root, once for root and once for an ordinary user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
AS_ROOT = os.geteuid() == 0


@pytest.fixture(params=["root", "ordinary user"] if AS_ROOT else ["ordinary user"])
def workspace(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder of the test's user. Not tmp_path: that of root is in a folder closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="attachments-"))
    if AS_ROOT and request.param != "root":
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        (folder / "workspace").mkdir()
        yield folder / "workspace"
    finally:
        if AS_ROOT:
            os.seteuid(0)
        for path, names, _ in os.walk(folder):
            # Before the walk goes down: a folder of mode 000 cannot be listed.
            for name in names:
                if not os.path.islink(os.path.join(path, name)):
                    os.chmod(os.path.join(path, name), 0o700)
        shutil.rmtree(folder)


@pytest.fixture
def outside(workspace: Path) -> Path:
    """A folder beside the workspace that no test may change."""
    folder = workspace.parent / "outside"
    folder.mkdir(mode=0o755)
    (folder / "precious").write_text("precious")
    (folder / "sub").mkdir(mode=0o755)
    (folder / "sub" / "precious").write_text("precious")
    return folder
