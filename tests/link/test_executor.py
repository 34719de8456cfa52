"""What becomes of the commands of other machines: executed once, answered until the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.command_executor import SEND, ExecutorWorld, run_world, take
from support.link_stand_ins import StandInDaemon, lost, refusal, settle, until

from sessiond.config.link import PeerConfig
from sessiond.link import executor as room
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.command_wire import (
    CommandFile,
    MachineAnswer,
    MachineCommand,
    encode,
    split,
)
from sessiond.link.executor import Executor


@pytest.fixture
def in_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[ExecutorWorld], Awaitable[None]]], None]:
    return partial(run_world, tmp_path, monkeypatch)


def test_a_message_is_sent_as_the_peer_and_its_reply_answered_without_secrets(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)
            await world.accepted()
            assert world.daemon.asked == [
                (
                    "lap",
                    "sessions_send",
                    {
                        "sessionKey": "agent:ops:main",
                        "idempotencyKey": "c1",
                        "_meta": {"machine": {"sessionKey": "agent:main:main", "hops": 2}},
                        "message": "hello",
                        "timeoutSeconds": 0,
                    },
                )
            ]
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="the key is sk-secret")
            assert await world.answers(1) == [
                ("c1", MachineAnswer(status="ok", reply="the key is ***", session_key="agent:ops:main"))
            ]

    in_world(body)


def test_a_command_that_comes_again_is_executed_once_and_answered_again(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)
            await take(executor, SEND)
            await world.accepted()
            await take(executor, SEND)
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="hi")
            first = (await world.answers(1))[0]
            await take(executor, SEND)
            assert await world.answers(2) == [first, first]
            assert len(world.daemon.asked) == 1

    in_world(body)


def test_a_spawn_takes_its_files_along_in_parts(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        files = (CommandFile("a.bin", bytes(600_000), "application/zip"), CommandFile("b", b"x"))
        async with world.executor() as executor:
            await take(
                executor, MachineCommand(method="spawn", target="ops", message="sum up", files=files, within_s=9.0)
            )
            await world.accepted()
            peer, method, params = world.daemon.asked[0]
            assert (peer, method, params["task"], params["agentId"]) == ("lap", "sessions_spawn", "sum up", "ops")
            assert [one["name"] for one in params["attachments"]] == ["a.bin", "b"]
            assert params["runTimeoutSeconds"] == 9.0
            assert [len(one["content"]) for one in params["attachments"]] == [800_000, 4]
            world.daemon.end("c1", "agent:ops:subagent:run-0", status="error", error="it broke")
            assert await world.answers(1) == [
                ("c1", MachineAnswer(status="error", error="it broke", session_key="agent:ops:subagent:run-0"))
            ]

    in_world(body)


def test_a_command_of_many_parts_that_comes_again_is_answered_once(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        long = replace(SEND, message="x" * 1_000_000)
        parts = split(encode(long))
        async with world.executor() as executor:
            await take(executor, long)
            await world.accepted()
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="hi")
            await world.answers(1)
            for number, part in enumerate(parts):
                await executor.take("lap", "c1", number, len(parts), part)
                await until(lambda: not executor._delivering)
            assert (len(parts), len(await world.answers(2))) == (4, 2)

    in_world(body)


def test_what_was_taken_is_executed_and_answered_after_a_restart(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.daemon.is_open.clear()
        world.daemon.faults = [lost()]
        async with world.executor() as executor:
            await take(executor, SEND)
            await until(lambda: not world.daemon.faults)
        world.daemon.is_open.set()
        async with world.executor():
            await world.accepted()
            await asyncio.sleep(0)
        world.server.refusals = 10**9
        async with world.executor():
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="hi")
            await until(lambda: world.server.refusals < 10**9)
        world.server.refusals = 0
        async with world.executor():
            assert await world.answers(1) == [
                ("c1", MachineAnswer(status="ok", reply="hi", session_key="agent:ops:main"))
            ]
        assert list(world.daemon.runs) == ["c1"]

    in_world(body)


@pytest.mark.parametrize("slug", ["forbidden", "not_found", "invalid_params", "limit_exceeded", "unsupported"])
def test_a_refusal_of_the_daemon_is_the_answer(in_world: Any, slug: str) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.daemon.faults = [refusal(slug, "you may not")] * 2
        async with world.executor() as executor:
            await take(executor, SEND)
            assert await world.answers(1) == [("c1", MachineAnswer(status="refused", error="you may not"))]
            assert executor is not None and not world.daemon.runs

    in_world(body)


def test_a_session_that_is_not_found_by_its_key_may_be_a_label(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.daemon.faults = [refusal("not_found")]
        async with world.executor() as executor:
            await take(executor, MachineCommand(method="send", target="night build", message="x"))
            await world.accepted()
            assert [params.get("label") for _, _, params in world.daemon.asked] == [None, "night build"]

    in_world(body)


def test_a_session_to_which_the_rule_lets_nobody_send_is_said_for_people_over_there(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        own = refusal("not_found", "no session 'x'; `sessions_list` shows them", code="session_not_found")
        world.daemon.faults = [own, refusal("not_found", "no session has the label 'x'")]
        async with world.executor() as executor:
            await take(executor, MachineCommand(method="send", target="x", message="m"))
            [(_, answer)] = await world.answers(1)
        assert answer.status == "refused" and answer.error == (
            "no session 'x' to which lap may send; which ones it may is said on mars by send in the [[link.peers]]"
            ' table with name = "lap"'
        )

    in_world(body)


def test_errors_that_pass_are_tried_again_and_then_it_is_a_dead_letter(
    in_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_TRIES", 3)

    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            world.daemon.faults = [refusal("storage"), refusal("overloaded", retryAfterMs=1)]
            await take(executor, SEND, "c1")
            await world.accepted()
            assert len(world.daemon.asked) == 3
            world.daemon.faults = [refusal("internal", "it is broken")] * 3
            await take(executor, SEND, "c2")
            said = "given up after 3 attempts: it is broken"
            assert await world.answers(1) == [("c2", MachineAnswer(status="refused", error=said))]
        ledger = CommandLedger(world.folder)
        assert [(one.id, one.tries, one.reason) for one in ledger.dead_letters()] == [("c2", 3, "it is broken")]
        ledger.close()

    in_world(body)


def test_a_chain_of_messages_that_is_too_long_is_not_tried_again(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.daemon.faults = [refusal("overloaded", "too long a chain", code="too_many_hops")]
        async with world.executor() as executor:
            await take(executor, SEND)
            assert await world.answers(1) == [("c1", MachineAnswer(status="refused", error="too long a chain"))]
            assert len(world.daemon.asked) == 1 and executor

    in_world(body)


@pytest.mark.parametrize(
    ("peer", "command", "sentence"),
    [
        (None, SEND, "mars does not know lap any more; who is to send there again has to be in its [[link.peers]]"),
        (
            PeerConfig(name="lap", key="k" * 16, spawn=("ops",)),
            SEND,
            "nobody on lap may send to sessions on mars; what has to be added on mars, to the [[link.peers]] table with"
            ' name = "lap", is for example: send = ["agent:ops:*"]',
        ),
        (
            PeerConfig(name="lap", key="k" * 16, send=("*",)),
            MachineCommand(method="spawn", target="ops", message="x"),
            "nobody on lap may spawn agents on mars; what has to be added on mars, to the [[link.peers]] table with"
            ' name = "lap", is for example: spawn = ["ops"]',
        ),
    ],
)
def test_what_no_rule_allows_never_reaches_the_daemon(
    in_world: Any, peer: PeerConfig | None, command: MachineCommand, sentence: str
) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.peer = peer
        async with world.executor() as executor:
            await take(executor, command)
            answer = (await world.answers(1))[0][1]
            assert answer.status == "refused" and answer.error == sentence
            assert not world.daemon.asked
        ledger = CommandLedger(world.folder)
        assert ledger.counts() == {}, "who may do nothing fills no disk"
        ledger.close()

    in_world(body)


def test_what_was_refused_is_not_executed_when_the_rules_have_changed(in_world: Any) -> None:
    """Its sender was told that there was no run; whoever has recorded it on the way would have one."""

    async def body(world: ExecutorWorld) -> None:
        allowed, world.peer = world.peer, PeerConfig(name="lap", key="k" * 16)
        async with world.executor() as executor:
            await take(executor, SEND)
            assert "nobody on lap may send" in str((await world.answers(1))[0][1].error)
        world.peer = allowed
        async with world.executor() as executor:
            await take(executor, SEND)
            answer = (await world.answers(2))[1][1]
            assert answer.status == "refused" and answer.error == (
                "mars has refused it before, and does not carry it out later: send it again"
            )
            assert not world.daemon.asked

    in_world(body)


def test_a_run_is_stopped_with_its_command_and_no_other_machine_can(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)
            await world.accepted()
            await until(lambda: executor._runs)
            await take(executor, MachineCommand(method="abort"), peer="mars")
            await take(executor, MachineCommand(method="abort"))
            stopped = ("owner", "chat.abort", {"sessionKey": "agent:ops:main", "runId": "run-0"})
            await until(lambda: stopped in world.daemon.asked)
            assert [asked for asked in world.daemon.asked if asked[0] == "owner"] == [stopped]

    in_world(body)


def test_a_command_that_was_stopped_before_it_came_is_not_executed(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, MachineCommand(method="abort"))
            refused = ("c1", MachineAnswer(status="refused", error="it was stopped before it began"))
            assert await world.answers(1) == [refused], "whoever stopped it asks until it is answered"
            await until(lambda: not executor._delivering)
            await take(executor, SEND)
            assert await world.answers(2) == [refused, refused]
            await until(lambda: not executor._delivering)
            await take(executor, MachineCommand(method="abort"))
            assert await world.answers(3) == [refused] * 3
            assert not world.daemon.asked

    in_world(body)


def test_a_command_that_waits_for_the_daemon_is_stopped_and_answered(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        world.daemon.is_open.clear()
        world.daemon.faults = [lost()]
        async with world.executor() as executor:
            await take(executor, SEND)
            await until(lambda: not world.daemon.faults)
            await take(executor, MachineCommand(method="abort"))
            [(_, refused)] = await world.answers(1)
            assert (refused.status, refused.error) == ("refused", "it was stopped before it began")
            world.daemon.is_open.set()
            await world.accepted()
            # What was on its way to the daemon is stopped there.
            await until(lambda: world.daemon.asked[-1][:2] == ("owner", "chat.abort"))

    in_world(body)


def test_bytes_that_are_no_command_are_refused(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await executor.take("lap", "c1", 0, 1, b"\xc1")
            answer = (await world.answers(1))[0][1]
            assert answer.status == "refused" and "the command cannot be read" in (answer.error or "")

    in_world(body)


def test_rows_of_the_ledger_that_a_stranger_has_written_end_no_link(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        ledger = CommandLedger(world.folder)
        for command_id, state, run_id in (("no run", "running", None), ("no body", "waiting", None), ("b", b"x", b"y")):
            fields = ("lap", command_id, state, 7, run_id, b"key", "x", 1)
            sql = "insert into commands (peer, id, state, body, run_id, session_key, tries, at_ms) values"
            ledger._db.execute(f"{sql} (?, ?, ?, ?, ?, ?, ?, ?)", fields)
        ledger.close()
        async with world.executor() as executor:
            refused = await world.answers(2)
            assert {(name, answer.status) for name, answer in refused} == {
                ("no run", "refused"),
                ("no body", "refused"),
            }
            await take(executor, SEND)
            await world.accepted()

    in_world(body)


def test_runs_of_one_session_are_looked_at_until_one_still_runs(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            for name in ("c1", "c2", "c3"):
                await take(executor, SEND, name)
                await world.accepted()
            await until(lambda: len(executor._runs.get("agent:ops:main", ())) == 3)
            for name in ("c1", "c2"):
                world.daemon.end(name, "agent:ops:main", status="ok", reply=name)
            assert sorted((name, answer.reply) for name, answer in await world.answers(2)) == [
                ("c1", "c1"),
                ("c2", "c2"),
            ]
            assert list(executor._runs["agent:ops:main"]) == [world.daemon.runs["c3"]]

    in_world(body)


def test_a_command_that_comes_a_thousand_times_is_one_answer_on_its_way(in_world: Any) -> None:
    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)
            await world.accepted()
            world.daemon.end("c1", "agent:ops:main", status="ok", reply="done")
            await world.answers(1)
            gate = asyncio.Event()
            send, began = world.server.send, 0

            async def slow(peer: str, identity: str, data: bytes) -> None:
                nonlocal began
                began += 1
                await gate.wait()
                await send(peer, identity, data)

            executor._send = slow
            for _ in range(1000):
                await take(executor, SEND)
            await settle()
            assert began == 1
            gate.set()
            await world.answers(2)
            await settle()
            assert len(world.server.kept) == 2

    in_world(body)


def test_a_command_that_no_line_to_the_daemon_holds_is_refused(in_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    most = len(msgspec.json.encode(SEND))
    monkeypatch.setattr(room, "MAX_LINE_BYTES", most)

    async def body(world: ExecutorWorld) -> None:
        async with world.executor() as executor:
            await take(executor, SEND)
            await world.accepted()
            await take(executor, replace(SEND, message="hell\1"), "c2")
            [(identity, refused)] = await world.answers(1)
            assert (identity, refused.status) == ("c2", "refused")
            assert refused.error == "the message with its files is longer than sessiond takes"
            assert len(world.daemon.asked) == 1

    in_world(body)


def test_a_disk_that_is_full_for_the_daemon_and_the_ledger_ends_no_link(in_world: Any) -> None:
    class FullDisk(StandInDaemon):
        """The disk is full from the first command on, which is refused."""

        executor: Executor | None = None

        def set_full(self, *, is_full: bool) -> None:
            assert self.executor is not None
            self.executor._ledger._ledger._db.execute(f"pragma query_only = {is_full:d}")

        def _accept(self, peer: str, method: str, params: dict[str, Any]) -> Any:
            if not self.asked:
                self.set_full(is_full=True)
                self.faults = [refusal("storage")]
            return super()._accept(peer, method, params)

    async def body(world: ExecutorWorld) -> None:
        daemon = world.daemon = FullDisk()
        async with world.executor() as executor:
            daemon.executor = executor
            await take(executor, SEND)
            await until(lambda: daemon.asked)
            await settle()
            daemon.set_full(is_full=False)
            await world.accepted()
            daemon.end("c1", "agent:ops:main", status="ok", reply="hi")
            ok = MachineAnswer(status="ok", reply="hi", session_key="agent:ops:main")
            assert await world.answers(1) == [("c1", ok)]


def test_refusals_that_wait_for_the_server_have_a_limit_for_each_machine(
    in_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_REFUSALS", 3)

    async def body(world: ExecutorWorld) -> None:
        world.peer = None
        async with world.executor() as executor:
            gate = asyncio.Event()
            send, begun = world.server.send, 0

            async def wait(peer: str, identity: str, data: bytes) -> None:
                nonlocal begun
                begun += 1
                await gate.wait()
                await send(peer, identity, data)

            executor._send = wait
            for number in range(5):
                await take(executor, SEND, f"c{number}")
            await take(executor, SEND, "c0", "moon")
            await settle()
            assert begun == 3 + 1
            gate.set()
            await world.answers(4)
            await take(executor, SEND, "c3")
            await world.answers(5)

    in_world(body)
