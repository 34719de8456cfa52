"""Sessions of Claude Code below a home, and the configuration of an agent that runs a stand-in for it."""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).with_name("stand_in_claude.py")
ID = "0e821bfa-1111-4222-8333-0123456789ab"
KEY = f"claude:{ID}"
OURS = f"agent:worker:{KEY}"


class ClaudeHome:
    """The home of a person who uses Claude Code in the folder `project`."""

    def __init__(self, folder: Path) -> None:
        self.path, self.project = folder / "home", folder / "project"
        self.workspace = folder / "workspace"
        for made in (self.path, self.project, self.workspace):
            made.mkdir(exist_ok=True)
        self.program = folder / "claude"
        self.program.write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
        self.program.chmod(0o755)

    @property
    def sessions(self) -> Path:
        """The folder with the transcripts of the project."""
        return self.path / ".claude" / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(self.project))

    def write(self, *texts: str, native_id: str = ID, cwd: str | None = None) -> Path:
        """A session in which a person typed these texts; its file."""
        self.sessions.mkdir(parents=True, exist_ok=True)
        path = self.sessions / f"{native_id}.jsonl"
        where = str(self.project) if cwd is None else cwd
        with path.open("a") as file:
            for text in texts:
                common = {"isSidechain": False, "uuid": str(uuid.uuid4()), "timestamp": "2026-11-22T16:00:00.000Z"}
                line = {"parentUuid": None, **common, "type": "user", "sessionId": native_id, "version": "2.1.329"}
                where_line = {"cwd": where} if where else {}
                file.write(json.dumps({**line, **where_line, "message": {"role": "user", "content": text}}) + "\n")
        return path

    def calls(self) -> list[dict[str, Any]]:
        """How the program was started so far: `argv`, `cwd`, `text`."""
        file = self.path / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def agent(self, agent_id: str = "worker", **more: Any) -> str:
        """The configuration of an agent that runs the stand-in."""
        fields = {"id": agent_id, "workspace": str(self.workspace), **more}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
        return (
            f'[[agents.list]]\n{lines}runtime = {{ type = "exec", preset = "claude",'
            f" command = [{json.dumps(str(self.program))}], env = {{ HOME = {json.dumps(str(self.path))} }} }}\n"
        )
