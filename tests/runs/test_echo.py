from __future__ import annotations

from sessiond.runs.echo import EchoRuntime
from sessiond.runs.runtime import Outcome


async def test_echo_answers_what_it_got(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("good morning"), recorder)
    assert outcome == Outcome(reply="good morning")
    assert recorder.deltas == ["good morning"]
    assert recorder.messages == []


async def test_echo_leaves_the_preamble_out(make_spec, recorder) -> None:
    outcome = await EchoRuntime().run(make_spec("bare", context="a message from another session"), recorder)
    assert outcome == Outcome(reply="bare")


async def test_echo_of_nothing_is_nothing(make_spec, recorder) -> None:
    assert await EchoRuntime().run(make_spec(""), recorder) == Outcome(reply="")
    assert recorder.deltas == []
