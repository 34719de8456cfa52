"""Attached agents: runs are requests on connections; their events and their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.supervised_runs import FakeHost, RunHarness, ignore_call, run_harness

from sessiond.errors import LimitExceeded
from sessiond.runtimes import attached as module
from sessiond.runtimes.attached import AgentConnectionLost, AttachedAgents, RefusedByAgent, run_start_params
from sessiond.runtimes.runtime import RunSpec, Runtime

KEY = "agent:alice:main"


class FakeConnection:
    """A connection that answers with `act` and records requests. `cancelled` are those that were cancelled."""

    def __init__(self, *capabilities: str) -> None:
        self.capabilities = frozenset(capabilities)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[str] = []
        self.live_runs: set[str] = set()
        self.begun = trio.Event()
        self.gate = trio.Event()
        self.act: Callable[[str, dict[str, Any]], Awaitable[Any]] = self.answer

    async def answer(self, method: str, params: dict[str, Any]) -> Any:
        return {"reply": f"re: {params['message']}"}

    async def wait(self, method: str, params: dict[str, Any]) -> Any:
        await self.gate.wait()
        return await self.answer(method, params)

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        result_type: Any = Any,
        *,
        withdraws: Callable[[], bool] | None = None,
    ) -> Any:
        self.asked.append((method, params))
        self.begun.set()
        try:
            await trio.lowlevel.checkpoint()
            answer = await self.act(method, params)
        except trio.Cancelled:
            if withdraws is None or withdraws():
                self.cancelled.append(method)
            raise
        try:
            return msgspec.json.decode(msgspec.json.encode(answer), type=result_type)
        except msgspec.DecodeError as error:
            raise RefusedByAgent(f"The answer is not what was asked for: {error}.") from None

    def begin_run(self, run_id: str, spec: RunSpec) -> None:
        self.live_runs.add(run_id)

    def end_run(self, run_id: str) -> None:
        self.live_runs.remove(run_id)


class AttachedHost(FakeHost):
    """A host whose agents are those that are attached."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.on_change: Callable[[], None] = ignore_call
        self.attached = AttachedAgents(
            lambda: self.on_change(),  # noqa: PLW0108 - `on_change` is set later
            self.is_resumable,
        )

    def runtime(self, agent_id: str) -> Runtime | None:
        return self.attached.runtime(agent_id)


@pytest.fixture
def host(tmp_path: Path) -> AttachedHost:
    return AttachedHost(tmp_path)


@pytest.fixture
async def harness(tmp_path: Path, host: AttachedHost) -> AsyncIterator[RunHarness]:
    async with run_harness(tmp_path / "store", host=host) as harness:
        host.on_change = harness.supervisor.agents_changed
        yield harness


class TestAnswers:
    async def run_to_end(self, harness: RunHarness, host: AttachedHost, answer: Any) -> tuple[str, str | None]:
        connection = FakeConnection()

        async def act(method: str, params: dict[str, Any]) -> Any:
            return answer

        connection.act = act
        host.attached.attach("alice", connection)
        return await harness.wait_for_end(await harness.accept("hello", KEY))

    @pytest.mark.parametrize(
        ("answer", "end"),
        [
            ({"reply": "hi"}, ("hi", ["assistant: hi"])),
            ({"reply": "hi", "messages": []}, ("hi", ["assistant: hi"])),
            ({}, ("", [])),
            (None, ("", [])),
            ({"reply": ""}, ("", [])),
            ({"messages": [{"role": "assistant", "content": "hi"}]}, ("hi", ["assistant: hi"])),
            ({"reply": "hi", "messages": [{"role": "assistant", "content": "hi"}]}, ("hi", ["assistant: hi"])),
            (
                {"messages": [{"role": "toolResult", "content": "42"}], "reply": "hi"},
                ("hi", ["toolResult: 42", "assistant: hi"]),
            ),
            (
                {
                    "messages": [
                        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
                        {"role": "x", "content": ""},
                    ]
                },
                ("a", ["assistant: a", "x: "]),
            ),
        ],
    )
    async def test_the_answer_to_run_start_gives_the_reply_and_the_messages_of_the_run(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any, answer: Any, end: tuple[str, list[str]]
    ):
        reply, said = end
        assert await self.run_to_end(harness, host, answer) == ("ok", reply)
        assert harness.messages(KEY) == ["user: hello", *said]

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ("text", "The answer is not what was asked for"),
            ({"reply": 5}, "The answer is not what was asked for"),
            ({"messages": [5]}, "the agent's answer to run.start cannot be used: `$.messages[0]` is not a message"),
            (
                {"messages": [{"role": "", "content": ""}]},
                "the agent's answer to run.start cannot be used: `$.messages[0].role` is empty.",
            ),
        ],
    )
    async def test_an_unusable_answer_ends_the_run_as_an_error_and_writes_no_message(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any, answer: Any, error: str
    ):
        status, sentence = await self.run_to_end(harness, host, answer)
        assert status == "error"
        assert sentence is not None and sentence.startswith(error)
        assert harness.messages(KEY) == ["user: hello"]

    @given(
        answer=st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["reply", "messages", "usage", "model", "role", "content"]), inner)
            ),
            max_leaves=8,
        )
    )
    def test_any_answer_of_an_agent_gives_the_run_exactly_one_end(self, tmp_path_factory: Any, answer: Any):
        async def check() -> None:
            folder = tmp_path_factory.mktemp("any")
            host = AttachedHost(folder)
            async with run_harness(folder / "store", host=host) as harness:
                status, _ = await self.run_to_end(harness, host, answer)
                assert status in ("ok", "error")
                assert [step for _, step in harness.run_statuses(KEY)] == ["accepted", "running", status]

        trio.run(check)

    async def test_usage_is_counted_once(self, harness: RunHarness, host: AttachedHost, autojump_clock: Any):
        usage = {"input": 3, "output": 4, "totalTokens": 7}
        assert await self.run_to_end(harness, host, {"reply": "hi", "usage": usage, "model": "m"}) == ("ok", "hi")
        entry = harness.store.catalog.by_key[KEY].entry
        assert (entry.input_tokens, entry.output_tokens, entry.model) == (3, 4, "m")

    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (AgentConnectionLost(), "agent alice lost its connection during the run"),
            (RefusedByAgent("I would rather not"), "I would rather not"),
        ],
    )
    async def test_a_lost_connection_or_a_refusal_ends_the_run_as_an_error(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any, error: Exception, sentence: str
    ):
        connection = FakeConnection()

        async def act(method: str, params: dict[str, Any]) -> Any:
            raise error

        connection.act = act
        host.attached.attach("alice", connection)
        assert await harness.wait_for_end(await harness.accept("hello", KEY)) == ("error", sentence)


async def test_an_abort_cancels_the_request_and_frees_the_connection(
    harness: RunHarness, host: AttachedHost, autojump_clock: Any
):
    connection = FakeConnection()
    connection.act = connection.wait
    host.attached.attach("alice", connection)
    run = await harness.accept("hello", KEY)
    await connection.begun.wait()
    assert connection.live_runs == {run.run_id}
    await harness.supervisor.stop(run.session)
    assert (connection.cancelled, connection.live_runs) == (["run.start"], set())
    assert await harness.wait_for_end(run) == ("aborted", "aborted")


async def test_runs_are_distributed_evenly_over_the_connections_of_an_agent(
    harness: RunHarness, host: AttachedHost, autojump_clock: Any
):
    connections = [FakeConnection() for _ in range(3)]
    for connection in connections:
        connection.act = connection.wait
        host.attached.attach("alice", connection)
        host.attached.attach("alice", connection)
    host.most = (9, 9)
    for number in range(6):
        await harness.accept("x", f"agent:alice:{number}")
    await trio.testing.wait_all_tasks_blocked()
    assert [len(connection.live_runs) for connection in connections] == [2, 2, 2]
    assert host.attached.counts() == {"alice": 3}
    # A connection that detaches is no longer counted.
    host.attached.detach(connections[0])
    assert host.attached.counts() == {"alice": 2}
    for connection in connections:
        connection.gate.set()


class TestEvents:
    async def begin_run(self, harness: RunHarness, host: AttachedHost) -> tuple[FakeConnection, Any, Any]:
        connection = FakeConnection()
        connection.act = connection.wait
        host.attached.attach("alice", connection)
        run = await harness.accept("hello", KEY)
        await connection.begun.wait()
        turn = host.attached.turn(run.run_id, connection)
        assert turn is not None
        return connection, run, turn

    async def test_messages_are_written_in_order_before_the_run_end(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        connection, run, turn = await self.begin_run(harness, host)
        for number in range(50):
            turn.append(msgspec.Raw(b'{"role":"assistant","content":"%d"}' % number))
        connection.gate.set()
        assert await harness.wait_for_end(run) == ("ok", "re: hello")
        assert harness.messages(KEY) == [
            "user: hello",
            *(f"assistant: {number}" for number in range(50)),
            "assistant: re: hello",
        ]

    async def test_a_message_that_cannot_be_stored_ends_the_run(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        connection, run, turn = await self.begin_run(harness, host)
        turn.append(msgspec.Raw(b'{"role":"assistant","content":"%s"}' % (b"x" * 2_000_000)))
        status, error = await harness.wait_for_end(run)
        assert status == "error"
        assert error is not None and error.startswith("the record is 2000")
        assert connection.cancelled == ["run.start"]

    async def test_an_agent_with_too_many_unwritten_bytes_is_refused(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        _, _, turn = await self.begin_run(harness, host)
        turn.append(msgspec.Raw(b"x" * module.MAX_UNWRITTEN_BYTES))
        turn.append(msgspec.Raw(b"x"))
        with pytest.raises(LimitExceeded):
            turn.append(msgspec.Raw(b"x"))

    async def test_only_the_connection_that_has_a_run_can_report_on_it(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        connection, run, _ = await self.begin_run(harness, host)
        assert host.attached.turn(run.run_id, FakeConnection()) is None
        assert host.attached.turn(run.run_id, None) is None
        assert host.attached.turn("other", connection) is None
        connection.gate.set()
        await run.done.wait()
        assert host.attached.turn(run.run_id, connection) is None


class TestSteer:
    async def begin_run(
        self, harness: RunHarness, host: AttachedHost, *capabilities: str
    ) -> tuple[FakeConnection, Any]:
        connection = FakeConnection(*capabilities)

        async def act(method: str, params: dict[str, Any]) -> Any:
            return {} if method == "run.steer" else await connection.wait(method, params)

        connection.act = act
        host.attached.attach("alice", connection)
        run = await harness.accept("hello", KEY)
        await connection.begun.wait()
        return connection, run

    async def test_a_run_of_an_agent_with_the_steer_capability_can_be_steered(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        connection, run = await self.begin_run(harness, host, "steer")
        assert host.attached.can_steer(run.run_id)
        assert await host.attached.steer(run.run_id, "left")
        assert connection.asked[1:] == [("run.steer", {"runId": run.run_id, "message": "left"})]

    async def test_a_run_of_an_agent_without_the_steer_capability_cannot_be_steered(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any
    ):
        _, run = await self.begin_run(harness, host)
        assert not host.attached.can_steer(run.run_id)
        assert not host.attached.can_steer("other")
        assert not await host.attached.steer("other", "left")

    @pytest.mark.parametrize("how", ["refuses", "is silent", "is gone"])
    async def test_steering_fails_if_the_agent_refuses_is_silent_or_is_gone(
        self, harness: RunHarness, host: AttachedHost, autojump_clock: Any, how: str
    ):
        connection, run = await self.begin_run(harness, host, "steer")

        async def act(method: str, params: dict[str, Any]) -> Any:
            if how == "refuses":
                raise RefusedByAgent("busy")
            if how == "is gone":
                raise AgentConnectionLost
            await trio.sleep_forever()

        connection.act = act
        began = trio.current_time()
        assert not await host.attached.steer(run.run_id, "left")
        assert trio.current_time() - began == pytest.approx(module.STEER_S if how == "is silent" else 0)


async def test_run_start_has_only_the_parameters_that_have_a_value(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    least: dict[str, Any] = {
        "run_id": "r",
        "session_key": KEY,
        "session_id": "s",
        "agent_id": "alice",
        "message": "hello",
        "workspace": tmp_path,
        "socket": tmp_path / "agent.sock",
    }
    params = {"runId": "r", "sessionKey": KEY, "sessionId": "s", "step": "primary", "message": "hello"}
    assert await run_start_params(RunSpec(**least)) == params
    more: dict[str, Any] = {
        "step": "reply",
        "turn": 2,
        "max_turns": 5,
        "context": "before",
        "provenance": {"kind": "inter_session"},
        "thinking": "low",
        "model": "m",
        "attachments": {"count": 1},
        "deadline_ms": 7,
        "token_file": token,
    }
    assert await run_start_params(RunSpec(**least, **more)) == {
        **params,
        "step": "reply",
        "turn": 2,
        "maxTurns": 5,
        "context": "before",
        "provenance": {"kind": "inter_session"},
        "thinking": "low",
        "model": "m",
        "attachments": {"count": 1},
        "deadline": 7,
        "token": "secret",
    }
