"""RuleNotifier: from what happened to deliveries in the outbox, one for each fact and rule.

What must not be lost is the end of a run: it is in the transcript once, and after a crash nobody looks for ends that
were not told. So the deliveries of an end are written to the outbox *before* the end is written, on hold, and sent when
it is on disk. After a crash in between the run is still open: its deliveries are held at the start, and the end that it
gets then replaces them. A question ends with the daemon, so nothing of it has to be found again.
Source: runs.md, "Notifications".
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.delivery.channels import Delivery
from sessiond.delivery.notification import Fact, Notification, fact_of_end, fact_of_question, shown_body
from sessiond.delivery.notify_rules import describe_target, is_concerned, rules_by_name
from sessiond.delivery.outbox import Outbox
from sessiond.errors import Stopping, StorageError
from sessiond.policy.secrets import compile_patterns, mask_secrets
from sessiond.questions.desk import OpenQuestion
from sessiond.runs.run import Run
from sessiond.runs.supervisor import RunSupervisor, Work
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.notify")

# So many notifications wait for one target. Whoever finds a thousand reads none of them, and asks `sessiond questions`.
MAX_WAITING = 1000


class RuleNotifier:
    """A follow-up of runs, and of questions. `is_open(question_id)` says whether nobody has answered it yet."""

    def __init__(
        self,
        store: SessionStore,
        outbox: Outbox,
        supervisor: RunSupervisor,
        config: Callable[[], Config],
        clock: Clock,
        *,
        is_open: Callable[[str], bool],
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store, self._outbox, self._supervisor = store, outbox, supervisor
        self._config, self._clock, self._is_open = config, clock, is_open
        self._max_waiting = max_waiting
        # What is on hold until the end of a run is on disk, by the id of the run; and what the disk has refused.
        self._held: dict[str, set[str]] = {}
        self._refused: dict[str, list[Delivery]] = {}
        # Of questions, by the target: those that are not in the outbox yet, the first asked first; and how many.
        self._unwritten: dict[str, list[tuple[int, Delivery]]] = {}
        self._under_way: Counter[str] = Counter()
        self._overflowed: set[str] = set()

    def is_due(self, delivery: Delivery) -> bool:
        """Whether a notification is still of use: its rule is in the configuration, and its question is open."""
        notification = delivery.notification
        assert notification is not None
        if notification.rule not in rules_by_name(self._config().notify):
            return False
        return notification.question_id is None or self._is_open(notification.question_id)

    def question_asked(self, asked: OpenQuestion) -> None:
        """A question was asked and is on disk."""
        if not self._config().notify:
            return
        # A session of another program asks in a transcript of ours, which does not have its name or folder.
        shown = self._store.catalog.by_key.get(asked.key, asked.session)
        fact = fact_of_question(asked.key, shown.entry, asked.question, self._store.rules, self._mask)
        for delivery in self._deliveries(fact):
            self._under_way[delivery.to] += 1
            if delivery.to not in self._unwritten:
                self._unwritten[delivery.to] = []
                self._supervisor.start_follow_up(self._tell_in_order, delivery.to)
            # Of those that one commit has stored any may come here first; the task begins after all of them.
            heapq.heappush(self._unwritten[delivery.to], (asked.number, delivery))

    async def before_end(self, run: Run) -> None:
        """Write the deliveries of the end that a run is about to get, on hold; those of another end are dropped."""
        held = self._held.pop(run.run_id, set())
        self._refused.pop(run.run_id, None)
        fact = fact_of_end(run, self._store.rules, self._mask) if self._config().notify else None
        for delivery in self._deliveries(fact) if fact is not None else ():
            held.discard(delivery.delivery_id)
            try:
                await self._outbox.replace(delivery)
            except StorageError as error:
                # The end of a run does not wait for its notification.
                log.warning("a notification cannot be written yet", run_id=run.run_id, reason=error.message)
                self._refused.setdefault(run.run_id, []).append(delivery)
            else:
                self._held.setdefault(run.run_id, set()).add(delivery.delivery_id)
        for delivery_id in held:
            await self._outbox.drop(delivery_id)

    def at_end(self, _run: Run) -> Sequence[Part]:
        """There is no record of it: the outbox has it."""
        return ()

    def after_end(self, run: Run) -> Work | None:
        """Send what `before_end` has written."""
        held, refused = self._held.pop(run.run_id, set()), self._refused.pop(run.run_id, [])
        return partial(self._send, sorted(held), refused) if held or refused else None

    async def read_open(self) -> None:
        """Nothing to read: the outbox is loaded."""

    def register_open(self) -> None:
        """Hold what an earlier daemon wrote of ends that are not on disk: those runs get an end of this one."""
        live = self._supervisor.registry.live
        for delivery in self._outbox.pending:
            run_id = delivery.notification.run_id if delivery.notification is not None else None
            if run_id is not None and run_id in live:
                self._outbox.hold(delivery.delivery_id)
                self._held.setdefault(run_id, set()).add(delivery.delivery_id)

    def resume_open(self) -> None:
        """Nothing to do: the ends of those runs are written by their supervisor."""

    async def _tell_in_order(self, target: str) -> None:
        unwritten = self._unwritten[target]
        try:
            while unwritten:
                await self._tell(heapq.heappop(unwritten)[1])
        finally:
            del self._unwritten[target]

    async def _tell(self, delivery: Delivery) -> None:
        try:
            await self._outbox.put(delivery)
        except StorageError as error:
            # Whoever could make room may be the one who has to be told.
            log.warning("a notification cannot be written yet", id=delivery.delivery_id, reason=error.message)
            await self._send((), [delivery])
            return
        finally:
            self._under_way[delivery.to] -= 1
        self._outbox.send(delivery.delivery_id)

    async def _send(self, held: Sequence[str], refused: Sequence[Delivery]) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        for delivery_id in held:
            self._outbox.send(delivery_id)
        for delivery in refused:
            try:
                await self._supervisor.persistence.retry_until_stored(
                    partial(self._outbox.put, delivery), "a notification", id=delivery.delivery_id
                )
            except Stopping:
                return
            self._outbox.send(delivery.delivery_id)

    def _deliveries(self, fact: Fact) -> list[Delivery]:
        """The deliveries of a fact: one for each rule that it concerns and whose target has room."""
        concerned = {name: one for name, one in rules_by_name(self._config().notify).items() if is_concerned(one, fact)}
        body = shown_body(fact, self._mask) if any(rule.body for rule in concerned.values()) else None
        found: list[Delivery] = []
        for name, rule in concerned.items():
            delivery = Delivery(
                delivery_id=f"{fact.question_id or f'{fact.run_id}.end'}.{name}",
                channel=f"notify:{describe_target(rule)}",
                to=name,
                session_key=fact.session_key,
                text=fact.text,
                title=fact.title,
                created_at=self._clock.wall_ms(),
                notification=Notification(
                    fact_id=fact.id,
                    rule=name,
                    when=fact.when,
                    agent_id=fact.agent_id,
                    at=fact.at,
                    question_id=fact.question_id,
                    run_id=fact.run_id,
                    body=body if rule.body else None,
                ),
            )
            if self._has_room(delivery):
                found.append(delivery)
        return found

    def _has_room(self, delivery: Delivery) -> bool:
        waiting = self._outbox.count_sending(delivery) + self._under_way[delivery.to]
        if waiting < self._max_waiting:
            self._overflowed.discard(delivery.to)
            return True
        if delivery.to not in self._overflowed:
            self._overflowed.add(delivery.to)
            log.warning("too many notifications wait for this target; more are left out", channel=delivery.channel)
        return False

    def _mask(self, text: str) -> str:
        sessions = self._config().tools.sessions
        return mask_secrets(text, compile_patterns(sessions.redact_patterns))[0] if sessions.redact else text
