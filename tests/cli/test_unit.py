"""`sessiond unit` without systemd: which files it writes, and that it removes them and nothing else.

With systemd: `just test-packaging`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.rows import check_each

from sessiond import cli
from sessiond.cli.unit import UNITS, InstalledFiles, _quote


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home on a machine without systemd."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(programs))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PEX"):
        monkeypatch.delenv(name, raising=False)
    return home


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_what_is_installed_is_removed_again_and_nothing_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {".config/systemd/user/sessiond.service.d/mine.conf", ".config/sessiond/config.toml", ".local/bin/other"}
    own.add(".local/state/sessiond/format")
    for name in own:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    kept_empty = [home / name for name in (".config/fish/completions", ".local/share/man", ".local/share/zsh")]
    for folder in kept_empty:
        folder.mkdir(parents=True)
    for _ in range(2):  # again is an upgrade
        assert cli.run(["unit", "--install"]) == 0
    printed = capsys.readouterr().out
    assert "there is no user manager here" in printed and "fewer walls" in printed
    files = InstalledFiles(dict(os.environ))
    written = {str(path.relative_to(home)) for path in (*files.every(), files.made_folders)}
    assert files_in(home) == own | written
    assert all(path.stat().st_size > 100 for path in files.every())
    assert cli.run(["unit", "--uninstall"]) == 0
    assert files_in(home) == own
    empty = [path for path in home.rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert sorted(empty) == kept_empty
    printed = capsys.readouterr().out
    assert printed.count("removed ") == len(list(files.every()))
    assert printed.endswith(
        "kept         the sessions in ~/.local/state/sessiond\nkept         the configuration in ~/.config/sessiond\n"
    )


@check_each("own", ["", ".config/sessiond/config.toml", ".local/state/sessiond/format"])
def test_only_what_there_is_was_kept(home: Path, capsys: pytest.CaptureFixture[str], own: str) -> None:
    if own:
        (home / own).parent.mkdir(parents=True)
        (home / own).write_text("mine")
    script = Path(__file__).parents[2] / "systemd" / "uninstall"
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([script], env=environ, capture_output=True, text=True, check=True)
    capsys.readouterr()
    assert cli.run(["unit", "--uninstall"]) == 0
    kept = {
        "": "",
        ".config/sessiond/config.toml": "kept         the configuration in ~/.config/sessiond\n",
        ".local/state/sessiond/format": "kept         the sessions in ~/.local/state/sessiond\n",
    }
    assert (capsys.readouterr().out, done.stdout) == (kept[own], kept[own])
    for path in (".config/sessiond", ".local/state/sessiond"):  # for the next one
        if (home / path).exists():
            shutil.rmtree(home / path)


def test_the_service_starts_the_program_that_printed_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = home / ".local/bin/sessiond"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nfrom sessiond.cli import main\nmain()\n")
    program.chmod(0o755)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    done = subprocess.run(
        [program, "unit", "--print"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert "\nExecStart=%h/.local/bin/sessiond serve\n" in done.stdout
    assert "\nExecStart=%h/.local/bin/sessiond link run\n" in done.stdout
    assert all(f"# ~/.config/systemd/user/{unit}\n" in done.stdout for unit in UNITS)
    units = json.loads(
        subprocess.run(
            [program, "unit", "--json"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
        ).stdout
    )
    assert [Path(name).name for name in units] == list(UNITS)
    by_module = subprocess.run(
        [sys.executable, "-m", "sessiond", "unit"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"\nExecStart={sys.executable} -m sessiond serve\n" in by_module.stdout


def test_just_uninstall_removes_all_that_installing_wrote(home: Path) -> None:
    (home / ".config/fish").mkdir(parents=True)
    assert cli.run(["unit", "--install"]) == 0
    programs = home.with_name("bin")
    (programs / "systemctl").write_text("#!/bin/sh\nexit 1\n")  # whoever runs the tests may have a daemon
    (programs / "systemctl").chmod(0o755)
    script = Path(__file__).parents[2] / "systemd" / "uninstall"
    environ = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run([script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [str(path.relative_to(home)) for path in sorted(home.rglob("*"))] == [".config", ".config/fish"]


def test_folders_that_something_was_put_into_since_stay(home: Path) -> None:
    assert cli.run(["unit", "--install"]) == 0
    for name in (".local/share/man/man1/other.1", ".config/systemd/user/mine.timer"):
        (home / name).write_text("mine")
    assert cli.run(["unit", "--uninstall"]) == 0
    left = {str(path.relative_to(home)) for path in home.rglob("*")}
    assert left == {
        *(".config", ".config/systemd", ".config/systemd/user", ".config/systemd/user/mine.timer"),
        *(".local", ".local/share", ".local/share/man", ".local/share/man/man1", ".local/share/man/man1/other.1"),
    }


def test_what_an_older_version_installed_without_notes_is_removed_and_no_folder(home: Path) -> None:
    assert cli.run(["unit", "--install"]) == 0
    InstalledFiles(dict(os.environ)).made_folders.unlink()
    assert cli.run(["unit", "--uninstall"]) == 0
    assert files_in(home) == set() and (home / ".config/systemd/user").is_dir()


def test_notes_that_name_other_folders_remove_none_of_them(home: Path) -> None:
    assert cli.run(["unit", "--install"]) == 0
    (other := home / "other").mkdir()
    with InstalledFiles(dict(os.environ)).made_folders.open("a") as notes:
        notes.write(f"{other}\n\n{home}/no\u2028such\n..\n")
    assert cli.run(["unit", "--uninstall"]) == 0
    assert list(home.iterdir()) == [other]


@check_each(
    ("word", "quoted"),
    [
        ("/home/u/.local/bin/sessiond", "%h/.local/bin/sessiond"),
        ("/opt/s", "/opt/s"),
        ("/home/user/x", "/home/user/x"),
        ("/opt/a b/s", '"/opt/a b/s"'),
        ("/home/u/a b/s", '"%h/a b/s"'),
        ('/opt/a"b', '"/opt/a\\"b"'),
        ("/opt/a\\b", '"/opt/a\\\\b"'),
        ("/opt/50%/$x", "/opt/50%%/$$x"),
    ],
)
def test_the_program_is_quoted_for_systemd(word: str, quoted: str) -> None:
    assert _quote(word, Path("/home/u")) == quoted


def test_wrong_calls_and_folders_that_cannot_be_written_are_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["unit", "--install", "--uninstall"]) == 2
    (home / ".config").write_text("a file")
    assert cli.run(["unit", "--install"]) == 1
    assert f"{home}/.config" in capsys.readouterr().err
