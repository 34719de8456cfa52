from __future__ import annotations

from sessiond.runtimes.echo import EchoRuntime
from sessiond.runtimes.runtime import RunOutcome


async def test_echo_answers_what_it_got(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("good morning"), recorder)
    assert outcome == RunOutcome(reply="good morning")
    assert recorder.deltas == ["good morning"]
    assert recorder.messages == []


async def test_echo_leaves_the_preamble_out(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("bare", context="a message from another session"), recorder)
    assert outcome == RunOutcome(reply="bare")


async def test_echo_of_nothing_is_nothing(make_spec, recorder) -> None:
    assert await EchoRuntime().run(make_spec(""), recorder) == RunOutcome(reply="")
    assert recorder.deltas == []
