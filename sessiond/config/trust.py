"""Refuse a configuration file that other users could write: it names programs, which the daemon runs as its owner.

Checks owner and mode of the file and of its folders, like `StrictModes` of ssh. Does not read the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sessiond.errors import ConfigError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_file(path: Path, fd: int, name: str) -> None:
    """Raise ConfigError if another user may write the open file `fd`, or replace it at `path`.

    `name` is the name of the file in errors. Root is trusted.
    """
    found = os.fstat(fd)
    _check_owner(found, name, "the file", "take it over with chown, or put a copy of your own in its place")
    if found.st_mode & _OTHERS_WRITE and not stat.S_ISFIFO(found.st_mode):
        raise ConfigError(
            f"{name}: others may write this file ({_mode(found)}), and it says what is run; run chmod go-w {name}"
        )
    # If `path` is a symlink, both the folder of the link and the folder of the file.
    for folder in dict.fromkeys((path.absolute().parent, Path(os.path.realpath(path)).parent)):
        _check_folder(folder, name)


def _check_folder(folder: Path, name: str) -> None:
    try:
        found = folder.stat()
    except OSError:
        return  # the file is open although it has no folder: a pipe passed by a shell
    _check_owner(found, name, f"its folder {folder}", "move it into a folder of your own")
    # In a sticky folder such as /tmp, other users cannot remove or rename the file.
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"{name}: others may write its folder {folder} ({_mode(found)}), and so put another file in its place;"
            f" move it into a folder of your own, or run chmod go-w {folder} where that folder is yours alone"
        )


def _check_owner(found: os.stat_result, name: str, what: str, remedy: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{name}: {what} belongs to another user (uid {found.st_uid}); {remedy}")


def _mode(found: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(found.st_mode):04o}"
