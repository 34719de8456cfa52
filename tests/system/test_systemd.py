"""The user units, checked by `systemd-analyze` and run by a real `systemd --user` with the real daemon."""

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
from support.sampling import amount

from tests.system import private_systemd
from tests.system.private_systemd import HOME, RUNTIME, PrivateSystemd

ROOT = Path(__file__).parent.parent.parent
UNITS = [ROOT / "systemd" / name for name in ("sessiond.service", "sessiond.socket", "sessiond-agent.socket")]
LINK = ROOT / "systemd/sessiond-link.service"
SERVICE = "sessiond.service"
CONFIG = HOME / ".config/sessiond/config.toml"
DROP_IN = HOME / ".config/systemd/user/sessiond.service.d/test.conf"
OWNER, AGENT = RUNTIME / "sessiond/sessiond.sock", RUNTIME / "sessiond/agent.sock"

pytestmark = pytest.mark.system
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze with a program at the path that the unit names, as after `just install`."""
    program = home / ".local/bin/sessiond"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    command = ["systemd-analyze", "--user", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@needs_analyze
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    """systemd-analyze returns 0 for unknown keys, so its stderr must be empty as well."""
    done = analyze(tmp_path, "--man=no", "verify", *map(str, (*UNITS, LINK)))
    assert (done.stderr, done.returncode) == ("", 0)


@needs_analyze
def test_the_service_is_no_more_exposed_than_agents_and_bubblewrap_need(tmp_path: Path) -> None:
    """A daemon that starts no agents could reach 1.0; the unit gives the reason for each point above that."""
    done = analyze(tmp_path, "--offline=true", "--threshold=45", "security", str(UNITS[0]))
    assert (done.stderr, done.returncode) == ("", 0), done.stdout


@needs_analyze
def test_the_link_is_little_exposed(tmp_path: Path) -> None:
    """It has no namespaces of its own, so that one unit serves everywhere: it starts nothing and listens nowhere."""
    done = analyze(tmp_path, "--offline=true", "--threshold=67", "security", str(LINK))
    assert (done.stderr, done.returncode) == ("", 0), done.stdout


def test_the_unit_gives_a_reason_for_each_hardening_option_it_leaves_out() -> None:
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
        """The output of the command with `--json`."""
        done = self.sessiond(*words, "--json")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.systemd.log()}\n{self.log()}"
        return json.loads(done.stdout)

    def service(self, *names: str) -> dict[str, str]:
        return self.systemd.show(SERVICE, *names)

    def pid(self) -> str:
        return self.service("MainPID")["MainPID"]

    def wait_until_active(self) -> None:
        """It may answer before systemd has read that it is ready."""
        self.systemd.wait_until(lambda: self.service("ActiveState") == {"ActiveState": "active"})

    def configure(self, config: str = "", unit: str = "") -> None:
        """Install both and restart: the sockets listen, the service waits for its first client."""
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
    """A script that runs this checkout. The user cannot write beside the sources, so compiled code goes elsewhere."""
    return (
        "#!/bin/sh\n"
        f"export PYTHONPATH={ROOT} PYTHONPYCACHEPREFIX={HOME}/.cache/python\n"
        f'exec {sys.executable} -m sessiond "$@"\n'
    )


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    reason = private_systemd.find_problem()
    if reason is not None:
        pytest.skip(reason)
    exposed = [ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    with PrivateSystemd(exposed, tmp_path_factory.mktemp("systemd") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def machine(systemd: PrivateSystemd) -> SystemdMachine:
    return SystemdMachine(systemd)


def test_the_first_client_starts_the_daemon_and_is_answered(machine: SystemdMachine) -> None:
    machine.configure()
    modes = {
        path.name: stat.S_IMODE(machine.systemd.path(path).stat().st_mode) for path in (OWNER, AGENT, OWNER.parent)
    }
    assert modes == {"sessiond.sock": 0o600, "agent.sock": 0o600, "sessiond": 0o700}
    status = machine.answer("status")
    machine.wait_until_active()
    service = machine.service("ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result")
    assert service.pop("StatusText") != ""
    assert service == {
        "ActiveState": "active", "SubState": "running", "MainPID": str(status["pid"]), "NRestarts": "0",
        "Result": "success",
    }  # fmt: skip
    assert status["store"] == str(HOME / ".local/state/sessiond")


def test_the_owners_socket_needs_no_token_and_the_agents_socket_does(machine: SystemdMachine) -> None:
    machine.configure()
    request = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        f"s.sendall({request!r}.encode()); print(s.makefile().readline())"
    )
    answers = {}
    for path in (OWNER, AGENT):
        done = machine.systemd.run(sys.executable, "-c", code, str(path))
        answers[path.name] = json.loads(done.stdout)
    assert answers["sessiond.sock"].keys() == {"jsonrpc", "id", "result"}
    assert answers["agent.sock"]["error"]["code"] == -32001


def test_a_killed_daemon_is_restarted_with_every_message_and_no_client_sees_an_error(machine: SystemdMachine) -> None:
    machine.configure()
    pids = set()
    kills = amount(5, 2)
    for number in range(kills):
        machine.answer("send", "main", f"message {number}")
        pids.add(machine.pid())
        assert machine.systemd.run("kill", "-9", machine.pid()).returncode == 0
        machine.answer("status")  # waits at the socket, which systemd keeps, until the daemon runs again
    history = machine.answer("history", "main")
    sent = [message["content"] for message in history["messages"] if message["role"] == "user"]
    assert sent == [f"message {number}" for number in range(kills)]
    assert len(pids) == kills
    machine.wait_until_active()
    assert machine.service("NRestarts") == {"NRestarts": str(kills)}


def test_the_watchdog_restarts_a_daemon_that_hangs(machine: SystemdMachine) -> None:
    machine.configure(unit="WatchdogSec=1\nTimeoutAbortSec=1\n")
    first = machine.answer("status")["pid"]
    assert machine.systemd.run("kill", "-STOP", str(first)).returncode == 0
    second = machine.answer("status")["pid"]
    assert second != first
    assert machine.service("NRestarts") == {"NRestarts": "1"}


def test_an_idle_daemon_pings_the_watchdog_twice_per_watchdog_time(machine: SystemdMachine) -> None:
    machine.configure(unit="WatchdogSec=4\n")
    machine.answer("status")
    pid = machine.pid()
    pings: list[int] = []

    def has_pinged_four_times() -> bool:
        latest = int(machine.service("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"])
        if latest not in pings:
            pings.append(latest)
        return len(pings) == 4

    machine.systemd.wait_until(has_pinged_four_times)
    # In microseconds: not more often than that; if it were too seldom, systemd would restart it. The first gap is
    # shorter, because READY=1 counts as a ping.
    assert (pings[-1] - pings[1]) / (len(pings) - 2) >= 1_800_000, pings
    assert machine.service("MainPID", "NRestarts") == {"MainPID": pid, "NRestarts": "0"}


def test_reload_takes_a_good_file_and_ignores_a_bad_one(machine: SystemdMachine) -> None:
    machine.configure()
    machine.answer("status")
    pid = machine.pid()
    machine.wait_until_active()  # else the reload would count as part of the start
    agents = ECHO.format("main") + ECHO.format("second")
    machine.systemd.write(CONFIG, agents)
    machine.systemctl("reload", SERVICE)
    machine.systemd.wait_until(lambda: _agents(machine) == ["main", "second"])
    machine.systemd.write(CONFIG, "[sesion]\n")
    machine.systemctl("reload", SERVICE)
    machine.systemd.wait_until(
        lambda: "config.toml:1: sesion is not a known key; did you mean session?" in machine.log()
    )
    assert _agents(machine) == ["main", "second"]
    assert machine.service("ActiveState", "MainPID") == {"ActiveState": "active", "MainPID": pid}


ECHO = '[[agents.list]]\nid = "{}"\nruntime = {{ type = "echo" }}\n'


def _agents(machine: SystemdMachine) -> list[str]:
    return [agent["id"] for agent in machine.answer("agents")["agents"]]


def test_a_bad_configuration_prevents_the_start_without_restarts(machine: SystemdMachine) -> None:
    machine.configure(config="[store]\ndurabilty = 1\n")
    assert machine.systemd.run("systemctl", "--user", "start", SERVICE).returncode != 0
    assert machine.service("ActiveState", "ExecMainStatus", "NRestarts") == {
        "ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0",
    }  # fmt: skip
    sentence = "~/.config/sessiond/config.toml:2: store.durabilty is not a known key; did you mean store.durability?"
    assert sentence in machine.log()


def test_stop_is_clean_and_the_next_client_starts_the_daemon_again(machine: SystemdMachine) -> None:
    machine.configure()
    machine.answer("send", "main", "before")
    machine.systemctl("stop", SERVICE)
    assert machine.service("ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0",
    }  # fmt: skip
    assert stat.S_ISSOCK(machine.systemd.path(OWNER).stat().st_mode), (
        "the socket belongs to systemd, so the daemon must not unlink it"
    )
    rows = machine.answer("list")["sessions"]
    assert [row["key"] for row in rows] == ["main"]


def test_the_hardening_of_the_unit_is_in_effect(machine: SystemdMachine) -> None:
    machine.configure()
    machine.answer("status")
    pid = machine.pid()
    text = machine.systemd.path(Path(f"/proc/{pid}/status")).read_text()
    found = dict(line.split(":\t", 1) for line in text.splitlines())
    assert {name: found[name] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "Umask")} == {
        "NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0" * 16, "CapBnd": "0" * 16, "Umask": "0077",
    }  # fmt: skip
    store = machine.systemd.path(HOME / ".local/state/sessiond")
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in store.rglob("*") if path.is_file()}
    assert (stat.S_IMODE(store.stat().st_mode), modes) == (0o700, {0o600})


def test_a_run_in_bubblewrap_works_under_the_hardened_unit(machine: SystemdMachine) -> None:
    """The agent can write its workspace, not the system, and does not see the home."""
    if machine.systemd.run("bwrap", "--version").returncode != 0:
        pytest.skip("bubblewrap is not installed")
    machine.configure(
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
    found = machine.answer("send", "main", "hello")
    assert found["status"] == "ok", f"{found}\n{machine.log()}"
    assert found["reply"].splitlines()[0] == "workspace"
    assert found["reply"].splitlines()[-1] == "home"
    assert "usr" in found["reply"].splitlines()
