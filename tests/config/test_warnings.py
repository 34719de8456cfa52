"""Warnings about configurations in which sandboxed sessions can write what an unsandboxed one executes."""

from __future__ import annotations

from pathlib import Path

from support.in_process import in_process_daemon
from support.rows import check_each

from sessiond.config.settings import parse
from sessiond.config.warnings import warnings

EXEC = 'runtime = {{ type = "exec", command = ["{command}"] }}'


def agent(agent_id: str, mode: str, workspace: Path | None = None, command: str = "true") -> str:
    text = f'[[agents.list]]\nid = "{agent_id}"\n{EXEC.format(command=command)}\nsandbox = {{ mode = "{mode}" }}\n'
    return text + (f'workspace = "{workspace}"\n' if workspace else "")


@check_each(
    ("modes", "places", "told"),
    [
        (["all"], [""], []),
        (["off"], [""], []),
        (["non-main"], [""], ["agent a0: with sandbox.mode"]),
        (["all", "off"], ["", ""], []),
        (["all", "off"], ["w", "w"], ["agent a1 runs without a sandbox in a workspace that sandboxed"]),
        (["all", "off"], ["w", "w/sub"], ["agent a1 runs without"]),
        (["all", "off"], ["w/sub", "w"], ["agent a1 runs without"]),
        (["all", "off"], ["w", "w2"], []),
        (["all", "all"], ["w", "w"], []),
        (["off", "off"], ["w", "w"], []),
        (["all", "off"], ["w", "link"], ["agent a1 runs without"]),
    ],
)
def test_a_workspace_shared_by_sandboxed_and_unsandboxed_sessions_is_warned_about(
    tmp_path: Path, modes: list[str], places: list[str], told: list[str]
) -> None:
    (tmp_path / "w" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("w")
    agents = [
        agent(f"a{number}", mode, tmp_path / place if place else None)
        for number, (mode, place) in enumerate(zip(modes, places, strict=True))
    ]
    found = warnings(parse("".join(agents)).agents.list)
    assert len(found) == len(told)
    assert all(what.startswith(start) and hint for (what, hint), start in zip(found, told, strict=True))


def test_a_program_in_a_sandboxed_workspace_is_warned_about(tmp_path: Path) -> None:
    agents = agent("a", "all", tmp_path) + agent("b", "off", command=f"{tmp_path}/tool")
    assert [what for what, _ in warnings(parse(agents).agents.list)] == [
        "sandboxed sessions of agent a can write the program of agent b"
    ]


async def test_doctor_shows_the_warning(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, agent("main", "non-main")) as there, there.connect() as owner:
        findings = (await owner.call("daemon.doctor"))["findings"]
        (found,) = [one for one in findings if one["thing"] == "configuration"]
        assert (found["level"], "its main session runs without a sandbox" in found["what"]) == ("warn", True)
        assert "sandbox every session" in found["hint"]
