"""The connection to the daemon: the session it speaks for, its token, and a daemon that comes and goes."""

from __future__ import annotations

import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_daemon import Daemon
from support.rows import check_each

from sessiond.client import DaemonNotRunning
from sessiond.client.link import CONNECT_TIMEOUT_S
from sessiond.mcp.daemon_connection import RENEW_BEFORE_S, TTL_S, DaemonConnection, slug
from sessiond.model.keys import KeyRules, canonical_key, is_inbox


@check_each(
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
def test_a_clients_name_becomes_part_of_a_key(name: str, key: str) -> None:
    assert slug(name) == key


@given(st.text())
def test_every_client_name_gives_a_valid_inbox_key(name: str) -> None:
    key = canonical_key(f"mcp:{slug(name)}", KeyRules())
    assert key == f"agent:main:mcp:{slug(name)}"
    assert is_inbox(key)


def test_a_token_is_renewed_before_it_expires_and_revoked_at_the_end(daemon: Daemon) -> None:
    daemon.start()
    now_s = 0.0
    connection = DaemonConnection(socket=str(daemon.socket), session="mcp:x", clock=lambda: now_s)
    first = connection.client()
    now_s = TTL_S - RENEW_BEFORE_S - 1
    assert connection.client() is first
    now_s += 1
    second = connection.client()
    assert second is not first
    # Calls in flight with the old token are completed.
    assert first.call("ping") == second.call("ping") == {}
    tokens = daemon.call("tokens.list")["tokens"]
    assert [token["sessionKey"] for token in tokens] == ["agent:main:mcp:x"] * 2
    assert [token["expiresAt"] - token["issuedAt"] for token in tokens] == [TTL_S * 1000] * 2
    connection.close()
    assert [token["revoked"] for token in daemon.call("tokens.list")["tokens"]] == [True, True]


def test_a_token_that_cannot_be_renewed_yet_stays_in_use(daemon: Daemon) -> None:
    daemon.start()
    now_s = 0.0
    connection = DaemonConnection(socket=str(daemon.socket), session="mcp:x", clock=lambda: now_s)
    first = connection.client()
    daemon.stop()
    now_s = TTL_S - RENEW_BEFORE_S
    assert connection.client() is first
    daemon.start()
    second = connection.client()
    assert second is not first
    assert first.call("ping") == second.call("ping") == {}
    connection.close()


def test_without_a_daemon_there_is_no_client_until_it_starts(daemon: Daemon) -> None:
    connection = DaemonConnection(socket=str(daemon.socket), session=None)
    with pytest.raises(DaemonNotRunning):
        connection.client()
    daemon.start()
    assert connection.client().caller["sessionKey"] == "agent:main:mcp:client"
    connection.close()


def test_closing_does_not_wait_for_a_daemon_that_does_not_answer(daemon: Daemon) -> None:
    daemon.start()
    connection = DaemonConnection(socket=str(daemon.socket), session=None)
    connection.client()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    connection.close()
    assert time.monotonic() - began < CONNECT_TIMEOUT_S
