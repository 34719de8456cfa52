"""Where a document goes: files that are whole or not there, links, pipes, and what cannot be written."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.cli.documents.output_file import open_output
from sessiond.cli.frame.failures import CommandFailed


def write(path: Path, data: bytes = b"new") -> None:
    with open_output(str(path)) as out:
        out.write(data)


def write_half(path: Path, error: BaseException) -> None:
    with open_output(str(path)) as out:
        out.write(b"half")
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_link_leads_to_is_replaced_with_its_mode_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real.html", tmp_path / "link.html"
    link.symlink_to("there/real.html")
    write(link, b"made")
    assert real.read_bytes() == b"made" and link.is_symlink()
    real.chmod(0o600)
    write(link)
    assert (real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (b"new", 0o600)
    assert link.is_symlink() and names(tmp_path / "there") == ["real.html"]


def test_a_pipe_gets_the_text_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert read == [b"new"] and stat.S_ISFIFO(pipe.stat().st_mode) and names(tmp_path) == ["pipe"]


def test_what_is_not_whole_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (target := tmp_path / "a.html").write_bytes(b"old")
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error):
            write_half(target, error())
    with pytest.raises(CommandFailed, match=r"a\.html cannot be written: No space"):
        write_half(target, OSError(28, "No space left on device"))
    assert target.read_bytes() == b"old" and names(tmp_path) == ["a.html"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "loop", "Too many levels"),
        (tmp_path / "no" / "x.html", "No such file"),
        (tmp_path / "file" / "x.html", "Not a directory"),
    ):
        with pytest.raises(CommandFailed, match=rf"{path} cannot be written: .*{why}"):
            write(path)
    assert names(tmp_path) == ["file", "loop"] and (tmp_path / "loop").is_symlink()


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: object) -> None:
    monkeypatch.chdir(tmp_path)
    with open_output("-") as out:
        out.write(b"said")
    assert capfdbinary.readouterr().out == b"said"  # type: ignore[attr-defined]
    assert names(tmp_path) == []


WRITES_HALF = """
import signal, sys
from sessiond.cli.documents.output_file import open_output
for number in sys.argv[2:]:
    signal.signal(int(number), signal.SIG_IGN)
with open_output(sys.argv[1]) as out:
    out.write(b"half")
    out.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


@check_each("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_beside(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "old.html").write_text("old")
    command = [sys.executable, "-c", WRITES_HALF, str(tmp_path / "old.html")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as exporting:
        assert exporting.stdout is not None and exporting.stdout.readline() == b"half\n"
        exporting.send_signal(number)
        code = exporting.wait(PATIENCE_S)
    assert code == (-number if number == signal.SIGINT else 128 + number)
    assert names(tmp_path) == ["old.html"] and (tmp_path / "old.html").read_text() == "old"
    (tmp_path / "old.html").unlink()


def test_signals_that_are_ignored_stay_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_HALF, str(tmp_path / "new.html"), str(int(signal.SIGHUP))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as exporting:
        assert exporting.stdout is not None and exporting.stdout.readline() == b"half\n"
        exporting.send_signal(signal.SIGHUP)
        exporting.communicate(timeout=PATIENCE_S)
    assert exporting.returncode == 0 and (tmp_path / "new.html").read_bytes() == b"half"
