"""A replica on the roads that a user has: commands, HTTP, the tools of agents, and searches by the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.mcp_client import agent
from support.real_daemon import Daemon
from support.replicas import custom, header, line, replica_path, write_replica
from support.sampling import whole_only

pytestmark = pytest.mark.system
KEY = "mars/agent:ops:main"
CONFIG = (
    '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n[tools.sessions]\nvisibility = "all"\n'
)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a session of its own and a replica that has the same id."""
    daemon = Daemon(tmp_path_factory.mktemp("linked")).start(CONFIG)
    daemon.reply("main", "said here")
    session_id = daemon.call("sessions.resolve", key="main")["sessionId"]
    run = {"runId": f"{session_id}.0123456789abcdef", "at": 1_767_323_046_000}
    replica = replica_path(daemon.store, session_id)
    write_replica(replica, header(session_id), custom("sessiond/run", status="accepted", **run))
    write_replica(replica, line("said on mars"), line("answered there", "assistant", at_s=3))
    write_replica(replica, custom("sessiond/run", status="ok", reply="answered there", **run))
    daemon.wait_for(lambda: daemon.call("daemon.status")["sessions"] == 2, "the replica is not shown")
    # Only whole blocks of a transcript are indexed.
    write_replica(replica, *(line(f"filler of mars {'x' * 900} {number}", at_s=4) for number in range(150)))
    daemon.wait_for(lambda: daemon.call("daemon.status")["search"]["indexedBytes"] > 100_000, "it is not indexed")
    yield daemon
    daemon.stop()


@pytest.fixture
def sessiond(linked: Daemon) -> Callable[..., str]:
    def run(*words: str) -> str:
        done = linked.cli(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_commands_show_it(sessiond: Callable[..., str]) -> None:
    assert [text.split("\t")[0] for text in sessiond("list", "--machine", "mars").splitlines()] == ["key", KEY]
    assert [text.split("\t")[0] for text in sessiond("list", "--source", "sessiond").splitlines()] == ["key", "main"]
    assert sessiond("history", "mars/main", "-n", "200").count("said on mars") == 1
    assert KEY in sessiond("search", "answered there")
    assert sessiond("path", KEY).strip().endswith(".jsonl")
    assert "/machines/mars/agents/ops/sessions/" in sessiond("path", KEY)
    assert "/agents/main/sessions/" in sessiond("path", "main")


def test_an_export_of_it_is_of_it_though_a_session_here_has_its_id(sessiond: Callable[..., str]) -> None:
    written = sessiond("export", "mars/main")
    assert "said on mars" in written
    assert "said here" not in written
    assert "- machine: `mars`\n" in written
    assert "- program:" not in written
    assert "said here" in sessiond("export", "main")


def test_http_has_its_history(linked: Daemon) -> None:
    transport = httpx.HTTPTransport(uds=str(linked.socket), verify=False)
    with httpx.Client(transport=transport, base_url="http://sessiond") as client:
        page = client.get(f"/sessions/{quote(KEY, safe='')}/history").json()
    assert (page["sessionKey"], len(page["messages"])) == (KEY, 50)


@whole_only("test_sessions_of_other_programs_are_tools_for_those_who_see_all_and_for_nobody_else")
async def test_agents_that_see_all_have_it_in_their_tools(linked: Daemon) -> None:
    async with agent(linked) as tools:
        [row] = (await tools.data("sessions_list", sources=["machine"]))["sessions"]
        assert (row["key"], row["source"], row["awaySince"] > 0) == (KEY, "machine", True)
        page = await tools.data("sessions_history", sessionKey="mars/main")
        assert "filler of mars" in page["messages"][-1]["content"][0]["text"]


def test_a_search_that_the_index_narrows_finds_it(linked: Daemon) -> None:
    found: dict[str, Any] = linked.call("sessions_search", query="answered there")
    assert [match["sessionKey"] for match in found["matches"]] == [KEY]
    assert len(linked.call("sessions_search", query="filler of mars", limit=200)["matches"]) == 150


def test_how_its_runs_ended_is_in_its_history(linked: Daemon) -> None:
    page = linked.call("sessions_history", sessionKey=KEY, includeRuns=True, limit=200)
    assert [(run["runId"].partition(".")[2], run["status"]) for run in page["runs"]] == [("0123456789abcdef", "ok")]
