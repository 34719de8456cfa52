"""A crash cuts off the write of an acceptance: what is left of it counts for nothing, or the run is carried out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from support.conversing_runs import ALICE, BOB, conversation_harness, host_with, scripted
from support.sampling import spread
from support.supervised_runs import MAIN, FakeHost, RunHarness, request, run_harness

INBOX = "agent:main:mcp:editor"


def _remains(data: bytes, begin: int) -> dict[str, bytes]:
    """What a crash may leave of a transcript whose last write began at `begin`, by name."""
    found: dict[str, bytes] = {}
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10 and at >= begin]
    for number, (start, end) in enumerate(pairwise([begin, *ends])):
        middle = (start + end) // 2
        for cut in (start, start + 1, middle, end - 2):
            found[f"cut at {cut - start} of record {number}"] = data[:cut]
        # The write was refused, and is being blanked out, its last record first.
        blank = b"".join(b" " * (after - before - 1) + b"\n" for before, after in pairwise(ends) if before >= end)
        found[f"record {number} half blanked out"] = data[:start] + b" " * (middle - start) + data[middle:end] + blank
        if blank:
            found[f"blanked out behind record {number}"] = data[:end] + blank
    return found


def _last_write(path: Path, text: bytes) -> tuple[bytes, int]:
    """A transcript and where the accepted record begins that precedes the record with this text."""
    data = path.read_bytes()
    return data, data.rindex(b"\n", 0, data.rindex(b'"status":"accepted"', 0, data.rindex(text))) + 1


async def _torn(
    harness: RunHarness, tmp_path: Path, key: str = MAIN, text: bytes = b"hello"
) -> tuple[Path, dict[str, bytes]]:
    """The transcript in a copied store, and what a crash may leave of its last acceptance."""
    snapshot = harness.copy_store(tmp_path / "snapshot")
    path = snapshot / harness.session_path(key)
    return path, _remains(*_last_write(path, text))


def _forget_index(path: Path) -> None:
    (path.parent / "sessions.json").unlink(missing_ok=True)


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_message_sent_again_after_its_acceptance_was_cut_off_is_executed_once(
    tmp_path: Path, autojump_clock: Any, earlier: bool
):
    asked = request("hello", idempotency_key="k", payload="p")
    async with run_harness(tmp_path / "store") as harness:
        if earlier:
            await (await harness.accept("before")).done.wait()
        harness.agent.act = harness.agent.wait
        await harness.supervisor.accept(await harness.session(), asked)
        await harness.agent.wait_for_turn("hello").wait()
        path, remains = await _torn(harness, tmp_path)
    assert len(remains) == 17
    for name, data in remains.items():
        path.write_bytes(data)
        _forget_index(path)
        turns: list[str] = []
        for _ in range(2):
            async with run_harness(tmp_path / "snapshot") as harness:
                run_id = await harness.supervisor.accept_once(await harness.session(), asked)
                run = harness.supervisor.registry.get(run_id)
                if run is not None:
                    await run.done.wait()
                    assert (run.status, run.reply) == ("ok", "re: hello"), name
                turns += [turn.message for turn in harness.agent.turns]
                assert [one for one in harness.messages() if "hello" in one] == ["user: hello", "assistant: re: hello"]
                own = [status for one, status in harness.run_statuses() if one == run_id]
                assert own == ["accepted", "running", "ok"], name
        assert turns == ["hello"], name


async def test_nothing_is_left_of_an_acceptance_without_its_message(tmp_path: Path, autojump_clock: Any):
    async with run_harness(tmp_path / "store") as harness:
        done = await harness.accept("before")
        await done.done.wait()
        before = harness.store.catalog.by_key[MAIN].entry
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", idempotency_key="k", payload="p")
        await harness.agent.wait_for_turn("hello").wait()
        path, remains = await _torn(harness, tmp_path)
    path.write_bytes(remains["blanked out behind record 0"])
    for _ in range(2):
        async with run_harness(tmp_path / "snapshot") as harness:
            entry = harness.store.catalog.by_key[MAIN].entry
            assert (entry.runs, entry.keyed, entry.status, entry.ended_at) == ((), (), "ok", before.ended_at)
            assert entry.file.last_id == before.file.last_id
            assert await harness.supervisor.registry.find(run.run_id) is None
            assert [one for one, _ in harness.run_statuses()] == [done.run_id] * 3
            assert harness.agent.turns == []


@pytest.mark.parametrize("behind", ["", "a line of another program"])
async def test_an_index_from_before_an_acceptance_was_taken_back_is_corrected(
    tmp_path: Path, autojump_clock: Any, behind: str
):
    """The daemon was killed between the two; with other lines behind it the index fits the file."""
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", idempotency_key="k", payload="p")
        await harness.agent.wait_for_turn("hello").wait()
        path, remains = await _torn(harness, tmp_path)
    line = (
        json.dumps({"type": "custom", "id": "x", "parentId": None, "customType": "other", "data": behind * 20}) + "\n"
    )
    path.write_bytes(remains["cut at 0 of record 1"] + (line.encode() if behind else b""))
    async with run_harness(tmp_path / "snapshot", recovering=False) as harness:
        session = harness.store.catalog.by_key[MAIN]
        assert [live.run_id for live in session.entry.runs] == [run.run_id]
        await harness.store.save(session.folder)
    data = path.read_bytes()
    begin = data.index(b"\n") + 1
    end = data.index(b"\n", begin)
    path.write_bytes(data[:begin] + b" " * (end - begin) + data[end:])
    async with run_harness(tmp_path / "snapshot") as harness:
        entry = harness.store.catalog.by_key[MAIN].entry
        assert (entry.runs, entry.keyed, entry.status, harness.run_statuses()) == ((), (), None, [])


async def test_a_queued_run_is_complete_with_its_accepted_record(tmp_path: Path, autojump_clock: Any):
    asked = request("behind it", idempotency_key="k", payload="p")
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await harness.accept("first")
        await harness.agent.wait_for_turn("first").wait()
        run = await harness.supervisor.accept(await harness.session(), asked)
        path = harness.copy_store(tmp_path / "snapshot") / harness.session_path()
    data = path.read_bytes()
    begin = data.rindex(b"\n", 0, -1) + 1
    remains = _remains(data, begin)
    assert len(remains) == 5
    for name, left in {**remains, "whole": data}.items():
        path.write_bytes(left)
        _forget_index(path)
        async with run_harness(tmp_path / "snapshot") as harness:
            run_id = await harness.supervisor.accept_once(await harness.session(), asked)
            assert (run_id == run.run_id) is (name == "whole")
            again = harness.supervisor.registry.get(run_id)
            assert again is not None
            assert await harness.wait_for_end(again) == ("ok", "re: behind it")
            assert harness.messages().count("user: behind it") == 1, name


async def test_a_run_whose_message_was_written_before_it_still_counts(tmp_path: Path, autojump_clock: Any):
    """As the message of a steer that the agent did not take."""
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        run = await harness.accept("hello", idempotency_key="k", payload="p", in_transcript=True)
        await harness.agent.wait_for_turn("hello").wait()
        path, remains = await _torn(harness, tmp_path, text=b'"status":"running"')
    path.write_bytes(remains["blanked out behind record 0"])
    async with run_harness(tmp_path / "snapshot") as harness:
        again = harness.supervisor.registry.get(run.run_id)
        assert again is not None
        assert await harness.wait_for_end(again) == ("error", "interrupted")
        assert harness.supervisor.run_of_key(await harness.session(), "k", "p") == run.run_id


class _InboxHost(FakeHost):
    def keeps_messages(self, key: str) -> bool:
        return key == INBOX


async def test_a_message_kept_for_an_inbox_is_kept_once(tmp_path: Path, autojump_clock: Any):
    asked = request("hello", idempotency_key="k", payload="p")
    async with run_harness(tmp_path / "store", host=_InboxHost(tmp_path)) as harness:
        session = await harness.session(INBOX)
        await harness.supervisor.accept(session, request("before"))
        run = await harness.supervisor.accept(session, asked)
        snapshot = harness.copy_store(tmp_path / "snapshot")
        path = snapshot / harness.session_path(INBOX)
    data = path.read_bytes()
    begin = data.rindex(b"\n", 0, data.rindex(b'"hello"')) + 1
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10 and at >= begin]
    for number, cut in enumerate([begin, *ends]):
        path.write_bytes(data[:cut])
        _forget_index(path)
        async with run_harness(snapshot, host=_InboxHost(tmp_path)) as harness:
            run_id = await harness.supervisor.accept_once(await harness.session(INBOX), asked)
            # From the accepted record on, the message is known to be kept.
            assert (run_id == run.run_id) is (number >= 2)
            assert harness.messages(INBOX).count("user: hello") == (2 if number == 1 else 1)


async def test_a_message_of_another_session_is_answered_once_after_its_acceptance_was_cut_off(
    tmp_path: Path, autojump_clock: Any
):
    host = host_with(tmp_path, alice=scripted("REPLY_SKIP"), bob=scripted("done"))
    async with conversation_harness(tmp_path / "store", host) as harness:
        await harness.send("before", key="b")
        await harness.wait_until_settled()
        bob = host.agents["bob"]
        bob.act = bob.wait
        await harness.send("hello", key="k")
        with trio.fail_after(1000):
            await bob.wait_for_turn("hello").wait()
        path, remains = await _torn(harness.runs, tmp_path, BOB)
    for name, data in spread(list(remains.items()), 5):
        path.write_bytes(data)
        _forget_index(path)
        host = host_with(tmp_path, alice=scripted("REPLY_SKIP"), bob=scripted("done"))
        for _ in range(2):
            async with conversation_harness(tmp_path / "snapshot", host) as harness:
                session = harness.runs.store.catalog.by_key[BOB]
                if not any(keyed.key == "k" for keyed in session.entry.keyed):
                    await harness.send("hello", key="k", source=ALICE)
                await harness.wait_until_settled()
                heard = [turn.message for turn in host.agents["bob"].turns if turn.message == "hello"]
                assert heard == ["hello"], name
                assert harness.runs.messages(BOB).count("user: hello") == 1, name
