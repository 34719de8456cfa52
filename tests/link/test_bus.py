"""The bus against a real nats-server: open, with TLS and with nkeys."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.buses import Watched, bus_of, flush_whole
from support.link_stand_ins import until
from support.nats_server import Mode, NatsServer
from support.patience import PATIENCE_S
from support.sampling import pick

from sessiond.link import bus as bus_module
from sessiond.link import question_lanes
from sessiond.link.bus import Arrival, BusState, open_bus
from sessiond.link.connecting import ServerSettings, connect_once, make_client, options_of
from sessiond.link.envelope import Envelopes, Refused
from sessiond.link.failures import BusError, LinkError
from sessiond.link.identity import new_identity
from sessiond.link.server_setup import set_up, wanted_consumer
from sessiond.link.subjects import Address, Kind, stream_subject, token_of

REC = stream_subject("lap", "mars", "rec", "session")
MODES = pytest.mark.parametrize("mode", pick(["open", "tls", "nkeys"], __name__))


def run(test: object) -> None:
    asyncio.run(test)  # type: ignore[arg-type]


async def refuse(work: object) -> BusError:
    with pytest.raises(BusError) as refused:
        await work  # type: ignore[misc]
    return refused.value


def test_a_refused_subject_is_no_new_connection() -> None:
    away, there = BusState(trouble="lost"), BusState(connected=True, server_version="2.10")
    refused = BusState(connected=True, server_version="2.10", trouble="not let to subscribe")
    states = [away, there, refused, there, away, there]
    assert [state.is_back_after(before) for before, state in pairwise(states)] == [True, False, False, False, True]


@MODES
def test_a_message_arrives_once_and_a_machine_is_asked(nats_server: type[NatsServer], mode: Mode) -> None:
    server = nats_server(mode).start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars", "rec") as mars:
            stored = [await lap.bus.publish(REC, b"one", msg_id="1") for _ in range(2)]
            assert stored == [True, False]
            assert await lap.bus.publish(REC, b"two")
            first, second = await mars.next(), await mars.next()
            assert (first.address, first.data) == (Address("lap", "mars", "rec", token_of("session")), b"one")
            assert second.data == b"two"

            async def answer(sender: str, question: bytes) -> bytes | None:
                return b"answer to " + question if question else None

            mars.bus.answer(answer, ["lap"])
            await answered_by(mars, lap)
            assert await lap.bus.request("mars", b"q") == b"answer to q"
            assert (await refuse(mars.bus.request("lap", b"q"))).trouble == "nobody"
            assert (await refuse(lap.bus.request("mars", b"", timeout_s=0.1))).trouble == "timeout"
            assert [state.connected for state in lap.states] == [True]

    run(test())


async def answered_by(asked: Watched, asking: Watched) -> None:
    """Until the machine that began to answer after it was connected has told the server so."""
    assert asked.bus.state.connected
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(BusError):
                await asking.bus.request(asked.bus.machine, b"q")
                return


def test_a_machine_that_floods_this_one_with_questions_is_not_heard_for_a_while_and_the_others_are(
    nats_server: type[NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = nats_server("open", "lap", "mars", "moon").start()
    monkeypatch.setattr(question_lanes, "REST_S", 1e9)

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars") as mars, bus_of(server, "moon") as moon:
            is_free, asked = asyncio.Event(), Counter[str]()

            async def answer(sender: str, question: bytes) -> bytes | None:
                asked[sender] += 1
                if sender == "lap":
                    await is_free.wait()
                return b"answer"

            is_free.set()
            mars.bus.answer(answer, ["lap", "moon"])
            await answered_by(mars, lap)
            is_free.clear()
            asked.clear()
            flood = Client()
            await flood.connect(server.url)
            for number in range(2000):
                await flood.publish("ask.mars.lap", bytes(question_lanes.MAX_QUESTION_BYTES + number % 2))
            await flush_whole(flood)
            assert await moon.bus.request("mars", b"q") == b"answer"
            async with asyncio.timeout(PATIENCE_S):
                while (await refuse(lap.bus.request("mars", b"q", timeout_s=0.1))).trouble != "nobody":
                    pass  # until the server knows that nobody listens
            assert await moon.bus.request("mars", b"q") == b"answer"
            is_free.set()
            assert await moon.bus.request("mars", b"q") == b"answer"
            assert asked["lap"] <= question_lanes.MOST_WAITING + 1
            await flood.close()

    run(test())


def test_arrivals_that_nobody_takes_are_kept_to_a_limit(nats_server: type[NatsServer]) -> None:
    """A server delivers again, every 30 seconds, what a disk that hangs has not acknowledged."""
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        admin = await connect_once(server.settings())
        consumer = wanted_consumer("mars", "rec")
        consumer.max_ack_pending = 1000
        await admin.jsm().add_consumer("X", consumer)
        await admin.end()
        async with bus_of(server, "lap") as lap, bus_of(server, "mars") as mars:
            is_free, taken = asyncio.Event(), list[bytes]()

            async def take(arrival: Arrival) -> None:
                await is_free.wait()
                await arrival.ack()
                taken.append(arrival.data)

            mars.bus.consume("rec", take)
            for number in range(200):
                await lap.bus.publish(REC, b"%d" % number)
            client = mars.bus._client
            assert client is not None
            await flush_whole(client)  # whatever the server had for it has come
            assert mars.bus._queues["rec"].qsize() <= 64
            is_free.set()
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: len(taken) == 200)
            assert taken == [b"%d" % number for number in range(200)]

    run(test())


def test_what_was_not_acknowledged_comes_again_when_it_is_asked_for(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars") as mars:
            mars.take("cmd", acknowledge=False)
            await lap.bus.publish(stream_subject("lap", "mars", "cmd", "1"), b"do")
            for _ in range(3):
                arrival = await mars.next()
                assert arrival.data == b"do"
                await arrival.retry(0.01)
            arrival = await mars.next()
            await arrival.ack()
            await lap.bus.publish(stream_subject("lap", "mars", "cmd", "2"), b"other")
            assert (await mars.next()).data == b"other"

    run(test())


def test_each_kind_has_its_own_line_and_other_machines_do_not_see_it(nats_server: type[NatsServer]) -> None:
    server = nats_server("open", "lap", "mars", "moon").start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with (
            bus_of(server, "lap") as lap,
            bus_of(server, "mars", "rec", "ask") as mars,
            bus_of(server, "moon", "rec", "ask") as moon,
        ):
            kinds: tuple[Kind, ...] = ("rec", "ask")
            for receiver in ("mars", "moon"):
                for kind in kinds:
                    await lap.bus.publish(stream_subject("lap", receiver, kind, "s"), f"{receiver} {kind}".encode())
            for watched, name in ((mars, "mars"), (moon, "moon")):
                came = {(await watched.next()).data for _ in kinds}
                assert came == {f"{name} {kind}".encode() for kind in kinds}
                assert watched.arrived.empty()

    run(test())


def test_a_slow_handler_of_one_kind_does_not_hold_up_another(nats_server: type[NatsServer]) -> None:
    """A live message behind a catch-up of gigabytes in the same consumer waited for more than a second."""
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars", "rec") as mars:
            begun, done = asyncio.Event(), asyncio.Event()

            async def work(arrival: Arrival) -> None:
                begun.set()
                await done.wait()
                await arrival.ack()

            mars.bus.consume("ask", work)
            await lap.bus.publish(stream_subject("lap", "mars", "ask", "s"), b"long")
            async with asyncio.timeout(PATIENCE_S):
                await begun.wait()
            await lap.bus.publish(REC, b"live")
            assert (await mars.next()).data == b"live"
            done.set()

    run(test())


def test_a_server_that_is_killed_comes_back_and_nothing_is_lost(nats_server: type[NatsServer]) -> None:
    server = nats_server("tls").start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars", "rec") as mars:
            seen: list[bytes] = []

            async def take(wanted: bytes) -> None:
                # One whose acknowledgement was killed with the server comes again.
                while not seen or seen[-1] != wanted:
                    came = (await mars.next()).data
                    assert came == wanted or came in seen
                    seen.append(came)

            for round_ in range(3):
                await lap.bus.publish(REC, b"%d before" % round_)
                await take(b"%d before" % round_)
                server.kill()
                await lap.state(lambda state: not state.connected)
                await mars.state(lambda state: not state.connected)
                refused = await refuse(lap.bus.publish(REC, b"while it is away"))
                assert (refused.trouble, "server 127.0.0.1" in refused.message) == ("unreachable", True)
                server.start()
                await lap.state(lambda state: state.connected)
                await lap.bus.publish(REC, b"%d after" % round_)
                await take(b"%d after" % round_)

    run(test())


def test_a_message_for_a_machine_that_is_away_waits_for_it(nats_server: type[NatsServer]) -> None:
    server = nats_server("nkeys").start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap:
            for number in range(200):
                await lap.bus.publish(REC, b"%d" % number)
            server.stop()
            server.start()
            async with bus_of(server, "mars", "rec") as mars:
                assert [int((await mars.next()).data) for _ in range(200)] == list(range(200))

    run(test())


def test_a_link_begins_before_its_server_and_says_what_it_waits_for(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()
    server.stop()

    async def test() -> None:
        async with bus_of(server, "lap", connected=False) as lap:
            state = await lap.state(lambda state: state.trouble is not None)
            assert not state.connected
            assert state.trouble == (
                f"the server 127.0.0.1:{server.port} is not reachable: nothing listens there; is nats-server running?"
            )
            server.start()
            assert (await lap.state(lambda state: state.connected)).server_version
            refused = await refuse(lap.bus.publish(REC, b""))
            assert refused.trouble == "no_stream"
            assert "has no stream X (any more), or JetStream is off" in refused.message

    run(test())


def test_a_missing_consumer_is_said_and_served_as_soon_as_it_is_made(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), ["lap"])
        async with bus_of(server, "lap") as lap, bus_of(server, "mars", "rec") as mars:
            state = await mars.state(lambda state: state.trouble is not None)
            assert (state.connected, "the server has no consumer mars-rec" in str(state.trouble)) == (True, True)
            await lap.bus.publish(REC, b"waits")
            await set_up(server.settings(), server.machines)
            assert (await mars.next()).data == b"waits"
            await mars.bus.look()
            assert mars.bus.state.trouble is None

    run(test())


def test_a_full_stream_says_so_at_once_and_goes_on_when_there_is_room(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines, max_bytes=100_000)
        async with bus_of(server, "lap") as lap:
            await lap.bus.publish(REC, bytes(60_000))
            refused = await refuse(lap.bus.publish(REC, bytes(60_000)))
            assert (refused.trouble, refused.message) == (
                "full",
                "the stream X is full; its limit or the server's disk has to grow",
            )
            state = await lap.state(lambda state: state.trouble is not None)
            assert (state.connected, state.trouble) == (True, refused.message)
            async with bus_of(server, "mars", "rec") as mars:
                await mars.next()
                await emptied(server)
                assert await lap.bus.publish(REC, bytes(60_000))
                await lap.bus.look()
                assert lap.bus.state.trouble is None

    run(test())


def test_a_server_that_comes_back_without_its_stream_is_seen_and_so_is_its_mending(
    nats_server: type[NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_LOOK_SOON_S", 0.05)
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap", "rec") as lap:
            server.kill()
            await lap.state(lambda state: not state.connected)
            shutil.rmtree(server.store)
            server.store.mkdir()
            server.start()
            state = await lap.state(lambda state: state.connected and state.trouble is not None)
            assert "has no stream X (any more)" in str(state.trouble)
            await set_up(server.settings(), server.machines)
            await lap.state(lambda state: state.connected and state.trouble is None)

    run(test())


def test_a_server_that_stores_nothing_and_says_nothing_is_shown_until_it_does(
    nats_server: type[NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nats-server does whose disk was full."""
    monkeypatch.setattr(bus_module, "_LOOK_SOON_S", 0.05)
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap", "rec") as lap:
            assert server.process is not None
            monkeypatch.setattr(bus_module, "PUBLISH_TIMEOUT_S", 0.05)
            monkeypatch.setattr(bus_module, "REQUEST_TIMEOUT_S", 0.05)
            server.suspend()
            refused = await refuse(lap.bus.publish(REC, b"waits"))
            assert refused.trouble == "timeout" and "one whose disk was full stores nothing until" in refused.message
            state = await lap.state(lambda state: state.trouble is not None)
            assert (state.connected, state.trouble) == (True, refused.message)
            server.process.send_signal(signal.SIGCONT)
            monkeypatch.setattr(bus_module, "PUBLISH_TIMEOUT_S", 5.0)
            assert await lap.bus.publish(REC, b"again")
            await lap.state(lambda state: state.connected and state.trouble is None)

    run(test())


async def emptied(server: NatsServer) -> None:
    """Until the server has removed what was acknowledged."""
    client = await connect_once(server.settings())
    async with asyncio.timeout(PATIENCE_S):
        left = 1
        while left:
            left = (await client.jsm().stream_info("X")).state.messages
    await client.close()


def test_a_deleted_stream_is_said_in_words(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap", "rec") as lap:
            client = await connect_once(server.settings())
            await client.jsm().delete_stream("X")
            await client.close()
            refused = await refuse(lap.bus.publish(REC, b""))
            assert (refused.trouble, "has no stream X (any more)" in refused.message) == ("no_stream", True)
            # Nobody has to wait for the next look at all consumers.
            assert "has no stream X (any more)" in str(
                (await lap.state(lambda state: state.trouble is not None)).trouble
            )
            await set_up(server.settings(), server.machines)
            assert await lap.bus.publish(REC, b"again")
            await lap.bus.look()
            assert lap.bus.state.trouble is None

    run(test())


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_a_machine_may_publish_as_itself_alone_and_is_told_so(
    nats_server: type[NatsServer], mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = nats_server(mode).start()
    monkeypatch.setattr(bus_module, "PUBLISH_TIMEOUT_S", 0.5)

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap:
            forged = stream_subject("mars", "lap", "rec", "s")
            refused = await refuse(lap.bus.publish(forged, b""))
            assert (refused.trouble, refused.message) == (
                "forbidden",
                f"the server does not let lap publish to {forged}",
            )
            assert lap.bus.state.trouble == f'{refused.message}; see "sessiond link admin"'
            refused = await refuse(lap.bus.request("moon", b"", timeout_s=0.5))
            assert refused.trouble == "forbidden"

    run(test())


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_what_the_configuration_forbids_a_machine(nats_server: type[NatsServer], mode: Mode) -> None:
    """Each of these would let it read what is for others, speak for them, or have its way with the stream."""
    server = nats_server(mode).start()
    consumer = json.dumps({"stream_name": "X", "config": {"durable_name": "x", "ack_policy": "explicit"}})
    asked = {
        "$JS.API.CONSUMER.CREATE.X.x": consumer,
        "$JS.API.CONSUMER.DURABLE.CREATE.X.x": consumer,
        "$JS.API.CONSUMER.DELETE.X.mars-rec": "",
        "$JS.API.CONSUMER.INFO.X.mars-rec": "",
        "$JS.API.CONSUMER.MSG.NEXT.X.mars-rec": "",
        "$JS.API.STREAM.INFO.X": "",
        "$JS.API.STREAM.PURGE.X": "",
        "$JS.API.STREAM.DELETE.X": "",
        "$JS.API.STREAM.MSG.GET.X": '{"seq": 1}',
        "$JS.API.STREAM.MSG.DELETE.X": '{"seq": 1}',
        "$JS.API.DIRECT.GET.X": '{"seq": 1}',
        "$JS.ACK.X.mars-rec.1.1.1.1.0": "+ACK",
        "x.mars.lap.rec.0": "",
        "_INBOX.mars.rec": "",
        "ask.mars.moon": "",
        "x.lap.nobody.rec.0": "",
        "x.lap.lap.rec.0": "",
        "x.lap.mars.rec": "",
        "ask.lap.mars": "",
        "_INBOX.mars.a.b.c": "",
        "_INBOX.admin.a.b": "",
        "$JS.FC.X.mars-rec.1": "",
        "$JS.API.CONSUMER.PAUSE.X.mars-rec": "{}",
        "$SYS.REQ.SERVER.PING": "",
    }

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap:
            await lap.bus.publish(REC, b"for mars")
        client = await connect_once(server.settings("lap"))
        for subject, data in asked.items():
            denied = client.watch_denial(subject)
            await client.publish(subject, data.encode(), reply="_INBOX.lap.x")
            async with asyncio.timeout(PATIENCE_S):
                await denied
        for subject in (
            "x.>",
            "x.*.lap.rec.*",
            ">",
            "_INBOX.mars.rec",
            "_INBOX.*.*.*",
            "_INBOX.>",
            "ask.*.lap",
            "$SYS.>",
            "ask.mars.lap",
            "ask.mars.>",
            "$JS.EVENT.>",
        ):
            denied = client.watch_denial(subject)
            await client.subscribe(subject)
            async with asyncio.timeout(PATIENCE_S):
                await denied
        await client.close()
        async with bus_of(server, "mars", "rec") as mars:
            assert (await mars.next()).data == b"for mars"

    run(test())


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_two_machines_together_may_do_no_more_than_each(nats_server: type[NatsServer], mode: Mode) -> None:
    """One asks the other and names the subject for the answer; a message may say where the server tells of its way."""
    server = nats_server(mode, "lap", "mars", "moon").start()
    secret = stream_subject("moon", "lap", "cmd", "secret")
    asked = {
        "$JS.API.STREAM.MSG.GET.X": json.dumps({"last_by_subj": secret}),
        "$JS.API.STREAM.PURGE.X": "",
        "$JS.API.CONSUMER.DELETE.X.moon-cmd": "",
        "x.moon.lap.cmd.0": "",
        "_INBOX.moon.cmd": "",
    }

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "moon") as moon:
            await moon.bus.publish(secret, b"secret")
        lap, mars = await connect_once(server.settings("lap")), await connect_once(server.settings("mars"))
        questions: asyncio.Queue[Msg] = asyncio.Queue()
        await mars.subscribe("ask.mars.lap", cb=questions.put)
        await flush_whole(mars)
        for subject, data in asked.items():
            denied = mars.watch_denial(subject)
            await lap.publish("ask.mars.lap", b"", reply=subject)
            async with asyncio.timeout(PATIENCE_S):
                assert (await questions.get()).reply == subject
                await mars.publish(subject, data.encode(), reply="_INBOX.mars.x")
                await denied
            denied = mars.watch_denial(subject)
            await mars.publish(stream_subject("mars", "lap", "rec", "s"), b"", headers={"Nats-Trace-Dest": subject})
            async with asyncio.timeout(PATIENCE_S):
                await denied
        asking = asyncio.create_task(lap.request("ask.mars.lap", b"q", timeout=PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            await mars.publish((await questions.get()).reply, b"a")
            assert (await asking).data == b"a"
        await lap.end()
        await mars.end()

    run(test())


def test_what_was_put_into_the_inbox_by_hand_is_no_message(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap, bus_of(server, "mars", "rec") as mars:
            client = Client()
            await client.connect(server.url)
            await client.publish("_INBOX.mars.rec", b"forged", reply="$JS.ACK.X.mars-rec.1.1.1.1.0")
            await client.publish("_INBOX.mars.rec", b"forged", reply="x.mars.lap.rec.0")
            await client.publish("_INBOX.mars.rec", b"forged")
            await client.close()
            await lap.bus.publish(REC, b"true")
            assert (await mars.next()).data == b"true"
            assert mars.arrived.empty()

    run(test())


def test_what_a_handler_raises_ends_the_link(nats_server: type[NatsServer]) -> None:
    """Also an OSError, which the library would take for one of its own."""
    server = nats_server().start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)

        async def fail(arrival: Arrival) -> None:
            raise OSError(28, "No space left on device", arrival.address.kind)

        async with bus_of(server, "mars") as mars, bus_of(server, "lap") as lap:
            mars.bus.consume("rec", fail)
            await lap.bus.publish(REC, b"")
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.Event().wait()

    with pytest.raises(BaseExceptionGroup) as ended:
        run(test())
    assert ended.group_contains(OSError, match="No space left")


@MODES
def test_a_message_that_the_server_would_refuse_is_not_sent(nats_server: type[NatsServer], mode: Mode) -> None:
    """The server would end the connection."""
    server = nats_server(mode).start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "lap") as lap:
            refused = await refuse(lap.bus.publish(REC, bytes(1_048_577)))
            assert refused.trouble == "too_large"
            other = await refuse(lap.bus.publish(REC, bytes(1_048_578)))
            assert other.message == refused.message, "a thousand messages that wait are one line in the log"
            assert await lap.bus.publish(REC, bytes(1_000_000), msg_id="longest")
            assert [state.connected for state in lap.states] == [True]

    run(test())


def test_a_server_that_offers_no_tls_is_told_nothing(nats_server: type[NatsServer]) -> None:
    """Whoever stands between takes away the line that asks for TLS, and reads along; the library would go on."""
    server = nats_server("open").start()
    tls = nats_server("tls")

    async def test() -> None:
        settings = tls.settings("lap")
        tls.port = server.port
        settings = tls.settings("lap")
        refused = await refuse(connect_once(settings))
        assert "offers no TLS" in refused.message

    run(test())


@pytest.mark.parametrize(
    ("mode", "spoiled", "words"),
    [
        ("tls", "ca.pem", "link.ca: .* cannot be used: it holds no PEM"),
        ("tls", "lap.pem", "link.certificate: .* cannot be used: it holds no PEM"),
        ("tls", "lap.key", "link.certificate: .* cannot be used: it holds no PEM"),
        ("nkeys", "lap.nk", "link.nkeySeed: .* has no line with the seed of a user"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    nats_server: type[NatsServer], mode: Mode, spoiled: str, words: str
) -> None:
    server = nats_server(mode)

    async def test() -> None:
        async with open_bus(server.settings("lap"), lambda state: None):
            pass

    (server.folder / spoiled).write_text("spoiled")
    with pytest.raises(LinkError, match=words):
        run(test())
    (server.folder / spoiled).unlink()
    with pytest.raises(LinkError, match="No such file or directory"):
        run(test())


def test_a_key_of_another_certificate_and_a_changed_seed_are_noticed(nats_server: type[NatsServer]) -> None:
    tls, nkeys = nats_server("tls"), nats_server("nkeys")
    (tls.folder / "lap.key").write_bytes((tls.folder / "mars.key").read_bytes())
    with pytest.raises(LinkError, match="the key is of another certificate"):
        run(connect_once(tls.settings("lap")))
    seed = nkeys.folder / "lap.nk"
    text = seed.read_text().strip()
    seed.write_text(text[:20] + ("A" if text[20] != "A" else "B") + text[21:])
    with pytest.raises(LinkError, match="the seed is damaged"):
        run(connect_once(nkeys.settings("lap")))


def test_a_machine_that_the_server_does_not_know_is_told_so(nats_server: type[NatsServer]) -> None:
    tls, nkeys = nats_server("tls", "lap"), nats_server("nkeys", "lap")
    other_tls, other_nkeys = nats_server("tls", "lap", "moon"), nats_server("nkeys", "lap", "moon")

    async def test() -> None:
        other_tls.port, other_nkeys.port = tls.start().port, nkeys.start().port
        refused = await refuse(connect_once(other_nkeys.settings("moon")))
        assert "does not let moon in: its configuration has no such user" in refused.message
        refused = await refuse(connect_once(other_tls.settings("moon")))
        assert "has a certificate that cannot be verified" in refused.message
        (other_tls.folder / "ca.pem").write_bytes((tls.folder / "ca.pem").read_bytes())
        # With TLS 1.3 the server hangs up after the handshake.
        refused = await refuse(connect_once(other_tls.settings("moon")))
        assert refused.trouble == "unreachable"
        assert "link.certificate" in refused.message
        # One that shows no certificate is hung up on in the same way, whichever of both says it first.
        for _ in range(4):
            without = msgspec.structs.replace(tls.settings("lap"), certificate=None, key=None)
            refused = await refuse(connect_once(without))
            assert (refused.trouble, "none is configured: link.certificate" in refused.message) == (
                "unreachable",
                True,
            ), refused.message

    run(test())


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_the_subject_does_not_prove_the_sender(nats_server: type[NatsServer], mode: Mode) -> None:
    """With a forbidden subject as the reply of what it may publish, a machine has the server write there."""
    server = nats_server(mode).start()

    async def test() -> None:
        await set_up(server.settings(), server.machines)
        async with bus_of(server, "mars") as mars:
            mars.take("rec")
            client = await connect_once(server.settings("lap"))
            forged = stream_subject("moon", "mars", "rec", "session")
            await client.publish(stream_subject("lap", "mars", "cmd", "s"), b"any", reply=forged)
            arrival = await mars.next()
            await client.end()
            assert (arrival.address.sender, json.loads(arrival.data)["stream"]) == ("moon", "X")
            identity = new_identity()
            envelopes = Envelopes("mars", identity, {"moon": identity.public})
            refused = envelopes.open_at(arrival.address, arrival.data)
            assert isinstance(refused, Refused)
            assert refused.reason == "form"

    run(test())


async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a server does with a client that has signed in."""
    writer.write(b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1048576}\r\n')
    while not (await reader.readline()).startswith(b"PING"):
        pass
    writer.write(b"PONG\r\n")
    await writer.drain()


def test_a_server_that_is_lost_right_after_it_let_the_link_in_is_waited_for() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()  # nobody else is let in
        await let_in(reader, writer)
        await reader.readline()
        writer.transport.abort()

    async def test() -> None:
        nonlocal server
        server = await asyncio.start_server(serve, "127.0.0.1")
        settings = ServerSettings("lap", f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        given_up = asyncio.Event()

        async def answer_nothing(_sender: str, _question: bytes) -> None:
            return None

        def note(state: BusState) -> None:
            if "does not answer" in (state.trouble or ""):
                given_up.set()

        async with open_bus(settings, note) as bus:
            bus.answer(answer_nothing, ["mars"])
            async with asyncio.timeout(PATIENCE_S):
                await given_up.wait()
            assert not bus.state.connected

    server: asyncio.Server
    run(test())


def test_what_was_still_to_be_sent_to_a_server_that_is_gone_does_not_keep_a_client_from_its_end() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        await let_in(reader, writer)
        writer.transport.abort()

    async def test() -> None:
        nonlocal server
        server = await asyncio.start_server(serve, "127.0.0.1")
        settings = ServerSettings("lap", f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        lost = asyncio.Event()

        async def note_loss() -> None:
            lost.set()

        client = make_client(settings)
        await client.connect(**options_of(settings), disconnected_cb=note_loss)
        async with asyncio.timeout(PATIENCE_S):
            await lost.wait()
        await client.publish("x.lap.mars.rec.0", b"1")
        await client.end()
        assert client.is_closed

    server: asyncio.Server
    run(test())
