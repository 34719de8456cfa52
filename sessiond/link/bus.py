"""The server as all else of the link sees it: publish with an acknowledgement, consume, ask a machine, and whether it
is there. Connects again for ever. Knows subjects and bytes; what they mean, envelopes know.

    async with open_bus(settings, on_change) as bus:
        bus.consume("rec", handle)
        await bus.publish(subject, data, msg_id="...")

Handlers of one kind are called one after the other, and what they raise ends the link. Source: machines.md, "The bus".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.errors import APIError

from sessiond.errors import shorten
from sessiond.link.connecting import (
    NOT_STORED,
    ServerSettings,
    in_words,
    is_of_stream,
    make_client,
    options_of,
    server_facts,
    stream_refusal,
)
from sessiond.link.envelope import MAX_MESSAGE_BYTES
from sessiond.link.failures import BusError, LinkError
from sessiond.link.question_lanes import Answerer, QuestionLane
from sessiond.link.server_client import ServerClient, check_answer, denied_subject
from sessiond.link.subjects import Address, Kind, ask_subject, consumer_name, deliver_subject, parse_subject

# A publish that was not answered may have arrived: it is sent again under the same id. The library would wait for ever
# for some of them after the server was killed.
PUBLISH_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5.0
# At first a server that is only restarted is back soon; one that is away for days must not cost two wake-ups a second.
_RETRY_S: Final = (0.5, 0.5, 1.0, 2.0, 5.0)
# A connection that ends earlier is one more attempt: a server may let a machine in and hang up again and again.
_STEADY_S: Final = 10.0
# Whether the consumers are still there is asked this often: nothing says that they were deleted. While something is
# wrong more often, because nothing says that it was mended.
_LOOK_AGAIN_S, _LOOK_SOON_S = 300.0, 15.0
_MOST_DENIED: Final = 64
# Arrivals that wait to be handled; more wait in the client, which drops what is beyond these bytes: what nobody takes
# is delivered again every 30 seconds. As much as a consumer delivers at once.
_MOST_ARRIVALS: Final = 64
_ARRIVAL_BYTES: Final = 64 << 20
T = TypeVar("T")


class BusState(msgspec.Struct, frozen=True):
    """`trouble` says in words why it is not connected, or what is wrong although it is."""

    connected: bool = False
    server_version: str | None = None
    trouble: str | None = None

    def is_back_after(self, before: BusState) -> bool:
        """Whether it is connected anew; a trouble that comes or goes while it is connected does not make it so."""
        return self.connected and not before.connected


class Arrival:
    """A message of the stream. It comes again after 30 seconds unless it is acknowledged."""

    __slots__ = ("_bus", "_reply", "address", "data")

    def __init__(self, bus: Bus, address: Address, message: Msg) -> None:
        self.address = address
        self.data: bytes = message.data
        self._bus = bus
        self._reply = message.reply

    async def ack(self) -> None:
        """It is done, or of no use."""
        await self._bus.respond(self._reply, b"+ACK")

    async def retry(self, delay_s: float) -> None:
        """It shall come again, after that time. Not for ranges: what is asked for comes behind it."""
        await self._bus.respond(self._reply, b'-NAK {"delay": %d}' % round(delay_s * 1e9))


Handler = Callable[[Arrival], Awaitable[None]]


@contextlib.asynccontextmanager
async def open_bus(settings: ServerSettings, on_change: Callable[[BusState], None]) -> AsyncIterator[Bus]:
    """A bus that connects and stays connected until the block ends. What handlers raise comes out of the block, as an
    exception group. LinkError where a file of the settings cannot be used.
    """
    options_of(settings)
    async with asyncio.TaskGroup() as tasks:
        bus = Bus(settings, on_change, tasks)
        keeping = tasks.create_task(bus.keep_connected())
        try:
            yield bus
        finally:
            bus.stop()
            keeping.cancel()


class Bus:
    """See `open_bus`, which alone makes one."""

    def __init__(
        self, settings: ServerSettings, on_change: Callable[[BusState], None], tasks: asyncio.TaskGroup
    ) -> None:
        self.state = BusState()
        self._settings = settings
        self._on_change = on_change
        self._tasks = tasks
        self._working: list[asyncio.Task[None]] = []
        self._queues: dict[Kind, asyncio.Queue[Arrival]] = {}
        self._lanes: list[QuestionLane] = []
        self._client: ServerClient | None = None
        self._attempts, self._found_at = 0, 0.0
        self._look_due = asyncio.Event()
        # Why the stream did not take what was published last.
        self._refused: str | None = None
        self._is_over = False
        # When the server said that it refuses a subject, whose publish it never answers.
        self._denied: OrderedDict[str, float] = OrderedDict()

    # What the link does with it.

    @property
    def machine(self) -> str:
        """Whose bus it is."""
        return self._settings.name

    async def publish(self, subject: str, data: bytes, *, msg_id: str | None = None) -> bool:
        """Whether the stream has stored it now; False where it had the same `msg_id` lately. BusError where it is not
        known to be stored: `timeout` and `unreachable` may have arrived all the same.
        """
        client = self._usable_client()
        headers = {"Nats-Msg-Id": msg_id} if msg_id else None
        began = time.monotonic()
        try:
            with check_answer():
                if len(data) > client.max_payload:
                    raise BusError(
                        "too_large",
                        # The same for all: each other sentence is a line in the log.
                        f"the server takes no more than {client.max_payload} bytes in a message, and this one is"
                        " longer: remove max_payload from its configuration",
                    )
                acknowledged = await _cancellable(
                    client.jetstream().publish(
                        subject, data, timeout=PUBLISH_TIMEOUT_S, stream=self._settings.stream, headers=headers
                    )
                )
        except (nats.js.errors.NoStreamResponseError, APIError) as error:
            raise self._keep_refusal(stream_refusal(error, self._settings)) from None
        except (nats.errors.Error, OSError) as error:
            raise self._keep_refusal(self._failure(error, subject, began, NOT_STORED)) from None
        if self.state.trouble:  # else it was not shown yet, and each that is refused would be looked after at once
            self._refused = None
        return not acknowledged.duplicate

    def consume(self, kind: Kind, handler: Handler) -> None:
        """Call the handler with every message of the kind for this machine, from now on and after each connection."""
        queue = self._queues[kind] = asyncio.Queue(_MOST_ARRIVALS)
        self._working.append(self._tasks.create_task(_work(queue, handler)))
        if self._client is not None:
            self._working.append(self._tasks.create_task(_finish(self._subscribe(self._client, kind))))

    def answer(self, answerer: Answerer, senders: Iterable[str]) -> None:
        """Answer what these machines ask, from now on and after each connection. One question waits for the answer to
        the one before of the same machine, so what takes long has to be done elsewhere.
        """
        for sender in senders:
            lane = QuestionLane(self.machine, sender, answerer, self.respond)
            self._lanes.append(lane)
            self._working.append(self._tasks.create_task(lane.run()))
            if self._client is not None:
                self._working.append(self._tasks.create_task(_finish(lane.listen(self._client))))

    async def request(self, machine: str, data: bytes, *, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        """What the machine answers. BusError `nobody` where it is not there, which takes a millisecond."""
        client = self._usable_client()
        subject = ask_subject(machine, self.machine)
        began = time.monotonic()
        try:
            message = await _cancellable(client.request(subject, data, timeout=timeout_s))
        except nats.errors.NoRespondersError:
            why = f"{machine} is not connected to the server, or does not know {self.machine}"
            raise BusError("nobody", why) from None
        except (nats.errors.Error, OSError) as error:
            raise self._failure(error, subject, began, f"{machine} may be busy") from None
        return message.data

    async def respond(self, subject: str, data: bytes) -> None:
        """For deliveries: what is not said because the connection is away is asked again by the server."""
        if self._client is not None and self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await _cancellable(self._client.publish(subject, data))

    async def look(self) -> None:
        """Say in `state` whether a consumer of this machine is missing, or the stream takes nothing."""
        troubles = [await self._trouble_of(kind) for kind in list(self._queues)]
        found = next(filter(None, troubles), self._refused)
        if self.state.connected and self.state.trouble != found:
            self._change(msgspec.structs.replace(self.state, trouble=found))

    # What keeps it going.

    async def keep_connected(self) -> None:
        while True:
            try:
                await self._keep_client(options_of(self._settings))
            except (nats.errors.Error, OSError) as error:
                # Lost before it was connected for good: only then the library raises it.
                self._lose(in_words(error, self._settings).message)
            except LinkError as error:
                self._lose(error.message)  # a file of the settings, which may be in the middle of being replaced
            # The server has closed it for good, as when this machine's user was taken away.
            await asyncio.sleep(_RETRY_S[-1])

    async def _keep_client(self, options: dict[str, Any]) -> None:
        client, closed = make_client(self._settings), asyncio.Event()
        try:
            await _cancellable(self._connect(client, options, closed))
            attempts = -1
            # One that has not even tried to connect since the last look never will.
            while not closed.is_set() and (client.is_connected or self._attempts != attempts):
                attempts = self._attempts
                self._look_due.clear()
                await self.look()
                pause_s = _LOOK_SOON_S if self.state.connected and self.state.trouble else _LOOK_AGAIN_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._look_due.wait()
        finally:
            self._client = None
            await _cancellable(client.end())

    def stop(self) -> None:
        self._is_over = True
        for task in self._working:
            task.cancel()

    async def _connect(self, client: ServerClient, options: dict[str, Any], closed: asyncio.Event) -> None:
        async def on_error(error: Exception) -> None:
            if client.is_connected:
                self._note(error)
            else:
                self._wait_longer(client)
                self._lose(in_words(error, self._settings).message)

        async def on_loss() -> None:
            if time.monotonic() - self._found_at > _STEADY_S:
                self._attempts = 0
            self._wait_longer(client)
            self._lose(f"the connection to the server {self._settings.address} was lost")

        async def on_return() -> None:
            self._find(client)
            self._look_due.set()  # another server may have come back than the one that went

        async def on_close() -> None:
            # For good, and the library says why only when it was not let in.
            if isinstance(client.last_error, nats.errors.AuthorizationError):
                self._lose(in_words(client.last_error, self._settings).message)
            closed.set()
            self._look_due.set()

        hooks: dict[str, Any] = {"disconnected_cb": on_loss, "reconnected_cb": on_return, "closed_cb": on_close}
        with check_answer():
            await client.connect(**options, error_cb=on_error, **hooks)
        # Whatever is consumed from here on subscribes for itself.
        self._client, kinds, lanes = client, list(self._queues), list(self._lanes)
        for kind in kinds:
            await self._subscribe(client, kind)
        for lane in lanes:
            await lane.listen(client)
        await client.flush(int(REQUEST_TIMEOUT_S))
        self._find(client)

    async def _subscribe(self, client: ServerClient, kind: Kind) -> None:
        # Not by the library's own call: that would be refused while the consumer is missing, and this begins to be
        # served when the administrator has made it.
        queue = self._queues[kind]

        async def take(message: Msg) -> None:
            address = parse_subject(message.subject)
            # What was published by hand to the inbox has the inbox for its subject, and any subject to reply to.
            if address is not None and address.kind == kind:
                if len(message.data) > MAX_MESSAGE_BYTES:
                    message.data = b""  # refused all the same, and not kept until then
                await queue.put(Arrival(self, address, message))

        subject = deliver_subject(self._settings.name, kind)
        await client.subscribe(subject, cb=take, pending_bytes_limit=_ARRIVAL_BYTES)

    def _find(self, client: ServerClient) -> None:
        self._found_at, self._refused = time.monotonic(), None
        version = shorten(str(server_facts(client).get("version", "")))
        self._change(BusState(connected=True, server_version=version))

    def _wait_longer(self, client: ServerClient) -> None:
        client.options["reconnect_time_wait"] = _RETRY_S[min(self._attempts, len(_RETRY_S) - 1)]
        self._attempts += 1

    def _lose(self, why: str | None) -> None:
        self._change(BusState(connected=False, trouble=why or self.state.trouble))

    def _change(self, state: BusState) -> None:
        if state != self.state and not self._is_over:
            self.state = state
            self._on_change(state)

    def _note(self, error: Exception) -> None:
        """An error beside the connection: mostly a subject that the server's permissions refuse."""
        found = denied_subject(error)
        if found is not None:
            verb, subject = found
            self._denied[subject] = time.monotonic()
            while len(self._denied) > _MOST_DENIED:
                self._denied.popitem(last=False)
            words = (
                f'the server does not let {self._settings.name} {verb} to {shorten(subject)}; see "sessiond link admin"'
            )
            if not self.state.trouble:  # it may say so of another subject a thousand times a second
                self._change(msgspec.structs.replace(self.state, trouble=words))

    def _keep_refusal(self, error: BusError) -> BusError:
        if error.trouble not in ("unreachable", "forbidden"):  # these are said elsewhere
            self._refused = error.message
            if not self.state.trouble:
                self._look_due.set()
        return error

    def _usable_client(self) -> ServerClient:
        if self._client is None or not self._client.is_connected:
            raise BusError(
                "unreachable", self.state.trouble or f"the server {self._settings.address} is not reached yet"
            )
        return self._client

    def _failure(self, error: BaseException, subject: str, began: float, after: str) -> BusError:
        if self._denied.get(subject.lower(), 0.0) >= began:
            return BusError("forbidden", f"the server does not let {self._settings.name} publish to {subject}")
        if isinstance(error, TimeoutError):
            return BusError("timeout", f"the server {self._settings.address} did not answer: {after}")
        return in_words(error, self._settings)

    async def _trouble_of(self, kind: Kind) -> str | None:
        """What is wrong with the consumer of the kind, as far as the server says it now."""
        name = consumer_name(self._settings.name, kind)
        asked = f"$JS.API.CONSUMER.INFO.{self._settings.stream}.{name}"
        began = time.monotonic()
        try:
            client = self._usable_client()
            with check_answer():
                await _cancellable(client.jsm().consumer_info(self._settings.stream, name, timeout=REQUEST_TIMEOUT_S))
        except APIError as error:
            if is_of_stream(error):
                return stream_refusal(error, self._settings).message
            return f'the server has no consumer {name}: nothing of that kind arrives; see "sessiond link admin"'
        except (nats.errors.Error, OSError) as error:
            failure = self._failure(error, asked, began, "it is asked again")
            return failure.message if failure.trouble == "forbidden" else None
        except BusError:
            return None
        return None


async def _cancellable(asking: Coroutine[Any, Any, T]) -> T:
    """What a call of nats-py returns, in a task of its own: where it waits for its buffer to be flushed it takes a
    cancellation for an answer, and in Python 3.11 `asyncio.wait_for`, with which it waits, forgets one that comes
    together with the answer. Whoever was cancelled would go on for ever.
    """
    task = asyncio.get_running_loop().create_task(asking)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also where nobody waits any more
    try:
        await asyncio.wait((task,))
    finally:
        task.cancel()
    return task.result()


async def _finish(subscribing: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(nats.errors.Error, OSError):  # then it is done with the next connection
        await _cancellable(subscribing)


async def _work(queue: asyncio.Queue[Arrival], handler: Handler) -> None:
    while True:
        await handler(await queue.get())
