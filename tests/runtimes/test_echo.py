from __future__ import annotations

from sessiond.runtimes.echo import EchoRuntime
from sessiond.runtimes.runtime import RunOutcome


async def test_echo_replies_with_the_message(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("good morning"), recorder)
    assert outcome == RunOutcome(reply="good morning")
    assert recorder.deltas == ["good morning"]
    assert recorder.messages == []


async def test_echo_leaves_out_the_context(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("bare", context="a message from another session"), recorder)
    assert outcome == RunOutcome(reply="bare")


async def test_echo_of_an_empty_message_is_an_empty_reply(make_spec, recorder) -> None:
    assert await EchoRuntime().run(make_spec(""), recorder) == RunOutcome(reply="")
    assert recorder.deltas == []
