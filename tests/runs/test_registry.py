"""Runs are found by their id alone: in memory, and in their transcripts when memory has forgotten them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.supervised_runs import MAIN, NOW, house

from sessiond.runs.registry import MAX_ENDED
from sessiond.runs.run import RunView
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


async def test_live_and_ended_runs_are_found_in_memory(tmp_path: Path, autojump_clock: Any):
    async with house(tmp_path / "store") as home:
        home.agent.act = home.agent.wait
        run = await home.accept("hello")
        waits = await home.accept("next")
        registry = home.supervisor.registry
        assert await registry.find(run.run_id) == RunView(run_id=run.run_id, key=MAIN, status="running", started_at=NOW)
        assert await registry.find(waits.run_id) == RunView(run_id=waits.run_id, key=MAIN, status="queued")
        home.agent.gate.set()
        await run.done.wait()
        assert await registry.find(run.run_id) == RunView(
            run_id=run.run_id, key=MAIN, status="ok", reply="re: hello", started_at=NOW, ended_at=NOW
        )
        assert registry.of_session(MAIN) == [waits]


async def test_what_memory_has_forgotten_is_read_from_the_file(tmp_path: Path, autojump_clock: Any):
    async with house(tmp_path / "store") as home:
        replies = {"a": "re: a", "quiet": "", "b": "re: b"}
        runs = {}

        async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
            return RunOutcome(reply=replies[spec.message])

        home.agent.act = act
        for text in replies:
            runs[text] = await home.accept(text)
            await runs[text].done.wait()
        home.supervisor.registry._ended.clear()
        for text, reply in replies.items():
            found = await home.supervisor.registry.find(runs[text].run_id)
            assert found is not None and (found.status, found.reply, found.started_at) == ("ok", reply, NOW)


async def test_an_id_that_no_run_has_finds_nothing(tmp_path: Path, autojump_clock: Any):
    async with house(tmp_path / "store") as home:
        run = await home.accept("hello")
        await run.done.wait()
        registry = home.supervisor.registry
        for run_id in ("", ".", "nothing", "nobody.0123", f"{run.session.session_id}.0123", run.session.session_id):
            assert await registry.find(run_id) is None
        assert registry.session_of(f"{run.session.session_id}.0123") is run.session
        assert registry.session_of("nobody.0123") is None


async def test_only_so_many_ended_runs_are_kept_in_memory(tmp_path: Path, autojump_clock: Any):
    async with house(tmp_path / "store") as home:
        first = await home.accept("first")
        await first.done.wait()
        registry = home.supervisor.registry
        for number in range(MAX_ENDED):
            registry._ended[f"other{number}"] = first
        assert registry.get(first.run_id) is first
        last = await home.accept("last")
        await last.done.wait()
        assert registry.get(first.run_id) is None
        found = await registry.find(first.run_id)
        assert found is not None and found.reply == "re: first"
