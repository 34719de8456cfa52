"""What an agent sends goes where it belongs, whatever it is; a turn that is slow makes the agent wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sessiond.runtimes.acp.connection import AgentConnection, AgentGone, AgentRefused
from sessiond.runtimes.acp.frames import AgentFrame, AgentNotification, AgentRequest, AgentResponse
from sessiond.runtimes.acp.turn import _MAX_WAITING_BYTES, TurnQueue


class Taker:
    def __init__(self) -> None:
        self.frames: list[AgentFrame | str] = []

    async def offer(self, frame: AgentFrame, size: int) -> None:
        await trio.lowlevel.checkpoint()
        self.frames.append(frame)

    def lose_agent(self, reason: str) -> None:
        self.frames.append(reason)


class Peer(AgentConnection):
    def __init__(self) -> None:
        self.written: list[Any] = []
        super().__init__(lambda line: self.written.append(msgspec.json.decode(line)))


def update(session: str) -> AgentNotification:
    return AgentNotification("session/update", {"sessionId": session, "update": {}})


def permission(session: str) -> AgentRequest:
    return AgentRequest(0, "session/request_permission", {"sessionId": session})


async def test_frames_go_to_the_turn_of_their_session_until_its_end() -> None:
    peer, mine, other = Peer(), Taker(), Taker()
    prompt_id = peer.begin_prompt("a", [], mine)
    peer.begin_prompt("b", [], other)
    for frame in (update("a"), update("nobody"), permission("a"), permission("nobody"), AgentResponse(prompt_id, {})):
        await peer.handle(frame, 1)
    assert mine.frames == [update("a"), permission("a"), AgentResponse(prompt_id, {})] and other.frames == []
    # A session without a turn is answered, and nothing else happens.
    assert peer.written[2]["result"]["outcome"] == {"outcome": "cancelled"} and len(peer.written) == 3
    # Behind its answer nobody reads what is for the turn.
    for frame in (update("a"), permission("a"), AgentResponse(prompt_id, {})):
        await peer.handle(frame, 1)
    assert len(mine.frames) == 3 and peer.written[3]["result"]["outcome"] == {"outcome": "cancelled"}
    peer.end_prompt("a", prompt_id)
    peer.close("it died")
    assert (mine.frames[3:], other.frames) == ([], ["it died"])
    with pytest.raises(AgentGone, match="it died"):
        peer.begin_prompt("a", [], mine)
    with pytest.raises(AgentGone, match="it died"):
        await peer.request("m", {}, 1)


async def test_requests_get_their_answers_and_ids_of_both_sides_are_apart(autojump_clock: None) -> None:
    peer = Peer()

    async def answer(*frames: AgentFrame) -> None:
        await trio.sleep(1)
        for frame in frames:
            await peer.handle(frame, 1)

    async with trio.open_nursery() as nursery:
        # A request of the agent with the same id comes first.
        nursery.start_soon(
            answer, AgentRequest(0, "what/ever", {}), AgentResponse(7, "not asked"), AgentResponse(0, None)
        )
        assert await peer.request("m", {}, 5) is None
    assert [frame["id"] for frame in peer.written] == [0, 0] and peer.written[1]["error"]["code"] == -32601
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer, AgentResponse(1, code=-32000, message="no"))
        assert await refusal_of(peer) == (-32000, "no")
    with pytest.raises(trio.TooSlowError):
        await peer.request("m", {}, 5)
    # While a history is replayed, it is the silence that is limited.
    async with trio.open_nursery() as nursery:
        for second in range(1, 10):
            nursery.start_soon(replay_at, peer, second * 3)
        nursery.start_soon(replay_at, peer, 29, AgentResponse(3, {"x": 1}))
        assert await peer.request("session/load", {}, 5, replayed="a") == {"x": 1}


async def refusal_of(peer: AgentConnection) -> tuple[int, str]:
    with pytest.raises(AgentRefused) as refused:
        await peer.request("m", {}, 5)
    return refused.value.code, refused.value.message


async def replay_at(peer: AgentConnection, second: float, frame: AgentFrame | None = None) -> None:
    await trio.sleep(second)
    await peer.handle(frame or update("a"), 1)


async def test_two_may_wait_for_the_silence_of_one_session(autojump_clock: None) -> None:
    """As when two callers ask at once whether the agent has a session."""
    peer, ends = Peer(), list[float]()

    async def wait_for_silence(silence_s: float, most_s: float) -> None:
        await peer.wait_for_silence("a", silence_s, most_s)
        ends.append(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_silence, 2, 3)
        nursery.start_soon(wait_for_silence, 2, 100)
        for second in (1, 2.5, 4):
            nursery.start_soon(replay_at, peer, second)
    assert ends == pytest.approx([3, 6])


async def test_an_agent_that_is_quicker_than_the_disk_waits(autojump_clock: None) -> None:
    queue, sent = TurnQueue(), 0

    async def flood() -> None:
        nonlocal sent
        while sent < 100:
            await queue.offer(update("a"), 100_000)
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        await trio.sleep(1)
        assert sent == _MAX_WAITING_BYTES // 100_000 + 1
        assert await queue.get() == update("a")
        await trio.sleep(1)
        assert sent == _MAX_WAITING_BYTES // 100_000 + 2
        queue.lose_agent("gone")
        for _ in range(sent - 1):
            assert await queue.get() == update("a")
        assert isinstance(await queue.get(), AgentGone)
        # Nothing waits for a turn that is over.
        queue.close()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["sessionId", "update", "toolCall", "options"]), inner, max_size=3)
    ),
    max_leaves=5,
)
params = st.dictionaries(st.sampled_from(["sessionId", "update"]), values | st.just("a"), max_size=2)
methods = st.sampled_from(
    ["session/update", "session/request_permission", "elicitation/create", "$/cancel_request", "x"]
)
any_frame = st.one_of(
    st.builds(AgentNotification, methods, params),
    st.builds(AgentRequest, st.none() | st.integers() | st.text(max_size=3), methods, params),
    st.builds(AgentResponse, st.integers(-1, 3), values, code=st.none() | st.integers()),
)


@given(st.lists(any_frame, max_size=8))
def test_any_frames_are_routed(frames: list[AgentFrame]) -> None:
    async def run() -> None:
        peer, turn = Peer(), Taker()
        peer.begin_prompt("a", [], turn)
        for frame in frames:
            await peer.handle(frame, 1)
        # Every request is answered, or is the turn's to answer.
        asked = sum(isinstance(frame, AgentRequest) for frame in frames)
        taken = sum(isinstance(frame, AgentRequest) for frame in turn.frames)
        assert len(peer.written) - 1 == asked - taken

    trio.run(run)
