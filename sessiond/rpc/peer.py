"""One connection as seen from inside: a read loop, a writer that mostly sleeps, and a task for each waiting request.

Knows messages and links; knows no dialect, no method and no session. A broken connection ends its own requests and
nothing else: no exception of a connection leaves `run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import trio

from sessiond.errors import SessiondError, Stopping
from sessiond.model.caller import Caller
from sessiond.rpc.answer_pieces import Answer, frame_pieces, length
from sessiond.rpc.budget import Budgets, Share
from sessiond.rpc.codecs import CodecName, from_json, to_json
from sessiond.rpc.in_flight import InFlight, OrderedTurn
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.link import Link
from sessiond.rpc.messages import Envelope, encode_call, encode_failure
from sessiond.rpc.outgoing_requests import OutgoingRequests
from sessiond.rpc.pace import Pace
from sessiond.rpc.reservations import Reserved
from sessiond.rpc.sending import PeerGone, Piecewise, SendQueue, Unmade

R = TypeVar("R", bound=InFlight)

_PAUSE_BYTES = 1024 * 1024  # of unread answers, above which no more requests are read
_TURN = 64  # messages handled before other connections get their turn: 64 pings take a third of a millisecond
# A message of so many bytes has a turn of its own: a thousand tiny messages in one take twenty milliseconds.
_LARGE_BYTES = 4 * 1024
_HANGUP_CHECK_S = 1.0  # a half-closed client may still vanish; nothing but asking tells
_LAST_WORDS_S = 30.0  # for a client that asked, half-closed and does not read its answers


class MessageHandler(Protocol):
    """What a connection hands its messages to: the dispatcher. It never raises."""

    @property
    def limits(self) -> Limits: ...
    @property
    def budgets(self) -> Budgets: ...
    @property
    def pace(self) -> Pace: ...

    def accept(self, peer: Peer, message: bytes) -> None:
        """Take one message, which is no batch and not long."""
        ...

    async def accept_slowly(self, peer: Peer, message: bytes) -> None:
        """Take a batch or a long message; others get their turn meanwhile."""
        ...


class Peer:
    """One client.

    `caller` may be set (by `initialize`); the frame limit of strangers then falls away. `nursery` is there while `run`
    runs: what is started in it ends with the connection. `pending` are the requests in flight by id. `lasting` is false
    for the single exchange of `POST /rpc`. `meta_caller` turns the `_meta` of a request into another caller.
    """

    def __init__(self, link: Link, dispatcher: MessageHandler, caller: Caller, *, lasting: bool = True) -> None:
        self.lasting = lasting
        self.pending: dict[object, InFlight] = {}
        self.closed = trio.Event()
        self.nursery: trio.Nursery
        self.meta_caller: Callable[[Mapping[str, Any]], Caller] | None = None
        self.on_caller: Callable[[Caller], None] | None = None
        self.on_message: Callable[[], None] | None = None
        self._link = link
        self._dispatcher = dispatcher
        self._limits = dispatcher.limits
        self._out = SendQueue(link)
        self._idle = trio.lowlevel.ParkingLot()
        self._hold = False
        self._asking = OutgoingRequests(self._ask, lambda: self._out.broken)
        self._line: dict[OrderedTurn, None] = {}
        self._callbacks: list[Callable[[], None]] = []
        self.reserved = Reserved(self, self._out, dispatcher.budgets)
        link.before_long = self.reserved.before_long
        link.before_piece = self._turn
        self._caller = caller
        self._set_limit()

    @property
    def caller(self) -> Caller:
        return self._caller

    @caller.setter
    def caller(self, caller: Caller) -> None:
        if self.on_caller is not None:
            self.on_caller(caller)  # it may refuse: then nothing has changed
        self._caller = caller
        self._set_limit()

    @property
    def codec(self) -> CodecName:
        """The codec of this connection, by which shared frames are chosen."""
        return self._link.codec.name

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted for sending that the system has not yet taken."""
        return self._out.queued_bytes

    def caller_for(self, meta: Mapping[str, Any]) -> Caller:
        """Whose a request with this `_meta` is."""
        return self._caller if self.meta_caller is None else self.meta_caller(meta)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection is gone (at once, if it is)."""
        if self.closed.is_set():
            callback()
        else:
            self._callbacks.append(callback)

    # Sending

    def send_nowait(self, frame: bytes) -> bool:
        """Send a frame that `encode_notification` made; True when the system took all of it at once.

        What does not fit is queued and never dropped: look at `queued_bytes`, or await `drained`, before sending more.
        """
        return self._out.send(frame)

    def encode_notification(self, method: str, params: Any) -> bytes:
        """A frame for `send_nowait`, the same for every peer with this `codec`."""
        return self._link.codec.from_json(encode_call(method, params))

    async def encode_slowly(self, method: str, params: Any) -> bytes:
        """As `encode_notification`; others get their turn while a long one is made."""
        return await from_json(self._link.codec, encode_call(method, params), self._dispatcher.pace)

    def notify(self, method: str, params: Any) -> bool:
        """Send a notification; as `send_nowait`."""
        return self._out.send(self.encode_notification(method, params))

    async def wait_drained(self, below: int = 1) -> None:
        """Wait until fewer than `below` bytes are queued. Raises PeerGone where the connection broke."""
        await self._out.wait_drained(below)

    def reply(self, answer: Answer) -> None:
        """Send an answer, given as JSON text: a long one in pieces, each made when the one before it has been sent."""
        codec = self._link.codec
        if isinstance(answer, bytes) and len(answer) < codec.slow_answer_bytes:
            self._out.send(codec.from_json(answer))
        else:
            turn = trio.lowlevel.checkpoint if self._caller.kind == "owner" else self._dispatcher.pace.turn
            self._out.send_later(Piecewise(length(answer), frame_pieces(answer, codec), turn))

    def send_made_later(self, size: int, make: Callable[[], Awaitable[bytes]]) -> None:
        """Send a frame of about `size` bytes that takes long to make; it keeps its place among the others."""
        self._out.send_later(Unmade(size, make))

    def reply_for_batch(self, answers: Answer, share: Share | None) -> None:
        """Send the answers of a batch, if there are any; `share` is what they have of the budget."""
        if answers:
            self.reply(answers)
        if share is not None:
            self.reserved.answer_queued(share, length(answers))

    # Requests of ours

    async def request(self, method: str, params: Any, *, timeout: float | None = None, result_type: Any = Any) -> Any:
        """Ask the client, and wait for its answer, decoded as `result_type`.

        Raises RemoteError (it answered with an error, or not what was asked for), PeerGone, or trio.TooSlowError after
        `timeout` seconds. A wait that is given up, by time or cancellation, sends `$/cancelRequest`.
        """
        return await self._asking.ask(method, params, timeout, result_type)

    def _ask(self, text: bytes) -> int:
        """Send a request of ours; where it ends among all that was ever sent."""
        self.reply(text)
        return self._out.end

    def _may_have_read(self, end: int) -> bool:
        """Whether the other side, which is gone, may have read what ends there: it left, and was not left unread."""
        return self._out.may_have_left(end) and not (self._out.is_last(end) and self._link.has_left_unread())

    def settle(self, answer: Envelope) -> None:
        """An answer to a request of ours has come in."""
        self._asking.settle(answer)

    def salvage(self, frame: bytes, error: SessiondError, codec: CodecName = "json") -> bool:
        """As `Asking.salvage`."""
        return self._asking.salvage(frame, error, codec, self._limits.max_nesting)

    # Requests of the client

    @property
    def has_line(self) -> bool:
        """Whether a request is still to be accepted that later ones may not overtake."""
        return bool(self._line)

    def add(self, request: InFlight) -> None:
        """A request is in flight. A long message keeps its share until it is answered."""
        self.pending[request.key] = request
        request.held = self.reserved.hand_on()

    def start(self, request: R, run: Callable[[R], Awaitable[None]], *, before_auth: bool) -> None:
        """Give a request its task. While one of `before_auth` runs, nothing more is read."""
        self.add(request)
        self._hold = self._hold or before_auth
        self.nursery.start_soon(run, request)

    def join_line(self) -> OrderedTurn:
        """A turn behind all requests of this connection that are still to be accepted in order."""
        return OrderedTurn(self._line)

    def request_finished(self, pending: InFlight) -> None:
        del self.pending[pending.key]
        if pending.held is not None:
            pending.held.release()
        if not self.pending:
            self._idle.unpark_all()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        while self.pending:
            await self._idle.park()

    def stop_waits(self) -> None:
        """The daemon stops: every request in flight is answered with -32008 now.

        What one of them has handed to the disk may still be stored: `begun` tells it from a request that was refused.
        """
        for pending in list(self.pending.values()):
            pending.cancel(
                Stopping(
                    "The daemon is stopping before this has ended: it may have been done or not. Look first when it is"
                    " back, unless doing it twice is no harm.",
                    begun=True,
                )
            )

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
                    await self._answer_the_rest()
                nursery.cancel_scope.cancel()
        except* PeerGone:
            pass  # what a subscription's pump learns when it waits for room on a broken connection
        finally:
            self._out.break_off()
            self.reserved.release()
            self._asking.end(self._may_have_read)
            self.closed.set()
            for callback in self._callbacks:
                callback()

    async def _write(self) -> None:
        await self._out.run()
        self.nursery.cancel_scope.cancel()

    async def _read(self) -> bool:
        """Take messages until the client ends its half. False where the whole connection is gone."""
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
            if self.on_message is not None:
                self.on_message()
            self.reserved.is_whole(frames)
            for start in range(0, len(frames), _TURN):
                if start:
                    await trio.lowlevel.checkpoint()
                await self._turn()
                await self._take(frames[start : start + _TURN] if len(frames) > _TURN else frames)
            self.reserved.release()

    async def _turn(self) -> None:
        """Wait while strangers have had all of this turn of the loop; the owner never waits."""
        if self._caller.kind != "owner":
            await self._dispatcher.pace.turn()

    async def _take(self, frames: list[bytes]) -> None:
        out = self._out
        out.cork()
        for place, frame in enumerate(frames):
            if place and len(frame) > _LARGE_BYTES:
                await trio.lowlevel.checkpoint()
                await self._turn()
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
                self.reserved.release()
            if self._hold or out.queued_bytes > _PAUSE_BYTES:
                out.uncork()
                await self._wait_readable()
                out.cork()
        out.uncork()
        if out.queued_bytes > _PAUSE_BYTES:
            await self._wait_readable()

    async def _wait_readable(self) -> None:
        """Wait while the client has to be known first, or to read its answers first."""
        if self._hold:
            await self.idle()
            self._hold = False
        if self._out.queued_bytes > _PAUSE_BYTES and not self._out.broken:
            try:
                await self._out.wait_drained(_PAUSE_BYTES)
            except PeerGone:
                return

    async def _answer_the_rest(self) -> None:
        """The client has ended its half (`printf ... | socat`): it still gets what it asked for."""
        self._asking.end()
        while self.pending and not self._link.has_hung_up():
            with trio.move_on_after(_HANGUP_CHECK_S):
                await self.idle()
        if self._link.has_hung_up():
            return
        with trio.move_on_after(_LAST_WORDS_S):
            try:
                await self._out.wait_drained()
            except PeerGone:
                return

    def _set_limit(self) -> None:
        stranger = self._caller.kind == "nobody"
        limits = self._limits
        self._link.limit = limits.max_pre_auth_frame_bytes if stranger else limits.max_frame_bytes
