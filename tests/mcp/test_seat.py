"""The names of clients as parts of session keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.mcp.seat import slug
from sessiond.model.keys import KeyRules, canonical
from sessiond.runs.inbox import is_inbox


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("claude-code", "claude-code"),
        ("Claude Code", "claude-code"),
        ("codex_cli_rs", "codex_cli_rs"),
        ("gemini-cli-mcp-client", "gemini-cli-mcp-client"),
        ("a:b/../c", "a-b-..-c"),
        ("  Zoë's 🖥  ", "zo-s"),
        ("", "client"),
        ("🖥", "client"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 64),
    ],
)
def test_a_clients_name_in_a_key(name: str, key: str) -> None:
    assert slug(name) == key


@given(st.text())
def test_every_name_makes_a_key_of_an_inbox(name: str) -> None:
    key = canonical(f"mcp:{slug(name)}", KeyRules())
    assert key == f"agent:main:mcp:{slug(name)}"
    assert is_inbox(key)
