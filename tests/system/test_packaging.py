"""What users install: the single file, run from an empty home, and `just install` under a private systemd."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.patience import PATIENCE_S

from sessiond.daemon.http_page import PageFiles
from tests.system import private_systemd
from tests.system.private_systemd import HOME, PrivateSystemd

ROOT = Path(__file__).parent.parent.parent
JUST = Path(sys.executable).with_name("just")

pytestmark = [pytest.mark.packaging, pytest.mark.skipif(not JUST.exists(), reason="just is not beside this Python")]


@pytest.fixture(scope="module")
def single_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist") / "sessiond"
    env = os.environ | {"SESSIOND_VENV": sys.prefix}
    command = [JUST, "--no-deps", "single-file", str(out)]
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


def _empty_home(home: Path) -> dict[str, str]:
    home.mkdir()
    return {"HOME": str(home), "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8"}


def test_the_single_file_serves_and_answers_from_an_empty_home(single_file: Path, tmp_path: Path) -> None:
    env = _empty_home(tmp_path / "home")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([single_file, *words], env=env, capture_output=True, text=True, check=False)

    first, second = run("status"), run("status")
    assert (first.returncode, second.returncode) == (3, 3)
    assert first.stderr.splitlines()[0].startswith("sessiond unpacks itself into ") and "unpacks" not in second.stderr
    with subprocess.Popen([single_file, "serve"], env=env, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while run("status").returncode != 0:
                assert daemon.poll() is None, daemon.stderr.read() if daemon.stderr else ""
                assert time.monotonic() < deadline
                time.sleep(0.05)
            sent = run("send", "main", "hello", "--json")
            assert (sent.returncode, json.loads(sent.stdout)["status"]) == (0, "ok"), sent.stderr
            address = json.loads(run("web", "--json").stdout)["address"]
            page = urllib.request.Request(address, headers={"Accept": "text/html"})
            with urllib.request.urlopen(page, timeout=PATIENCE_S) as got:
                assert b"<!doctype html>" in got.read()
            assert [row["key"] for row in json.loads(run("list", "--json").stdout)["sessions"]] == ["main"]
            assert run("mcp", "--help").returncode == 0
        finally:
            daemon.terminate()
            # Read to the end: Popen closes the pipe first, and Python exits with 120 if it cannot flush its output.
            daemon.communicate(timeout=PATIENCE_S)
    assert daemon.returncode == 0
    assert (tmp_path / "home/.local/state/sessiond/store.json").exists()


def test_without_a_new_enough_python_the_single_file_prints_one_sentence(single_file: Path, tmp_path: Path) -> None:
    """The stand-ins fail the version check as Python 3.10 does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python3", "python3.10", "python"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": str(folder)}
    done = subprocess.run([single_file, "status"], env=env, capture_output=True, text=True, check=False)
    sentence = "sessiond needs Python 3.11, 3.12, 3.13 or 3.14, and there is none in the PATH.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


def test_after_its_first_run_the_single_file_starts_within_twice_the_time_of_the_package(
    single_file: Path, tmp_path: Path
) -> None:
    env = _empty_home(tmp_path / "home")
    installed = Path(sys.executable).with_name("sessiond")
    if not installed.exists():
        pytest.skip("the package is not installed beside this Python")

    def seconds(program: Path) -> float:
        began = time.perf_counter()
        subprocess.run([program, "sockname"], env=env, capture_output=True, check=True)
        return time.perf_counter() - began

    for program in (single_file, installed):
        seconds(program)
    # Alternate, so that other load on the machine affects both.
    pairs = [(seconds(single_file), seconds(installed)) for _ in range(15)]
    file_s, package_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"single file {file_s * 1000:.0f} ms, package {package_s * 1000:.0f} ms: {file_s / package_s:.2f}")
    assert file_s <= 2 * package_s


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[PrivateSystemd]:
    reason = private_systemd.find_problem()
    if reason is not None:
        pytest.skip(reason)
    with PrivateSystemd([ROOT, Path(sys.prefix), Path(sys.base_prefix)], tmp_path / "log") as found:
        yield found


# uv has no option for the certificates of pip.
INDEX = {"SSL_CERT_FILE": os.environ["PIP_CERT"]} if "PIP_CERT" in os.environ else {}
INDEX |= {
    name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_")) or name.endswith("_PROXY")
}
BIN = str(HOME / ".local/bin")
# Nothing of it is the user's, and each tool removes or keeps it as it likes.
OF_THE_TOOLS = tuple(
    str(HOME / each) for each in (".cache", ".local/share/uv", ".local/share/pipx", ".local/state/pipx")
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that the user of the private systemd can read."""
    with tempfile.TemporaryDirectory(prefix="sd-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def wheel(shared: Path) -> Path:
    """The wheel, which has the same bytes however often it is built, and so has the source archive."""
    builds = []
    for number in range(2):
        out = shared / f"wheel{number}"
        subprocess.run([Path(sys.executable).with_name("hatchling"), "build", "-d", str(out)], cwd=ROOT, check=True)
        builds.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert builds[0] == builds[1] and len(builds[0]) == 2
    return next(out.glob("*.whl"))


def test_the_wheel_has_every_file_of_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name.removeprefix("sessiond/web/") for name in packed.namelist() if name.startswith("sessiond/web/")}
    assert names >= set(PageFiles().names) >= {"index.html", "page.js", "client.js"}


def uv_tool(systemd: PrivateSystemd, wheel: Path, _file: Path) -> tuple[str, list[str]]:
    uv = str(Path(sys.executable).with_name("uv"))
    interpreter = str(Path(sys.base_prefix) / "bin/python3")
    run_well(systemd, uv, "tool", "install", "--python", interpreter, str(wheel))
    return f"{BIN}/sessiond", [uv, "tool", "uninstall", "sessiond"]


def pipx(systemd: PrivateSystemd, wheel: Path, _file: Path) -> tuple[str, list[str]]:
    interpreter, own = str(Path(sys.base_prefix) / "bin/python3"), str(HOME / ".cache/pipx-itself")
    run_well(systemd, interpreter, "-m", "venv", own)
    run_well(systemd, f"{own}/bin/pip", "install", "-q", "pipx")
    run_well(systemd, f"{own}/bin/pipx", "install", "--python", interpreter, str(wheel))
    return f"{BIN}/sessiond", [f"{own}/bin/pipx", "uninstall", "sessiond"]


def the_single_file(systemd: PrivateSystemd, wheel: Path, file: Path) -> tuple[str, list[str]]:
    run_well(systemd, "mkdir", "-p", BIN)
    shutil.copy(file, shared_file := wheel.parent / "sessiond")
    shared_file.chmod(0o755)
    run_well(systemd, "cp", str(shared_file), f"{BIN}/sessiond")
    return f"{BIN}/sessiond", ["rm", f"{BIN}/sessiond"]


def run_well(systemd: PrivateSystemd, *command: str) -> str:
    done = systemd.run(*command, timeout=300, **INDEX)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("install", [uv_tool, pipx, the_single_file])
def test_an_installed_program_sets_up_its_units_and_takes_them_away(
    systemd: PrivateSystemd,
    wheel: Path,
    single_file: Path,
    install: Callable[[PrivateSystemd, Path, Path], tuple[str, list[str]]],
) -> None:
    began = time.monotonic()
    program, uninstall = install(systemd, wheel, single_file)
    printed = run_well(systemd, program, "unit", "--install")
    assert "systemd      enabled and started" in printed
    check_the_first_answer(systemd, program)
    took_s = time.monotonic() - began
    print(f"from the wheel to the first answer: {took_s:.1f} s")
    run_well(systemd, program, "unit", "--uninstall")
    run_well(systemd, *uninstall)
    check_what_is_left(systemd)


def check_the_first_answer(systemd: PrivateSystemd, program: str) -> None:
    sent = systemd.run(program, "send", "main", "hello", "--json")
    assert (sent.returncode, json.loads(sent.stdout)["status"]) == (0, "ok"), sent.stderr
    assert systemd.run("man", "--where", "sessiond").returncode in (0, 127)
    enabled = [systemd.show(unit, "UnitFileState", "ActiveState") for unit in ("sessiond.service", "sessiond.socket")]
    assert enabled == [{"UnitFileState": "enabled", "ActiveState": "active"}] * 2


def check_what_is_left(systemd: PrivateSystemd) -> None:
    left = systemd.run("find", str(HOME), "-type", "f", "-o", "-type", "l").stdout.splitlines()
    store = str(HOME / ".local/state/sessiond")
    assert [path for path in left if not path.startswith((store, *OF_THE_TOOLS))] == []
    assert any(path.startswith(store) and path.endswith(".jsonl") for path in left)
    assert systemd.run("systemctl", "--user", "is-active", "sessiond.socket").stdout.strip() == "inactive"


def test_install_sets_everything_up_and_uninstall_leaves_only_the_users_data(systemd: PrivateSystemd) -> None:
    script = str(ROOT / "systemd/install")
    base = str(Path(sys.base_prefix) / "bin/python3")
    for _ in range(2):  # the second is an upgrade
        done = systemd.run(script, timeout=300, SESSIOND_PYTHON=base, **INDEX)
        assert done.returncode == 0, done.stdout + done.stderr
    printed = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [" ".join(line) for line in printed if line[0] in ("program", "systemd")] == [
        "program ~/.local/bin/sessiond -> ~/.local/share/sessiond/venv",
        "systemd enabled and started; see: systemctl --user status sessiond",
    ]
    check_the_first_answer(systemd, f"{BIN}/sessiond")
    run_well(systemd, str(ROOT / "systemd/uninstall"))
    check_what_is_left(systemd)
