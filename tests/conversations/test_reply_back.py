"""Conversations: the order of turns, how they end, what is announced, and how they go on after a crash."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from support.conversing_runs import ALICE, BOB, Adapter, ConversationHarness, conversation_harness, host_with, scripted
from support.rows import check_each
from support.sampling import spread
from support.supervised_runs import Agent, ScriptedFollowUp

from sessiond.model.record import FINAL
from sessiond.runs.follow_up import FollowUp
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec


def turns_of(agent: Any) -> list[tuple[str, int | None, str]]:
    """The turns of an agent: step, turn, message."""
    return [(turn.step, turn.turn, turn.message) for turn in agent.turns]


async def test_reply_back_turns_alternate_until_the_maximum_and_the_target_announces(
    tmp_path: Path, autojump_clock: Any
):
    alice, bob, telegram = scripted("a1", "a2", "a3"), scripted("b0", "b1", "b2", "the outcome"), Adapter()
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        first = await harness.send("please")
        await harness.wait_until_settled()
        assert turns_of(bob) == [
            ("primary", None, "please"),
            ("reply", 2, "a1"),
            ("reply", 4, "a2"),
            ("announce", None, "Agent-to-agent announce step."),
        ]
        assert turns_of(alice) == [("reply", 1, "b0"), ("reply", 3, "b1"), ("reply", 5, "b2")]
        assert harness.runs.messages(ALICE) == [
            "user: b0",
            "assistant: a1",
            "user: b1",
            "assistant: a2",
            "user: b2",
            "assistant: a3",
        ]
        assert harness.runs.messages(BOB) == [
            "user: please",
            "assistant: b0",
            "user: a1",
            "assistant: b1",
            "user: a2",
            "assistant: b2",
            "user: Agent-to-agent announce step.",
            "assistant: the outcome",
        ]
        [(method, delivery)] = telegram.asked
        assert method == "channel.deliver"
        assert delivery == {
            "deliveryId": delivery["deliveryId"],
            "to": "-100",
            "sessionKey": BOB,
            "text": "the outcome",
        }
        announce = bob.turns[-1].context
        assert announce is not None
        for line in ("> please", "> b0", "> a3"):
            assert line in announce
        session = harness.runs.store.catalog.by_key[BOB]
        assert await harness.announcing.status(session, first.run_id) == "delivered"


async def test_the_message_of_every_step_has_its_provenance(tmp_path: Path, autojump_clock: Any):
    alice, bob = scripted("a1", "REPLY_SKIP"), scripted("b0", "b1", "ANNOUNCE_SKIP")
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob)) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
    turns = [bob.turns[0], alice.turns[0], bob.turns[1], alice.turns[1], bob.turns[2]]
    provenances = [dict(turn.provenance or {}) for turn in turns]
    traces = {provenance.pop("traceId") for provenance in provenances}
    assert len(traces) == 1
    common = {"kind": "inter_session", "sourceTool": "sessions_send"}
    from_alice = {**common, "sourceSessionKey": ALICE}
    from_bob = {**common, "sourceSessionKey": BOB, "sourceChannel": "telegram"}
    assert provenances == [
        {**from_alice, "hops": 1},
        {**from_bob, "hops": 2},
        {**from_alice, "hops": 3},
        {**from_bob, "hops": 4},
        {**from_alice, "hops": 5},
    ]
    assert [turn.max_turns for turn in turns] == [None, 5, 5, 5, None]


@check_each(
    ("alices", "bobs", "steps"),
    [
        (["REPLY_SKIP"], ["b0", "said"], ["primary", "reply", "announce"]),
        (["  REPLY_SKIP\n"], ["b0", "said"], ["primary", "reply", "announce"]),
        ([""], ["b0", "said"], ["primary", "reply", "announce"]),
        (["a1"], ["b0", "REPLY_SKIP", "said"], ["primary", "reply", "reply", "announce"]),
        (["not REPLY_SKIP", "REPLY_SKIP"], ["b0", "b1", "said"], ["primary", "reply", "reply", "reply", "announce"]),
        (["never"], ["", "said"], ["primary", "announce"]),
    ],
)
async def test_a_reply_skip_or_an_empty_reply_ends_the_turns(
    tmp_path: Path, autojump_clock: Any, alices: list[str], bobs: list[str], steps: list[str]
):
    alice, bob, telegram = scripted(*alices), scripted(*bobs), Adapter()
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
    both = sorted([*alice.turns, *bob.turns], key=lambda turn: (turn.step == "announce", turn.turn or 0))
    assert [turn.step for turn in both] == steps
    assert telegram.texts == ["said"]


@pytest.mark.parametrize("most", spread([0, 1, 2, 5], 2))
async def test_the_configured_maximum_bounds_the_turns(tmp_path: Path, autojump_clock: Any, most: int):
    alice, bob = scripted("more"), scripted("more")
    config = f"[session]\nagentToAgent = {{ maxPingPongTurns = {most} }}\n"
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob), config=config
    ) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
    turns = sorted(turn.turn for turn in (*alice.turns, *bob.turns) if turn.turn is not None)
    assert turns == list(range(1, most + 1))


async def test_a_message_from_the_owner_or_from_the_session_itself_gets_no_reply_back(
    tmp_path: Path, autojump_clock: Any
):
    bob, telegram = scripted("b0", "one", "b0", "two"), Adapter()
    host = host_with(tmp_path, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        await harness.send("from the owner", source=None)
        await harness.wait_until_settled()
        await harness.send("to myself", source=BOB)
        await harness.wait_until_settled()
    assert [turn.step for turn in bob.turns] == ["primary", "announce", "primary", "announce"]
    assert dict(bob.turns[0].provenance or {}, traceId="") == {
        "kind": "inter_session",
        "sourceTool": "sessions_send",
        "hops": 1,
        "traceId": "",
    }
    assert telegram.texts == ["one", "two"]


@check_each("said", ["ANNOUNCE_SKIP", " ANNOUNCE_SKIP ", "", "\n"])
async def test_an_announce_skip_or_an_empty_announcement_is_not_delivered(
    tmp_path: Path, autojump_clock: Any, said: str
):
    bob, telegram = scripted("b0", said), Adapter()
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=bob), adapters={"telegram": telegram}
    ) as harness:
        run = await harness.send("please", source=None)
        await harness.wait_until_settled()
        assert telegram.asked == []
        assert await harness.announcing.status(run.session, run.run_id) == "skipped"


async def test_an_announcement_without_a_channel_is_skipped_and_one_to_webchat_counts_as_delivered(
    tmp_path: Path, autojump_clock: Any
):
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, bob=scripted("words"))) as harness:
        for key, status in (("agent:bob:main", "skipped"), ("agent:bob:webchat:group:1", "delivered")):
            run = await harness.send("please", source=None, target=key)
            await harness.wait_until_settled()
            assert await harness.announcing.status(run.session, run.run_id) == status
        assert harness.outbox.pending == []


async def test_a_run_knows_how_its_conversation_was_closed_by_the_write_of_its_end(tmp_path: Path, autojump_clock: Any):
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=scripted("words", "words"), carol=scripted("words"))
    ) as harness:
        harness.runs.host.plain = {"bob"}
        for target, status in (("agent:bob:main", "skipped"), ("agent:bob:webchat:group:1", "delivered")):
            run = await harness.send("please", source=None, target=target)
            await harness.wait_until_settled()
            assert run.delivery == status == await harness.announcing.status(run.session, run.run_id)
        # Its conversation went on after the write of its end.
        run = await harness.send("please", source=None, target="agent:carol:webchat:group:1")
        await harness.wait_until_settled()
        assert run.delivery is None
        assert await harness.announcing.status(run.session, run.run_id) == "delivered"


async def test_the_send_policy_can_deny_the_delivery_of_an_announcement(tmp_path: Path, autojump_clock: Any):
    telegram = Adapter()
    policy = '[session.sendPolicy]\nrules = [{ match = { channel = "telegram" }, action = "deny" }]\n'
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=scripted("words")), config=policy, adapters={"telegram": telegram}
    ) as harness:
        run = await harness.send("please", source=None)
        await harness.wait_until_settled()
        assert telegram.asked == []
        assert await harness.announcing.status(run.session, run.run_id) == "skipped"


@check_each("ending", ["error", "timeout", "aborted"])
async def test_no_conversation_follows_a_primary_run_that_did_not_end_ok(
    tmp_path: Path, autojump_clock: Any, ending: str
):
    bob, telegram = Agent(), Adapter()

    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if ending == "error":
            return RunOutcome(error="it broke")
        await bob.gate.wait()
        raise AssertionError

    bob.act = act
    config = "[agents.defaults]\nrunTimeoutSeconds = 5\n" if ending == "timeout" else ""
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=bob), config=config, adapters={"telegram": telegram}
    ) as harness:
        run = await harness.send("please")
        if ending == "aborted":
            await bob.wait_for_turn("please").wait()
            await harness.runs.supervisor.stop(run.session)
        assert (await harness.runs.wait_for_end(run))[0] == ending
        await harness.wait_until_settled()
        assert len(bob.turns) == 1
        assert telegram.asked == []
        assert not [record for record in harness.runs.records(BOB) if record.get("customType") == "sessiond/talk"]


async def test_a_failed_reply_turn_ends_the_turns_and_the_announce_step_follows(tmp_path: Path, autojump_clock: Any):
    alice, bob, telegram = Agent(), scripted("b0", "the outcome"), Adapter()

    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        return RunOutcome(error="no")

    alice.act = act
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
    assert [turn.step for turn in bob.turns] == ["primary", "announce"]
    assert telegram.texts == ["the outcome"]


async def test_the_turn_of_a_requester_that_never_attaches_fails_and_the_target_announces(
    tmp_path: Path, autojump_clock: Any
):
    bob, telegram = scripted("b0", "the outcome"), Adapter()
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=bob), adapters={"telegram": telegram}
    ) as harness:
        await harness.send("please")
        await harness.wait_until_settled()
        steps = [status for _, status in harness.runs.run_statuses(ALICE)]
    assert steps == ["accepted", "error"]
    assert telegram.texts == ["the outcome"]


async def test_the_reply_of_a_run_with_deliver_goes_to_the_channel_of_its_session(tmp_path: Path, autojump_clock: Any):
    bob, telegram = scripted("the reply"), Adapter()
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, bob=bob), adapters={"telegram": telegram}
    ) as harness:
        run = await harness.runs.accept("hello", BOB, follow=FollowUp(deliver=True))
        await harness.wait_until_settled()
        assert telegram.texts == ["the reply"]
        assert len(bob.turns) == 1
        await harness.runs.accept("hello", BOB)
        await harness.wait_until_settled()
        assert telegram.texts == ["the reply"]
        assert await harness.announcing.status(run.session, run.run_id) == "delivered"


async def test_a_send_costs_two_writes_and_its_announce_step_two_more(tmp_path: Path, autojump_clock: Any):
    """Without a channel there is no announce step, because nobody would get the announcement."""
    bob = scripted("words")
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, bob=bob)) as harness:
        for key, writes in (("agent:bob:main", 2), ("agent:bob:webchat:group:1", 4)):
            await harness.runs.session(key)
            before = harness.runs.store.committer.syncs
            run = await harness.send("please", source=None, target=key)
            await run.done.wait()
            assert harness.runs.store.committer.syncs == before + 2
            await harness.wait_until_settled()
            assert harness.runs.store.committer.syncs == before + writes
    assert turns_of(bob) == [
        ("primary", None, "please"),
        ("primary", None, "please"),
        ("announce", None, "Agent-to-agent announce step."),
    ]


@pytest.mark.parametrize("killed", [False, True])
async def test_turns_without_a_channel_end_without_an_announce_step(tmp_path: Path, autojump_clock: Any, killed: bool):
    """Also if the daemon is killed after the last turn, before it decides about the announce step."""
    alice, bob = scripted("a1", "REPLY_SKIP"), scripted("b0", "b1")
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob)) as harness:
        if killed:
            harness.conversations._announce = block_forever  # type: ignore[method-assign]
        run = await harness.send("please", target="agent:bob:main")
        if killed:
            await trio.sleep(10)
            harness.runs.copy_store(tmp_path / "copy")
        else:
            await harness.wait_until_settled()
            assert await harness.announcing.status(run.session, run.run_id) == "skipped"
        assert [turn.step for turn in (*alice.turns, *bob.turns)] == ["reply", "reply", "primary", "reply"]
    if killed:
        late = scripted("late")
        async with conversation_harness(tmp_path / "copy", host_with(tmp_path, alice=late, bob=late)) as harness:
            await harness.wait_until_settled()
            session = harness.runs.store.catalog.by_key["agent:bob:main"]
            assert await harness.announcing.status(session, run.run_id) == "skipped"
        assert late.turns == []


@check_each(("alices", "said"), [(None, "b0"), (["REPLY_SKIP"], "b0"), (["a1", "REPLY_SKIP"], "b1")])
async def test_an_agent_without_announce_steps_announces_its_last_reply(
    tmp_path: Path, autojump_clock: Any, alices: list[str] | None, said: str
):
    """A program that does not know announce steps would answer one as if it were a message."""
    bob, telegram = scripted("b0", "b1", "3"), Adapter()
    host = host_with(tmp_path, alice=scripted(*(alices or ["never"])), bob=bob)
    host.plain = {"bob"}
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        run = await harness.send("please", source=ALICE if alices else None)
        await harness.wait_until_settled()
        assert await harness.announcing.status(run.session, run.run_id) == "delivered"
    assert telegram.texts == [said]
    assert "announce" not in [turn.step for turn in bob.turns]


async def block_forever(*_: Any) -> None:
    await trio.sleep_forever()


async def test_a_conversation_ends_silently_when_its_target_is_archived(tmp_path: Path, autojump_clock: Any):
    alice, bob, telegram = Agent(), scripted("b0", "words"), Adapter()
    alice.act = alice.wait
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        run = await harness.send("please")
        await alice.wait_for_turn("b0").wait()
        await harness.runs.store.archive(run.session)
        alice.gate.set()
        await harness.wait_until_settled()
        assert [turn.step for turn in bob.turns] == ["primary"]
        assert telegram.asked == []


async def test_the_turns_of_an_archived_requester_are_skipped(tmp_path: Path, autojump_clock: Any):
    alice, bob, telegram = scripted("a1"), Agent(), Adapter()
    bob.act = bob.wait
    host = host_with(tmp_path, alice=alice, bob=bob)
    async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:
        await harness.send("please")
        await bob.wait_for_turn("please").wait()
        await harness.runs.store.archive(harness.runs.store.catalog.by_key[ALICE])
        bob.gate.set()
        await harness.wait_until_settled()
        assert alice.turns == []
        assert [turn.step for turn in bob.turns] == ["primary", "announce"]
        assert telegram.texts == ["re: Agent-to-agent announce step."]


class TestCrash:
    """The store as it is on disk at each moment of a conversation, opened by another daemon."""

    async def copies_at_every_commit(self, tmp_path: Path, alices: list[str], bobs: list[str]) -> list[Path]:
        """A copy of the store after every commit and every change of the outbox."""
        telegram = Adapter()
        host = host_with(tmp_path, alice=scripted(*alices), bob=scripted(*bobs))
        copies: list[Path] = []
        async with conversation_harness(tmp_path / "store", host, adapters={"telegram": telegram}) as harness:

            def take_copy(_: Any = None) -> None:
                copies.append(harness.runs.copy_store(tmp_path / f"copy{len(copies)}"))

            async def deliver(params: dict[str, Any]) -> Any:
                take_copy()
                return {}

            harness.runs.listener.before_poke.append(take_copy)
            telegram.act = deliver
            await harness.send("please")
            await harness.wait_until_settled()
            take_copy()
        assert telegram.texts == ["the outcome"]
        return copies

    async def test_after_a_crash_at_any_commit_each_run_ends_once_and_the_announcement_has_one_id(
        self, tmp_path: Path, autojump_clock: Any
    ):
        copies = await self.copies_at_every_commit(
            tmp_path, ["a1", "a2", "REPLY_SKIP"], ["b0", "b1", "b2", "the outcome"]
        )
        assert len(copies) >= 15
        ids: set[str] = set()
        for number, copied_store in enumerate(copies):
            telegram = Adapter()
            host = host_with(tmp_path, alice=scripted("a", "REPLY_SKIP"), bob=scripted("the outcome"))
            closed = any(b'"status":"closed"' in path.read_bytes() for path in copied_store.rglob("*.jsonl"))
            delivered = closed and not list(copied_store.glob("outbox/*"))
            async with conversation_harness(copied_store, host, adapters={"telegram": telegram}) as harness:
                await harness.wait_until_settled()
                finals = self.finals(harness)
                if not finals:
                    assert number < 3  # the sessions are being created; nothing was accepted yet
                    continue
                assert set(finals.values()) == {1}, f"copy {number}"
                primary = next(status for _, status in harness.runs.run_statuses(BOB) if status in FINAL)
                # An interrupted primary run is not announced; another one is, unless it was delivered before the crash.
                assert len(telegram.texts) == (primary == "ok" and not delivered), f"copy {number}"
                ids |= telegram.ids
            again = Adapter()
            async with conversation_harness(copied_store, host, adapters={"telegram": again}) as harness:
                await harness.wait_until_settled()
                assert self.finals(harness) == finals
                assert again.asked == []
        assert len(ids) == 1

    @staticmethod
    def finals(harness: ConversationHarness) -> Counter[str]:
        keys = [key for key in (ALICE, BOB) if key in harness.runs.store.catalog.by_key]
        return Counter(run_id for key in keys for run_id, status in harness.runs.run_statuses(key) if status in FINAL)

    async def test_the_announce_step_follows_a_reply_turn_that_a_crash_interrupted(
        self, tmp_path: Path, autojump_clock: Any
    ):
        alice, bob = Agent(), scripted("b0", "words")
        alice.act = alice.wait
        async with conversation_harness(tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob)) as harness:
            await harness.send("please")
            await alice.wait_for_turn("b0").wait()
            copied_store = harness.runs.copy_store(tmp_path / "copy")
        alice, bob, telegram = scripted("a1"), scripted("the outcome"), Adapter()
        host = host_with(tmp_path, alice=alice, bob=bob)
        async with conversation_harness(copied_store, host, adapters={"telegram": telegram}) as harness:
            await harness.wait_until_settled()
            assert harness.runs.run_statuses(ALICE)[-1][1] == "error"
            assert alice.turns == []
            assert [turn.step for turn in bob.turns] == ["announce"]
            assert telegram.texts == ["the outcome"]

    async def test_the_last_reply_is_delivered_if_a_crash_interrupted_the_announce_step(
        self, tmp_path: Path, autojump_clock: Any
    ):
        alice, bob = scripted("a1", "REPLY_SKIP"), Agent()

        async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
            if spec.step == "announce":
                await bob.gate.wait()
            return RunOutcome(reply=f"b{spec.turn or 0}")

        bob.act = act
        async with conversation_harness(tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob)) as harness:
            await harness.send("please")
            await bob.wait_for_turn("Agent-to-agent announce step.").wait()
            copied_store = harness.runs.copy_store(tmp_path / "copy")
        telegram, later = Adapter(), scripted("never asked")
        async with conversation_harness(
            copied_store, host_with(tmp_path, bob=later), adapters={"telegram": telegram}
        ) as harness:
            await harness.wait_until_settled()
            assert later.turns == []
            assert telegram.texts == ["b2"]

    async def test_a_queued_reply_turn_runs_once_after_a_crash(self, tmp_path: Path, autojump_clock: Any):
        """Alice is busy, so her reply turn is accepted and waits. After the crash that turn runs, and no second one."""
        alice, bob = Agent(), scripted("b0", "words")
        alice.act = alice.wait
        async with conversation_harness(tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob)) as harness:
            await harness.runs.accept("busy", ALICE)
            await alice.wait_for_turn("busy").wait()
            run = await harness.send("please")
            await run.done.wait()
            while len(harness.runs.store.catalog.by_key[ALICE].entry.runs) < 2:
                await trio.testing.wait_all_tasks_blocked()
            copied_store = harness.runs.copy_store(tmp_path / "copy")
        alice, bob, telegram = scripted("REPLY_SKIP"), scripted("the outcome"), Adapter()
        host = host_with(tmp_path, alice=alice, bob=bob)
        async with conversation_harness(copied_store, host, adapters={"telegram": telegram}) as harness:
            await harness.wait_until_settled()
            assert turns_of(alice) == [("reply", 1, "b0")]
            assert [status for _, status in harness.runs.run_statuses(ALICE)] == [
                "accepted",
                "running",
                "accepted",
                "error",
                "running",
                "ok",
            ]
            assert telegram.texts == ["the outcome"]


def _write_open_conversation(store: Path) -> Path:
    folder = store / "agents" / "bob" / "sessions"
    folder.mkdir(parents=True)
    header = {"type": "session", "version": 3, "id": "s1", "sessionKey": BOB, "agentId": "bob"}
    talk = {"type": "custom", "customType": "sessiond/talk", "data": {"talkId": "s1.1", "status": "open"}}
    (folder / "s1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, talk)))
    return folder / "s1.jsonl"


@pytest.mark.parametrize("removed", [False, True], ids=["original stays", "original removed"])
async def test_an_open_conversation_of_a_copied_transcript_resumes_in_the_original_only(
    tmp_path: Path, autojump_clock: Any, *, removed: bool
):
    alice = Agent()
    alice.act = alice.wait
    host = host_with(tmp_path, alice=alice, bob=scripted("b0"))
    async with conversation_harness(tmp_path / "store", host) as harness:
        run = await harness.send("please")
        await alice.wait_for_turn("b0").wait()
        copied_store = harness.runs.copy_store(tmp_path / "copy")
        original = copied_store / harness.runs.session_path(BOB)
    session_id, key = run.session.session_id, "agent:bob:copy"
    text = original.read_text().replace(BOB, key).replace(f'"id":"{session_id}"', '"id":"copied"')
    original.with_name("copied.jsonl").write_text(text)
    original.with_name("copied.jsonl").chmod(0o600)
    if removed:
        original.unlink()
    telegram, bob = Adapter(), scripted("the outcome")
    host = host_with(tmp_path, alice=scripted("REPLY_SKIP"), bob=bob)
    async with conversation_harness(copied_store, host, adapters={"telegram": telegram}) as harness:
        assert harness.runs.store.catalog.by_key[key].entry.talks != ()
        assert not harness.conversations.has_open_conversation(key)
        assert harness.conversations.has_open_conversation(BOB) == (not removed)
        await trio.sleep(600)
        assert telegram.texts == ([] if removed else ["the outcome"])
        assert [turn.session_key for turn in bob.turns] == ([] if removed else [BOB])
        copy = harness.runs.store.catalog.by_key[key]
        assert copy.entry.talks == ()
        assert await harness.announcing.status(copy, run.run_id) == "skipped"


async def test_a_conversation_that_was_opened_in_a_moved_transcript_after_its_adoption_resumes_there(
    tmp_path: Path, autojump_clock: Any
):
    async with conversation_harness(tmp_path / "store", host_with(tmp_path, bob=scripted("b"))) as harness:
        await harness.runs.session(BOB)
        moved = harness.runs.copy_store(tmp_path / "moved")
        original = moved / harness.runs.session_path(BOB)
    folder, key = moved / "agents" / "carol" / "sessions", f"agent:carol:import:{original.stem}"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    original.rename(folder / original.name)
    alice = Agent()
    alice.act = alice.wait
    async with conversation_harness(moved, host_with(tmp_path, alice=alice, carol=scripted("c0"))) as harness:
        await harness.send("please", target=key)
        await alice.wait_for_turn("c0").wait()
        again = harness.runs.copy_store(tmp_path / "again")
    async with conversation_harness(again, host_with(tmp_path, alice=scripted("a"), carol=scripted("c"))) as harness:
        assert harness.conversations.has_open_conversation(key)
        await harness.wait_until_settled()
        assert not harness.conversations.has_open_conversation(key)
        assert harness.freed.count(key) == 1


async def test_a_conversation_with_an_unreadable_transcript_resumes_once_it_is_readable(
    tmp_path: Path, autojump_clock: Any
):
    file = _write_open_conversation(tmp_path / "store")
    away = tmp_path / "away"
    host = host_with(tmp_path, bob=scripted("b"))
    async with conversation_harness(tmp_path / "store", host, setup=lambda _home: file.rename(away)) as harness:
        await trio.sleep(60)
        assert harness.conversations.has_open_conversation(BOB)
        away.rename(file)
        await harness.wait_until_settled()
    assert '"talkId":"s1.1"' in file.read_text().splitlines()[-1]


async def test_a_conversation_ends_when_its_transcript_is_removed(tmp_path: Path, autojump_clock: Any):
    file = _write_open_conversation(tmp_path / "store")

    host = host_with(tmp_path, bob=scripted("b"))
    async with conversation_harness(tmp_path / "store", host, setup=lambda _home: file.unlink()) as harness:
        await trio.sleep(60)
        session = harness.runs.store.catalog.by_key[BOB]
        harness.runs.store.catalog.remove(session)
        await trio.sleep(60)
        assert not harness.conversations.has_open_conversation(BOB)
        assert session.entry.talks != ()


async def test_both_sessions_have_an_open_conversation_from_the_end_of_the_first_run_to_the_last_step(
    tmp_path: Path, autojump_clock: Any
):
    alice, bob, telegram = Agent(), scripted("b0", "words"), Adapter()
    alice.act = alice.wait
    async with conversation_harness(
        tmp_path / "store", host_with(tmp_path, alice=alice, bob=bob), adapters={"telegram": telegram}
    ) as harness:
        conversations = harness.conversations
        engaged_at_end: list[bool] = []

        async def look() -> None:
            await trio.lowlevel.checkpoint()
            engaged_at_end.append(conversations.has_open_conversation(BOB))

        harness.runs.follow_ups.append(ScriptedFollowUp(after_end=lambda _run: look))
        await harness.send("please")
        await alice.wait_for_turn("b0").wait()
        assert engaged_at_end[0]
        assert (
            conversations.has_open_conversation(ALICE)
            and conversations.has_open_conversation(BOB)
            and not conversations.has_open_conversation("agent:carol:main")
        )
        alice.gate.set()
        await harness.wait_until_settled()
        await trio.testing.wait_all_tasks_blocked()
        assert not conversations.has_open_conversation(ALICE) and not conversations.has_open_conversation(BOB)
        assert sorted(harness.freed) == [ALICE, BOB]
