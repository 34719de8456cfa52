"""sessions_spawn: check, write the attachments, create the child and its first run. All of it, or nothing.

Knows the policy, the attachments and the supervisor. What follows the child's run is in `announce.py`.
Source: runs.md, "sessions_spawn".
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from sessiond.attachments.decode import PreparedFiles
from sessiond.attachments.materialize import Receipt
from sessiond.attachments.names import check_mount_path
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock, Ids
from sessiond.config.settings import Config
from sessiond.delivery.channels import Channels
from sessiond.errors import SessiondError
from sessiond.model import lax
from sessiond.model.entry import Spawn
from sessiond.model.keys import agent_of, rest_of
from sessiond.model.machine_sender import MachineSender
from sessiond.model.message import user_message
from sessiond.model.record import ENTRY, NATIVE
from sessiond.policy import spawn as policy
from sessiond.policy.spawn import SpawnFacts, SpawnRequest
from sessiond.policy.target import target_of, thread_fields
from sessiond.policy.visibility import matches_any
from sessiond.runs.follow_up import FollowUp, SpawnFollowUp
from sessiond.runs.run import Run, RunRequest, payload_hash
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions.patch import Sees, claimed_label
from sessiond.sessions.resolve import spawner_of
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, SessionStore
from sessiond.subagents.child import Child, preamble
from sessiond.subagents.pending_children import PendingChild, PendingChildren
from sessiond.subagents.resumed import NativeCheck, ResumedSession, find_resumed

# With an idempotency key the child's key is derived from it and the requester, so that the same request finds it again.
_NAMESPACE = uuid.UUID("6f1d3a52-8c0e-4f2b-9a57-1b6f2f4f6b70")


def find_spawnable(config: Config, agent_id: str, *, by_machine: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an agent may spawn besides itself, and the agents there are for it (`SpawnFacts`)."""
    configured = tuple(agent.id for agent in config.agents.list)
    if by_machine:
        peer = config.machine(agent_id)
        own = tuple(one for one in configured if config.machine(one) is None)
        return tuple(one for one in own if peer is not None and matches_any(peer.spawn, one)), own
    agent = config.agent(agent_id)
    subagents = agent.subagents if agent is not None else config.agents.defaults.subagents
    return tuple(subagents.allow_agents), configured


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A requested spawn. `asked` are the parameters whose hash is compared when an idempotency key is used again."""

    task: str
    request: SpawnRequest
    asked: dict[str, Any]
    label: str | None = None
    run_timeout_s: float | None = None
    attachments: Sequence[Any] = ()
    mount_path: str | None = None
    idempotency_key: str | None = None
    machine: MachineSender | None = None


class SpawnedChild(msgspec.Struct, frozen=True):
    """The result of a spawn."""

    run_id: str
    child_key: str
    mode: str
    receipt: Receipt | None


class Spawner:
    """`sandboxed(key)`: whether runs of the session are sandboxed. `workspace(agent_id)`: the folder of an agent."""

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        attachments: AttachmentService,
        channels: Channels,
        config: Callable[[], Config],
        *,
        clock: Clock,
        ids: Ids,
        workspace: Callable[[str], Path],
        sandboxed: Callable[[str], bool],
        check_native: NativeCheck,
    ) -> None:
        self._store, self._supervisor, self._attachments = store, supervisor, attachments
        self._channels, self._config, self._clock, self._ids = channels, config, clock, ids
        self._workspace, self._sandboxed, self._check_native = workspace, sandboxed, check_native
        self.journal = SpawnJournal(store)
        self._under_way: dict[str, trio.Lock] = {}
        self.pending_children = PendingChildren()

    async def recover(self) -> None:
        """Remove the attachments of spawns that a crash cut off before there was a child."""
        await self.journal.undo(self._attachments, self._workspace)

    async def spawn(
        self,
        requester: Session,
        wanted: SpawnOrder,
        *,
        sandboxed: bool,
        sees: Sees = lambda _key: True,
        machine: MachineSender | None = None,
    ) -> SpawnedChild:
        """The accepted child. Every refusal comes before the first byte is written. `machine`: who asks, if not here.

        `sees(key)`: whether the caller may see a session. Labels of sessions that it may not see can be taken.
        """
        child_id = self._child_id(requester, wanted)
        acp_default = self._config().acp.default_agent
        agent_id = policy.target_agent(wanted.request, agent_of(requester.key), acp_default)
        child_key = f"agent:{agent_id}:subagent:{child_id}"
        made: SpawnedChild | None = None
        with self.pending_children.begin(requester.key) as pending:
            with pending.scope:
                # If the same request comes twice at once, the second finds the child of the first.
                async with self._exclusive(child_key):
                    facts = partial(
                        self._facts, requester, child_key, sandboxed=sandboxed, by_machine=machine is not None
                    )
                    wanted = replace(wanted, machine=machine)
                    made = await self._spawn(requester, wanted, child_key, pending, facts=facts, sees=sees)
            pending.check_created(made)
        assert made is not None
        return made

    async def _spawn(
        self,
        requester: Session,
        wanted: SpawnOrder,
        child_key: str,
        pending: PendingChild,
        *,
        facts: Callable[[], SpawnFacts],
        sees: Sees,
    ) -> SpawnedChild:
        payload = payload_hash(wanted.asked) if wanted.idempotency_key is not None else None
        if wanted.idempotency_key is not None and payload is not None:
            known = self._find_known(child_key, wanted.idempotency_key, payload)
            if known is not None:
                await self._supervisor.wait_stored(known.run_id)
                return known
        known_facts = facts()
        plan = policy.check(wanted.request, known_facts)
        prepared = self._attachments.check(wanted.attachments, self._config().tools.sessions_spawn.attachments)
        mount_path = check_mount_path(wanted.mount_path) if wanted.mount_path is not None else None
        policy.check_runtime(wanted.request, known_facts, plan.agent_id, with_attachments=bool(wanted.attachments))
        # Counts as running from here on, so that concurrent spawns cannot exceed maxChildrenPerAgent.
        pending.counted = True
        resumed = await self._find_resumed(wanted, child_key, sees)
        # Claimed from here on, so that only one of two concurrent spawns gets the label.
        with claimed_label(self._store.catalog, child_key, wanted.label, sees, by=requester.key) as label:
            child = Child(
                key=child_key,
                id=rest_of(child_key).rpartition(":")[2],
                plan=plan,
                facts=known_facts,
                mount_path=mount_path,
                payload=payload,
                label=label,
                pending=pending,
                resumed=resumed,
            )
            return await self._make(requester, wanted, child, prepared)

    async def _find_resumed(self, wanted: SpawnOrder, child_key: str, sees: Sees) -> ResumedSession | None:
        native_id = wanted.request.resume_session_id
        if native_id is None:
            return None
        return await find_resumed(self._store.catalog, child_key, native_id, sees=sees, check=self._check_native)

    async def _make(
        self, requester: Session, wanted: SpawnOrder, child: Child, prepared: PreparedFiles
    ) -> SpawnedChild:
        thread = await self._bind(requester, child, wanted)
        receipt: Receipt | None = None
        # Shielded: once something is written it becomes a child or is removed, even if the caller disconnects.
        with trio.CancelScope(shield=True):
            if wanted.attachments:
                run, receipt = await self._create_with_files(requester, wanted, child, prepared, thread)
            else:
                run = await self._create(requester, wanted, child, None, thread)
        return SpawnedChild(run.run_id, child.key, child.plan.mode, receipt)

    async def _create_with_files(
        self, requester: Session, wanted: SpawnOrder, child: Child, prepared: PreparedFiles, thread: str | None
    ) -> tuple[Run, Receipt]:
        agent_id = child.plan.agent_id
        workspace = self._workspace(agent_id)
        await self._attachments.run_sync(self.journal.begin, agent_id, child.id)
        try:
            receipt = await self._attachments.materialize(prepared, workspace, child.id)
            run = await self._create(requester, wanted, child, receipt, thread)
        except SessiondError:
            report = await self._attachments.remove(workspace, child.id)
            if not report.left:
                self.journal.complete(child.id)
            raise
        self.journal.complete(child.id)
        return run, receipt

    @asynccontextmanager
    async def _exclusive(self, child_key: str) -> AsyncIterator[None]:
        lock = self._under_way.setdefault(child_key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            # If another task waited for the lock it holds it now, and removes it later.
            if not lock.locked() and self._under_way.get(child_key) is lock:
                del self._under_way[child_key]

    def _child_id(self, requester: Session, wanted: SpawnOrder) -> str:
        if wanted.idempotency_key is None:
            return self._ids.uuid()
        return str(uuid.uuid5(_NAMESPACE, f"{requester.session_id}\0{wanted.idempotency_key}"))

    def _find_known(self, child_key: str, idempotency_key: str, payload: str) -> SpawnedChild | None:
        child = self._child(child_key)
        run_id = self._supervisor.run_of_key(child, idempotency_key, payload) if child is not None else None
        if child is None or run_id is None:
            return None
        facts = child.entry.spawn or Spawn()
        mode = facts.mode if facts.mode is not None else "run"
        return SpawnedChild(run_id, child_key, mode, lax.convert_fitting(facts.attachments, Receipt))

    def _child(self, child_key: str) -> Session | None:
        """The child with that key, live or archived."""
        catalog = self._store.catalog
        archived = catalog.older(child_key)[-1:]
        return catalog.by_key.get(child_key) or next(iter(archived), None)

    def _facts(self, requester: Session, child_key: str, *, sandboxed: bool, by_machine: bool) -> SpawnFacts:
        config, catalog = self._config(), self._store.catalog
        agent_id = agent_of(child_key)
        allowed, configured = find_spawnable(config, agent_of(requester.key), by_machine=by_machine)
        agent = config.agent(agent_of(requester.key))
        limits = agent.subagents if agent is not None else config.agents.defaults.subagents
        children = [catalog.by_key[key] for key in catalog.children_of(requester.key)]

        def depth_of(key: str) -> int | None:
            session = catalog.by_key.get(key)
            return session.entry.spawn_depth if session is not None else None

        return SpawnFacts(
            requester_agent=agent_of(requester.key),
            requester_depth=policy.spawn_depth(requester.key, depth_of, lambda key: spawner_of(catalog, key)),
            max_spawn_depth=limits.max_spawn_depth,
            children_running=sum(bool(child.entry.runs) for child in children)
            + self.pending_children.count_of(requester.key),
            max_children=limits.max_children_per_agent,
            configured_agents=configured,
            allow_agents=allowed,
            machines=tuple(peer.name for peer in config.link.peers),
            by_machine=by_machine,
            requester_sandboxed=sandboxed or bool(requester.entry.sandboxed),
            child_sandboxed=config.agent(agent_id) is not None and self._sandboxed(child_key),
            models=tuple(config.models.allow),
            threads=self._channels.threads(target_of(requester.key, requester.entry)),
            acp_agents=tuple(one.id for one in config.agents.list if one.runtime.type == "acp"),
            acp_default=config.acp.default_agent,
        )

    async def _bind(self, requester: Session, child: Child, wanted: SpawnOrder) -> str | None:
        if not wanted.request.thread:
            return None
        return await self._channels.bind_thread(target_of(requester.key, requester.entry), child.key, child.label)

    async def _create(
        self, requester: Session, wanted: SpawnOrder, child: Child, receipt: Receipt | None, thread: str | None
    ) -> Run:
        child.pending.check()
        plan, facts = child.plan, child.facts
        agent = self._config().agent(plan.agent_id)
        subagents = agent.subagents if agent is not None else self._config().agents.defaults.subagents
        attached = msgspec.to_builtins(receipt) if receipt is not None else None
        entry: dict[str, Any] = {
            "spawnDepth": facts.requester_depth + 1,
            "sandboxed": facts.child_sandboxed,
            "spawn": {
                "mode": plan.mode,
                "cleanup": plan.cleanup,
                "requesterKey": requester.key,
                "attachments": attached,
                "mountPath": child.mount_path,
                **({"resumed": child.resumed.native_id} if child.resumed is not None else {}),
            },
        }
        elsewhere = policy.target_elsewhere(wanted.request)
        entry |= {"target": elsewhere} if elsewhere is not None else {}
        model = plan.model or subagents.model
        entry |= {"model": model, "modelOverride": model} if model is not None else {}
        thinking = plan.thinking or subagents.thinking
        entry |= {"thinkingLevel": thinking} if thinking is not None else {}
        entry |= {"label": child.label} if child.label is not None else {}
        entry |= thread_fields(requester.key, requester.entry, thread)
        limit_s = wanted.run_timeout_s if wanted.run_timeout_s is not None else subagents.run_timeout_seconds
        provenance = {"kind": "inter_session", "sourceSessionKey": requester.key, "sourceTool": "sessions_spawn"}
        provenance |= wanted.machine.provenance() if wanted.machine is not None else {}
        request = RunRequest(
            text=wanted.task,
            message=user_message(wanted.task, self._clock.wall_ms(), provenance),
            context=preamble(requester.key, facts, receipt, child.mount_path),
            thinking=thinking,
            model=model,
            attachments=attached,
            mount_path=child.mount_path,
            timeout_s=limit_s or None,
            idempotency_key=wanted.idempotency_key,
            payload=child.payload,
            follow=FollowUp(spawn=SpawnFollowUp(requester.key)),
        )
        cwd, resumed = str(self._workspace(plan.agent_id)), child.resumed
        if resumed is not None and resumed.folder is not None:
            cwd, entry["keepsCwd"] = resumed.folder, True
        extra = [Custom(ENTRY, entry)]
        if resumed is not None:
            extra.append(Custom(NATIVE, {"nativeId": resumed.native_id, "required": True}))
        return await self._supervisor.create(child.key, request, cwd=cwd, spawned_by=requester.key, extra=extra)
