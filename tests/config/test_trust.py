"""A configuration file that others may write, or whose folder others may write, is refused with advice."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sampling import amount

from sessiond.config import settings as config
from sessiond.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    made = folder / "config.toml"
    made.write_text("[limits]\nmaxHops = 3\n")
    made.chmod(0o600)
    return made


def refusal(config_file: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        config.load(config_file)
    return str(raised.value)


@settings(max_examples=amount(60, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mode=st.integers(0o400, 0o777), folder_mode=st.integers(0o700, 0o1777))
def test_a_file_that_others_may_write_is_refused_and_any_other_is_read(
    config_file: Path, mode: int, folder_mode: int
) -> None:
    config_file.chmod(mode | 0o400)
    config_file.parent.chmod(folder_mode | 0o700)
    in_folder = folder_mode & 0o022 and not folder_mode & stat.S_ISVTX
    if mode & 0o022 or in_folder:
        said = refusal(config_file)
        assert "others may write" in said and str(config_file) in said
    else:
        assert config.load(config_file).limits.max_hops == 3


def test_the_error_says_what_is_wrong_and_what_to_do(config_file: Path) -> None:
    config_file.chmod(0o664)
    assert refusal(config_file) == (
        f"{config_file}: others may write this file (mode 0664), and it says what is run; run chmod go-w {config_file}"
    )
    config_file.chmod(0o600)
    folder = config_file.parent
    folder.chmod(0o777)
    assert refusal(config_file) == (
        f"{config_file}: others may write its folder {folder} (mode 0777), and so put another file in its place;"
        f" move it into a folder of your own, or run chmod go-w {folder} where that folder is yours alone"
    )


@needs_root
def test_a_file_or_folder_of_another_user_is_refused(config_file: Path) -> None:
    os.chown(config_file, 12345, -1)
    assert "the file belongs to another user (uid 12345)" in refusal(config_file)
    os.chown(config_file, 0, -1)
    os.chown(config_file.parent, 12345, -1)
    assert f"its folder {config_file.parent} belongs to another user (uid 12345)" in refusal(config_file)


def test_a_symlink_is_followed_and_both_folders_are_checked(config_file: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir(mode=0o700)
    link = links / "config.toml"
    link.symlink_to(config_file)
    assert config.load(link).limits.max_hops == 3
    links.chmod(0o777)
    assert f"its folder {links}" in refusal(link)
    links.chmod(0o700)
    config_file.parent.chmod(0o770)
    assert f"its folder {config_file.parent}" in refusal(link)


def test_a_pipe_passed_by_the_shell_is_read() -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"[limits]\nmaxHops = 4\n")
    os.close(write_fd)
    assert config.load(Path(f"/proc/self/fd/{read_fd}")).limits.max_hops == 4
    os.close(read_fd)


def test_a_named_pipe_in_a_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml", 0o600)
    with pytest.raises(ConfigError, match="a pipe, not a regular file"):
        config.load(tmp_path / "config.toml")
