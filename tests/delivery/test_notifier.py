"""The notifier: one delivery for each fact and rule, whatever the disk, the target or a crash does in between."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.supervised_runs import (
    MAIN,
    FakeHost,
    RunHarness,
    ScriptedFollowUp,
    clock,
    inline,
    run_harness,
)

from sessiond.config.settings import Config, parse
from sessiond.delivery.channels import Delivery, NotDelivered
from sessiond.delivery.notifier import MAX_WAITING, RuleNotifier
from sessiond.delivery.outbox import MAX_DEAD_NOTIFICATIONS, Outbox, open_outbox
from sessiond.model.question import QuestionDraft, QuestionOption
from sessiond.model.record import ENTRY
from sessiond.questions.recovery import withdraw_left_questions
from sessiond.runs.recovery import recover
from sessiond.runs.run import Run
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec
from sessiond.store.store import Custom

BOTH = """
[[notify]]
command = ["one", "{text}"]
[[notify]]
url = "http://two.example/"
when = ["error", "waiting"]
"""
ONE = '[[notify]]\ncommand = ["one"]\n'
ONLY_DONE = '[[notify]]\ncommand = ["one"]\nwhen = ["done"]\n'
DRAFT = QuestionDraft(title="May I?", options=(QuestionOption("y", "Yes", "allow_once"),))


class Target:
    """The targets of all rules, which do what the test says. `told` has what they were given."""

    def __init__(self) -> None:
        self.told: list[Delivery] = []
        self.act: Callable[[Delivery], Awaitable[None]] = self.acknowledge
        self.reached = trio.Event()

    def why_nobody(self, _delivery: Delivery) -> str | None:
        return None

    async def deliver(self, delivery: Delivery) -> None:
        self.told.append(delivery)
        self.reached.set()
        await trio.lowlevel.checkpoint()
        await self.act(delivery)

    async def acknowledge(self, _delivery: Delivery) -> None:
        pass

    async def refuse(self, _delivery: Delivery) -> None:
        raise NotDelivered("it is dead")

    async def hang(self, _delivery: Delivery) -> None:
        await trio.sleep_forever()

    @property
    def words(self) -> list[tuple[str, str, str]]:
        """What was told, as `(channel, when, title)`."""
        return [(one.channel, one.notification.when, one.title) for one in self.told if one.notification is not None]

    @property
    def ids(self) -> list[str]:
        return [one.notification.fact_id for one in self.told if one.notification is not None]


class NotifyHarness:
    """Runs, questions and an outbox with a notifier, put together as the daemon does."""

    def __init__(self, runs: RunHarness, config: Config) -> None:
        self.runs, self.config = runs, config
        self.target = Target()
        self.outbox: Outbox
        self.notifier: RuleNotifier

    async def wait_until_empty(self) -> None:
        with trio.fail_after(4000):  # of a clock that jumps; a target is given up after 1835
            while self.outbox.pending:  # noqa: ASYNC110 - a sleep lets every other task go on
                await trio.sleep(1)

    async def settle(self) -> None:
        await trio.sleep(1)

    async def run_to_end(self, text: str = "x", key: str = MAIN, **fields: Any) -> Run:
        run = await self.runs.accept(text, key, **fields)
        await run.done.wait()
        return run

    async def mark(self, key: str = MAIN) -> None:
        await self.runs.store.append(await self.runs.session(key), [Custom(ENTRY, {"notify": True})])

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.runs.store.path / "outbox").iterdir())


async def fail(_spec: RunSpec, _sink: RunSink) -> RunOutcome:
    return RunOutcome(error="boom")


@asynccontextmanager
async def open_notifier(
    folder: Path,
    config: str = ONE,
    *,
    run_sync: Any = inline,
    act: Callable[[RunSpec, RunSink], Awaitable[RunOutcome]] | None = None,
    max_waiting: int = MAX_WAITING,
    max_dead_notifications: int = MAX_DEAD_NOTIFICATIONS,
) -> AsyncIterator[NotifyHarness]:
    host = FakeHost(folder.parent)
    if act is not None:
        host.agents["main"].act = act  # type: ignore[attr-defined]
    async with run_harness(folder, host=host, run_sync=run_sync, recovering=False) as runs:
        harness = NotifyHarness(runs, parse(config))
        async with open_outbox(
            runs.store,
            harness.target,
            harness.target,
            clock(),
            durable=True,
            settings=lambda: harness.config.delivery,
            allowed=lambda delivery: harness.notifier.is_due(delivery),  # noqa: PLW0108 - made below
            max_dead_notifications=max_dead_notifications,
        ) as outbox:
            harness.outbox = outbox
            harness.notifier = RuleNotifier(
                runs.store,
                outbox,
                runs.supervisor,
                lambda: harness.config,
                clock(),
                is_open=runs.desk.is_open,
                max_waiting=max_waiting,
            )
            runs.follow_ups.append(harness.notifier)
            runs.before_end, runs.on_asked = harness.notifier.before_end, harness.notifier.question_asked
            await withdraw_left_questions(runs.store, runs.desk)
            await recover(runs.store, runs.supervisor, [harness.notifier])
            await runs.nursery.start(outbox.run)
            yield harness
            runs.nursery.cancel_scope.cancel()


async def test_an_end_is_told_once_by_each_rule_that_it_concerns(tmp_path: Path, autojump_clock: Any) -> None:
    async with open_notifier(tmp_path / "store", BOTH, act=fail) as harness:
        run = await harness.run_to_end()
        await harness.wait_until_empty()
        assert sorted(harness.target.words) == [
            ("notify:one", "error", "main failed"),
            ("notify:two.example", "error", "main failed"),
        ]
        assert harness.target.ids == [f"{run.run_id}.error"] * 2
        assert harness.files == []


async def test_an_end_is_done_if_its_session_is_marked_or_it_took_long(tmp_path: Path, autojump_clock: Any) -> None:
    async def take_time(spec: RunSpec, _sink: RunSink) -> RunOutcome:
        await trio.sleep(float(spec.message))
        return RunOutcome(reply="r")

    async with open_notifier(tmp_path / "store", BOTH, act=take_time) as harness:
        for seconds in ("1", "29", "31"):
            await harness.run_to_end(seconds)
        await harness.settle()
        assert [one.text for one in harness.target.told] == ["after 31 s"]
        await harness.mark()
        await harness.run_to_end("1")
        await harness.settle()
        assert harness.target.words[1:] == [("notify:one", "done", "main is done")]


async def test_without_rules_nothing_is_written(tmp_path: Path, autojump_clock: Any) -> None:
    async with open_notifier(tmp_path / "store", "", act=fail) as harness:
        await harness.run_to_end()
        await harness.settle()
        assert (harness.target.told, harness.files) == ([], [])


async def test_a_body_is_in_the_outbox_only_for_rules_that_tell_it(tmp_path: Path, autojump_clock: Any) -> None:
    rules = '[[notify]]\ncommand = ["quiet"]\n[[notify]]\ncommand = ["loud"]\nbody = true\n'
    async with open_notifier(tmp_path / "store", rules, act=fail) as harness:
        await harness.run_to_end()
        await harness.wait_until_empty()
        bodies = {one.channel: one.notification.body for one in harness.target.told if one.notification is not None}
        assert bodies == {"notify:quiet": None, "notify:loud": "boom"}


async def test_secrets_are_masked_unless_the_configuration_turns_it_off(tmp_path: Path, autojump_clock: Any) -> None:
    async def leak(_spec: RunSpec, _sink: RunSink) -> RunOutcome:
        return RunOutcome(error="password=hunter2hunter2")

    loud = '[[notify]]\ncommand = ["loud"]\nbody = true\n'
    for more, said in (("", "password=***"), ("[tools.sessions]\nredact = false\n", "password=hunter2hunter2")):
        async with open_notifier(tmp_path / f"store{len(more)}", loud + more, act=leak) as harness:
            await harness.run_to_end()
            await harness.wait_until_empty()
            assert [one.notification.body for one in harness.target.told if one.notification] == [said]


class TestCrashes:
    """The store is copied at a moment, as a kill would leave it, and a second daemon goes on with the copy."""

    @staticmethod
    def copy_before_end(harness: NotifyHarness, to: Path) -> None:
        harness.runs.follow_ups.append(ScriptedFollowUp(at_end=lambda _run: harness.runs.copy_store(to) and ()))

    @staticmethod
    def copy_after_end(harness: NotifyHarness, to: Path) -> None:
        harness.runs.follow_ups.insert(0, ScriptedFollowUp(after_end=lambda _run: harness.runs.copy_store(to) and None))

    @staticmethod
    def copy_while_told(harness: NotifyHarness, to: Path) -> None:
        async def copy(_delivery: Delivery) -> None:
            harness.runs.copy_store(to)

        harness.target.act = copy

    async def told_after(
        self, tmp_path: Path, at: Callable[[NotifyHarness, Path], None] | None, config: str = ONE
    ) -> tuple[list[str], list[str], Run]:
        """The facts that the second daemon told, those that the first did, and the run."""
        copied = tmp_path / "copy"
        async with open_notifier(tmp_path / "store", config) as harness:
            await harness.mark()
            if at is not None:
                at(harness, copied)
            run = await harness.run_to_end()
            await harness.wait_until_empty()
            if at is None:
                harness.runs.copy_store(copied)
            first = harness.target.ids
        async with open_notifier(copied, config) as again:
            await again.settle()
            await again.wait_until_empty()
            assert again.files == []
            return again.target.ids, first, run

    async def test_killed_before_the_end_was_written_the_interruption_is_told_instead(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        ids, first, run = await self.told_after(tmp_path, self.copy_before_end)
        assert (ids, first) == ([f"{run.run_id}.error"], [f"{run.run_id}.done"])

    async def test_killed_before_the_end_was_written_a_rule_that_is_not_about_interruptions_tells_nothing(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        ids, first, run = await self.told_after(tmp_path, self.copy_before_end, ONLY_DONE)
        assert (ids, first) == ([], [f"{run.run_id}.done"])

    async def test_killed_between_the_end_and_its_notification_it_is_told(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        ids, first, run = await self.told_after(tmp_path, self.copy_after_end)
        assert (ids, first) == ([f"{run.run_id}.done"], [f"{run.run_id}.done"])

    async def test_killed_before_the_acknowledgement_was_noted_it_comes_again_under_its_id(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        ids, first, run = await self.told_after(tmp_path, self.copy_while_told)
        assert (ids, first) == ([f"{run.run_id}.done"], [f"{run.run_id}.done"])

    async def test_killed_afterwards_nothing_is_told_again(self, tmp_path: Path, autojump_clock: Any) -> None:
        ids, first, run = await self.told_after(tmp_path, None)
        assert (ids, first) == ([], [f"{run.run_id}.done"])

    async def test_a_question_that_the_daemon_took_with_it_is_not_told(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        copied = tmp_path / "copy"
        async with open_notifier(tmp_path / "store") as harness:
            self.copy_while_told(harness, copied)
            session = await harness.runs.session()
            harness.runs.nursery.start_soon(harness.runs.desk.ask, session, DRAFT)
            await harness.target.reached.wait()
            await harness.wait_until_empty()
        assert len(list((copied / "outbox").iterdir())) == 1
        async with open_notifier(copied) as again:
            await again.wait_until_empty()
            assert (again.target.told, again.files) == ([], [])

    async def test_a_rule_that_was_taken_out_meanwhile_tells_nothing(self, tmp_path: Path, autojump_clock: Any) -> None:
        copied = tmp_path / "copy"
        async with open_notifier(tmp_path / "store", act=fail) as harness:
            self.copy_after_end(harness, copied)
            await harness.run_to_end()
        async with open_notifier(copied, '[[notify]]\ncommand = ["another"]\n') as again:
            await again.wait_until_empty()
            assert (again.target.told, again.files) == ([], [])


async def test_the_end_of_a_run_does_not_wait_for_an_outbox_that_the_disk_refuses(
    tmp_path: Path, autojump_clock: Any
) -> None:
    refused = {"write"}

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if function.__name__ in refused and "Outbox" in function.__qualname__:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await inline(function, *args)

    async with open_notifier(tmp_path / "store", act=fail, run_sync=run_sync) as harness:
        run = await harness.run_to_end()
        assert run.status == "error"
        await harness.settle()
        assert harness.target.told == []
        refused.clear()
        await trio.sleep(10)
        assert harness.target.ids == [f"{run.run_id}.error"]


async def test_a_question_is_told_once_the_outbox_takes_it(tmp_path: Path, autojump_clock: Any) -> None:
    refused = {"write"}

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        if function.__name__ in refused and "Outbox" in function.__qualname__:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await inline(function, *args)

    async with open_notifier(tmp_path / "store", run_sync=run_sync) as harness:
        harness.runs.nursery.start_soon(harness.runs.desk.ask, await harness.runs.session(), DRAFT)
        await harness.settle()
        [asked] = harness.runs.desk.open_questions()
        assert harness.target.told == []
        refused.clear()
        await trio.sleep(10)
        assert harness.target.ids == [asked.question.id]


async def test_an_end_that_the_disk_turns_into_another_is_told_as_the_other(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """A reply that is longer than a record ends the run as an error, after `done` was written to the outbox."""

    async def talk(_spec: RunSpec, _sink: RunSink) -> RunOutcome:
        return RunOutcome(reply="x" * 2_000_000)

    async with open_notifier(tmp_path / "store", act=talk) as harness:
        await harness.mark()
        run = await harness.run_to_end()
        await harness.wait_until_empty()
        assert harness.target.ids == [f"{run.run_id}.error"]
        assert harness.files == []


class TestTargets:
    async def test_a_dead_target_is_retried_and_given_up_as_a_dead_letter(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        async with open_notifier(tmp_path / "store", act=fail) as harness:
            harness.target.act = harness.target.refuse
            await harness.run_to_end()
            await harness.wait_until_empty()
            [letter] = harness.outbox.dead_letters
            assert (letter.channel, letter.last_error) == ("notify:one", "it is dead")
            assert 30 <= len(harness.target.told) <= 40
            assert len(set(harness.target.ids)) == 1

    async def test_a_target_that_hangs_holds_up_neither_another_nor_a_run(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        async with open_notifier(tmp_path / "store", BOTH, act=fail) as harness:

            async def hang_one(delivery: Delivery) -> None:
                if delivery.channel == "notify:one":
                    await trio.sleep_forever()

            harness.target.act = hang_one
            for _ in range(3):
                await harness.run_to_end()
            await harness.settle()
            assert [channel for channel, _, _ in harness.target.words].count("notify:two.example") == 3
            assert [channel for channel, _, _ in harness.target.words].count("notify:one") == 1

    async def test_so_many_wait_for_one_target_and_not_one_more(self, tmp_path: Path, autojump_clock: Any) -> None:
        async with open_notifier(tmp_path / "store", BOTH, act=fail, max_waiting=5) as harness:

            async def hang_one(delivery: Delivery) -> None:
                if delivery.channel == "notify:one":
                    await trio.sleep_forever()

            harness.target.act = hang_one
            for _ in range(8):
                await harness.run_to_end()
                await harness.settle()
            assert [one.channel for one in harness.outbox.pending] == ["notify:one"] * 5
            assert len(harness.files) == 5
            assert [channel for channel, _, _ in harness.target.words].count("notify:two.example") == 8

    async def test_of_dead_letters_the_newest_are_kept(self, tmp_path: Path, autojump_clock: Any) -> None:
        config = f"{ONE}[delivery]\ngiveUpMinutes = 0\n"
        async with open_notifier(tmp_path / "store", config, act=fail, max_dead_notifications=3) as harness:
            harness.target.act = harness.target.refuse
            runs = []
            for _ in range(5):
                runs.append(await harness.run_to_end())
                await harness.wait_until_empty()
            left = [one.notification.run_id for one in harness.outbox.dead_letters if one.notification is not None]
            assert left == [run.run_id for run in runs[-3:]]
            assert len(harness.files) == 3


class TestQuestions:
    async def test_a_question_is_told_when_it_is_on_disk(self, tmp_path: Path, autojump_clock: Any) -> None:
        async with open_notifier(tmp_path / "store", BOTH) as harness:
            session = await harness.runs.session()

            async def look(_delivery: Delivery) -> None:
                assert any(one.get("customType") == "sessiond/question" for one in harness.runs.records())

            harness.target.act = look
            harness.runs.nursery.start_soon(harness.runs.desk.ask, session, DRAFT)
            await harness.target.reached.wait()
            await harness.wait_until_empty()
            [asked] = harness.runs.desk.open_questions()
            assert sorted(harness.target.words) == [
                ("notify:one", "waiting", "main needs you"),
                ("notify:two.example", "waiting", "main needs you"),
            ]
            assert harness.target.ids == [asked.question.id] * 2

    async def test_questions_asked_at_once_are_told_in_their_order(self, tmp_path: Path, autojump_clock: Any) -> None:
        async with open_notifier(tmp_path / "store", BOTH) as harness:
            session = await harness.runs.session()
            for _ in range(10):
                harness.runs.nursery.start_soon(harness.runs.desk.ask, session, DRAFT)
            await harness.settle()
            await harness.wait_until_empty()
            asked = [one.question.id for one in harness.runs.desk.open_questions()]
            for channel in ("notify:one", "notify:two.example"):
                told = [one.notification for one in harness.target.told if one.channel == channel]
                assert [one.question_id for one in told if one is not None] == asked

    async def test_a_question_that_is_over_is_not_told_any_more(self, tmp_path: Path, autojump_clock: Any) -> None:
        async with open_notifier(tmp_path / "store") as harness:
            harness.target.act = harness.target.refuse
            session = await harness.runs.session()
            harness.runs.nursery.start_soon(harness.runs.desk.ask, session, DRAFT)
            await harness.target.reached.wait()
            [asked] = harness.runs.desk.open_questions()
            await harness.runs.desk.answer(asked.question.id, "y", None, by="owner", road="socket")
            harness.target.act = harness.target.acknowledge
            await harness.wait_until_empty()
            assert (len(harness.target.told), harness.outbox.dead_letters, harness.files) == (1, [], [])

    async def test_a_flood_of_questions_that_end_at_once_leaves_nothing(
        self, tmp_path: Path, autojump_clock: Any
    ) -> None:
        async with open_notifier(tmp_path / "store") as harness:
            harness.target.act = harness.target.refuse
            session = await harness.runs.session()
            for _ in range(50):
                with trio.move_on_after(0.001):
                    await harness.runs.desk.ask(session, DRAFT)
            await harness.wait_until_empty()
            assert harness.files == []
            assert len(harness.target.told) <= 50


async def test_rules_that_are_read_again_count_from_the_next_fact_on(tmp_path: Path, autojump_clock: Any) -> None:
    async with open_notifier(tmp_path / "store", "", act=fail) as harness:
        await harness.run_to_end()
        harness.config = parse(BOTH)
        await harness.run_to_end()
        await harness.wait_until_empty()
        harness.config = parse(ONLY_DONE)
        await harness.run_to_end()
        await harness.settle()
        assert len(harness.target.told) == 2


async def test_a_run_that_was_stopped_is_not_told(tmp_path: Path, autojump_clock: Any) -> None:
    async def wait(_spec: RunSpec, _sink: RunSink) -> RunOutcome:
        await trio.sleep_forever()
        raise AssertionError

    async with open_notifier(tmp_path / "store", act=wait) as harness:
        await harness.mark()
        run = await harness.runs.accept("x")
        await trio.sleep(60)
        await harness.runs.supervisor.stop(run.session)
        await harness.settle()
        assert (run.status, harness.target.told) == ("aborted", [])
