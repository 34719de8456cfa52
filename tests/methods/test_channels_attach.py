"""`channels.attach`: a connection as the adapter of a channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Refused, in_process_daemon
from support.in_process_agents import Program, adapter, program, until
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each

from sessiond.clock import Clock
from sessiond.model.caller import Caller

GROUP = "agent:main:telegram:group:-100"


def test_attaching_needs_a_lasting_connection_and_the_scope(
    call: Call, shared: Daemon, fresh: str, request: pytest.FixtureRequest
) -> None:
    if "http" in request.node.callspec.id:
        with pytest.raises(CallFailed) as failed:
            call("channels.attach", channel="test")
        assert failed.value.error["code"] == -32006
        return
    assert call("channels.attach", channel=" Test ", accountId="a", threads=True) == {
        "channel": "test",
        "attached": True,
    }
    token = shared.call("tokens.mint", scopes=["send", "read"], sessionKey=fresh)["token"]
    with pytest.raises(CallFailed) as failed:
        call("channels.attach", by=token, channel="test")
    assert failed.value.error["code"] == -32003


@check_each(
    "params",
    [
        {"channel": ""},
        {"channel": "a b"},
        {"channel": "a:b"},
        {"channel": "unknown"},
        {"channel": "x" * 65},
        {"channel": "telegram", "accountId": ""},
        {"channel": "telegram", "accountId": "a\nb"},
        {"channel": "telegram", "accountId": "x" * 513},
        {},
    ],
)
async def test_an_invalid_channel_is_refused(tmp_path: Path, params: dict[str, Any]):
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        assert (await owner.failure("channels.attach", **params))["code"] == -32602


async def send(there: Any, text: str) -> None:
    async with there.connect() as owner:
        sent = await owner.call("chat.send", sessionKey=GROUP, message=text, deliver=True)
        await owner.call("agent.wait", runId=sent["runId"])


async def test_waiting_deliveries_are_sent_on_attaching_and_the_answer_acknowledges_them(tmp_path: Path):
    outbox = tmp_path / "store" / "outbox"
    async with in_process_daemon(tmp_path) as there:
        for text in ("one", "two"):
            await send(there, text)
        await until(lambda: len(list(outbox.glob("*.json"))) == 2)
        async with adapter(there, "telegram") as telegram:
            await until(lambda: not list(outbox.glob("*.json")))
        assert [params["text"] for _, params in telegram.asked] == ["one", "two"]


async def test_an_adapter_that_answers_with_an_error_is_asked_again(tmp_path: Path):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        if len(made.asked) == 1:
            raise Refused("not now")
        return None

    config = "[delivery]\nretrySeconds = [0.05]\n"
    async with in_process_daemon(tmp_path, config) as there, adapter(there, "telegram", act) as telegram:
        await send(there, "one")
        await until(lambda: len(telegram.asked) == 2)
        assert len({params["deliveryId"] for _, params in telegram.asked}) == 1


async def test_a_delivery_whose_acknowledgement_is_lost_goes_to_the_next_adapter_with_the_same_id(tmp_path: Path):
    async def never_answer(made: Program, params: dict[str, Any]) -> Any:
        await trio.sleep_forever()

    async with in_process_daemon(tmp_path) as there:
        async with adapter(there, "telegram", never_answer) as first:
            await send(there, "one")
            await first.got.wait()
        async with adapter(there, "telegram") as second:
            await until(lambda: second.asked)
        assert second.asked == first.asked


async def test_dead_letters_are_counted(tmp_path: Path):
    config = "[delivery]\nretrySeconds = [0.01]\ngiveUpMinutes = 0\n"
    async with in_process_daemon(tmp_path, config) as there, there.connect() as owner:
        await send(there, "one")
        await until(lambda: there.services.outbox.dead_letters)
        assert (await owner.call("daemon.status"))["deadLetters"] == 1
        async with adapter(there, "telegram") as telegram:
            await owner.call("ping")
            assert telegram.asked == []


async def test_a_configured_command_delivers(tmp_path: Path):
    out = tmp_path / "out"
    config = f'[channels.telegram]\ncommand = ["sh", "-c", "printf %s \\"$1\\" > {out}", "sh", "{{to}}: {{text}}"]\n'
    async with in_process_daemon(tmp_path, config) as there:
        await send(there, "by command")
        await until(lambda: out.exists() and out.read_text() == "-100: by command")


async def test_one_connection_may_deliver_for_several_channels(tmp_path: Path):
    async with in_process_daemon(tmp_path) as there, program(there, _acknowledge) as both:
        for channel in ("telegram", "signal"):
            await both.call("channels.attach", channel=channel)
        await send(there, "one")
        await until(lambda: both.asked)
        assert set(there.services.channels._adapters) == {"telegram", "signal"}
    assert there.services.channels._adapters == {}


async def _acknowledge(_: Program, __: dict[str, Any]) -> Any:
    return {}


@check_each("claims", [{"session_key": GROUP}, {"agent_id": "main"}, {"sandboxed": True}])
@check_each("method", ["channels.attach", "daemon.status"])
async def test_a_token_that_does_not_see_all_sessions_is_refused(tmp_path: Path, method: str, claims: dict[str, Any]):
    narrowed = Caller(kind="token", scopes=frozenset({"admin"}), **claims)
    params = {"channel": "telegram"} if method == "channels.attach" else {}
    async with in_process_daemon(tmp_path) as there:
        async with there.connect(narrowed) as who:
            error = await who.failure(method, **params)
            assert (error["code"], "narrowed" in error["message"]) == (-32003, True)
        assert there.services.channels._adapters == {}
        async with there.connect(Caller(kind="token", scopes=frozenset({"admin"}))) as wide:
            await wide.call(method, **params)


async def test_an_adapter_that_renews_its_expired_token_gets_its_deliveries_at_once(tmp_path: Path):
    """Its first token had expired, and no timer tries again while a channel has no adapter."""
    now_ms = [1_795_300_000_000]
    async with in_process_daemon(tmp_path, clock=Clock(wall_ms=lambda: now_ms[0])) as there, there.connect() as owner:

        async def greet(client: Program) -> None:
            minted = await owner.call("tokens.mint", scopes=["admin"], ttlSeconds=3600)
            await client.call("initialize", protocol=1, client={"name": "t", "version": "1"}, token=minted["token"])

        async with program(there, _acknowledge) as telegram:
            await greet(telegram)
            await telegram.call("channels.attach", channel="telegram")
            now_ms[0] += 2 * 3_600_000
            await send(there, "one")
            await until(lambda: there.services.outbox.pending)
            await owner.call("ping")
            assert telegram.asked == []
            await greet(telegram)
            await until(lambda: telegram.asked)
