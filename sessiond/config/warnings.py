"""Warnings about configurations that undermine the sandbox. Refuses nothing."""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.config.agents import AgentConfig

_ADVICE = 'sandbox every session (sandbox.mode = "all"), or give the agents workspaces apart'


def warnings(agents: tuple[AgentConfig, ...]) -> list[tuple[str, str]]:
    """`(problem, advice)` wherever sandboxed sessions can write files that an unsandboxed one may execute."""
    found = []
    for writer in agents:
        if writer.sandbox.mode == "off":
            continue
        for reader in agents:
            if reader.sandbox.mode == "all" or reader.runtime.type == "echo":
                continue
            what = _shared_workspace(writer, reader)
            if what is not None:
                found.append((what, _ADVICE))
    return found


def _shared_workspace(writer: AgentConfig, reader: AgentConfig) -> str | None:
    if writer.id == reader.id:
        return (
            f'agent {writer.id}: with sandbox.mode = "{writer.sandbox.mode}" its main session runs without a sandbox '
            "in the workspace that its sandboxed sessions write, and may execute what they left there"
        )
    if _overlap(writer.workspace, reader.workspace):
        return (
            f"agent {reader.id} runs without a sandbox in a workspace that sandboxed sessions of agent {writer.id} "
            "write, and may execute what they left there"
        )
    program = reader.runtime.command[0] if reader.runtime.command else ""
    if writer.workspace is not None and os.path.isabs(program) and Path(program).is_relative_to(writer.workspace):
        return f"sandboxed sessions of agent {writer.id} can write the program of agent {reader.id}"
    return None


def _overlap(one: Path | None, other: Path | None) -> bool:
    """Whether one folder is or contains the other. None is a folder in the store, which no other agent shares."""
    if one is None or other is None:
        return False
    one, other = (Path(os.path.realpath(path)) for path in (one, other))
    return one.is_relative_to(other) or other.is_relative_to(one)
