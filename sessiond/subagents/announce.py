"""Announce how a sub-agent's run ended to the session that requested it: exactly once, even if the daemon crashes.

The progress is in the transcripts. The end of the child's run and `spawn.ended`, which says that it has to be
announced, are one write. The requester's transcript accepts the announcement once, by its idempotency key.
`spawn.announced` in the child's transcript says that it is done. Delivery to channels and the child's cleanup are
passed in as callbacks. Source: runs.md, "Announce".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal, Protocol

import structlog

from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.errors import LimitExceeded, NotFound, SessiondError, Stopping, StorageError
from sessiond.model.entry import Spawn
from sessiond.model.keys import agent_of
from sessiond.model.message import user_message
from sessiond.model.record import ENTRY, RUN
from sessiond.policy.announce import ANNOUNCE_MESSAGE, announce_context, arrival_context
from sessiond.runs.follow_up import AnnouncementFollowUp, FollowUp
from sessiond.runs.run import Run, RunRequest, RunView, payload_hash, session_id_of
from sessiond.runs.supervisor import RunSupervisor, Work
from sessiond.sessions.lifecycle import current_session
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message, Part, SessionStore
from sessiond.subagents import outcome

log = structlog.get_logger("sessiond.announce")

# The time limit of the announce step. If it is exceeded, the child's own reply is posted.
STEP_LIMIT_S = 600.0
_KEY = "announce:"

Posted = Literal["posted", "silent", "requester_gone", "refused"]


class AnnouncementOutbox(Protocol):
    """Delivers texts to a session's channel. Does nothing for a session without one: people read its transcript.

    A delivery is identified by its id. One that was `put` or is on `hold` is not sent before `send`.
    """

    async def put(self, requester: Session, text: str, delivery_id: str) -> None:
        """Write the delivery to disk, unless its id is known. StorageError."""

    def hold(self, delivery_id: str) -> None:
        """Hold a delivery with this id that an earlier process left."""

    def send(self, delivery_id: str) -> None:
        """Send the delivery, if there is one with this id."""


class Announcer:
    """A follow-up of runs (see `RunSupervisor`); `resume_open` resumes announcements after a restart.

    `ended(child)` is called at every end of a child's run; `announced(child)` once the announcement is done, and at
    every end of a later run.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: RunSupervisor,
        config: Callable[[], Config],
        clock: Clock,
        *,
        outgoing: AnnouncementOutbox,
        ended: Callable[[Session], None],
        announced: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._store, self._supervisor, self._config, self._clock = store, supervisor, config, clock
        self._outgoing, self._on_ended, self._on_announced = outgoing, ended, announced
        self._ended: set[str] = set()
        self._under_way: set[str] = set()
        self._unresumed: list[tuple[Session, str]] = []
        # The idempotency keys of the announcements in all transcripts, live and archived, as of the start.
        self._known_keys: frozenset[str] = frozenset()

    def at_end(self, run: Run) -> Sequence[Part]:
        """The records to write together with the end of the run."""
        request = run.request
        if request.follow.announcement is not None and run.started_at is None and not request.in_transcript:
            # The run that was to present an announcement ended before it started; its message must still be recorded.
            return [Message(request.message)] if request.message else ()
        if not self._is_first_run(run):
            return ()
        self._ended.add(run.run_id)
        return [Custom(ENTRY, {"spawn": {"ended": run.run_id}})]

    def after_end(self, run: Run) -> Work | None:
        """Announce the end of a child's run, or report it to the callbacks."""
        return partial(self._follow_end, run.session, run) if run.session.entry.spawn is not None else None

    async def _follow_end(self, child: Session, run: Run) -> None:
        self._on_ended(child)
        if run.run_id in self._ended:
            self._ended.discard(run.run_id)
            await self._announce(child, run.run_id)
        elif child.entry.spawn is not None and child.entry.spawn.announced is not None:
            await self._on_announced(child)

    async def read_open(self) -> None:
        """Note the ends of children's runs that have none: note and end are one write, and what a crash left of one
        that was being taken back may be the end alone. Other open announcements are in the entries, which are loaded.
        """
        for child in self._store.catalog.spawned_sessions():
            if not may_lack_note(child):
                continue
            try:
                run_id = await outcome.find_first_end(self._store, child)
                if run_id is not None:
                    await self._store.append(child, [Custom(ENTRY, {"spawn": {"ended": run_id}})])
            except StorageError as error:
                log.warning("the end of a child is not noted", session_key=child.key, reason=error.message)

    def register_open(self) -> None:
        """Find every child whose run has ended but was not announced."""
        catalog = self._store.catalog
        # If a child was reset, the session that replaced it has the same `spawn` data; announce only from that one.
        children = (one for one in catalog.spawned_sessions() if not one.archived or one.key not in catalog.by_key)
        self._unresumed = [(child, run_id) for child in children if (run_id := unannounced_run(child)) is not None]
        if self._unresumed:
            sessions = catalog.by_id.values()
            keys = (keyed.key for session in sessions for keyed in session.entry.keyed)
            self._known_keys = frozenset(key for key in keys if key.startswith(_KEY))
        for _, run_id in self._unresumed:
            self._outgoing.hold(_delivery_id(run_id))

    def resume_open(self) -> None:
        """Start the announcements that `register_open` found."""
        left, self._unresumed = self._unresumed, []
        for child, run_id in left:
            self._supervisor.start_follow_up(self._announce, child, run_id)

    def _is_first_run(self, run: Run) -> bool:
        """Whether this is the run that the child was spawned for, or the run that replaced it after a steer."""
        spawn, request = run.session.entry.spawn, run.request
        if spawn is None or spawn.ended is not None or request.step == "announce":
            return False
        # A run recovered from a damaged record has neither message nor `follow`; treat it as the first run.
        if not (request.follow.spawn is not None or request.first or not request.message):
            return False
        others = self._supervisor.registry.of_session(run.key)
        goes_on = any(one.request.first and not one.ended and one.stop_as is None for one in others if one is not run)
        return not (outcome.is_cut_off(run.status, run.error) and goes_on)

    async def _announce(self, child: Session, run_id: str) -> None:
        """Announce, retrying while the disk refuses writes. If the daemon stops, the next start continues."""
        if run_id in self._under_way:
            return
        self._under_way.add(run_id)
        try:
            work = partial(self._attempt, child, run_id)
            await self._supervisor.persistence.retry_until_stored(work, "an announcement", session_key=child.key)
        except Stopping:
            pass  # the next start continues
        finally:
            self._under_way.discard(run_id)

    async def _attempt(self, child: Session, run_id: str) -> None:
        requester_key = (child.entry.spawn or Spawn()).requester_key or ""
        try:
            posted = await self._post(child, run_id, requester_key)
            heirs = await self._close(child, posted)
        except StorageError:
            if not self._store.catalog.has(child):
                log.warning("announced without its transcript", session_key=child.key, run_id=run_id)
                return  # the child's transcript was removed, so the announcement cannot be noted in it
            raise
        log.info("announced", session_key=child.key, run_id=run_id, requester=requester_key, result=posted)
        for one in heirs:
            await self._on_announced(one)
        requester = self._store.catalog.by_key.get(requester_key)
        if requester is not None and (requester.entry.spawn or Spawn()).announced is not None:
            await self._on_announced(requester)  # itself a child, whose cleanup may have waited for this

    async def _post(self, child: Session, run_id: str, requester_key: str) -> Posted:
        first = await outcome.find_outcome(self._supervisor.registry, run_id, child.key)
        said = await self._step(child, run_id, first.status, requester_key)
        text = await outcome.announcement_text(self._store, child, first, said)
        if text is None:
            return "silent"
        requester = self._store.catalog.by_key.get(requester_key)
        if requester is None:
            return "requester_gone"
        try:
            try:
                await self._hand_over(requester, child, first, text)
            except LimitExceeded:
                brief = await outcome.announcement_text(self._store, child, first, outcome.TOO_LONG)
                await self._hand_over(requester, child, first, brief or "")
        except NotFound:
            return "requester_gone"  # deleted just now
        except (Stopping, StorageError):
            raise
        except SessiondError as error:
            log.warning("announcement refused", session_key=child.key, reason=error.message)
            return "refused"
        return "posted"

    async def _step(self, child: Session, run_id: str, status: str, requester_key: str) -> str | None:
        """The child's answer in the announce step; None if it is not asked or the step did not succeed."""
        registry = self._supervisor.registry
        # Derived from the run's id, so that after a crash the same step and its answer are found again.
        step_id = f"{session_id_of(run_id)}.{blake2b(run_id.encode(), digest_size=8, person=b'announce').hexdigest()}"
        found = await registry.find(step_id)
        if found is None:
            agent = self._config().agent(agent_of(child.key))
            subagents = agent.subagents if agent is not None else self._config().agents.defaults.subagents
            asks = subagents.announce == "agent" and self._supervisor.understands_steps(child.key)
            if status != "ok" or not asks or child.archived:
                return None
            task = await outcome.task_of(self._store, registry, child, run_id)
            request = self._step_request(requester_key, task)
            try:
                await self._supervisor.accept(child, request, run_id=step_id)
            except (Stopping, StorageError):
                raise
            except SessiondError as error:
                log.warning("no announce step", session_key=child.key, reason=error.message)
                return None
        live = registry.live.get(step_id)
        if live is not None:
            await live.done.wait()
        found = await registry.find(step_id)
        return found.reply if found is not None and found.status == "ok" else None

    def _step_request(self, requester_key: str, task: str) -> RunRequest:
        provenance = {"kind": "inter_session", "sourceSessionKey": requester_key, "sourceTool": "sessions_spawn"}
        return RunRequest(
            text=ANNOUNCE_MESSAGE,
            message=user_message(ANNOUNCE_MESSAGE, self._clock.wall_ms(), provenance),
            step="announce",
            context=announce_context(requester_key, task),
            timeout_s=STEP_LIMIT_S,
            # Ahead of messages that others have sent to the child meanwhile.
            first=True,
        )

    async def _hand_over(self, requester: Session, child: Session, first: RunView, text: str) -> None:
        """Put the announcement into the requester's transcript, once, and deliver it to its channel."""
        run_id = first.run_id
        key, payload = f"{_KEY}{run_id}", payload_hash({"announce": run_id})
        requester = await current_session(self._store.catalog, requester)
        if key not in self._known_keys and self._supervisor.run_of_key(requester, key, payload) is None:
            # Write the delivery first: once the transcript has the announcement, a restart would not create it.
            await self._outgoing.put(requester, text, _delivery_id(run_id))
            provenance = {
                "kind": "inter_session",
                "sourceSessionKey": child.key,
                "sourceTool": "subagent_announce",
            }
            message = user_message(text, self._clock.wall_ms(), provenance)
            # After an abort the requester is not woken: whoever stops a tree of sessions does not want a new run in it.
            # If its queue is full, the requester reads the message with its next run.
            if first.status != "aborted" and self._wakes(requester) and self._supervisor.has_room(requester):
                request = RunRequest(
                    text=text,
                    message=message,
                    context=arrival_context(child.key, child.entry.label),
                    idempotency_key=key,
                    payload=payload,
                    follow=FollowUp(announcement=AnnouncementFollowUp(child.key, run_id)),
                )
                await self._supervisor.accept(requester, request)
            else:
                await self._store.append(requester, [Message(message), self._note(run_id, key, payload)])
        self._outgoing.send(_delivery_id(run_id))

    def _note(self, run_id: str, key: str, payload: str) -> Custom:
        at = self._clock.wall_ms()
        return Custom(RUN, {"runId": run_id, "status": "noted", "at": at, "idempotencyKey": key, "payload": payload})

    def _wakes(self, requester: Session) -> bool:
        config, agent_id = self._config(), agent_of(requester.key)
        if config.machine(agent_id) is not None:
            return False  # it waits for the run itself; a run for it would go back there
        agent = config.agent(agent_id)
        subagents = agent.subagents if agent is not None else config.agents.defaults.subagents
        return subagents.wake_requester and self._supervisor.answers(requester.key)

    async def _close(self, child: Session, posted: Posted) -> list[Session]:
        """Note `spawn.announced` in the child, and in the session that replaced it after a reset; those sessions."""
        while child.leaving is not None:
            await child.leaving.wait()
        heir = self._store.catalog.by_key.get(child.key)
        sessions = [child] if heir is None or heir is child or heir.entry.spawn is None else [child, heir]
        for session in sessions:
            await self._store.append(session, [Custom(ENTRY, {"spawn": {"announced": posted}})])
        return sessions


def _delivery_id(run_id: str) -> str:
    return f"announce-{run_id}"


def may_lack_note(child: Session) -> bool:
    """Whether a run of the child has ended and nothing says that it was its first."""
    entry = child.entry
    return entry.spawn is not None and entry.spawn.ended is None and not entry.runs and entry.ended_at is not None


def unannounced_run(child: Session) -> str | None:
    """The run of this child that has ended but was not announced yet; None if there is none."""
    spawn = child.entry.spawn
    return spawn.ended if spawn is not None and spawn.announced is None else None
