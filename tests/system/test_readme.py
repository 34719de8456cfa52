"""The commands of the README, run as a reader would run them in a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.real_daemon import PATIENCE_S, Daemon
from support.sampling import whole_only

from sessiond.cli.frame import tree
from sessiond.clock import iso_ms
from sessiond.config.settings import Config, parse

pytestmark = pytest.mark.system
README = Path(__file__).parents[2] / "README.md"


def blocks(section: str) -> list[str]:
    """The `sh` blocks of one section, in the order of the page."""
    _, _, rest = README.read_text().partition(f"\n## {section}\n")
    text = rest.partition("\n## ")[0]
    found: list[str] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert found, section
    return found


def commands() -> list[list[str]]:
    """Every `sessiond ...` in the blocks of the page, as words without what a shell makes of the rest of the line."""
    found = []
    for block in re.findall(r"```(?:sh|text)\n(.*?)```", README.read_text(), re.DOTALL):
        for rest in re.findall(r"(?<![\w-])(?:[\w.~%]*/)*sessiond (?!sessiond)(?=[a-z]+(?![\w=.]))(.*)", block):
            # It may stand within quotes, or in `$(...)`.
            given = split_words(rest) or split_words(rest.rstrip("'")) or split_words(rest.partition(")")[0])
            assert given, rest
            ends = (at for at, word in enumerate(given) if set(word) <= set("();<>|&"))
            found.append(given[: next(ends, len(given))])
    return found


def split_words(text: str) -> list[str]:
    """The words and operators as a shell splits them; none where a quote is not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return []


def test_every_command_of_the_page_is_one_that_sessiond_understands() -> None:
    """The blocks that are run below, and those that are not: what they print is only an example."""
    checked = commands()
    assert len(checked) > 50 and ["hook", "install", "claude", "--write"] in checked
    for words in checked:
        command: click.Command = tree.root()
        context, given = click.Context(command), words
        while isinstance(command, click.Group):
            _, command, given = command.resolve_command(context, given)  # type: ignore[assignment]
        command.make_context(words[0], list(given))  # UsageError for what it does not know


def test_every_configuration_of_the_page_is_one() -> None:
    tables = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    tables += re.findall(r"config\.toml <<'END'\n(.*?)\nEND\n", README.read_text(), re.DOTALL)
    assert len(tables) == 5
    for text in tables:
        assert parse(text) != Config()


class Shell:
    """An empty home, a clone with what the README's first command installs, and a shell in the clone."""

    def __init__(self, folder: Path) -> None:
        self.home, self.clone = folder / "home", folder / "clone"
        for made in (self.home, self.clone, folder / "run"):
            made.mkdir(mode=0o700)
        (self.clone / ".venv-run").symlink_to(sys.prefix)
        self.environ = {"HOME": str(self.home), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(folder / "run")}

    def run(self, texts: list[str]) -> list[str]:
        """The output of each block. The shell exits at the first line that fails, and kills its background jobs."""
        script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || :' EXIT"]
        script += [f"echo '@@@'\n{text}" for text in texts]
        with (self.home / "errors").open("wb") as errors:
            done = subprocess.run(
                ["bash", "-c", "\n".join(script)],
                env=self.environ,
                cwd=self.clone,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=PATIENCE_S * 4,
            )
        assert done.returncode == 0, (done.stdout, (self.home / "errors").read_text())
        return done.stdout.split("@@@\n")[1:]


@pytest.fixture
def shell() -> Iterator[Shell]:
    # Not tmp_path: the path of a socket may have no more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        yield Shell(Path(folder))


MISSING = [tool for tool in ("bash", "socat", "curl", "jq") if shutil.which(tool) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_all_commands_of_the_page_work_in_one_shell(shell: Shell) -> None:
    hour = blocks("The first hour")
    rest = [block for section in ("By hand", "Trust", "Read it with jq") for block in blocks(section)]
    outputs = shell.run([*hour, *rest])
    first, three, setup, inbox, script, python, helper, by_hand, trust, jq = outputs
    assert first.count("is anybody there?") == 4, "the reply, the title in the list, and two messages"
    assert three.count("counted: 5") >= 1 and "how many words are these" in three
    assert "is good: 3 agents" in three and "has the new configuration: 3 agents" in three
    assert "added by: sessiond setup" in setup or setup == ""
    assert "the build is red, please look" in inbox
    assert "it said: counted: 3" in script and "counted: 6" in script
    assert script.splitlines()[-1] == "counted: 3"
    assert python.splitlines()[0] == "counted: 3"
    assert python.splitlines()[1].startswith("session.message ")
    assert helper == "you said: hello\n"
    sent, history, pong, rows = by_hand.replace("}{", "}\n{").split("\n", 3)
    assert '"status":"accepted"' in sent and "hello" in history and '"result":{}' in pong and '"count"' in rows
    assert "agent:main:main" in trust
    assert "user: is anybody there?" in jq.splitlines() and "assistant: counted: 5" in jq.splitlines()
    assert not (shell.home / ".local" / "state" / "sessiond" / "run" / "sessiond.sock").exists()


@whole_only("test_an_agent_asks_one_on_another_machine_and_spawns_one_with_a_file")
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_two_machines_in_ten_lines(tmp_path: Path) -> None:
    """With a stand-in for ssh, and a port of its own for the server."""
    lines = blocks("Several machines")
    assert [len(block.splitlines()) for block in lines] == [10]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = README.read_text()
    table = re.findall(r"```toml\n(\[link\]\n.*?)```", text, re.DOTALL)[0]
    programs = tmp_path / "bin"
    programs.mkdir()
    homes = {name: Daemon(make_home(tmp_path / name)) for name in ("desk", "lap")}
    try:
        for name, daemon in homes.items():
            daemon.start(table.replace('"lap"', f'"{name}"').replace("//desk:4222", f"//127.0.0.1:{port}"))
        environ = homes["lap"].environ | {"SESSIOND_CONFIG": str(homes["lap"].config)}
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items() if name != "PATH")
        scripts = {
            "ssh": f'shift; cd {homes["lap"].folder}; exec env {given} sh -c "exec $*"',
            "pip": "true",
            "sessiond": f'exec {sys.executable} -m sessiond "$@"',
            "nats-server": f'exec {Path(sys.executable).with_name("nats-server")} "$@" -a 127.0.0.1 -p {port}',
        }
        for name, script in scripts.items():
            (programs / name).write_text(f"#!/bin/sh\nexport PYTHONPATH={README.parent}\n{script}\n")
            (programs / name).chmod(0o755)
        desk = homes["desk"]
        block = lines[0].replace("~/.config/sessiond/config.toml' ", "config.toml' ")
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\ntrap 'kill $(jobs -p)' EXIT\n{block}"],
            env={**desk.environ, "SESSIOND_CONFIG": str(desk.config), "PATH": f"{programs}:{os.environ['PATH']}"},
            cwd=desk.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stdout.splitlines()[-1].endswith("is anybody there?"), done.stdout
        assert "is anybody there?" in desk.cli("history", "main").stdout
    finally:
        for daemon in homes.values():
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.kill()


def make_home(folder: Path) -> Path:
    """A home whose configuration is where the page says."""
    (folder / ".config/sessiond").mkdir(parents=True)
    (folder / ".config/sessiond/config.toml").symlink_to(folder / "config.toml")
    return folder


def test_the_example_output_is_what_a_fresh_daemon_shows(daemon: Daemon) -> None:
    example = README.read_text().partition("```text\n")[2].partition("```")[0]
    daemon.start()
    assert daemon.cli("send", "main", "is anybody there?").stdout in example
    shown = daemon.cli("history", "main").stdout
    assert [line.split(" ", 1)[1] for line in shown.splitlines()] == [
        line.split(" ", 1)[1] for line in example.splitlines() if line.startswith("08:41:12")
    ]


class Reader:
    """A home with `sessiond` on the PATH and a running daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.home = daemon.folder / "home"
        program = self.home / ".local" / "bin" / "sessiond"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
        program.chmod(0o755)
        daemon.store = self.home / ".local" / "state" / "sessiond"
        daemon.environ |= {"HOME": str(self.home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
        daemon.environ["SESSIOND_STORE"] = str(daemon.store)
        self.daemon = daemon.start()

    def followers(self) -> int:
        """The number of subscribers."""
        count: int = self.daemon.call("daemon.status")["subscribers"]
        return count


@pytest.fixture
def reader(daemon: Daemon) -> Reader:
    return Reader(daemon)


def test_every_way_to_watch_shows_a_message(reader: Reader) -> None:
    reader.daemon.reply("main", "before")
    [block] = blocks("Watch everything")
    for number, line in enumerate(block.splitlines()):
        if line.startswith("curl") and shutil.which("curl") is None:
            continue
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            env=reader.daemon.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            reader.daemon.wait_for(reader.followers, line)
            reader.daemon.reply("main", f"seen by {number}")
            while f"seen by {number}" not in (shown := process.stdout.readline()):
                assert shown, line
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        reader.daemon.wait_for(lambda: not reader.followers(), line)


def test_the_sessions_of_programs_are_listed_read_and_found_as_the_page_shows(daemon: Daemon, tmp_path: Path) -> None:
    texts = re.findall(r"```text\n(.*?)```", README.read_text(), re.DOTALL)
    [example] = [text for text in texts if "sessiond list --here" in text]
    native, here = "0e821bfa-0000-4000-8000-000000000001", tmp_path / "here"
    here.mkdir()
    began_s = int(time.time()) - 60
    said = re.findall(r"(?m)^\d\d:\d\d:\d\d (user|assistant) +(.*)$", example)
    lines = []
    for number, (role, text) in enumerate([("user", "Why is the parser slow on long lines?"), *said]):
        place = {"uuid": str(number), "sessionId": native, "cwd": str(here), "userType": "external"}
        message = {"role": role, "content": text if role == "user" else [{"type": "text", "text": text}]}
        at = iso_ms((began_s + number) * 1000)
        lines.append(json.dumps({"type": role, **place, "timestamp": at, "message": message}) + "\n")
    file = tmp_path / ".claude" / "projects" / "-here" / f"{native}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(lines))
    daemon.start()
    daemon.wait_for(lambda: [row for row in daemon.rows() if not row.get("partial")], "the session is not listed")
    shown, moment = {}, r"^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
    for command in re.findall(r"(?m)^\$ (sessiond (?:list|history|search) .*)$", example):
        words = [sys.executable, "-m", *shlex.split(command)]
        environ = daemon.environ | {"PYTHONPATH": str(README.parent)}
        printed = subprocess.check_output(words, cwd=here, env=environ, text=True)
        shown[words[3]] = [re.sub(moment, "", line) for line in printed.splitlines()]
    expected = [re.sub(moment, "", line) for line in example.splitlines()]
    assert shown["history"] == expected[expected.index("$ sessiond history claude:0e821bfa -n 2") + 1 :][:2]
    [found] = [line for line in shown["search"] if "tokenizer" in line]
    assert "claude:0e821bfa" in found and found.endswith(said[-1][1])
    assert "claude:0e821bfa" in shown["list"][-1] and "Why is the parser slow on long lines?" in shown["list"][-1]
