"""Runs are found by their id alone: in memory, or in their transcript when they are no longer in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.supervised_runs import MAIN, NOW, run_harness

from sessiond.runs.registry import MAX_ENDED
from sessiond.runs.run import RunView
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


async def test_live_and_ended_runs_are_found_in_memory(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello")
        queued = await harness.accept("next")
        registry = harness.supervisor.registry
        assert await registry.find(run.run_id) == RunView(run_id=run.run_id, key=MAIN, status="running", started_at=NOW)
        assert await registry.find(queued.run_id) == RunView(run_id=queued.run_id, key=MAIN, status="queued")
        harness.agent.gate.set()
        await run.done.wait()
        assert await registry.find(run.run_id) == RunView(
            run_id=run.run_id, key=MAIN, status="ok", reply="re: hello", started_at=NOW, ended_at=NOW
        )
        assert registry.of_session(MAIN) == [queued]


async def test_an_ended_run_that_is_no_longer_in_memory_is_read_from_its_transcript(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        replies = {"a": "re: a", "quiet": "", "b": "re: b"}
        runs = {}

        async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
            return RunOutcome(reply=replies[spec.message])

        harness.agent.act = act
        for text in replies:
            runs[text] = await harness.accept(text)
            await runs[text].done.wait()
        harness.supervisor.registry._ended.clear()
        for text, reply in replies.items():
            found = await harness.supervisor.registry.find(runs[text].run_id)
            assert found is not None and (found.status, found.reply, found.started_at) == ("ok", reply, NOW)


async def test_an_id_that_no_run_has_finds_nothing(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        run = await harness.accept("hello")
        await run.done.wait()
        registry = harness.supervisor.registry
        for run_id in ("", ".", "nothing", "nobody.0123", f"{run.session.session_id}.0123", run.session.session_id):
            assert await registry.find(run_id) is None
        assert registry.session_of(f"{run.session.session_id}.0123") is run.session
        assert registry.session_of("nobody.0123") is None


async def test_the_number_of_ended_runs_in_memory_is_bounded(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        first = await harness.accept("first")
        await first.done.wait()
        registry = harness.supervisor.registry
        for number in range(MAX_ENDED):
            registry._ended[f"other{number}"] = first
        assert registry.get(first.run_id) is first
        last = await harness.accept("last")
        await last.done.wait()
        assert registry.get(first.run_id) is None
        found = await registry.find(first.run_id)
        assert found is not None and found.reply == "re: first"
