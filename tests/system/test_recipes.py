"""The recipes of the README, each with the real thing: a timer of systemd, `sshd` on localhost, git, a desktop's bus.

The commands are those of the page.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import whole_only

from tests.system import private_systemd
from tests.system.private_systemd import HOME, PrivateSystemd
from tests.system.test_readme import README, blocks
from tests.system.test_systemd import SystemdMachine

pytestmark = pytest.mark.system
ROOT = README.parent
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
_PARSED = "test_every_command_of_the_page_is_one_that_sessiond_understands"


def needs(*tools: str | None) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if tool is None or shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(tool or 'sshd' for tool in missing)}")


def recipe(word: str) -> str:
    """The block of the recipes in which this occurs."""
    [found] = [block for block in blocks("Recipes") if word in block]
    return found


# ------------------------------------------------------------------------------------------------ a scheduled message


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[PrivateSystemd]:
    reason = private_systemd.find_problem()
    if reason is not None:
        pytest.skip(reason)
    with PrivateSystemd([ROOT, Path(sys.prefix), Path(sys.base_prefix)], tmp_path / "log") as found:
        yield found


@whole_only(_PARSED)
def test_a_message_whose_hour_was_missed_is_sent_once(systemd: PrivateSystemd) -> None:
    machine = SystemdMachine(systemd)
    machine.configure()
    done = systemd.run("sh", "-euc", recipe("OnCalendar"))
    assert done.returncode == 0, done.stderr
    service, timer = "sessiond-morning.service", "sessiond-morning.timer"
    stamp = systemd.path(HOME / ".local/share/systemd/timers" / f"stamp-{timer}")

    def sent() -> list[str]:
        page = machine.answer("history", "main")
        return [message["content"] for message in page["messages"] if message["role"] == "user"]

    def ran() -> str:
        return systemd.show(service, "ExecMainExitTimestampMonotonic")["ExecMainExitTimestampMonotonic"]

    systemd.wait_until(stamp.exists)
    assert (ran(), systemd.show(timer, "ActiveState")) == ("0", {"ActiveState": "active"})
    # The machine is off for three days.
    machine.systemctl("stop", timer)
    long_ago = time.time() - 3 * 86_400
    os.utime(stamp, (long_ago, long_ago))
    machine.systemctl("start", timer)
    systemd.wait_until(lambda: ran() != "0")
    assert systemd.show(service, "Result") == {"Result": "success"}, systemd.log()
    assert sent() == ["What is new?"]
    # Off and on again: nothing was missed. And whoever starts the service by hand sends nothing twice.
    machine.systemctl("stop", timer)
    machine.systemctl("start", timer)
    machine.systemctl("start", service)
    assert systemd.show(service, "Result") == {"Result": "success"}, systemd.log()
    assert sent() == ["What is new?"]


# ---------------------------------------------------------------------------------------------------- another machine


class Laptop:
    """Another machine: a home with a daemon, reached by a real sshd on a port of this one as `ssh laptop`."""

    def __init__(self, folder: Path) -> None:
        assert SSHD is not None
        self.folder, self.home = folder, folder / "home"
        (self.home / ".local" / "bin").mkdir(parents=True)
        program = self.home / ".local/bin/sessiond"
        program.write_text(f'#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} -m sessiond "$@"\n')
        program.chmod(0o755)
        for name in ("host", "user"):
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        (folder / "log").touch()

    def start(self) -> dict[str, str]:
        """Start its sshd; the environment in which `ssh laptop` leads there."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # without it an sshd of root does not start
        config = self.folder / "sshd_config"
        for port in range(20_000 + os.getpid() % 20_000, 65_000, 97):
            config.write_text(self._server_config(port))
            self.process = subprocess.Popen([str(SSHD), "-D", "-f", str(config), "-E", str(self.folder / "log")])
            deadline = time.monotonic() + PATIENCE_S
            while "listening on" not in self.log() and self.process.poll() is None:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.02)
            if "listening on" in self.log():
                break
            assert "Address already in use" in self.log(), self.log()
            (self.folder / "log").write_text("")
        return self._client_environment(port)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        """End it, with the connections that its clients left in the background."""
        for entry in Path("/proc").iterdir():
            words = _words_of(entry) if entry.name.isdecimal() else []
            if Path(words[0] if words else "").name == "ssh" and str(self.folder / "ssh_config") in words:
                os.kill(int(entry.name), signal.SIGTERM)
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)

    def _server_config(self, port: int) -> str:
        # A command runs in the home of the account; here that is the home of the laptop.
        return "\n".join(
            (
                f"Port {port}",
                "ListenAddress 127.0.0.1",
                f"HostKey {self.folder / 'host'}",
                f"AuthorizedKeysFile {self.folder / 'user.pub'}",
                f"PidFile {self.folder / 'pid'}",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "LogLevel VERBOSE",
                f"SetEnv HOME={self.home} SESSIOND_STORE={self.folder / 'store'} "
                f"SESSIOND_SOCKET={self.folder / 'run/sessiond.sock'}",
                'ForceCommand cd "$HOME" && eval "$SSH_ORIGINAL_COMMAND"',
            )
        )

    def _client_environment(self, port: int) -> dict[str, str]:
        config = self.folder / "ssh_config"
        config.write_text(
            f"Host laptop\n HostName 127.0.0.1\n Port {port}\n IdentityFile {self.folder / 'user'}\n"
            f" IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile {self.folder / 'known'}\n"
            " LogLevel ERROR\n"
        )
        here = self.folder / "here"
        (here / "bin").mkdir(parents=True)
        # ssh looks for its configuration in the account's home, whatever HOME says.
        (here / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        (here / "bin/sessiond").symlink_to(self.home / ".local/bin/sessiond")
        for program in (here / "bin").iterdir():
            program.chmod(0o755)
        return {"HOME": str(here), "PATH": f"{here / 'bin'}:{os.environ['PATH']}", "LANG": "C.UTF-8"}

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)


def _words_of(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


@whole_only("test_every_command_of_the_page_is_one_that_sessiond_understands")
@needs(SSHD, "ssh", "ssh-keygen")
def test_another_machine_is_listed_asked_and_its_socket_brought_here(short_path: Path) -> None:
    laptop, daemon = Laptop(short_path), Daemon(short_path)
    daemon.start()
    environ = laptop.start()
    try:
        daemon.reply("main", "said on the laptop")
        # Again: the first tunnel is still there, and so is its socket.
        for _ in range(2):
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", recipe("ssh laptop")],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S * 2,
            )
            assert done.returncode == 0, (done.stdout, done.stderr, laptop.log())
            listed, *answers = done.stdout.splitlines()[-3:]
            assert listed.startswith("main") and answers == ["How is the build?", "is anybody there?"]
        said = [one["content"] for one in daemon.call("sessions_history", sessionKey="main")["messages"]]
        # The agent echoes.
        asked, answered = said[::2], [reply[0]["text"] for reply in said[1::2]]
        assert asked == answered == ["said on the laptop", *["How is the build?", "is anybody there?"] * 2]
    finally:
        laptop.stop()
        daemon.kill()


# ---------------------------------------------------------------------------------------------------------- a git hook


@needs("git")
def test_a_hook_shows_what_the_agent_says_and_never_keeps_a_commit_from_being_made(
    daemon: Daemon, tmp_path: Path
) -> None:
    environ = daemon.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environ |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    repository = tmp_path / "repository"
    for folder in (repository, tmp_path / "bin"):
        folder.mkdir()
    program = tmp_path / "bin" / "sessiond"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
    program.chmod(0o755)

    def commit(text: str) -> str:
        (repository / "file").write_text(f"{text}\n")
        command = f"git add file && git commit -q -m {text}"
        done = subprocess.run(
            ["bash", "-euc", command], cwd=repository, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    subprocess.run(["git", "init", "-q", "."], cwd=repository, env=environ, check=True)
    shutil.rmtree(repository / ".git/hooks", ignore_errors=True)  # there is none where git has no templates
    setup = ["bash", "-euc", recipe("pre-commit")]
    subprocess.run(setup, cwd=repository, env=environ, check=True)
    hook = repository / ".git/hooks/pre-commit"
    assert os.access(hook, os.X_OK)
    own = hook.read_text()
    # One that is there already is left as it is, and the shell says so.
    for theirs in (own, "#!/bin/sh\nexit 0\n"):
        hook.write_text(theirs)
        again = subprocess.run(setup, cwd=repository, env=environ, capture_output=True, text=True, check=False)
        assert again.returncode != 0 and "cannot overwrite existing file" in again.stderr
        assert hook.read_text() == theirs
    hook.write_text(own)
    commit("without-a-daemon")
    daemon.start()
    shown = commit("second")
    assert shown.startswith("Is there a mistake in this change?")
    assert "+second" in shown and "-without-a-daemon" in shown
    log = subprocess.check_output(["git", "log", "--format=%s"], cwd=repository, env=environ, text=True)
    assert log.split() == ["second", "without-a-daemon"]


# ------------------------------------------------------------------------------------- a notification on the desktop


_FAILING = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["sh", "-c", "exit 3"] }

"""
# A desktop that nobody sees: a screen, a bus, and a daemon that shows notifications and prints what it shows.
_DESKTOP = """
Xvfb -displayfd 3 -screen 0 800x600x24 -nolisten tcp 3>display >/dev/null 2>&1 &
until [ -s display ]; do sleep 0.05; done
DISPLAY=:$(cat display) dunst -print >shown 2>&1 &
echo "$DBUS_SESSION_BUS_ADDRESS"
wait
"""


@whole_only("test_every_configuration_of_the_page_is_one")
@needs("notify-send", "dbus-run-session", "Xvfb", "dunst", "busctl")
def test_what_fails_is_shown_on_the_desktop(daemon: Daemon, tmp_path: Path) -> None:
    [rule] = [one for one in re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL) if "notify-send" in one]
    rule = rule.partition("\n\n")[0]
    assert rule.startswith("[[notify]]\ncommand = [")
    desktop = subprocess.Popen(
        ["dbus-run-session", "--", "sh", "-c", _DESKTOP],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert desktop.stdout is not None
    try:
        bus = desktop.stdout.readline().strip()
        names = ["busctl", f"--address={bus}", "list", "--no-pager"]
        daemon.wait_for(
            lambda: "org.freedesktop.Notifications" in subprocess.check_output(names, text=True),
            "no daemon shows notifications",
        )
        daemon.environ["DBUS_SESSION_BUS_ADDRESS"] = bus
        daemon.start(_FAILING + rule)
        daemon.call("chat.send", sessionKey="main", message="fail")
        shown = tmp_path / "shown"
        daemon.wait_for(lambda: "summary: " in shown.read_text(), "nothing was shown")
        assert "appname: 'sessiond'" in shown.read_text() and "summary: 'main" in shown.read_text()
    finally:
        os.killpg(desktop.pid, signal.SIGKILL)
        desktop.wait()
        desktop.stdout.close()
