"""`GET /metrics`: counters in the Prometheus text format."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from support.in_process import in_process_daemon
from support.real_daemon import Daemon
from support.subscribed_connections import SUBSCRIBED_CONNECTIONS

from sessiond.daemon import metrics

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\\\n]*"\})? -?[0-9.]+(e[+-][0-9]+)?')


def parse_samples(text: str) -> dict[str, float]:
    """The samples by name."""
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_metrics_count_what_the_daemon_does(daemon: Daemon) -> None:
    daemon.start()
    daemon.reply("main", "hello")
    with SUBSCRIBED_CONNECTIONS["ndjson"](daemon) as hearing:
        hearing.call("sessions.subscribe")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(daemon.socket), verify=False)) as client:
            got = client.get("http://daemon/metrics")
    assert (got.status_code, got.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = parse_samples(got.text)
    status = daemon.call("daemon.status")
    assert found[f'sessiond_info{{version="{status["version"]}"}}'] == 1
    assert (found["sessiond_sessions"], found["sessiond_subscribers"]) == (1, 1)
    assert (found["sessiond_live_runs"], found["sessiond_queued_runs"], found["sessiond_dead_letters"]) == (0, 0, 0)
    assert found["sessiond_commits_total"] >= 2
    assert 0 < found["process_cpu_seconds_total"] < 60
    assert 10_000_000 < found["process_resident_memory_bytes"] < 500_000_000


def test_connections_closed_by_the_daemon_are_counted_by_cause(daemon: Daemon) -> None:
    daemon.start()
    minted = daemon.call("tokens.mint", scopes=["list"])
    hello = {"protocol": 1, "client": {"name": "x"}, "token": minted["token"]}
    with daemon.connect() as client:
        client.call("initialize", **hello)
        daemon.call("tokens.revoke", id=minted["id"])
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(daemon.socket), verify=False)) as http:
            found = parse_samples(http.get("http://daemon/metrics").text)
    causes = ("turned_away", "yielded", "silent", "unread", "token_over")
    assert [found[f"sessiond_connections_{cause}_total"] for cause in causes] == [0, 0, 0, 0, 1]


async def test_every_sample_is_valid_and_has_help_and_type(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        text = metrics.text(daemon.services)
    assert text.endswith("\n")
    blocks = text.splitlines()
    assert len(blocks) % 3 == 0
    for about, kind, sample in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        name = re.split(r"[ {]", sample)[0]
        assert about.startswith(f"# HELP {name} ")
        assert kind in (f"# TYPE {name} gauge", f"# TYPE {name} counter")
        assert kind.endswith("counter") == name.endswith("_total")
        assert LINE.fullmatch(sample), sample
