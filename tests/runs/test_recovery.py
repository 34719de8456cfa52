"""After a restart, queued runs start, started runs end as interrupted, and no run starts or ends twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from support.rows import check_each
from support.supervised_runs import MAIN, Agent, FakeHost, RunHarness, ignore_call, request, run_harness

from sessiond.errors import StorageError
from sessiond.model.record import ENTRY, FINAL, RUN, custom_line
from sessiond.runs.follow_up import AnnouncementFollowUp, FollowUp
from sessiond.runs.run import INTERRUPTED
from sessiond.sessions import lifecycle
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import Part


async def test_after_a_restart_a_queued_run_starts_and_a_started_run_ends_as_interrupted_once(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        live, queued = await harness.accept("live"), await harness.accept("queued")
        await harness.agent.wait_for_turn("live").wait()
        snapshot = harness.copy_store(tmp_path / "snapshot")
    for _ in range(2):
        async with run_harness(snapshot) as harness:
            found = harness.supervisor.registry.get(queued.run_id)
            if found is not None:
                assert await harness.wait_for_end(found) == ("ok", "re: queued")
            ended = await harness.supervisor.registry.find(live.run_id)
            assert ended is not None and (ended.status, ended.error) == ("error", "interrupted")
            assert harness.run_statuses() == [
                (live.run_id, "accepted"),
                (live.run_id, "running"),
                (queued.run_id, "accepted"),
                (live.run_id, "error"),
                (queued.run_id, "running"),
                (queued.run_id, "ok"),
            ]
            assert harness.messages() == ["user: live", "user: queued", "assistant: re: queued"]


async def test_a_formerly_queued_run_that_had_started_is_not_started_again(tmp_path: Path, autojump_clock: Any):
    """The record of its acceptance contains its message, so only the record of its start shows that it began."""
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("first")
        run = await harness.accept("behind it", follow=FollowUp(announcement=AnnouncementFollowUp("c", "r")))
        await harness.agent.wait_for_turn("first").wait()
        gate, harness.agent.gate = harness.agent.gate, trio.Event()
        gate.set()
        await harness.agent.wait_for_turn("behind it").wait()
        snapshot = harness.copy_store(tmp_path / "snapshot")
    for _ in range(2):
        async with run_harness(snapshot) as harness:
            found = harness.supervisor.registry.get(run.run_id)
            if found is not None:
                assert found.started_at is not None
                assert await harness.wait_for_end(found) == ("error", "interrupted")
            own = [status for run_id, status in harness.run_statuses() if run_id == run.run_id]
            assert own == ["accepted", "running", "error"]
            assert harness.messages().count("user: behind it") == 1


async def test_the_order_of_the_queue_survives_a_restart(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        for text, first in (("live", False), ("q1", False), ("q2", False), ("steer", True), ("q3", False)):
            await harness.accept(text, first=first)
        snapshot = harness.copy_store(tmp_path / "snapshot")
    async with run_harness(snapshot) as harness:
        for run in harness.supervisor.queues.runs_of(MAIN):
            await run.done.wait()
        assert [turn.message for turn in harness.agent.turns] == ["steer", "q1", "q2", "q3"]


async def test_a_queued_run_keeps_its_whole_request_over_a_restart(tmp_path: Path, autojump_clock: Any):
    fields: dict[str, Any] = {
        "context": "a preamble",
        "step": "reply",
        "turn": 2,
        "max_turns": 5,
        "timeout_s": 9.5,
        "follow": FollowUp(announcement=AnnouncementFollowUp("c", "r")),
        "attachments": {"relDir": "a"},
        "thinking": "low",
        "model": "m",
        "idempotency_key": "k",
        "payload": "p",
    }
    async with run_harness(tmp_path / "store") as harness:
        run = await harness.accept("hello", "agent:alice:main", **fields)
        snapshot = harness.copy_store(tmp_path / "snapshot")
    async with run_harness(snapshot, host=FakeHost(tmp_path)) as harness:
        found = harness.supervisor.registry.get(run.run_id)
        assert found is not None
        assert (found.request, found.key, found.accepted_at) == (run.request, run.key, run.accepted_at)
        session = harness.store.catalog.by_key["agent:alice:main"]
        assert harness.supervisor.run_of_key(session, "k", "p") == run.run_id


async def _accept_various_runs(harness: RunHarness) -> list[str]:
    """Accept runs that end, go on, wait, are aborted or lack their agent; return all their ids."""
    host = harness.host
    runs = [await harness.accept("one"), await harness.accept("two", "agent:main:other")]
    for run in runs:
        await run.done.wait()
    harness.agent.act = harness.agent.wait
    runs += [await harness.accept(f"q{number}", MAIN, first=number == 2) for number in range(3)]
    runs.append(await harness.accept("never", "agent:alice:main"))
    await harness.agent.wait_for_turn("q0").wait()
    await harness.supervisor.stop(runs[3].session, runs[3].run_id)
    assert host.agents
    return [run.run_id for run in runs]


async def test_a_transcript_cut_at_any_line_gives_each_run_exactly_one_end_after_recovery(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        await _accept_various_runs(harness)
        snapshot = harness.copy_store(tmp_path / "snapshot")
    original = next(
        path for path in (snapshot / "agents/main/sessions").glob("*.jsonl") if b'"one"' in path.read_bytes()
    )
    data = original.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    # Just after each line, in the middle of a line, and one byte into the next one.
    cuts = sorted({*ends, *(end - 7 for end in ends[1:]), *(end + 1 for end in ends[:-1])})
    assert len(cuts) > 30
    for cut in cuts:
        original.write_bytes(data[:cut])
        async with run_harness(snapshot) as harness:
            harness.host.agents["alice"] = harness.agent
            harness.supervisor.agents_changed()
            for run in list(harness.supervisor.registry.live.values()):
                await run.done.wait()
            steps = harness.run_statuses() if MAIN in harness.store.catalog.by_key else []
            accepted = [run_id for run_id, status in steps if status == "accepted"]
            ended = Counter(run_id for run_id, status in steps if status in FINAL)
            assert ended == Counter(accepted), f"cut at byte {cut}"
            assert harness.store.catalog.by_key[MAIN].entry.runs == ()
            begun = Counter(run_id for run_id, status in steps if status == "running")
            assert max(begun.values(), default=0) <= 1
        (snapshot / "agents/main/sessions/sessions.json").unlink(missing_ok=True)


async def test_a_run_record_without_a_usable_request_is_ended_as_interrupted(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        session = await harness.session()
        path = harness.store.path / session.path
    run_id = f"{session.session_id}.0123456789abcdef"
    with path.open("a") as file:
        for data in ({"runId": run_id, "status": "accepted", "at": 1}, {"runId": "odd", "status": "accepted", "at": 2}):
            record = {"type": "custom", "id": "aa", "customType": "sessiond/run", "data": data}
            if data["runId"] == "odd":
                record["data"] = {**data, "request": {"text": 5}}
            file.write(json.dumps(record) + "\n")
    async with run_harness(tmp_path / "store") as harness:
        for run in list(harness.supervisor.registry.live.values()):
            assert await harness.wait_for_end(run) == ("error", "interrupted")
        # Trio decides which of the two ends first.
        ends = [step for step in harness.run_statuses() if step[1] == "error"]
        assert sorted(ends) == sorted([(run_id, "error"), ("odd", "error")])


@check_each("status", sorted(FINAL))
async def test_the_end_of_a_run_reads_the_same_after_a_restart(tmp_path: Path, autojump_clock: Any, status: str):
    async with run_harness(tmp_path / "store") as harness:
        if status == "error":
            del harness.host.agents["main"]
        elif status != "ok":
            harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", timeout_s=5 if status == "timeout" else None)
        if status == "aborted":
            await harness.supervisor.stop(run.session)
        await run.done.wait()
        before = await harness.supervisor.registry.find(run.run_id)
    async with run_harness(tmp_path / "store") as harness:
        after = await harness.supervisor.registry.find(run.run_id)
        assert after is not None and after == before
        assert after.status == status


async def test_queued_runs_of_several_sessions_start_in_the_order_of_acceptance(tmp_path: Path, autojump_clock: Any):
    keys = [f"agent:main:{name}" for name in "cabd"]
    async with run_harness(tmp_path / "store") as harness:
        harness.host.most = (1, 1)
        harness.agent.act = harness.agent.wait
        for key in keys:
            await harness.session(key)
            await trio.sleep(1)
        for key in keys:
            await harness.accept(f"to {key}", key)
            await trio.sleep(1)
        harness.agent.gate.set()
        snapshot = harness.copy_store(tmp_path / "snapshot")
    host = FakeHost(tmp_path)
    host.most = (1, 1)
    async with run_harness(snapshot, host=host) as harness:
        for run in list(harness.supervisor.registry.live.values()):
            await run.done.wait()
        # The first run had started, so recovery ended it as interrupted.
        assert [turn.message for turn in harness.agent.turns] == [f"to {key}" for key in keys[1:]]


@pytest.mark.parametrize("names_session", [True, False])
async def test_a_queued_run_in_a_transcript_and_its_copy_runs_once(
    tmp_path: Path, autojump_clock: Any, names_session: bool
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("live")
        run = await harness.accept("queued")
        snapshot = harness.copy_store(tmp_path / "snapshot")
        path = snapshot / run.session.path
    run_id = run.run_id
    if not names_session:
        # Ids of other programs that write our records say nothing of a session: the older copy goes on.
        run_id = run_id.partition(".")[2]
        path.write_text(path.read_text().replace(f"{path.stem}.", ""))
    text = path.read_text().replace(f'"{MAIN}"', '"agent:main:copy"').replace(f'"id":"{path.stem}"', '"id":"copied"')
    path.with_name("copied.jsonl").write_text(text)
    async with run_harness(snapshot) as harness:
        assert set(harness.store.catalog.by_key) == {MAIN, "agent:main:copy"}
        live = list(harness.supervisor.registry.live.values())
        assert len(live) == 2
        for one in live:
            await one.done.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert [turn.message for turn in harness.agent.turns] == ["queued"]
        steps = [
            [status for one_id, status in harness.run_statuses(key) if one_id == run_id]
            for key in (MAIN, "agent:main:copy")
        ]
        assert sorted(steps) == [["accepted", "error"], ["accepted", "running", "ok"]]
        with trio.fail_after(60):
            for key in (MAIN, "agent:main:copy"):
                assert await harness.wait_for_end(await harness.accept("more", key)) == ("ok", "re: more")


def _copy(kind: str, original: Path) -> tuple[Path, bytes]:
    """The path and the content of a copy of a transcript."""
    data, name = original.read_bytes(), original.stem.encode()
    match kind:
        case "beside":
            return original.with_name("copied.jsonl"), data
        case "key":
            return original.with_name("copied.jsonl"), data.replace(MAIN.encode(), b"agent:main:copy")
        case "header":
            new = data.replace(MAIN.encode(), b"agent:main:copy").replace(b'"id":"' + name + b'"', b'"id":"copied"')
            return original.with_name("copied.jsonl"), new
        case _:
            folder = original.parents[2] / "other" / "sessions"
            folder.mkdir(parents=True, mode=0o700)
            folder.parent.chmod(0o700)
            return folder / original.name, _as_adopted(data) if kind == "adopted" else data


def _as_adopted(data: bytes) -> bytes:
    """The transcript as if another program had begun it: its key is in a record of the daemon."""
    header, _, rest = data.partition(b"\n")
    named = {name: value for name, value in json.loads(header).items() if name not in ("sessionKey", "agentId")}
    return json.dumps(named).encode() + b"\n" + custom_line("0" * 16, None, 1, ENTRY, {"sessionKey": MAIN}) + rest


@check_each("removed", [False, True], ids=["original stays", "original removed"])
@check_each("kind", ["beside", "key", "header", "agent", "adopted"])
async def test_an_open_run_of_a_copied_transcript_runs_once_over_several_restarts(
    tmp_path: Path, autojump_clock: Any, kind: str, removed: bool
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("live")
        await harness.accept("queued")
        snapshot = harness.copy_store(tmp_path / "snapshot")
        original = snapshot / harness.session_path(MAIN)
    copy, data = _copy(kind, original)
    copy.write_bytes(data)
    copy.chmod(0o600)
    turns: list[str] = []
    for start in range(3):
        async with run_harness(snapshot) as harness:
            for run in list(harness.supervisor.registry.live.values()):
                await run.done.wait()
            await trio.testing.wait_all_tasks_blocked()
            turns += [turn.message for agent in harness.host.agents.values() for turn in getattr(agent, "turns", [])]
            assert [one.key for one in harness.store.catalog.by_id.values() if one.entry.runs] == []
        # Put the copy back as it was while the run was open: the result is the same without the end written into it.
        copy.write_bytes(data)
        if removed and not start:
            original.unlink()
    assert turns == ["queued"]


def _copy_with_foreign_key(harness: RunHarness, to: Path, kind: str) -> tuple[Path, str]:
    """A copy of the store in which the transcript of MAIN has a key that is not its folder's, and the key that it gets.

    Either it is in the folder of agent `other`, or the agent in its key has another spelling.
    """
    snapshot = harness.copy_store(to)
    original = snapshot / harness.session_path(MAIN)
    if kind == "spelling":
        original.write_bytes(original.read_bytes().replace(MAIN.encode(), b"agent:Main:main"))
        return snapshot, f"agent:main:import:{original.stem}"
    path, data = _copy("agent", original)
    path.write_bytes(data)
    path.chmod(0o600)
    original.unlink()
    return snapshot, f"agent:other:import:{original.stem}"


@pytest.mark.parametrize("kind", ["folder", "spelling"])
async def test_what_a_moved_transcript_accepts_after_its_adoption_goes_on_after_a_restart(
    tmp_path: Path, autojump_clock: Any, kind: str
):
    host, first, second = FakeHost(tmp_path), Agent(), Agent()
    host.agents["other"] = host.agents["main"] = first
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("live")
        await harness.accept("queued")
        snapshot, key = _copy_with_foreign_key(harness, tmp_path / "moved", kind)
    first.act = first.wait
    async with run_harness(snapshot, host=host) as harness:
        run = await harness.accept("begun", key)
        with trio.fail_after(60):
            await first.wait_for_turn("begun").wait()
        after = await harness.accept("accepted here", key)
        again = harness.copy_store(tmp_path / "again")
    host.agents["other"] = host.agents["main"] = second
    async with run_harness(again, host=host) as harness:
        with trio.fail_after(60):
            for one in list(harness.supervisor.registry.live.values()):
                await one.done.wait()
        assert [turn.message for turn in second.turns] == ["accepted here"]
        ends = {run_id: status for run_id, status in harness.run_statuses(key) if status in FINAL}
        assert (ends[run.run_id], ends[after.run_id], sorted(ends.values())) == ("error", "ok", ["error"] * 3 + ["ok"])
        data = [one["data"] for one in harness.records(key) if one.get("customType") == RUN]
        assert [one["error"] for one in data if one["runId"] == run.run_id and "error" in one] == [INTERRUPTED]


async def test_a_copy_that_cannot_be_written_does_not_keep_the_runs_of_another_from_their_ends(
    tmp_path: Path, autojump_clock: Any
):
    keys = ["agent:main:first", "agent:main:second"]
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        for key in keys:
            await harness.accept("live", key)
        snapshot = harness.copy_store(tmp_path / "snapshot")
        paths = [snapshot / harness.session_path(key) for key in keys]
    for name, path in zip("ab", paths, strict=True):
        path.rename(path.with_name(f"{name}.jsonl"))

    def refuse_first(harness: RunHarness) -> None:
        append = harness.store.append

        async def append_unless_first(session: Session, parts: Sequence[Part]) -> Any:
            if session.key == keys[0]:
                raise StorageError("no space left on device")
            return await append(session, parts)

        harness.store.append = append_unless_first  # type: ignore[method-assign]

    async with run_harness(snapshot, setup=refuse_first) as harness:
        await trio.sleep(60)
        assert [len(harness.store.catalog.by_key[key].entry.runs) for key in keys] == [1, 0]


async def test_a_follow_up_of_a_run_from_before_a_reset_starts_after_a_restart(tmp_path: Path, autojump_clock: Any):
    """Its id contains the id of the archived session whose run it follows."""
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        before = await harness.session()
        await lifecycle.reset(
            SessionChanges(harness.store, ignore_call), harness.feed, before, harness.supervisor.stop_for_reset
        )
        await harness.accept("live")
        step = request("step", first=True)
        session = harness.store.catalog.by_key[MAIN]
        await harness.supervisor.accept(session, step, run_id=f"{before.session_id}.0123456789abcdef")
        snapshot = harness.copy_store(tmp_path / "snapshot")
    async with run_harness(snapshot) as harness:
        for run in list(harness.supervisor.registry.live.values()):
            await run.done.wait()
        assert [turn.message for turn in harness.agent.turns] == ["step"]


@pytest.mark.parametrize("announcement", [False, True])
async def test_a_run_whose_start_record_a_crash_erased_starts_with_the_message_already_written(
    tmp_path: Path, autojump_clock: Any, announcement: bool
):
    """Acceptance, message and start are one write; here, its last line was partly overwritten when the disk failed."""
    follow = FollowUp(announcement=AnnouncementFollowUp("c", "r")) if announcement else FollowUp()
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", follow=follow)
        await harness.agent.wait_for_turn("hello").wait()
        snapshot, path = harness.copy_store(tmp_path / "snapshot"), harness.session_path()
    file = snapshot / path
    *lines, start = file.read_bytes().splitlines(keepends=True)
    assert b'"running"' in start
    half = len(start) // 2
    file.write_bytes(b"".join(lines) + b" " * half + start[half:])
    for _ in range(2):
        async with run_harness(snapshot) as harness:
            found = harness.supervisor.registry.get(run.run_id)
            if found is not None:
                assert await harness.wait_for_end(found) == ("ok", "re: hello")
            assert harness.messages() == ["user: hello", "assistant: re: hello"]
            assert [status for _, status in harness.run_statuses()] == ["accepted", "running", "ok"]


async def test_another_programs_message_after_an_acceptance_is_not_taken_for_that_of_the_run(
    tmp_path: Path, autojump_clock: Any
):
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", follow=FollowUp(announcement=AnnouncementFollowUp("c", "r")))
        await harness.agent.wait_for_turn("hello").wait()
        snapshot, path = harness.copy_store(tmp_path / "snapshot"), harness.session_path()
    file = snapshot / path
    *lines, _message, _start = file.read_text().splitlines()
    stranger = {"type": "message", "id": "s", "parentId": "other", "message": {"role": "user", "content": "mine"}}
    file.write_text("\n".join([*lines, json.dumps(stranger)]) + "\n")
    async with run_harness(snapshot) as harness:
        assert await harness.supervisor.registry.find(run.run_id) is None
        assert (harness.messages(), harness.run_statuses(), harness.agent.turns) == (["user: mine"], [], [])
