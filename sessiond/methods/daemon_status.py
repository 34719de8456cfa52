"""`daemon.status`: version, counters and warnings of the daemon. Reads nothing from disk."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from sessiond.errors import Forbidden
from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class SearchStatus(Result, frozen=True, kw_only=True):
    """The index that makes searches quick."""

    state: Annotated[
        Literal["ready", "building", "off", "unsupported"],
        says("`ready`; `building`: it has not everything yet; `off` by configuration; `unsupported` by this SQLite."),
    ]
    indexed_bytes: Annotated[int, says("How many bytes of transcripts it has.")]
    total_bytes: Annotated[int, says("How many bytes of transcripts there are.")]


class DaemonStatusResult(Result, frozen=True, kw_only=True):
    version: Annotated[str, says("The daemon's version.")]
    pid: Annotated[int, says("Its process id.")]
    uptime_ms: Annotated[int, says("How long it has been running, in milliseconds.")]
    store: Annotated[str, says("The path of the store.")]
    sessions: Annotated[int, says("How many sessions there are, without archived ones.")]
    live_runs: Annotated[int, says("How many runs are executing.")]
    queued_runs: Annotated[int, says("How many accepted runs are queued.")]
    open_questions: Annotated[int, says("How many questions of agents wait for an answer.")]
    attached_agents: Annotated[dict[str, int], says("How many connections run each attached agent, by agent id.")]
    subscribers: Annotated[int, says("How many connections follow sessions.")]
    dead_letters: Annotated[int, says("How many deliveries were given up.")]
    corrupt_records: Annotated[int, says("How many lines of transcripts cannot be read.")]
    last_save_at: Annotated[int | None, says("When an index was last saved, in milliseconds since 1970.")]
    watcher: Annotated[str, says("How files are watched: `inotify`, `watchfiles` or `polling`.")]
    reload_problem: Annotated[
        str | None, says("Why the last reload of the configuration file failed; absent if it did not.")
    ] = None
    reloaded_at: Annotated[
        int | None, says("When the configuration file was last reloaded, in milliseconds since 1970.")
    ] = None
    search: Annotated[SearchStatus, says("The index of searches.")]
    loading: Annotated[
        bool, says("Whether it still reads the store; calls that need the sessions wait. Absent if it does not.")
    ] = False
    listing: Annotated[
        bool, says("Whether it still lists the sessions of other programs, which `sessions` counts. Absent if not.")
    ] = False


def handle(ctx: Context, params: NoParams) -> DaemonStatusResult:  # noqa: ARG001
    services = ctx.services
    index = services.search_index.status
    # It counts all sessions and names the path of the store.
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
        open_questions=len(services.questions.open_questions()),
        attached_agents=services.attached.counts(),
        subscribers=len(services.bus),
        dead_letters=len(services.outbox.dead_letters),
        corrupt_records=services.store.catalog.corrupt_records,
        last_save_at=services.last_save(),
        watcher=services.feed.backend,
        reload_problem=services.reload_problem,
        reloaded_at=services.reloaded_ms,
        search=SearchStatus(state=index.state, indexed_bytes=index.indexed_bytes, total_bytes=index.total_bytes),
        loading=not services.loaded.is_set(),
        listing=not services.sources.listed.is_set(),
    )


METHOD = Method(
    "daemon.status",
    "admin",
    NoParams,
    DaemonStatusResult,
    handle,
    "Version, store, sessions, runs and queues.",
    before_ready=True,
)
