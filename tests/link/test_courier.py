"""Messages in their envelopes: what is valid is handed over, everything else is dropped, acknowledged and counted."""

from __future__ import annotations

from typing import Any

import pytest
from support.link_stand_ins import run_until

from sessiond.link.courier import Courier
from sessiond.link.envelope import Envelopes, PeerMessage
from sessiond.link.failures import BusError
from sessiond.link.identity import new_identity
from sessiond.link.subjects import parse_subject

LAP, MARS, MOON = new_identity(), new_identity(), new_identity()
ENVELOPES = {
    "lap": Envelopes("lap", LAP, {"mars": MARS.public}),
    "mars": Envelopes("mars", MARS, {"lap": LAP.public}),
    # Who says that it is lap, with another key.
    "forger": Envelopes("lap", MOON, {"mars": MARS.public}),
}


class StandInArrival:
    def __init__(self, subject: str, data: bytes) -> None:
        self.address, self.data, self.acked = parse_subject(subject), data, 0

    async def ack(self) -> None:
        self.acked += 1


class StandInBus:
    """Both ends of a server: what one courier publishes or asks, `other` gets."""

    def __init__(self) -> None:
        self.other: StandInBus = self
        self.handlers: dict[str, Any] = {}
        self.answerer: Any = None
        self.published: list[tuple[str, bytes]] = []
        self.replies: list[bytes] = []

    async def publish(self, subject: str, data: bytes, *, msg_id: str | None = None) -> bool:
        self.published.append((subject, data))
        return True

    async def request(self, machine: str, data: bytes, *, timeout_s: float = 1.0) -> bytes:
        reply = await self.other.answerer("lap", data)
        if reply is None:
            raise BusError("timeout", "no answer")
        self.replies.append(reply)
        return self.replies[0]

    def consume(self, kind: str, handler: Any) -> None:
        self.handlers[kind] = handler

    def answer(self, answerer: Any, senders: Any) -> None:
        self.answerer = answerer


class Ends:
    def __init__(self, sender: str = "lap") -> None:
        self.lap_bus, self.mars_bus = StandInBus(), StandInBus()
        self.lap_bus.other, self.mars_bus.other = self.mars_bus, self.lap_bus
        self.drops: list[int] = []
        self.lap = Courier(self.lap_bus, ENVELOPES[sender], list)
        self.mars = Courier(self.mars_bus, ENVELOPES["mars"], lambda: self.drops.append(1))
        self.taken: list[tuple[str, str, bytes]] = []
        self.mars.consume("cmd", self._take)

    async def _take(self, message: PeerMessage, arrival: Any) -> None:
        self.taken.append((message.sender, message.id, message.payload))

    async def deliver(self, subject: str, data: bytes) -> StandInArrival:
        arrival = StandInArrival(subject, data)
        await self.mars_bus.handlers["cmd"](arrival)
        return arrival


def test_a_message_is_handed_over_as_it_was_sent_and_its_handler_acknowledges() -> None:
    async def body() -> None:
        ends = Ends()
        assert await ends.lap.send("mars", "cmd", "r1", {"part": 0}, b"payload")
        arrival = await ends.deliver(*ends.lap_bus.published[0])
        assert ends.taken == [("lap", "r1", b"payload")] and arrival.acked == 0 and not ends.drops

    run_until(body)


def test_what_has_no_valid_box_is_dropped_acknowledged_and_counted() -> None:
    async def body() -> None:
        ends, forger = Ends(), Ends("forger")
        await ends.lap.send("mars", "cmd", "r1")
        await ends.lap.send("mars", "ans", "r1")
        await forger.lap.send("mars", "cmd", "r1")
        (subject, good), (_, answer), (_, forged) = (*ends.lap_bus.published, *forger.lap_bus.published)
        for data in (forged, answer, b"", good[:-1], good + b"x"):
            assert (await ends.deliver(subject, data)).acked == 1
        other = subject.rpartition(".")[0] + "." + "0" * 32
        assert (await ends.deliver(other, good)).acked == 1
        assert not ends.taken and len(ends.drops) == 6
        assert dict(ends.mars.dropped) == {"signature": 3, "kind": 1, "form": 1, "token": 1}

    run_until(body)


def test_a_question_is_answered_and_an_old_reply_is_no_answer_to_a_new_one() -> None:
    async def body() -> None:
        ends = Ends()

        async def pong(message: PeerMessage) -> tuple[object, bytes]:
            return {}, message.id.encode()

        ends.mars.answer("ping", pong)
        assert (await ends.lap.ask("mars", "ping:1")).payload == b"ping:1"
        with pytest.raises(BusError, match="what came for mars was not its reply"):
            await ends.lap.ask("mars", "ping:2")  # the stand-in gives the first reply again
        assert dict(ends.lap.dropped) == {"content": 1}

    run_until(body)


def test_a_question_of_a_stranger_or_of_an_unknown_kind_gets_no_reply() -> None:
    async def body() -> None:
        for ends, question in ((Ends("forger"), "ping:1"), (Ends(), "what:1")):
            ends.mars.answer("ping", None)  # type: ignore[arg-type]  # not reached
            with pytest.raises(BusError, match="no answer"):
                await ends.lap.ask("mars", question)

    run_until(body)


def test_an_empty_question_finds_out_that_somebody_listens_and_counts_as_nothing_wrong() -> None:
    async def body() -> None:
        ends = Ends()
        assert ends.mars_bus.answerer is not None
        assert await ends.mars_bus.answerer("lap", b"") is None
        assert (dict(ends.mars.dropped), ends.drops) == ({}, [])
        assert await ends.mars_bus.answerer("lap", b"x") is None
        assert dict(ends.mars.dropped) == {"form": 1}

    run_until(body)


def test_a_machine_asks_in_its_own_name_alone() -> None:
    async def body() -> None:
        ends = Ends()
        ends.mars.answer("ping", None)  # type: ignore[arg-type]  # not reached
        asked = ENVELOPES["lap"].pack("mars", "req", "ping:1")
        assert await ends.mars_bus.answerer("moon", asked) is None
        assert dict(ends.mars.dropped) == {"sender": 1}

    run_until(body)


def test_what_cannot_be_packed_says_why() -> None:
    async def body() -> None:
        ends = Ends()
        with pytest.raises(BusError, match="1000000 are the most"):
            await ends.lap.send("mars", "cmd", "r1", None, bytes(1_000_000))
        sealing = Envelopes("lap", LAP, {"mars": MARS.public}, encrypt=True)
        courier = Courier(StandInBus(), sealing, list)
        with pytest.raises(BusError, match=r"moon is no machine in the configuration \(any more\)"):
            await courier.send("moon", "cmd", "r1")

    run_until(body)
