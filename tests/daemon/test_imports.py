"""What the daemon does not import before it is needed: its memory and its start would pay for it."""

from __future__ import annotations

import functools
import subprocess
import sys


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tls_and_host_names_are_not_read_before_somebody_uses_them() -> None:
    run("""
import sys
import sessiond.daemon.lifecycle
assert not {"_ssl", "idna.core", "asyncio"} & set(sys.modules)
import ssl
assert "_ssl" not in sys.modules

import trio, trio.testing

async def main():
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"this is no TLS")
    try:
        await trio.SSLStream(ours, ssl.create_default_context(), server_hostname="host.test").do_handshake()
    except trio.BrokenResourceError as error:
        assert isinstance(error.__cause__, ssl.SSLError), error.__cause__
    else:
        raise AssertionError("it was taken for TLS")

trio.run(main)
import idna
assert idna.encode("\u00e4.test") == b"xn--4ca.test"
import ssl as again
assert again.SSLContext is ssl.SSLContext and again.SSLError is ssl.SSLError
assert not hasattr(ssl, "nothing_like_that")
""")


@functools.cache
def read_for_a_start() -> set[str]:
    """The modules that a daemon has imported when it begins."""
    program = "import sys, sessiond.cli, sessiond.cli.serve, sessiond.daemon.lifecycle; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "sessiond.daemon.lifecycle" in modules
    return modules


def test_of_the_client_library_it_reads_only_what_it_uses() -> None:
    unused = {"agent", "blocking", "exchange", "follow", "link", "retry", "trio_client"}
    assert not {"sessiond.client." + name for name in unused} & read_for_a_start()
    run("""
import sessiond.client
for name in (*sessiond.client.__all__, "Run"):
    assert isinstance(getattr(sessiond.client, name), type), name
assert not hasattr(sessiond.client, "Nothing")
""")


def test_without_agents_that_speak_acp_it_does_not_read_how_to_talk_to_them() -> None:
    unused = {"asking", "connection", "frames", "open_sessions", "process", "runtime", "session", "turn", "updates"}
    assert not {"sessiond.runtimes.acp." + name for name in unused} & read_for_a_start()


def test_it_reads_the_checks_of_the_store_when_somebody_asks_for_them() -> None:
    run("""
import sys
import sessiond.daemon.lifecycle
unused = {"checks", "doctor", "inventory", "reading", "repair", "rewrites"}
assert not {"sessiond.store." + name for name in unused} & set(sys.modules)
""")
