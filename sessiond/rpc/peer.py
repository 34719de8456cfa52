"""One JSON-RPC connection: a read loop, a writer that mostly sleeps, and a task for each request that waits.

Knows messages and links; knows no dialect, no method and no session. A broken connection ends its own requests and
nothing else: `run` raises no exception of the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import trio

from sessiond.errors import SessiondError, no_memory, stopped_early
from sessiond.model.caller import Caller
from sessiond.model.question import Road
from sessiond.rpc.answer_pieces import Answer, AnswerText, frame_pieces, json_length
from sessiond.rpc.budget import Budgets, Share
from sessiond.rpc.codecs import JSON, CodecName, from_json, to_json
from sessiond.rpc.in_flight import InFlight, OrderedTurn
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.link import Link
from sessiond.rpc.messages import Envelope, encode_call, encode_failure
from sessiond.rpc.outgoing_requests import OutgoingRequests
from sessiond.rpc.pace import Pace
from sessiond.rpc.reservations import ConnectionReservations
from sessiond.rpc.sending import DeferredFrame, PeerGone, PiecewiseFrame, SendQueue

R = TypeVar("R", bound=InFlight)

_PAUSE_BYTES = 1024 * 1024  # with more unsent answers than this, no more requests are read
_MESSAGES_PER_TURN = 64  # then other connections get their turn: 64 pings take a third of a millisecond
# A message of this size gets a turn of its own, because a batch of this size can hold many requests.
_OWN_TURN_BYTES = 4 * 1024
_HANGUP_CHECK_S = 1.0  # a half-closed client may also close the other half; only asking the socket tells
_REMAINING_ANSWERS_S = 30.0  # how long a client that half-closed its connection may take to read its answers


class MessageHandler(Protocol):
    """The interface of the dispatcher, to which a connection gives its messages. Its methods never raise."""

    @property
    def limits(self) -> Limits: ...
    @property
    def budgets(self) -> Budgets: ...
    @property
    def pace(self) -> Pace: ...

    def accept(self, peer: Peer, message: bytes) -> None:
        """Handle one message that is neither a batch nor long."""
        ...

    async def accept_slowly(self, peer: Peer, message: bytes) -> None:
        """Handle a batch or a long message, without blocking the event loop."""
        ...


class Peer:
    """One client.

    `initialize` sets `caller`, which also lifts the frame limit for unauthenticated clients. `nursery` exists while
    `run` runs; tasks in it end with the connection. `pending` are the requests in flight by id. `persistent` is false
    for the single exchange of `POST /rpc`, which gives `unsent`, as for `ConnectionReservations`. `meta_caller` returns
    the caller for the `_meta` of a request. `client_name` is what the client calls itself.

    `on_caller` is called before the caller changes, and may raise; `on_first_message` after the first message.
    """

    def __init__(
        self,
        link: Link,
        dispatcher: MessageHandler,
        caller: Caller,
        *,
        unsent: list[Share] | None = None,
        on_caller: Callable[[Caller], None] | None = None,
        on_first_message: Callable[[], None] | None = None,
        road: Road | None = None,
    ) -> None:
        self.persistent = unsent is None
        self.road: Road = road or ("socket" if self.persistent else "http")
        self.client_name = ""
        self.pending: dict[object, InFlight] = {}
        self.closed = trio.Event()
        self.nursery: trio.Nursery
        self.meta_caller: Callable[[Mapping[str, Any]], Caller] | None = None
        self._on_caller, self._on_first_message = on_caller, on_first_message
        self._link = link
        self._dispatcher = dispatcher
        self._limits = dispatcher.limits
        self._out = SendQueue(link)
        self._idle = trio.lowlevel.ParkingLot()
        self._paused_for_auth = False
        self._outgoing = OutgoingRequests(self._send_request, lambda: self._out.broken)
        self._turns: dict[OrderedTurn, None] = {}
        self._callbacks: list[Callable[[], None]] = []
        self.reservations = ConnectionReservations(self, self._out, dispatcher.budgets, unsent)
        self._caller = caller
        self._set_limit()

    @property
    def caller(self) -> Caller:
        return self._caller

    @caller.setter
    def caller(self, caller: Caller) -> None:
        if self._on_caller is not None:
            self._on_caller(caller)  # it may raise: then the caller stays as it was
        self._caller = caller
        self._set_limit()

    @property
    def codec(self) -> CodecName:
        """The codec of this connection; frames are shared between peers with the same one."""
        return self._link.codec.name

    @property
    def queued_bytes(self) -> int:
        """Bytes queued for sending that the kernel has not taken yet."""
        return self._out.queued_bytes

    def caller_for(self, meta: Mapping[str, Any]) -> Caller:
        """The caller of a request with this `_meta`."""
        return self._caller if self.meta_caller is None else self.meta_caller(meta)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection has ended, which may be now."""
        if self.closed.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    # Sending

    def send_nowait(self, frame: bytes) -> bool:
        """Send a frame made by `encode_notification`; True if the kernel took all of it at once.

        What does not fit is queued, never dropped: check `queued_bytes` or await `wait_drained` before sending more.
        """
        return self._out.send(frame)

    def encode_notification(self, method: str, params: Any) -> bytes:
        """A frame for `send_nowait`, the same for every peer with this `codec`."""
        return self._link.codec.from_json(encode_call(method, params))

    async def encode_slowly(self, method: str, params: Any) -> bytes:
        """As `encode_notification`, without blocking the event loop on a long frame."""
        return await from_json(self._link.codec, encode_call(method, params), self._dispatcher.pace)

    def notify(self, method: str, params: Any) -> bool:
        """Send a notification; as `send_nowait`."""
        return self._out.send(self.encode_notification(method, params))

    async def wait_drained(self, below: int = 1) -> None:
        """Wait until fewer than `below` bytes are queued. Raises PeerGone where the connection broke."""
        await self._out.wait_drained(below)

    def reply(self, answer: Answer) -> None:
        """Send an answer, given as JSON text. The pieces of a long one are made one by one as they are sent."""
        codec = self._link.codec
        if isinstance(answer, AnswerText) and codec is JSON and answer.size < codec.slow_answer_bytes:
            self._out.send(b"".join((*answer.json(), b"\n")))
        elif isinstance(answer, bytes) and len(answer) < codec.slow_answer_bytes:
            self._out.send(codec.from_json(answer))
        else:
            turn = trio.lowlevel.checkpoint if self._caller.kind == "owner" else self._dispatcher.pace.turn
            self._out.send_later(PiecewiseFrame(json_length(answer), frame_pieces(answer, codec), turn))

    def send_deferred(self, size: int, make: Callable[[], Awaitable[bytes]]) -> None:
        """Send a frame of about `size` bytes that `make` returns once the frames before it have been sent."""
        self._out.send_later(DeferredFrame(size, make))

    def reply_for_batch(self, answers: Answer, share: Share | None) -> None:
        """Send the answers of a batch, if there are any; `share` is their share of the budget."""
        if answers:
            self.reply(answers)
        if share is not None:
            self.reservations.hold_until_sent(share, json_length(answers))

    # Requests to the client

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        result_type: Any = Any,
        withdraws: Callable[[], bool] | None = None,
    ) -> Any:
        """Send a request to the client and wait for its result, decoded as `result_type`.

        Raises RemoteError (an error answer, or a result of another type), PeerGone, or trio.TooSlowError after
        `timeout` seconds. On timeout and cancellation `$/cancelRequest` is sent, unless `withdraws()` says no.
        """
        return await self._outgoing.ask(method, params, timeout, result_type, withdraws)

    def _send_request(self, text: bytes) -> int:
        """Queue a request to the client; the position of its end in the stream of all bytes sent."""
        self.reply(text)
        return self._out.end

    def _may_have_read(self, end: int) -> bool:
        """Whether the client, which has closed, may have read the frame that ends at this position."""
        return self._out.may_have_left(end) and not (self._out.is_last(end) and self._link.has_left_unread())

    def settle(self, answer: Envelope) -> None:
        """Hand an answer of the client to the request that waits for it."""
        self._outgoing.settle(answer)

    def salvage(self, frame: bytes, error: SessiondError, codec: CodecName = "json") -> bool:
        """As `OutgoingRequests.salvage`."""
        return self._outgoing.salvage(frame, error, codec, self._limits.max_nesting)

    # Requests from the client

    @property
    def has_open_turns(self) -> bool:
        """Whether an `ordered` request has not been accepted yet, so that later ones have to wait."""
        return bool(self._turns)

    def add(self, request: InFlight) -> None:
        """Note a request in flight. A long message keeps its budget share until the answer."""
        self.pending[request.key] = request
        request.held = self.reservations.hand_over()

    def start(self, request: R, run: Callable[[R], Awaitable[None]], *, before_auth: bool) -> None:
        """Run a request in a task of its own. While one of `before_auth` runs, no more messages are read."""
        self.add(request)
        try:
            self.nursery.start_soon(run, request)
        except BaseException:
            self.request_finished(request)
            raise
        self._paused_for_auth = self._paused_for_auth or before_auth

    def take_turn(self) -> OrderedTurn:
        """A turn behind all requests of this connection whose order is not settled yet."""
        return OrderedTurn(self._turns)

    def request_finished(self, pending: InFlight) -> None:
        """Forget a request that was answered, and free the budget share of its message."""
        del self.pending[pending.key]
        if pending.held is not None:
            pending.held.release()
        if not self.pending:
            self._idle.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        while self.pending:
            await self._idle.park()

    def stop_requests(self) -> None:
        """Answer every request in flight with -32008 (stopping) now.

        `begun: true` in the error data says that the request had begun, so that what it was writing may be stored. A
        request that was refused before it began has no `begun`.
        """
        for pending in list(self.pending.values()):
            pending.cancel(stopped_early())

    def close(self) -> None:
        """End the connection now."""
        self._out.break_off()

    async def run(self) -> None:
        """Serve the connection until it ends; the caller closes the stream afterwards."""
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                nursery.start_soon(self._write)
                if await self._read():
                    await self._send_remaining_answers()
                nursery.cancel_scope.cancel()
        except* PeerGone:
            pass  # raised by the pump of a subscription that waits for room on a broken connection
        finally:
            self._out.break_off()
            self.reservations.release()
            self._outgoing.end(self._may_have_read)
            self.closed.set()
            for callback in self._callbacks:
                callback()

    async def _write(self) -> None:
        await self._out.run()
        self.nursery.cancel_scope.cancel()

    async def _read(self) -> bool:
        """Handle messages until the client ends its sending half; False where the whole connection is closed."""
        try:
            return await self._read_messages()
        except MemoryError:
            # In the middle of a message: what follows cannot be told from it, so this is the last answer.
            self._out.uncork()
            self.reply(encode_failure(None, no_memory()))
            return True

    async def _read_messages(self) -> bool:
        while True:
            try:
                frames = await self._link.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            except SessiondError as error:
                self.reply(encode_failure(None, error))
                return True
            if not frames:
                return True
            if self._on_first_message is not None:
                self._on_first_message()
                self._on_first_message = None
            self.reservations.shrink_to_messages(frames)
            for start in range(0, len(frames), _MESSAGES_PER_TURN):
                if start:
                    await trio.lowlevel.checkpoint()
                await self.wait_turn()
                some = frames[start : start + _MESSAGES_PER_TURN] if len(frames) > _MESSAGES_PER_TURN else frames
                await self._handle_frames(some)
            del frames, some  # or an idle connection would keep its last message, without a share
            self.reservations.release()

    async def reserve_message(self, limit: int) -> None:
        """As `ConnectionReservations.reserve_message`."""
        await self.reservations.reserve_message(limit)

    async def wait_turn(self) -> None:
        """Wait for a turn in the event loop; the owner never waits."""
        if self._caller.kind != "owner":
            await self._dispatcher.pace.turn()

    async def _handle_frames(self, frames: list[bytes]) -> None:
        out = self._out
        out.cork()
        for place, frame in enumerate(frames):
            if place and len(frame) > _OWN_TURN_BYTES:
                await trio.lowlevel.checkpoint()
                await self.wait_turn()
            try:
                text = await to_json(self._link.codec, frame)
            except SessiondError as error:
                if not self.salvage(frame, error, self.codec):
                    self.reply(encode_failure(None, error))
                continue
            if len(text) < LONG_BYTES and not text.startswith(b"["):
                self._dispatcher.accept(self, text)
            else:
                await self._dispatcher.accept_slowly(self, text)
                self.reservations.release()
            if self._paused_for_auth or out.queued_bytes > _PAUSE_BYTES:
                out.uncork()
                await self._wait_readable()
                out.cork()
        out.uncork()
        if out.queued_bytes > _PAUSE_BYTES:
            await self._wait_readable()

    async def _wait_readable(self) -> None:
        """Wait while a request of `before_auth` runs, and while too many answers are unsent."""
        if self._paused_for_auth:
            await self.wait_idle()
            self._paused_for_auth = False
        if self._out.queued_bytes > _PAUSE_BYTES and not self._out.broken:
            try:
                await self._out.wait_drained(_PAUSE_BYTES)
            except PeerGone:
                return

    async def _send_remaining_answers(self) -> None:
        """Finish and send the answers to a client that ended its sending half, as `printf ... | socat` does."""
        self._outgoing.end()
        while self.pending and not self._link.has_hung_up():
            with trio.move_on_after(_HANGUP_CHECK_S):
                await self.wait_idle()
        if self._link.has_hung_up():
            return
        with trio.move_on_after(_REMAINING_ANSWERS_S):
            try:
                await self._out.wait_drained()
            except PeerGone:
                return

    def _set_limit(self) -> None:
        stranger = self._caller.kind == "nobody"
        limits = self._limits
        self._link.limit = limits.max_pre_auth_frame_bytes if stranger else limits.max_frame_bytes
