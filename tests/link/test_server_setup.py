"""The printed configuration works as it is printed, and what is made is what was wanted."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import api
from nats.js.errors import NoStreamResponseError
from support.nats_server import Mode, NatsServer
from support.sampling import pick

from sessiond.link.connecting import ServerSettings, connect_once
from sessiond.link.failures import BusError
from sessiond.link.server_check import check, say_whose
from sessiond.link.server_setup import (
    MAX_AGE_S,
    MAX_BYTES,
    differences,
    server_configuration,
    set_up,
    wanted_consumer,
    wanted_consumers,
    wanted_stream,
)
from sessiond.link.subjects import KINDS

MODES = pytest.mark.parametrize("mode", pick(["open", "tls", "nkeys"], __name__))


@MODES
def test_it_is_made_once_and_found_as_it_has_to_be_later(nats_server: type[NatsServer], mode: Mode) -> None:
    server = nats_server(mode).start()
    made = asyncio.run(set_up(server.settings(), server.machines))
    assert [(step.what, step.done) for step in made] == [
        ("stream X", "made"),
        *((f"consumer {machine}-{kind}", "made") for machine in ("lap", "mars") for kind in KINDS),
    ]
    again = asyncio.run(set_up(server.settings(), [*server.machines, "moon"]))
    assert [step.done for step in again] == ["as it has to be"] * 11 + ["made"] * 5


def test_what_is_otherwise_is_changed_in_place_or_made_anew(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def spoil() -> None:
        client = await connect_once(server.settings())
        manager = client.jsm()
        await manager.add_stream(wanted_stream("X", max_bytes=1 << 20))
        pending, pulled = wanted_consumer("lap", "rec"), wanted_consumer("lap", "row")
        pending.max_ack_pending = 1
        pulled.deliver_subject = None
        for consumer in (pending, pulled):
            await manager.add_consumer("X", consumer)
        await client.end()

    asyncio.run(spoil())
    steps = {step.what: step.done for step in asyncio.run(set_up(server.settings(), ["lap"]))}
    assert steps == {
        "stream X": "as it has to be",
        "consumer lap-rec": "changed",
        "consumer lap-row": "made anew",
        **{f"consumer lap-{kind}": "made" for kind in ("cmd", "ans", "ask")},
    }
    assert {step.done for step in asyncio.run(set_up(server.settings(), ["lap"]))} == {"as it has to be"}


def test_limits_that_are_not_given_stay_what_they_are(nats_server: type[NatsServer]) -> None:
    """Another machine must not shrink the stream of all others."""
    server = nats_server().start()

    async def limits(**given: float) -> tuple[float | None, float | None]:
        await set_up(server.settings(), ["lap"], **given)  # type: ignore[arg-type]
        client = await connect_once(server.settings())
        found = (await client.jsm().stream_info("X")).config
        await client.end()
        return found.max_bytes, found.max_age

    assert asyncio.run(limits()) == (MAX_BYTES, MAX_AGE_S)
    assert asyncio.run(limits(max_bytes=1 << 20)) == (1 << 20, MAX_AGE_S)
    assert asyncio.run(limits(max_age_s=3600)) == (1 << 20, 3600)
    assert asyncio.run(limits()) == (1 << 20, 3600)


def test_a_consumer_that_the_server_made_otherwise_is_noticed() -> None:
    """An older server leaves out what it does not know, and says nothing."""
    wanted = wanted_consumer("lap", "rec")
    found = api.ConsumerConfig.from_response(wanted.as_dict())
    assert differences(wanted, found) == []
    found.filter_subject = None
    found.max_ack_pending = 1000
    assert differences(wanted, found) == [
        "filter_subject: None, not x.*.lap.rec.*",
        "max_ack_pending: 1000, not 64",
    ]


def test_filters_of_machines_and_kinds_do_not_overlap() -> None:
    """Work-queue retention has one reader for each message."""
    filters = [consumer.filter_subject for consumer in wanted_consumers(["lap", "mars", "mars-2"])]
    assert len(set(filters)) == 3 * len(KINDS)
    assert all(str(one).count("*") == 2 for one in filters)


def test_a_server_without_jetstream_is_named(nats_server: type[NatsServer]) -> None:
    server = nats_server()
    server.replacements = {"jetstream {": "ignored_block {"}
    configuration = server.configuration()
    begin = configuration.index("ignored_block {")
    block = configuration[begin : configuration.index("}", begin) + 1]
    server.replacements = {block.replace("ignored_block", "jetstream"): ""}
    server.start()
    with pytest.raises(BusError, match=r"has JetStream switched off.*needs a block") as refused:
        asyncio.run(set_up(server.settings(), server.machines))
    assert refused.value.trouble == "no_stream"


@pytest.mark.parametrize("mode", pick(["tls", "nkeys"], __name__))
def test_a_machine_is_not_the_administrator(nats_server: type[NatsServer], mode: Mode) -> None:
    server = nats_server(mode).start()
    with pytest.raises(BusError, match="may have no right to make streams"):
        asyncio.run(set_up(server.settings("lap"), server.machines))


def test_a_stream_larger_than_the_disk_is_refused_in_words(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()
    with pytest.raises(BusError, match=r"the server 127.0.0.1:.* refuses it: 'insufficient storage"):
        asyncio.run(set_up(server.settings(), server.machines, max_bytes=1 << 60))


def test_nobody_there_is_said_at_once() -> None:
    settings = ServerSettings(name="admin", server="nats://127.0.0.1:1")
    with pytest.raises(BusError, match="nothing listens there; is nats-server running"):
        asyncio.run(set_up(settings, ["lap"]))
    settings = ServerSettings(name="admin", server="nats://no-such-machine.invalid:4222")
    with pytest.raises(BusError, match=r"is not found: there is no machine of that name|is not reachable"):
        asyncio.run(set_up(settings, ["lap"]))


def test_the_configuration_gives_a_machine_what_is_its_own_alone() -> None:
    text = server_configuration(["lap", "mars", "moon"], stream="X")
    line = text[text.index('user: "lap"') : text.index('user: "mars"')]
    publish = 'publish: ["x.lap.mars.*.*", "x.lap.moon.*.*", "ask.mars.lap", "ask.moon.lap", "$JS'
    for part in (publish, 'subscribe: ["_INBOX.lap.>", "ask.lap.*"]'):
        assert part in line
    assert "CREATE" not in text
    assert "mars-" not in line
    assert 'user: "admin" }' in text
    assert "verify_and_map: true" in text


def test_with_nkeys_the_server_alone_has_a_certificate_or_nobody() -> None:
    nkeys = server_configuration(["lap"], stream="X", nkeys={"lap": "UABC"})
    assert ('nkey: "UABC"' in nkeys, 'nkey: "THE-PUBLIC-NKEY-OF-admin"' in nkeys) == (True, True)
    assert ("cert_file" in nkeys, "verify" in nkeys, "user:" in nkeys) == (True, False, False)
    assert "tls" not in server_configuration(["lap"], stream="X", nkeys={}, is_encrypted=False)


def test_what_nobody_would_take_is_not_kept_and_an_older_stream_learns_it(nats_server: type[NatsServer]) -> None:
    server = nats_server().start()

    async def test() -> None:
        client = await connect_once(server.settings())
        older = wanted_stream("X")
        older.subjects = ["x.*.*.*.*"]
        await client.jsm().add_stream(older)
        js = client.jetstream()
        await js.publish("x.lap.mars.rec.0", b"taken")
        assert (await set_up(server.settings(), server.machines))[0].done == "changed"
        for kind in KINDS:
            await js.publish(f"x.lap.mars.{kind}.1", b"")
        with pytest.raises(NoStreamResponseError):
            await js.publish("x.lap.mars.junk.0", b"")
        assert (await client.jsm().stream_info("X")).state.messages == 6, "what was there is there"
        await client.end()

    asyncio.run(test())


def test_of_a_stream_that_is_nearly_full_it_is_said_whose_messages_it_has(nats_server: type[NatsServer]) -> None:
    server = nats_server("open", "lap", "mars", "moon").start()

    async def test() -> tuple[str, str]:
        await set_up(server.settings(), server.machines, max_bytes=100_000)
        client = await connect_once(server.settings())
        js = client.jetstream()
        for number in range(7):
            await js.publish(f"x.lap.mars.rec.{number}", bytes(10_000))
        [before] = [one.level for one in await check(server.settings(), [], None) if one.thing == "stream X"]
        await js.publish("x.moon.mars.cmd.0", bytes(10_000))
        [after] = [one.what for one in await check(server.settings(), [], None) if one.thing == "stream X"]
        await client.end()
        return before, after

    before, after = asyncio.run(test())
    assert before == "ok"
    assert after.endswith("; it has 8 messages, 7 of them are from lap, 8 of them are for mars")


@given(st.dictionaries(st.text(".xa\x1b\n", max_size=8), st.integers(0, 9)))
def test_whatever_subjects_the_server_names_a_sentence_comes_of_them(subjects: dict[str, int]) -> None:
    assert say_whose(subjects).isprintable()
