"""The daemon's metrics in the Prometheus text format, version 0.0.4. Reads counters; measures nothing."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from sessiond.methods.services import Services
from sessiond.rpc.budget import Cause

# The help texts of the counters of closed connections, by cause.
_CLOSED: dict[Cause, str] = {
    "turned_away": "Connections for which there was no place.",
    "yielded": "Silent connections whose place went to one that spoke.",
    "silent": "Connections that said nothing in time.",
    "unread": "Connections that took nothing of a large answer.",
    "token_over": "Connections whose token was revoked, or whose run ended.",
}


def text(services: Services) -> str:
    """All metrics, one `# HELP` and `# TYPE` each."""
    store, supervisor = services.store, services.supervisor
    usage = resource.getrusage(resource.RUSAGE_SELF)
    attached = sum(services.attached.counts().values())
    uptime_s = (services.clock.wall_ms() - services.started_ms) / 1000
    rows: list[tuple[str, str, str, float]] = [
        (
            "sessiond_uptime_seconds",
            "gauge",
            "Since the start.",
            uptime_s,
        ),
        ("sessiond_sessions", "gauge", "Live sessions in the store.", len(store.catalog)),
        (
            "sessiond_corrupt_records",
            "gauge",
            "Lines that are no records.",
            store.catalog.corrupt_records,
        ),
        ("sessiond_live_runs", "gauge", "Runs going on.", supervisor.live_runs()),
        ("sessiond_queued_runs", "gauge", "Runs waiting for their turn.", supervisor.queued_runs()),
        ("sessiond_attached_agents", "gauge", "Connections that run an agent.", attached),
        ("sessiond_subscribers", "gauge", "Connections that follow sessions.", len(services.bus)),
        ("sessiond_dead_letters", "gauge", "Deliveries given up.", len(services.outbox.dead_letters)),
        ("sessiond_commits_total", "counter", "Commits of transcripts to disk.", store.committer.syncs),
        ("process_cpu_seconds_total", "counter", "User and system time.", usage.ru_utime + usage.ru_stime),
        ("process_resident_memory_bytes", "gauge", "Resident size.", _resident_bytes(usage.ru_maxrss)),
    ]
    rows += [
        (f"sessiond_connections_{cause}_total", "counter", what, services.budgets.closed[cause])
        for cause, what in _CLOSED.items()
    ]
    lines = [f"# HELP {name} {what}\n# TYPE {name} {kind}\n{name} {value:g}\n" for name, kind, what, value in rows]
    info = "# HELP sessiond_info The version.\n# TYPE sessiond_info gauge\n"
    return f'{info}sessiond_info{{version="{services.version}"}} 1\n' + "".join(lines)


def _resident_bytes(max_rss: int) -> int:
    """The resident memory; the maximum so far where the system does not tell the current size.

    The maximum (`ru_maxrss`) is a fallback because on Linux it survives an exec and may be that of the parent program.
    """
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        # In bytes on macOS, in KiB elsewhere.
        return max_rss if sys.platform == "darwin" else max_rss * 1024
    return int(pages) * resource.getpagesize()
