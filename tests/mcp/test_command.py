"""Commands for people that concern MCP clients."""

from __future__ import annotations

from pathlib import Path

from support.real_daemon import Daemon


def test_sending_to_an_inbox_reports_that_the_message_is_kept(daemon: Daemon) -> None:
    daemon.start()
    done = daemon.cli("send", "mcp:reader", "look at this")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.strip() == (
        "kept for mcp:reader: a program reads its messages there when it wants to, and no agent runs"
    )
    assert daemon.cli("history", "mcp:reader").stdout.rstrip().endswith("look at this")


def test_a_session_option_that_has_no_effect_is_mentioned(daemon: Daemon, tmp_path: Path) -> None:
    environ = {**daemon.environ, "SESSIOND_TOKEN_FILE": str(tmp_path / "token")}
    done = daemon.cli("mcp", "--session", "main", env=environ, input="")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--session counts for nothing here" in done.stderr
