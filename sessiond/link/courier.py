"""Messages between machines, packed for one and opened from one: the bus with envelopes around it.

    courier.consume("cmd", take)          # take(message, arrival), for every valid envelope
    courier.answer("ping", pong)          # for questions with that id
    await courier.send("mars", "cmd", run_id, PartOf(), body)
    reply = await courier.ask("mars", "ping")

What is no valid envelope is dropped, acknowledged and counted by its reason. Knows no kind of message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from sessiond.link.bus import REQUEST_TIMEOUT_S, Arrival, Handler
from sessiond.link.envelope import Envelopes, PeerMessage, Refused
from sessiond.link.failures import BusError
from sessiond.link.question_lanes import Answerer
from sessiond.link.subjects import REPLY, REQUEST, Kind, stream_subject

log = structlog.get_logger("sessiond.link")

# What is done with a message: the handler has to acknowledge the arrival, or let it come again.
Taker = Callable[[PeerMessage, Arrival], Awaitable[None]]
# The fields and the payload of the reply to a question; None: none.
Replier = Callable[[PeerMessage], Awaitable[tuple[object, bytes] | None]]


class MessageServer(Protocol):
    """The part of `Bus` that is used here."""

    async def publish(self, subject: str, data: bytes, *, msg_id: str | None = None) -> bool: ...
    async def request(self, machine: str, data: bytes, *, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes: ...
    def consume(self, kind: Kind, handler: Handler) -> None: ...
    def answer(self, answerer: Answerer, senders: Iterable[str]) -> None: ...


class Courier:
    """`dropped` counts what was dropped, by reason; `on_drop()` is called for each."""

    def __init__(self, bus: MessageServer, envelopes: Envelopes, on_drop: Callable[[], object]) -> None:
        self.dropped: Counter[str] = Counter()
        self._bus, self._envelopes, self._on_drop = bus, envelopes, on_drop
        self._repliers: dict[str, Replier] = {}
        bus.answer(self._reply, envelopes.peers)

    async def send(
        self,
        peer: str,
        kind: Kind,
        identity: str,
        fields: object = None,
        payload: bytes = b"",
        *,
        msg_id: str | None = None,
    ) -> bool:
        """Whether the stream has stored it now; False where it had the same `msg_id` lately. BusError."""
        with _pack_errors(peer):
            data = self._envelopes.pack(peer, kind, identity, fields, payload)
        return await self._bus.publish(stream_subject(self._envelopes.name, peer, kind, identity), data, msg_id=msg_id)

    async def ask(
        self,
        peer: str,
        question: str,
        fields: object = None,
        payload: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> PeerMessage:
        """The peer's reply. BusError `nobody` where it is not there, `refused` where the reply is not its own."""
        with _pack_errors(peer):
            data = self._envelopes.pack(peer, REQUEST, question, fields, payload)
        reply = self._envelopes.open(await self._bus.request(peer, data, timeout_s=timeout_s), REPLY, sender=peer)
        if isinstance(reply, Refused) or reply.id != question:
            self.drop(
                reply if isinstance(reply, Refused) else Refused("content", f"{peer} has replied to another question")
            )
            raise BusError("refused", f"what came for {peer} was not its reply")
        return reply

    def consume(self, kind: Kind, take: Taker) -> None:
        """Hand over every valid message of the kind, one after the other."""

        async def handle(arrival: Arrival) -> None:
            found = self._envelopes.open_at(arrival.address, arrival.data)
            if isinstance(found, Refused):
                self.drop(found)
                await arrival.ack()
                return
            await take(found, arrival)

        self._bus.consume(kind, handle)

    def answer(self, question: str, reply: Replier) -> None:
        """Answer the questions with that id, or that begin with it and a colon."""
        self._repliers[question] = reply

    async def _reply(self, sender: str, data: bytes) -> bytes | None:
        if not data:
            return None  # how `link check` sees that somebody listens: nothing that was spoiled or forged
        asked = self._envelopes.open(data, REQUEST, sender=sender)
        if isinstance(asked, Refused):
            self.drop(asked)
            return None
        replier = self._repliers.get(asked.id.partition(":")[0])
        said = await replier(asked) if replier is not None else None
        return None if said is None else self._envelopes.pack(asked.sender, REPLY, asked.id, *said)

    def drop(self, refused: Refused) -> None:
        """Count a message that is dropped."""
        self.dropped[refused.reason] += 1
        self._on_drop()
        count = self.dropped[refused.reason]
        if count & (count - 1) == 0:  # a flood of them is one line for each power of two
            log.warning("message dropped", reason=refused.reason, why=refused.sentence, dropped=count)


@contextmanager
def _pack_errors(peer: str) -> Iterator[None]:
    """Why a message cannot be packed, as BusError."""
    try:
        yield
    except KeyError:
        raise BusError("nobody", f"{peer} is no machine in the configuration (any more)") from None
    except ValueError as error:
        raise BusError("too_large", str(error)) from None
