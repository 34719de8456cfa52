"""Finding the run of a process whose parent programs strip the environment: with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOW = "from sessiond.client import locate; print(locate.socket_path(), locate.find_token(), sep='|')"
CHECKOUT = str(Path(__file__).parents[2])


def run_nested(*environments: dict[str, str]) -> str:
    """What a client finds if its ancestors, outermost first, and at last itself have these environments."""
    code = SHOW
    for environ in reversed(environments[1:]):
        inner = [sys.executable, "-c", code]
        code = f"import subprocess; subprocess.run({inner!r}, env={environ!r}, check=True)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environments[0], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_environment(folder: Path, name: str = "one") -> dict[str, str]:
    (folder / name).write_text(f"token-{name}")
    return {
        "SESSIOND_SOCKET": f"/run/{name}.sock",
        "SESSIOND_TOKEN_FILE": str(folder / name),
        "SESSIOND_RUN_ID": f"{name}.1",
        "PYTHONPATH": CHECKOUT,
    }


BARE = {"HOME": "/nowhere", "PYTHONPATH": CHECKOUT, "SESSIOND_STORE": "/nowhere/store"}


def test_a_run_is_found_through_a_program_that_clears_the_environment(tmp_path: Path) -> None:
    assert run_nested(run_environment(tmp_path), BARE) == "/run/one.sock|token-one"
    assert run_nested(run_environment(tmp_path), BARE, BARE, BARE) == "/run/one.sock|token-one"


def test_a_run_is_found_through_a_program_that_strips_token_variables(tmp_path: Path) -> None:
    run = run_environment(tmp_path)
    stripped = {name: value for name, value in run.items() if "TOKEN" not in name}
    assert run_nested(run, stripped) == "/run/one.sock|token-one"


def test_in_nested_runs_the_nearest_run_is_used(tmp_path: Path) -> None:
    assert run_nested(run_environment(tmp_path), run_environment(tmp_path, "two"), BARE) == "/run/two.sock|token-two"


def test_the_environment_of_the_process_itself_counts_first(tmp_path: Path) -> None:
    elsewhere = {**BARE, "SESSIOND_SOCKET": "/run/other.sock"}
    assert run_nested(run_environment(tmp_path), elsewhere) == "/run/other.sock|None"


def test_outside_of_a_run_none_is_found(tmp_path: Path) -> None:
    socket, _, token = run_nested(BARE, BARE).partition("|")
    assert socket in (f"/run/user/{os.getuid()}/sessiond/sessiond.sock", "/nowhere/store/run/sessiond.sock")
    assert token == "None"
