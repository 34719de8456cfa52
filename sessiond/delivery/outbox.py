"""The outbox: deliveries, each kept on disk until it is acknowledged or given up.

A delivery is written before it is sent and removed after the acknowledgement. After a crash in between it is sent again
with the same id, so that the adapter can recognize it. Source: runs.md, "Channels and delivery".
"""

from __future__ import annotations

import heapq
import itertools
import math
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, Protocol

import structlog
import trio
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.config.settings import DeliveryConfig
from sessiond.delivery.channels import Delivery, NotDelivered
from sessiond.delivery.outbox_files import OutboxFiles
from sessiond.errors import NoThread, StorageError, reason_of
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.outbox")

DeliveryStatus = Literal["pending", "delivered", "skipped", "failed"]
Lane = tuple[str, str | None, str, str | None]

# Deliveries whose times differ by less, or that run back by less, keep the order in which they were created.
_TIES_MS = 1000
# Notifications that were given up are kept for whoever asks why none came; of a target that is dead for a week not all.
MAX_DEAD_NOTIFICATIONS = 1000


class Carrier(Protocol):
    """What makes one attempt at a delivery: the channels, or the targets of notifications."""

    def why_nobody(self, delivery: Delivery) -> str | None:
        """Why an attempt would reach nobody now, as a sentence; None where there is somebody."""

    async def deliver(self, delivery: Delivery) -> None:
        """Make one attempt; returns when it is acknowledged. NotDelivered if it is not."""


class _Lane:
    """The deliveries to one addressee, which are sent one after the other: of those that are due, the oldest first.

    `ids` are all of its deliveries, also the one that is being tried and therefore in neither heap.
    """

    __slots__ = ("due", "due_calls", "ids", "later", "wake")

    def __init__(self) -> None:
        self.due: list[tuple[int, str]] = []
        self.later: list[tuple[float, int, str]] = []
        self.ids: set[str] = set()
        self.wake = trio.Event()
        self.due_calls = 0

    def add(self, delivery_id: str, place: int) -> None:
        """It is due now. `place` tells in which order deliveries were created."""
        self.ids.add(delivery_id)
        heapq.heappush(self.due, (place, delivery_id))
        self._wake_up()

    def add_later(self, delivery_id: str, place: int, at: float) -> None:
        """It is due at this time, by Trio's clock."""
        heapq.heappush(self.later, (at, place, delivery_id))

    def make_due(self) -> None:
        """Make every delivery due now; one whose attempt is under way is due again at once if that fails."""
        self.due_calls += 1
        self._move_due(math.inf)
        self._wake_up()

    async def take_next(self) -> tuple[int, str] | None:
        """The oldest delivery that is due, as soon as one is; None where the lane is empty."""
        while True:
            self._move_due(trio.current_time())
            if self.due:
                return heapq.heappop(self.due)
            if not self.later:
                return None
            with trio.move_on_at(self.later[0][0]):
                await self.wake.wait()

    def _move_due(self, until: float) -> None:
        while self.later and self.later[0][0] <= until:
            _, place, delivery_id = heapq.heappop(self.later)
            heapq.heappush(self.due, (place, delivery_id))

    def _wake_up(self) -> None:
        self.wake.set()
        self.wake = trio.Event()


class Outbox:
    """Run `run` in the background nursery. `allowed(delivery)` is asked before every attempt: the send policy, or
    whether a notification is still of use.
    """

    def __init__(
        self,
        store: SessionStore,
        files: OutboxFiles,
        channels: Carrier,
        targets: Carrier,
        clock: Clock,
        *,
        settings: Callable[[], DeliveryConfig],
        allowed: Callable[[Delivery], bool],
        max_dead_notifications: int = MAX_DEAD_NOTIFICATIONS,
    ) -> None:
        self._files, self._channels, self._targets, self._clock = files, channels, targets, clock
        self._run_sync = store.run_sync
        self._settings, self._allowed = settings, allowed
        self._max_dead_notifications = max_dead_notifications
        self._known: dict[str, Delivery] = {}
        self._dead: dict[str, Delivery] = {}
        self._held: set[str] = set()
        self._lanes: dict[Lane, _Lane] = {}
        # In which order the deliveries of this process, and those before it, were created.
        self._places: dict[str, int] = {}
        self._next_place = itertools.count()
        self._newest_ms = 0
        # Held while a delivery to this addressee is written, so that the next one is written after it.
        self._writing: weakref.WeakValueDictionary[Lane, trio.Lock] = weakref.WeakValueDictionary()
        self._nursery: trio.Nursery | None = None
        self.bad_files: list[str] = []

    @property
    def dead_letters(self) -> list[Delivery]:
        """The deliveries that were given up."""
        return list(self._dead.values())

    @property
    def pending(self) -> list[Delivery]:
        """The deliveries that are neither acknowledged nor given up."""
        return list(self._known.values())

    def status(self, delivery_id: str) -> Literal["pending", "failed"] | None:
        """The status of a delivery in the outbox; None if it was delivered or skipped, or never existed."""
        if delivery_id in self._known:
            return "pending"
        return "failed" if delivery_id in self._dead else None

    async def load(self) -> None:
        """Read the deliveries that an earlier process left. Nothing is sent before `run`. NoThread."""
        try:
            found, self.bad_files = await self._run_sync(self._files.read)
        except NoThread:
            raise  # nothing is wrong with it, and another start can read it
        except OSError as error:
            # The deliveries in it wait for the next start. New ones are refused by `put` for as long as this lasts.
            log.error("the outbox cannot be read; nothing in it is delivered", reason=error.strerror)
            return
        for delivery in found:
            if delivery.failed_at is None:
                self._known[delivery.delivery_id] = delivery
                self._places[delivery.delivery_id] = next(self._next_place)
                self._newest_ms = max(self._newest_ms, delivery.created_at)
            else:
                self._dead[delivery.delivery_id] = delivery
        for name in self.bad_files:
            log.warning("a file in the outbox is not a delivery; it is ignored", name=name)

    async def put(self, delivery: Delivery) -> None:
        """Write the delivery to disk and hold it until `send`. Does nothing for a known id. StorageError."""
        if self.status(delivery.delivery_id) is not None:
            return
        delivery, place = self._after_the_newest(delivery), next(self._next_place)
        where = _lane_of(delivery)
        lock = self._writing.get(where)
        if lock is None:
            lock = self._writing[where] = trio.Lock()
        async with lock:
            if self.status(delivery.delivery_id) is None:
                await self._write(delivery)
                self._known[delivery.delivery_id] = delivery
                self._places[delivery.delivery_id] = place
                self._held.add(delivery.delivery_id)

    def _after_the_newest(self, delivery: Delivery) -> Delivery:
        """The delivery with a time after that of the one created before it, which tells their order after a restart."""
        created_at = delivery.created_at
        if created_at <= self._newest_ms < created_at + _TIES_MS:
            created_at = self._newest_ms + 1
        self._newest_ms = created_at  # it runs back where the clock was set back
        return replace(delivery, created_at=created_at)

    async def replace(self, delivery: Delivery) -> None:
        """As `put`, in place of a delivery on hold with the same id. StorageError."""
        await self.drop(delivery.delivery_id)
        await self.put(delivery)

    async def drop(self, delivery_id: str) -> None:
        """Remove a delivery that is on hold, if there is one with this id; it is not sent."""
        if delivery_id not in self._held:
            return
        self._held.discard(delivery_id)
        self._known.pop(delivery_id, None)
        self._places.pop(delivery_id, None)
        await self._remove(delivery_id)

    def count_sending(self, delivery: Delivery) -> int:
        """How many deliveries to the same addressee are being sent and not settled."""
        lane = self._lanes.get(_lane_of(delivery))
        return len(lane.ids) if lane is not None else 0

    def hold(self, delivery_id: str) -> None:
        """Hold a delivery that an earlier process left until `send`. Call it before `run`."""
        self._held.add(delivery_id)

    def send(self, delivery_id: str) -> None:
        """Start to send it; attempts are repeated until it is acknowledged or given up."""
        self._held.discard(delivery_id)
        delivery = self._known.get(delivery_id)
        if delivery is None or self._nursery is None:
            return  # settled already; or `run` has not begun yet and will send it
        where = _lane_of(delivery)
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = _Lane()
            self._nursery.start_soon(self._serve, where, lane)
        elif delivery_id in lane.ids:
            return
        lane.add(delivery_id, self._places[delivery_id])

    def make_due(self, channel: str | None = None) -> None:
        """Make all deliveries to the channel (None: to all) due now: somebody may be able to deliver."""
        for where, lane in self._lanes.items():
            if channel is None or where[0] == channel:
                lane.make_due()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for delivery_id in self._known:
                if delivery_id not in self._held:
                    self.send(delivery_id)
            task_status.started()
            await trio.sleep_forever()

    async def _serve(self, where: Lane, lane: _Lane) -> None:
        while (next_one := await lane.take_next()) is not None:
            place, delivery_id = next_one
            due_calls = lane.due_calls
            again_at = await self._attempt(self._known[delivery_id])
            if again_at is None:
                lane.ids.discard(delivery_id)
                del self._places[delivery_id]
            else:
                lane.add_later(delivery_id, place, again_at if lane.due_calls == due_calls else trio.current_time())
        del self._lanes[where]

    async def _attempt(self, delivery: Delivery) -> float | None:
        """Make one attempt. When to make the next, by Trio's clock; None where the delivery is settled."""
        if not self._allowed(delivery):
            await self._settle(delivery, "skipped")
            return None
        carrier = self._channels if delivery.notification is None else self._targets
        missing = carrier.why_nobody(delivery)
        if missing is not None:
            # Thousands may wait for one adapter, each of which passes here without waiting for anything.
            await trio.lowlevel.checkpoint()
            return await self._wait_for_somebody(delivery, missing)
        try:
            await carrier.deliver(delivery)
        except NotDelivered as error:
            return await self._note_failure(delivery, str(error))
        await self._settle(delivery, "delivered")
        return None

    async def _wait_for_somebody(self, delivery: Delivery, missing: str) -> float | None:
        """No attempt: who attaches, or a configuration that is read again, due_calls the lane."""
        left_ms = delivery.created_at + self._settings().give_up_minutes * 60_000 - self._clock.wall_ms()
        if left_ms > 0:
            return trio.current_time() + left_ms / 1000
        await self._give_up(delivery, missing)
        return None

    async def _settle(self, delivery: Delivery, status: DeliveryStatus) -> None:
        await self._remove(delivery.delivery_id)
        del self._known[delivery.delivery_id]
        log.info("delivery settled", id=delivery.delivery_id, channel=delivery.channel, status=status)

    async def _note_failure(self, delivery: Delivery, reason: str) -> float | None:
        settings = self._settings()
        attempts = delivery.attempts + 1
        delivery = self._known[delivery.delivery_id] = replace(delivery, attempts=attempts, last_error=reason)
        if self._clock.wall_ms() - delivery.created_at >= settings.give_up_minutes * 60_000:
            await self._give_up(delivery, reason)
            return None
        waits = settings.retry_seconds
        return trio.current_time() + waits[min(attempts, len(waits)) - 1]

    async def _give_up(self, delivery: Delivery, reason: str) -> None:
        delivery = replace(delivery, last_error=reason, failed_at=self._clock.wall_ms())
        try:
            await self._write(delivery)
        except StorageError as error:
            # It is given up anyway. The next start makes one more attempt and marks it then.
            log.warning("a dead letter could not be marked", id=delivery.delivery_id, reason=error.message)
        del self._known[delivery.delivery_id]
        self._dead[delivery.delivery_id] = delivery
        if delivery.notification is not None:
            await self._forget_oldest_notification()
        # Without the reason: programs repeat their arguments in errors, so it may hold message text. The dead letter
        # has it.
        log.warning("delivery given up", id=delivery.delivery_id, channel=delivery.channel, attempts=delivery.attempts)

    async def _forget_oldest_notification(self) -> None:
        dead = [one.delivery_id for one in self._dead.values() if one.notification is not None]
        if len(dead) <= self._max_dead_notifications:
            return
        del self._dead[dead[0]]
        await self._remove(dead[0])

    async def _remove(self, delivery_id: str) -> None:
        # Shielded: an acknowledged delivery must not be sent again because the daemon stops at this moment.
        with trio.CancelScope(shield=True):
            try:
                await self._run_sync(self._files.remove, delivery_id)
            except OSError as error:
                log.warning("a settled delivery cannot be removed", id=delivery_id, reason=error.strerror)

    async def _write(self, delivery: Delivery) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._run_sync(self._files.write, delivery)
        except OSError as error:
            raise StorageError(f"could not write to the outbox: {reason_of(error)}") from None


def _lane_of(delivery: Delivery) -> Lane:
    return (delivery.channel, delivery.account_id, delivery.to, delivery.thread_id)


@asynccontextmanager
async def open_outbox(
    store: SessionStore,
    channels: Carrier,
    targets: Carrier,
    clock: Clock,
    *,
    durable: bool,
    settings: Callable[[], DeliveryConfig],
    allowed: Callable[[Delivery], bool],
    max_dead_notifications: int = MAX_DEAD_NOTIFICATIONS,
) -> AsyncIterator[Outbox]:
    """The store's outbox, loaded. Nothing is sent before `run`."""
    files = OutboxFiles(store.root_fd, sync=durable)
    try:
        outbox = Outbox(
            store,
            files,
            channels,
            targets,
            clock,
            settings=settings,
            allowed=allowed,
            max_dead_notifications=max_dead_notifications,
        )
        await outbox.load()
        yield outbox
    finally:
        files.close()
