"""The agents' workspaces: created where they are missing, but never so that a removed store is created again."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from sessiond.errors import StorageError
from sessiond.store.workspace import default_workspace, make_workspace


def test_the_default_workspace_is_created_with_mode_0700(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    workspace = default_workspace(tmp_path, "main")
    make_workspace("main", workspace, tmp_path)
    make_workspace("main", workspace, tmp_path)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (workspace.parent, workspace)] == [0o700, 0o700]


@pytest.mark.parametrize("removed", ["agents", "store"])
def test_creating_a_workspace_does_not_recreate_a_removed_store(tmp_path: Path, removed: str) -> None:
    store = tmp_path / "store"
    if removed == "agents":
        store.mkdir()
    with pytest.raises(StorageError, match="the workspace of agent main cannot be made: No such file or directory"):
        make_workspace("main", default_workspace(store, "main"), store)
    assert store.exists() == (removed == "agents")
    assert not (store / "agents").exists()


def test_a_workspace_outside_the_store_is_created_with_its_parents(tmp_path: Path) -> None:
    make_workspace("main", tmp_path / "a" / "b", tmp_path / "store")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_place_of_a_workspace_is_an_error_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("")
    with pytest.raises(StorageError, match="the workspace of agent main cannot be made: File exists; something else"):
        make_workspace("main", tmp_path / "work", tmp_path / "store")


@pytest.mark.parametrize(
    ("place", "before"),
    [("store/agents/main/workspace", ["store/agents"]), ("elsewhere/deep/work", [".", "elsewhere"])],
)
def test_a_new_workspace_is_synced_part_by_part_and_again_after_a_failed_sync(
    tmp_path: Path, place: str, before: list[str]
) -> None:
    (tmp_path / "store" / "agents").mkdir(parents=True)
    folder = tmp_path / place
    synced: list[Path] = []
    refused = [folder.parent]

    def sync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path in refused:
            refused.remove(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(path)

    with pytest.raises(StorageError, match="the workspace of agent main cannot be made: Input/output error"):
        make_workspace("main", folder, tmp_path / "store", sync=sync)
    assert not folder.exists()
    assert synced == [tmp_path / one for one in before]
    make_workspace("main", folder, tmp_path / "store", sync=sync)
    make_workspace("main", folder, tmp_path / "store", sync=sync)
    assert synced == [*(tmp_path / one for one in before), folder.parent]
