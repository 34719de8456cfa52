"""The user units, held against systemd itself, and run by a real `systemd --user` with the real daemon."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system import private_systemd
from tests.system.private_systemd import HOME, RUNTIME, PrivateSystemd

ROOT = Path(__file__).parent.parent.parent
UNITS = [ROOT / "systemd" / name for name in ("sessiond.service", "sessiond.socket", "sessiond-agent.socket")]
SERVICE = "sessiond.service"
CONFIG = HOME / ".config/sessiond/config.toml"
DROP_IN = HOME / ".config/systemd/user/sessiond.service.d/test.conf"
OWNER, AGENT = RUNTIME / "sessiond/sessiond.sock", RUNTIME / "sessiond/agent.sock"

pytestmark = pytest.mark.system
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With a program at the place that the unit names, as after `just install`."""
    program = home / ".local/bin/sessiond"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    command = ["systemd-analyze", "--user", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@needs_analyze
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    """It returns 0 for keys that it does not know; what it writes to stderr is what counts."""
    done = analyze(tmp_path, "--man=no", "verify", *map(str, UNITS))
    assert (done.stderr, done.returncode) == ("", 0)


@needs_analyze
def test_the_service_is_no_more_exposed_than_agents_and_bubblewrap_need(tmp_path: Path) -> None:
    """1.0 is what a daemon could have that starts no agents; each point above it has its reason in the unit."""
    done = analyze(tmp_path, "--offline=true", "--threshold=45", "security", str(UNITS[0]))
    assert (done.stderr, done.returncode) == ("", 0), done.stdout


def test_every_wall_that_is_left_out_has_its_reason_in_the_unit() -> None:
    text = UNITS[0].read_text()
    reasons = text[text.index("# Left out, and why:") : text.index("[Install]")]
    for directive in (
        "RestrictNamespaces", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectHome",
        "ProtectSystem=strict", "PrivateTmp", "PrivateDevices", "PrivateNetwork", "IPAddressDeny", "PrivateIPC",
        "MemoryDenyWriteExecute", "ProtectHostname", "StateDirectory", "RuntimeDirectory",
    ):  # fmt: skip
        assert directive in reasons, directive


class SystemdMachine:
    """A user's machine with sessiond installed under systemd."""

    def __init__(self, systemd: PrivateSystemd) -> None:
        self.systemd = systemd
        systemd.write(HOME / ".local/bin/sessiond", _program(), 0o755)
        for unit in UNITS:
            systemd.write(HOME / ".config/systemd/user" / unit.name, unit.read_text())

    def systemctl(self, *words: str) -> None:
        done = self.systemd.run("systemctl", "--user", *words)
        assert done.returncode == 0, f"{done.stderr}\n{self.systemd.log()}"

    def sessiond(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.systemd.run(str(HOME / ".local/bin/sessiond"), *words)

    def answer(self, *words: str) -> Any:
        """What the command says with `--json`."""
        done = self.sessiond(*words, "--json")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.systemd.log()}\n{self.log()}"
        return json.loads(done.stdout)

    def service(self, *names: str) -> dict[str, str]:
        return self.systemd.show(SERVICE, *names)

    def pid(self) -> str:
        return self.service("MainPID")["MainPID"]

    def configure(self, config: str = "", unit: str = "") -> None:
        """Put both in place and start from nothing: sockets listen, the service waits for its first client."""
        self.systemctl("stop", SERVICE, "sessiond.socket", "sessiond-agent.socket")
        self.systemd.write(CONFIG, config)
        self.systemd.write(DROP_IN, f"[Service]\nStandardError=append:{HOME}/log\nRestartSec=50ms\n{unit}")
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed")
        self.systemctl("start", "sessiond.socket", "sessiond-agent.socket")
        assert self.service("ActiveState") == {"ActiveState": "inactive"}

    def log(self) -> str:
        return self.systemd.run("cat", str(HOME / "log")).stdout


def _program() -> str:
    """This checkout with this Python. It cannot write beside the sources, so compiled code goes elsewhere."""
    return (
        "#!/bin/sh\n"
        f"export PYTHONPATH={ROOT} PYTHONPYCACHEPREFIX={HOME}/.cache/python\n"
        f'exec {sys.executable} -m sessiond "$@"\n'
    )


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    reason = private_systemd.missing()
    if reason is not None:
        pytest.skip(reason)
    exposed = [ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    with PrivateSystemd(exposed, tmp_path_factory.mktemp("systemd") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def world(systemd: PrivateSystemd) -> SystemdMachine:
    return SystemdMachine(systemd)


def test_the_first_client_starts_the_daemon_and_is_answered(world: SystemdMachine) -> None:
    world.configure()
    modes = {path.name: stat.S_IMODE(world.systemd.path(path).stat().st_mode) for path in (OWNER, AGENT, OWNER.parent)}
    assert modes == {"sessiond.sock": 0o600, "agent.sock": 0o600, "sessiond": 0o700}
    status = world.answer("status")
    service = world.service("ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result")
    assert service.pop("StatusText") != ""
    assert service == {
        "ActiveState": "active", "SubState": "running", "MainPID": str(status["pid"]), "NRestarts": "0",
        "Result": "success",
    }  # fmt: skip
    assert status["store"] == str(HOME / ".local/state/sessiond")


def test_both_sockets_of_systemd_are_served_each_as_what_it_is(world: SystemdMachine) -> None:
    """The owner's asks for nothing, the agents' for a token."""
    world.configure()
    request = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        f"s.sendall({request!r}.encode()); print(s.makefile().readline())"
    )
    answers = {}
    for path in (OWNER, AGENT):
        done = world.systemd.run(sys.executable, "-c", code, str(path))
        answers[path.name] = json.loads(done.stdout)
    assert answers["sessiond.sock"].keys() == {"jsonrpc", "id", "result"}
    assert answers["agent.sock"]["error"]["code"] == -32001


def test_a_killed_daemon_comes_back_with_every_message_and_no_client_sees_an_error(world: SystemdMachine) -> None:
    world.configure()
    pids = set()
    for number in range(5):
        world.answer("send", "main", f"message {number}")
        pids.add(world.pid())
        assert world.systemd.run("kill", "-9", world.pid()).returncode == 0
        world.answer("status")  # while it is away: the socket stays with systemd
    history = world.answer("history", "main")
    said = [message["content"] for message in history["messages"] if message["role"] == "user"]
    assert said == [f"message {number}" for number in range(5)]
    assert len(pids) == 5
    assert world.service("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "5"}


def test_a_daemon_that_hangs_is_ended_by_the_watchdog_and_its_successor_answers(world: SystemdMachine) -> None:
    world.configure(unit="WatchdogSec=1\nTimeoutAbortSec=1\n")
    first = world.answer("status")["pid"]
    assert world.systemd.run("kill", "-STOP", str(first)).returncode == 0
    second = world.answer("status")["pid"]
    assert second != first
    assert world.service("NRestarts") == {"NRestarts": "1"}


def test_an_idle_daemon_says_that_it_lives_at_half_the_watchdogs_time(world: SystemdMachine) -> None:
    world.configure(unit="WatchdogSec=4\n")
    world.answer("status")
    pid = world.pid()
    told: list[int] = []

    def told_four_times() -> bool:
        latest = int(world.service("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])
        if latest not in told:
            told.append(latest)
        return len(told) == 4

    world.systemd.wait_until(told_four_times)
    # Microseconds, and no oftener than that; too seldom, and it would be restarted. The first gap is shorter: READY=1
    # counts as well.
    assert (told[-1] - told[1]) / (len(told) - 2) >= 1_800_000, told
    assert world.service("MainPID", "NRestarts") == {"MainPID": pid, "NRestarts": "0"}


def test_reload_takes_a_good_file_and_lives_on_with_a_bad_one(world: SystemdMachine) -> None:
    world.configure()
    world.answer("status")
    pid = world.pid()
    agents = ECHO.format("main") + ECHO.format("second")
    world.systemd.write(CONFIG, agents)
    world.systemctl("reload", SERVICE)
    world.systemd.wait_until(lambda: _agents(world) == ["main", "second"])
    world.systemd.write(CONFIG, "[sesion]\n")
    world.systemctl("reload", SERVICE)
    world.systemd.wait_until(lambda: "config.toml:1: sesion is not a known key; did you mean session?" in world.log())
    assert _agents(world) == ["main", "second"]
    assert world.service("ActiveState", "MainPID") == {"ActiveState": "active", "MainPID": pid}


ECHO = '[[agents.list]]\nid = "{}"\nruntime = {{ type = "echo" }}\n'


def _agents(world: SystemdMachine) -> list[str]:
    return [agent["id"] for agent in world.answer("agents")["agents"]]


def test_a_bad_configuration_stops_the_start_once_and_for_all(world: SystemdMachine) -> None:
    world.configure(config="[store]\ndurabilty = 1\n")
    assert world.systemd.run("systemctl", "--user", "start", SERVICE).returncode != 0
    assert world.service("ActiveState", "ExecMainStatus", "NRestarts") == {
        "ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0",
    }  # fmt: skip
    sentence = "~/.config/sessiond/config.toml:2: store.durabilty is not a known key; did you mean store.durability?"
    assert sentence in world.log()


def test_stopping_is_clean_and_the_next_client_starts_it_again(world: SystemdMachine) -> None:
    world.configure()
    world.answer("send", "main", "before")
    world.systemctl("stop", SERVICE)
    assert world.service("ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0",
    }  # fmt: skip
    assert stat.S_ISSOCK(world.systemd.path(OWNER).stat().st_mode), (
        "the socket is systemd's, not the daemon's to unlink"
    )
    rows = world.answer("list")["sessions"]
    assert [row["key"] for row in rows] == ["main"]


def test_the_walls_stand(world: SystemdMachine) -> None:
    world.configure()
    world.answer("status")
    pid = world.pid()
    text = world.systemd.path(Path(f"/proc/{pid}/status")).read_text()
    found = dict(line.split(":\t", 1) for line in text.splitlines())
    assert {name: found[name] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "Umask")} == {
        "NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16, "CapBnd": "0" * 16, "Umask": "0077",
    }  # fmt: skip
    store = world.systemd.path(HOME / ".local/state/sessiond")
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in store.rglob("*") if path.is_file()}
    assert (stat.S_IMODE(store.stat().st_mode), modes) == (0o700, {0o600})


def test_a_run_in_bubblewrap_works_inside_the_walls(world: SystemdMachine) -> None:
    """What an agent sees: another host name, its workspace writable, the system not, nobody else's processes."""
    if world.systemd.run("bwrap", "--version").returncode != 0:
        pytest.skip("bubblewrap is not installed")
    world.configure(
        config=(
            "[agents.defaults]\n"
            'sandbox = { mode = "all", network = false }\n'
            "[[agents.list]]\n"
            'id = "main"\n'
            'runtime = { type = "exec", command = ["/bin/sh", "-c", "'
            "touch here && echo workspace; touch /usr/x 2>&1 >/dev/null || echo usr; ls -d /home/*/.config 2>&1 || "
            'echo home"] }\n'
        )
    )
    found = world.answer("send", "main", "hello")
    assert found["status"] == "ok", f"{found}\n{world.log()}"
    assert found["reply"].splitlines()[0] == "workspace"
    assert found["reply"].splitlines()[-1] == "home"
    assert "usr" in found["reply"].splitlines()
