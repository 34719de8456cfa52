"""Whether a configuration file is the owner's own: it names programs to run, so who may write it may be the owner.

Looks at one file and the folders that it is found by. Reads nothing of it. As ssh does with its own (`StrictModes`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sessiond.errors import ConfigError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_file(path: Path, fd: int, name: str) -> None:
    """ConfigError where somebody else may write the open file `fd`, or put another in its place at `path`.

    `name` is how errors call the file. Root may do all that anyway.
    """
    found = os.fstat(fd)
    _check_owner(found, name, "the file", "take it over with chown, or put a copy of your own in its place")
    if found.st_mode & _OTHERS_WRITE and not stat.S_ISFIFO(found.st_mode):
        raise ConfigError(
            f"{name}: others may write this file ({_mode(found)}), and it says what is run; run chmod go-w {name}"
        )
    # Where it is a link: both the folder of the link and that of the file.
    for folder in dict.fromkeys((path.absolute().parent, Path(os.path.realpath(path)).parent)):
        _check_folder(folder, name)


def _check_folder(folder: Path, name: str) -> None:
    try:
        found = folder.stat()
    except OSError:
        return  # it is open all the same: a pipe that a shell handed over lies in no folder
    _check_owner(found, name, f"its folder {folder}", "move it into a folder of your own")
    # In a sticky folder, like /tmp, nobody takes away what is another's.
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
