"""`daemon.status`: how the daemon is, in numbers it already has."""

from __future__ import annotations

import os

from sessiond.errors import Forbidden
from sessiond.methods.params import NoParams, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class DaemonStatusResult(Result, frozen=True, kw_only=True):
    version: str
    pid: int
    uptime_ms: int
    store: str
    sessions: int
    live_runs: int
    queued_runs: int
    attached_agents: dict[str, int]
    subscribers: int
    dead_letters: int
    corrupt_records: int
    last_save_at: int | None
    watcher: str
    # Why the configuration file was not taken over at the last reload, which was tried at `reloadedAt`.
    reload_problem: str | None = None
    reloaded_at: int | None = None


def handle(ctx: Context, params: NoParams) -> DaemonStatusResult:  # noqa: ARG001
    services = ctx.services
    # It counts every session there is, and names the store.
    if not services.sight_of(ctx.caller).unlimited:
        raise Forbidden("`daemon.status` is for the owner: this token is narrowed to sessions of its own.")
    return DaemonStatusResult(
        version=services.version,
        pid=os.getpid(),
        uptime_ms=services.clock.wall_ms() - services.started_ms,
        store=str(services.store.path),
        sessions=len(services.store.catalog),
        live_runs=services.supervisor.live_runs(),
        queued_runs=services.supervisor.queued_runs(),
        attached_agents=services.attached.counts(),
        subscribers=len(services.bus),
        dead_letters=services.dead_letters(),
        corrupt_records=services.store.catalog.corrupt_records,
        last_save_at=services.last_save(),
        watcher=services.feed.backend,
        reload_problem=services.reload_problem,
        reloaded_at=services.reloaded_ms,
    )


METHOD = Method(
    "daemon.status",
    "admin",
    NoParams,
    DaemonStatusResult,
    handle,
    "Version, store, sessions, runs and queues.",
)
