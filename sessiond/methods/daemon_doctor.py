"""`daemon.doctor`: check the daemon's store; with `fix` repair what can be repaired, after a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

from sessiond.config.warnings import warnings
from sessiond.delivery.unusable_targets import find_unusable_targets
from sessiond.errors import Forbidden, StorageError, pluralize, reason_of
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.model.entry import Entry
from sessiond.rpc.method import Method
from sessiond.runtimes.presets.missing import missing_programs
from sessiond.store import layout, scan
from sessiond.store.catalog import Folder, Session
from sessiond.store.finding import Finding
from sessiond.store.store import SessionStore
from sessiond.store.workspace import default_workspace
from sessiond.tasks import run_in_thread

if TYPE_CHECKING:
    from sessiond.store.inventory import StoredName

T = TypeVar("T")
# A temporary file that changed within this time may belong to a write that is still going on.
_UNDER_WAY_S = 600
_REPAIR_AGAIN = "see that it can be written to, then: sessiond doctor --fix"


class DaemonDoctorParams(Params, frozen=True, kw_only=True):
    fix: Annotated[bool, says("Whether to repair what can be repaired, after a backup.")] = False


class DaemonDoctorResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    """With `fix` the repairs come first, as findings about `repaired`."""

    findings: Annotated[list[Finding], says("The problems found; with `fix` the repairs come first.")]


async def handle(ctx: Context, params: DaemonDoctorParams) -> DaemonDoctorResult:
    # Few daemons are ever asked.
    from sessiond.store import doctor

    services = ctx.services
    # The findings name files of all sessions.
    if not services.sight_of(ctx.caller).unlimited:
        raise Forbidden("`daemon.doctor` is for the owner: this token is narrowed to sessions of its own.")
    findings = await _repair(ctx) if params.fix else []
    findings += [Finding("warn", "configuration", *one) for one in warnings(services.config.agents.list)]
    missing = missing_programs(services.config.agents.list, os.environ.get("PATH"))
    findings += [Finding("warn", "agents", *one) for one in missing]
    rules, path = services.config.notify, os.environ.get("PATH")
    unusable = await run_in_thread(lambda: list(find_unusable_targets(rules, path)))
    findings += [Finding("warn", "notifications", *one) for one in unusable]
    findings += _unclaimed_folders(ctx)
    of_sources = services.sources.findings()
    await services.time_slicer.run(services.sources.name_first_bad_lines(of_sources, services.store.record_limit))
    findings += of_sources
    catalog = services.store.catalog

    def entry_of(thing: StoredName) -> Entry | None:
        session = catalog.by_id.get(thing.session_id)
        return session.entry if session is not None and session.path == thing.path else None

    steps = doctor.inspect(services.store.root_fd, services.clock.wall_ms(), services.store.record_limit, entry_of)
    await services.time_slicer.run(_collect(steps, findings))
    findings += services.search_index.findings()
    return DaemonDoctorResult(findings=findings)


def _unclaimed_folders(ctx: Context) -> Iterator[Finding]:
    """Folders of attachments that no record claims. Not removed: another program may use the same workspace."""
    services = ctx.services
    for agent in services.config.agents.list:
        workspace = agent.workspace or default_workspace(services.store.path, agent.id)
        found = services.spawner.journal.unclaimed_folders(agent.id, workspace)
        if found:
            shown = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
            folders = pluralize(len(found), "folder")
            what = f"{folders} of attachments of no session in the workspace of agent {agent.id}: {shown}"
            hint = "remove them from its .openclaw/attachments, unless another program put them there"
            yield Finding("warn", "attachments", what, hint)


async def _repair(ctx: Context) -> list[Finding]:
    """Repair one thing after the other, and report failures without stopping at them."""
    from sessiond.store import doctor, repair

    services, store = ctx.services, ctx.services.store
    fixed: list[str] = []
    failed: list[Finding] = []
    steps = doctor.repair_store(
        store.root_fd,
        services.clock,
        # Indexes are saved from memory below, which is newer than what a rebuild from the files would give.
        indexes=False,
        record_limit=store.record_limit,
        older_than_ns=(services.clock.wall_ms() - _UNDER_WAY_S * 1000) * 1_000_000,
    )
    try:
        await services.time_slicer.run(_collect(steps, fixed))
    except OSError as error:
        what = f"no backup could be made: {reason_of(error)}; modes and files that were left over stay as they are"
        failed.append(Finding("error", layout.BACKUPS, what, _REPAIR_AGAIN))
    wrong: list[Session] = []
    sessions = list({*store.catalog.by_id.values(), *store.catalog.by_key.values()} - {*store.catalog.foreign.values()})
    await services.time_slicer.run(_collect(repair.wrong_entries(store.root_fd, sessions, store.record_limit), wrong))
    for session in wrong:
        path = session.path
        done = await services.feed.refold(session)
        what = "what was known of it was wrong; it was read anew" if done else "it is being written; repair again"
        fixed.append(f"{path}: {what}")
    unsaved = await _save_indexes(store)
    failed += unsaved.values()
    count = len(store.folders.keys() - {folder.agent_id for folder in unsaved})
    fixed.append(f"written again: the indexes of {pluralize(count, 'agent')}")
    return [*(Finding("ok", "repaired", what) for what in fixed), *failed]


async def _save_indexes(store: SessionStore) -> dict[Folder, Finding]:
    """Save the index of every folder; the folders where that failed, and why."""
    failed: dict[Folder, Finding] = {}
    for folder in (*store.folders.values(), *store.archives.values()):
        folder.dirty = True
        path = scan.path_of(folder, layout.INDEX)
        if folder.waiting:
            what = f"not written yet: {', '.join(sorted(folder.waiting))} may be in the middle of a write"
            failed[folder] = Finding("warn", path, what, "it is written when they are whole, or after a minute")
            continue
        try:
            await store.save(folder)
        except StorageError as error:
            failed[folder] = Finding("error", path, error.message, _REPAIR_AGAIN)
    return failed


def _collect(steps: Iterator[T | None], found: list[T]) -> Iterator[None]:
    for one in steps:
        if one is not None:
            found.append(one)
        yield


METHOD = Method(
    "daemon.doctor",
    "admin",
    DaemonDoctorParams,
    DaemonDoctorResult,
    handle,
    "Look for what is wrong with the store; with `fix`, repair what can be repaired.",
)
