"""Finding socket and token. Each case runs in its own process, because the environment is the input."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rows import check_each

SHOW_SOCKET = "from sessiond.client import locate; print(locate.socket_path())"
SHOW_TOKEN = "from sessiond.client import locate; print(locate.find_token())"


def run(code: str, **environment: object) -> subprocess.CompletedProcess[str]:
    given = {name: str(value) for name, value in environment.items()}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False)


def test_the_socket_variable_counts_first(tmp_path: Path) -> None:
    assert run(SHOW_SOCKET, SESSIOND_SOCKET="/a/b.sock", XDG_RUNTIME_DIR=tmp_path).stdout == "/a/b.sock\n"


def test_the_runtime_folder_comes_before_the_store(tmp_path: Path) -> None:
    assert run(SHOW_SOCKET, XDG_RUNTIME_DIR=tmp_path, HOME=tmp_path).stdout == f"{tmp_path}/sessiond/sessiond.sock\n"


def test_an_existing_socket_is_preferred(tmp_path: Path) -> None:
    place = tmp_path / "store" / "run"
    place.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "sessiond.sock"))
        found = run(SHOW_SOCKET, XDG_RUNTIME_DIR=tmp_path, SESSIOND_STORE=tmp_path / "store")
    assert found.stdout == f"{place}/sessiond.sock\n"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a path so short that a socket fits in (107 bytes): pytest's own folders are too long."""
    with tempfile.TemporaryDirectory(prefix="s-") as path:
        yield Path(path)


def test_without_the_variable_the_users_runtime_folder_is_searched(short_path: Path) -> None:
    """As in cron, `su`, `env -i` and the tool servers of Codex."""
    tmp_path = short_path
    place = tmp_path / "run" / "user" / "sessiond"
    place.mkdir(parents=True)
    show = f"from sessiond.client import locate; print(locate.socket_path(user_runtime={str(place.parent)!r}))"
    in_store = f"{tmp_path}/.local/state/sessiond/run/sessiond.sock"
    assert run(show, HOME=tmp_path).stdout == f"{in_store}\n"  # neither exists
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "sessiond.sock"))
        assert run(show, HOME=tmp_path).stdout == f"{place}/sessiond.sock\n"
        # If the folder in the environment has no socket, the others are still searched.
        assert run(show, HOME=tmp_path, XDG_RUNTIME_DIR=tmp_path).stdout == f"{place}/sessiond.sock\n"
    by_default = run("from sessiond.client import locate; print(locate.socket_candidates())", HOME=tmp_path).stdout
    assert f"/run/user/{os.getuid()}/sessiond/sessiond.sock" in by_default


@check_each(
    ("environment", "expected"),
    [
        ({"SESSIOND_STORE": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s/run/sessiond.sock"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/sessiond/run/sessiond.sock"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/sessiond/run/sessiond.sock"),
        ({"HOME": "/h"}, "/h/.local/state/sessiond/run/sessiond.sock"),
    ],
)
def test_without_a_runtime_folder_the_socket_is_in_the_store(environment: dict[str, str], expected: str) -> None:
    assert run(SHOW_SOCKET, **environment).stdout == expected + "\n"


def test_the_token_is_read_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert run(SHOW_TOKEN).stdout == "None\n"
    file.write_text("abc\n")
    assert run(SHOW_TOKEN, SESSIOND_TOKEN_FILE=file).stdout == "abc\n"
    file.write_text("")
    assert f"the token file {file} (SESSIOND_TOKEN_FILE) is empty" in run(SHOW_TOKEN, SESSIOND_TOKEN_FILE=file).stderr
    file.unlink()
    error = run(SHOW_TOKEN, SESSIOND_TOKEN_FILE=file).stderr
    assert f"cannot read the token in {file} (SESSIOND_TOKEN_FILE): No such file or directory" in error


def test_importing_the_client_loads_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import sessiond.client\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    assert run(code).stdout == "['sessiond']\n"
