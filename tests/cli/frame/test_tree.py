from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.fake_daemon import FakeDaemon
from support.rows import check_each
from support.sampling import spread

from sessiond import cli
from sessiond.cli.completion import text_for
from sessiond.cli.frame import failures, registry, tree
from sessiond.cli.frame.command import Command
from sessiond.daemon import lifecycle


def every_command() -> list[tuple[str, Command]]:
    found = []
    for name in registry.COMMANDS:
        command = registry.find(name)
        assert command is not None
        found.append((name, command))
        found += [(f"{name} {sub.name}", sub) for sub in command.subcommands.values()]
    return found


COMMANDS = every_command()


@check_each(("words", "command"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_every_command_has_help_an_example_and_json(words: str, command: Command) -> None:
    assert command.summary.endswith(".")
    assert command.examples
    assert all(f"sessiond {words}" in example or "sessiond" in example for example in command.examples)
    if command.run is not None and words not in ("serve", "mcp", "acp", "hook"):  # neither prints a result
        assert any(option.name == "json" for option in command.options), "--json is on all of them"
    assert all(thing.help.endswith((".", ")")) or thing.help for thing in (*command.options, *command.arguments))


@check_each("words", [words for words, _ in COMMANDS])
def test_every_help_text_is_readable(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*words.split(), "--help"]) == 0
    said = capsys.readouterr()
    assert f"Usage: sessiond {words}" in said.out and "Examples:" in said.out and said.err == ""


def test_the_help_lists_every_command_and_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in registry.COMMANDS)
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sessiond, version ")


def test_every_exit_code_is_in_the_legend_the_man_page_and_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    codes = {value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)}
    codes |= {value for name, value in vars(lifecycle).items() if name.startswith("EXIT_")}
    assert codes == set(failures.EXIT_CODES)
    assert cli.run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for code, meaning in failures.EXIT_CODES.items():
        assert f"{code} {meaning}" in shown and f"{code} {meaning}" in text_for("man") and f"| {code} | " in page


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@check_each(
    ("words", "said"),
    [
        (["lst"], "there is no command 'lst': did you mean 'list'?"),
        (["frobnicate"], "there is no command 'frobnicate'; see: sessiond --help"),
        (["version"], "there is no command 'version'; see: sessiond --version"),
        (["list", "--limit", "x"], "'x' is not a whole number"),
        (["list", "--lmit", "5"], "--limit"),
        (["history"], "Missing argument 'KEY'"),
        (["token", "mnt"], "mnt"),
        (["completion", "csh"], "csh"),
    ],
)
def test_a_usage_error_is_named_and_gives_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == 2
    output = capsys.readouterr()
    assert said in output.err and output.out == ""


@check_each("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_accepted_by_their_shell(shell: str) -> None:
    script = text_for(shell)
    assert "_SESSIOND_COMPLETE" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes_a_key_with_colons(tmp_path: Path, fake: FakeDaemon) -> None:
    rows = [{"key": key} for key in ("main", "agent:main:notes", "agent:main:news")]
    fake.answers["sessions_list"] = lambda *_: {"sessions": rows}
    program = tmp_path / "sessiond"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
    program.chmod(0o755)
    (tmp_path / "completion").write_text(text_for("bash"))
    script = (
        '. "$(dirname "$(command -v sessiond)")/completion"\n'
        'COMP_LINE="$1" COMP_POINT=${#1}\n'
        "_sessiond_completion sessiond\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )

    def completions_of(line: str) -> list[str]:
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SESSIOND_SOCKET": str(fake.path)}
        command = ["bash", "-c", script, "bash", line]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()

    assert completions_of("sessiond hist") == ["history"]
    assert completions_of("sessiond history agent:main:n") == ["notes", "news"]
    assert completions_of("sessiond history ") == ["main", "agent:main:notes", "agent:main:news"]
    assert completions_of("sessiond search --session agent:main:no") == ["notes"]


DISCOVERED = {
    "methods": [
        {
            "name": "sessions_list",
            "x-aliases": ["list.sessions"],
            "params": [
                {"name": "limit", "schema": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
                {"name": "agentId", "schema": {"type": "string"}},
                {"name": "includeArchived", "schema": {"type": "boolean"}},
            ],
        },
        {"name": "ping", "params": []},
    ]
}


def answer_discovery(fake: FakeDaemon) -> None:
    fake.answers["rpc.discover"] = lambda *_: DISCOVERED
    fake.answers["agents_list"] = lambda *_: {"agents": [{"id": "main"}, {"id": "mia"}]}


COMPLETE = {
    "bash": (
        'eval "$(sessiond completion bash)"; COMP_LINE="$1" COMP_POINT=${#1};'
        ' _sessiond_completion sessiond 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    # Prints what the completion system would get, and the option that suppresses the blank after it.
    "zsh": (
        "compdef() { :; }; compadd() { local name=$argv[-1] blank=; [[ $argv[3] == '' ]] && blank=^;"
        ' for one in "${(@P)name}"; do print -r -- "$one$blank"; done; };'
        ' _describe() { compadd "$@"; }; eval "$(sessiond completion zsh)";'
        ' words=("${(@s: :)1}"); CURRENT=$#words; _sessiond_completion'
    ),
    "fish": 'sessiond completion fish | source; complete -C "$argv[1]"',
}


@pytest.mark.parametrize("shell", COMPLETE)
def test_completion_offers_the_params_of_a_method(shell: str, tmp_path: Path, fake: FakeDaemon) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    answer_discovery(fake)
    program = tmp_path / "sessiond"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
    program.chmod(0o755)

    def completions_of(line: str) -> list[str]:
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SESSIOND_SOCKET": str(fake.path), "HOME": str(tmp_path)}
        option = ["-f"] if shell == "zsh" else []
        words = [shell, *option, "-c", COMPLETE[shell], *([shell] if shell != "fish" else []), line]
        for _ in range(20):  # completion gives up after half a second, which a loaded machine may not make
            done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
            if done.stdout.split() or line.endswith(("ping ", "nothing ")):
                return sorted(done.stdout.split())
        raise AssertionError(done.stderr)

    blank, kept = ("^" if shell == "zsh" else ""), ("" if shell == "bash" else "agentId=")
    wanted = {
        "sessions_list limit=5 ag": [f"agentId={blank}"],
        "sessions_list agentId=m": [f"{kept}main", f"{kept}mia"],
        "pi": ["ping"],
        "sessions_list ": [f"{name}={blank}" for name in ("agentId", "includeArchived", "limit")],
        "list.sessions includeArchived=t": ["true" if shell == "bash" else "includeArchived=true"],
        "nothing ": [],
        "ping ": [],
    }
    # What is completed is found by the same code for every shell, which passes it on.
    for words in spread(list(wanted), 3):
        assert completions_of(f"sessiond call {words}") == wanted[words]


def test_completion_offers_commands_options_and_choices() -> None:
    from click.shell_completion import ShellComplete

    completion = ShellComplete(tree.root(), {}, "sessiond", "_SESSIOND_COMPLETE")

    def completions_of(words: list[str], incomplete: str) -> list[str]:
        return [item.value for item in completion.get_completions(words, incomplete)]

    assert completions_of([], "hi") == ["history"]
    assert "--follow" in completions_of(["history"], "--")
    assert completions_of(["list", "--kind"], "g") == ["group"]
    assert completions_of(["completion"], "") == ["bash", "zsh", "fish", "man"]
    assert completions_of(["token"], "m") == ["mint"]


def test_the_man_page_describes_every_command_and_can_be_formatted() -> None:
    page = text_for("man")
    for words, _ in COMMANDS:
        assert f".SS sessiond {words}" in page.replace("\\-", "-")
    if shutil.which("groff") is not None:
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=page, text=True, capture_output=True, check=True
        )
        assert done.stderr == "" and "sessiond history" in done.stdout


def test_every_declaration_can_be_built_as_a_click_command() -> None:
    group = tree.root()
    context = click.Context(group)
    assert [group.get_command(context, name) is not None for name in group.list_commands(context)] == [True] * len(
        registry.COMMANDS
    )
