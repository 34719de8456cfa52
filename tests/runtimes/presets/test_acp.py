"""How the known programs are started to speak ACP."""

from __future__ import annotations

from typing import get_args

from support.rows import check_each

from sessiond.config.agents import AcpPreset, RuntimeConfig
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.presets.acp import ACP_FORMS, acp_command, acp_form, find_better_command


def test_every_preset_that_the_configuration_allows_has_its_form() -> None:
    assert tuple(ACP_FORMS) == get_args(AcpPreset)
    assert set(ACP_FORMS) < set(PRESETS)
    assert acp_form("pi") is acp_form(None) is None


@check_each(
    ("preset", "configured", "command"),
    [
        (None, ("my-agent", "--acp"), ("my-agent", "--acp")),
        ("claude", (), ("claude-agent-acp",)),
        ("codex", (), ("codex-acp",)),
        ("gemini", (), ("gemini", "--acp")),
        ("opencode", (), ("opencode", "acp")),
        ("gemini", ("/opt/gemini", "--model=x"), ("/opt/gemini", "--acp", "--model=x")),
        ("claude", ("/opt/claude-agent-acp",), ("/opt/claude-agent-acp",)),
    ],
)
def test_the_command_line_of_an_agent(preset: AcpPreset | None, configured: tuple[str, ...], command: tuple[str, ...]):
    assert acp_command(RuntimeConfig(type="acp", preset=preset, command=configured)) == command


@check_each(
    ("preset", "command", "better"),
    [
        ("claude", ("claude",), "claude-agent-acp"),
        ("claude", ("npx", "adapter"), "claude-agent-acp"),
        ("claude", ("/opt/claude-agent-acp",), None),
        ("opencode", ("opencode",), None),
        (None, ("/opt/opencode",), "opencode acp"),
        (None, ("gemini", "--debug", "--acp"), None),
        (None, ("goose", "acp"), None),
        ("codex", (), None),
    ],
)
def test_a_command_that_is_not_the_form_that_speaks_acp_is_known(
    preset: AcpPreset | None, command: tuple[str, ...], better: str | None
) -> None:
    assert find_better_command(RuntimeConfig(type="acp", preset=preset, command=command)) == better
