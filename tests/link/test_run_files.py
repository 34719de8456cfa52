"""The files of a run that goes to another machine: read as they were written, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sessiond.attachments.decode import PreparedFile, PreparedFiles
from sessiond.attachments.materialize import materialize
from sessiond.link.command_wire import CommandFile
from sessiond.link.run_files import FilesGone, read_files


@pytest.fixture
def receipt(tmp_path: Path) -> dict[str, Any]:
    files = PreparedFiles((PreparedFile("a.csv", b"one,two\n", "text/csv"), PreparedFile("b", bytes(3_000))))
    found: dict[str, Any] = msgspec.to_builtins(materialize(files, tmp_path, "0f"))
    return found


def test_they_are_what_was_attached(tmp_path: Path, receipt: dict[str, Any]) -> None:
    assert read_files(tmp_path, receipt) == (
        CommandFile("a.csv", b"one,two\n", "text/csv"),
        CommandFile("b", bytes(3_000)),
    )


def test_one_that_was_changed_is_refused(tmp_path: Path, receipt: dict[str, Any]) -> None:
    next(tmp_path.rglob("a.csv")).write_bytes(b"something else")
    with pytest.raises(FilesGone, match=r"'a.csv' is not the one that came with the message any more"):
        read_files(tmp_path, receipt)


def test_links_are_not_followed(tmp_path: Path, receipt: dict[str, Any]) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"one,two\n")
    file = next(tmp_path.rglob("a.csv"))
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(FilesGone, match="cannot be read"):
        read_files(tmp_path, receipt)


@pytest.mark.parametrize("folder", ["../outside", "", "/etc", "a/../../b"])
def test_a_folder_outside_of_the_workspace_is_refused(tmp_path: Path, receipt: dict[str, Any], folder: str) -> None:
    with pytest.raises(FilesGone, match="cannot be read"):
        read_files(tmp_path, {**receipt, "relDir": folder})


def test_a_list_that_is_none_and_a_folder_that_is_gone_say_so(tmp_path: Path, receipt: dict[str, Any]) -> None:
    with pytest.raises(FilesGone, match="the list of the run's files cannot be read"):
        read_files(tmp_path, {"files": 3})
    with pytest.raises(FilesGone, match="No such file or directory"):
        read_files(tmp_path / "nowhere", receipt)
