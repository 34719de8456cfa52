"""A daemon with all three listeners, and callers of every kind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.lasting_connections import free_port
from support.real_daemon import Daemon

from sessiond.auth import tokens
from sessiond.auth.keyring import SigningKey

CONFIG = """
[http]
listen = "127.0.0.1:{port}"
allowedOrigins = ["https://panel.example"]

[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}

[[agents.list]]
id = "other"
runtime = {{ type = "echo" }}
"""

OWN = "agent:main:matrix"


@pytest.fixture(scope="session")
def listening_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on both sockets and TCP, with one session that has an exchange in it."""
    made = Daemon(tmp_path_factory.mktemp("trust"))
    made.port = free_port()
    made.start(CONFIG.format(port=made.port))
    made.reply(OWN, "hello")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def callers(listening_daemon: Daemon) -> dict[str, str]:
    """Tokens by the kind of caller that has them; all of them, good or bad, name the session OWN."""

    def mint(*scopes: str, **more: Any) -> dict[str, Any]:
        made: dict[str, Any] = listening_daemon.call("tokens.mint", scopes=scopes, sessionKey=OWN, **more)
        return made

    expired = mint("admin", ttlSeconds=1)
    revoked = mint("admin")
    assert listening_daemon.call("tokens.revoke", id=revoked["id"]) == {"revoked": True}
    good = {" ".join(scopes): mint(*scopes)["token"] for scopes in SCOPE_SETS}
    listening_daemon.wait_for(lambda: time.time() * 1000 >= expired["expiresAt"], "the token does not expire")
    return {
        **good,
        "expired": expired["token"],
        "revoked": revoked["token"],
        "forged": _forge_scope(good["list"]),
        "damaged": good["admin"][:-3] + ("AAA" if good["admin"][-3:] != "AAA" else "BBB"),
        "of another store": _token_of_another_store(),
        "not a token": "nonsense",
    }


SCOPE_SETS = (("list",), ("read",), ("send",), ("spawn",), ("answer",), ("admin",), ("list", "read"))


def _forge_scope(text: str) -> str:
    """The token with its scope `list` changed to `send`, which has the same length; the signature is the old one."""
    raw = tokens.base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert raw.count(b"\x64list") == 1
    changed = raw.replace(b"\x64list", b"\x64send")
    return tokens.base64.urlsafe_b64encode(changed).rstrip(b"=").decode()


def _token_of_another_store() -> str:
    key = SigningKey(os.urandom(32))
    now_ms = time.time_ns() // 1_000_000
    text, _ = tokens.mint(key, scopes=("admin",), now_ms=now_ms, session_key=OWN)
    return text
