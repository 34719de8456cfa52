"""A program with our tools that goes on with a session of another program."""

from __future__ import annotations

from pathlib import Path

from support.continued_sessions import KEY, OURS, ClaudeHome
from support.mcp_client import agent
from support.real_daemon import Daemon


async def test_the_tool_goes_on_with_a_session_of_another_program(daemon: Daemon, tmp_path: Path) -> None:
    home = ClaudeHome(tmp_path)
    home.write("remember plum")
    daemon.environ["HOME"] = str(home.path)
    daemon.start(home.agent() + '[tools.sessions]\nvisibility = "all"\n')
    daemon.wait_for(lambda: daemon.call("sessions_list")["sessions"], "the session is not listed")
    async with agent(daemon) as program:
        for text, known in (("which word?", "which word?"), ("and?", "which word? | and?")):
            answer = await program.use("sessions_send", sessionKey=KEY, message=text)
            assert (answer.text, answer.data["sessionKey"]) == (f"knows: remember plum | {known}", OURS)
