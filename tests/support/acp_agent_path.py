"""Where the agent is that speaks ACP by hand: a program, never imported."""

from pathlib import Path

PATH = Path(__file__).with_name("acp_agent.py")
