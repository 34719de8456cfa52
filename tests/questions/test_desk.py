"""QuestionDesk: the first end counts, it is on disk before anybody is told, and a refusing disk grants nothing."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from support.in_process import in_process_daemon
from support.in_process_agents import until
from support.supervised_runs import MAIN, RunHarness, run_harness

from sessiond.errors import Conflict, InvalidParams, NotFound, Overloaded, SessiondError, Stopping, StorageError
from sessiond.model.entry import MAX_OPEN_QUESTIONS
from sessiond.model.question import Question, QuestionAnswer, QuestionDraft, QuestionOption
from sessiond.model.record import ANSWER, QUESTION
from sessiond.questions import crowding
from sessiond.questions.desk import ASKER_GONE, DAEMON_ENDED, NOBODY_WAITS, RUN_OVER, QuestionDesk
from sessiond.questions.listing import list_questions
from sessiond.questions.recovery import withdraw_left_questions
from sessiond.store.catalog import Session

OPTIONS = (QuestionOption("yes", "Yes", "allow_once"), QuestionOption("no", "No", "reject_once"))
DRAFT = QuestionDraft(title="May I?", options=OPTIONS, detail="please")


QUESTION_DATA = {
    "id": "0" * 16,
    "title": "May I?",
    "askedAt": 1_795_300_000_000,
    "options": [{"id": "yes", "label": "Yes", "kind": "allow_once"}],
}


class Asking:
    """Questions asked in tasks of their own, and what each came to."""

    def __init__(self, harness: RunHarness, nursery: trio.Nursery, session: Session) -> None:
        self.desk: QuestionDesk = harness.desk
        self.store, self.session = harness.store, session
        self.copy_store, self._nursery = harness.copy_store, nursery
        self.ends: list[QuestionAnswer | SessiondError | None] = []

    async def ask(self, draft: QuestionDraft = DRAFT, **more: Any) -> tuple[Question, trio.CancelScope, int]:
        """The question once it is open, the scope of who waits, and the place of its end in `ends`."""
        place, scope = len(self.ends), trio.CancelScope()
        self.ends.append(None)
        known = {one.question.id for one in self.desk.open_questions()}

        async def wait() -> None:
            with scope:
                try:
                    self.ends[place] = await self.desk.ask(self.session, draft, **more)
                except SessiondError as error:
                    self.ends[place] = error

        self._nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        [asked] = [one.question for one in self.desk.open_questions() if one.question.id not in known]
        return asked, scope, place

    def records(self) -> list[dict[str, Any]]:
        """The data of the records about questions."""
        lines = (self.store.path / self.session.path).read_text().splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
        return [one["data"] for one in found if one.get("customType") in (QUESTION, ANSWER)]

    def outcomes(self) -> list[str]:
        """How the questions ended, as the transcript has it."""
        return [data["outcome"] for data in self.records() if "outcome" in data]


@asynccontextmanager
async def asking(folder: Path, **options: Any) -> AsyncIterator[Asking]:
    async with run_harness(folder / "store", **options) as harness, trio.open_nursery() as nursery:
        session = harness.store.catalog.by_key.get(MAIN) or (await harness.store.create(MAIN, "main"))[0]
        nursery.start_soon(harness.desk.run)
        yield Asking(harness, nursery, session)
        nursery.cancel_scope.cancel()


async def test_an_answer_is_on_disk_before_whoever_waits_hears_of_it(tmp_path: Path, autojump_clock: Any) -> None:
    async with asking(tmp_path) as there:
        asked, _, place = await there.ask(run_id="s.0123456789abcdef")
        assert there.records() == [
            {
                "id": asked.id,
                "runId": "s.0123456789abcdef",
                "title": "May I?",
                "detail": "please",
                "options": [{"id": one.id, "label": one.label, "kind": one.kind} for one in OPTIONS],
                "askedAt": asked.asked_at,
            }
        ]
        with pytest.raises(InvalidParams):
            await there.desk.answer(asked.id, "maybe", None, by="owner", road="socket")
        assert await there.desk.answer(asked.id, "yes", "well", by="owner", road="cli") == asked
        answer = there.records()[1]
        assert there.ends[place] is None, "who waits has not run yet, and the record is there"
        await trio.testing.wait_all_tasks_blocked()
        end = there.ends[place]
        assert isinstance(end, QuestionAnswer)
        assert answer == {
            "questionId": asked.id, "outcome": "answered", "optionId": "yes", "note": "well", "by": "owner",
            "road": "cli", "at": end.at,
        }  # fmt: skip
        assert (end.option_id, end.note, end.by) == ("yes", "well", "owner")
        with pytest.raises(NotFound):
            await there.desk.answer("0" * 16, "yes", None, by="owner", road="socket")


async def test_of_two_answers_at_once_one_wins_and_the_other_hears_who_was_first(
    tmp_path: Path, autojump_clock: Any
) -> None:
    refused: list[Conflict] = []
    async with asking(tmp_path) as there:
        asked, _, place = await there.ask()

        async def answer(option: str) -> None:
            try:
                await there.desk.answer(asked.id, option, None, by=f"by {option}", road="http")
            except Conflict as error:
                refused.append(error)

        async with trio.open_nursery() as both:
            both.start_soon(answer, "yes")
            both.start_soon(answer, "no")
        await trio.testing.wait_all_tasks_blocked()
        end = there.ends[place]
        assert isinstance(end, QuestionAnswer)
        assert there.outcomes() == ["answered"]
        [error] = refused
        assert error.data["answer"] == {
            "outcome": "answered", "optionId": end.option_id, "by": f"by {end.option_id}", "at": end.at, "road": "http",
        }  # fmt: skip
        # Nobody waits any more, so it is the transcript that knows.
        with pytest.raises(Conflict) as again:
            await there.desk.answer(asked.id, "yes", None, by="owner", road="socket")
        assert again.value.data["answer"] == error.data["answer"]
        assert f"'{end.option_id}'" in again.value.message


async def test_a_question_expires_is_withdrawn_by_its_asker_and_with_its_run(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with asking(tmp_path) as there:
        late, _, first = await there.ask(timeout_s=2.0)
        assert late.expires_at == late.asked_at + 2000
        _, scope, second = await there.ask()
        _, _, third = await there.ask(run_id="s.0123456789abcdef")
        scope.cancel()
        await there.desk.withdraw_of_run("s.0123456789abcdef")
        await trio.sleep(3)
        assert [getattr(end, "outcome", None) for end in there.ends] == ["expired", None, "withdrawn"]
        assert (first, second, third) == (0, 1, 2)
        reasons = [(data["outcome"], data.get("reason")) for data in there.records() if "outcome" in data]
        assert sorted(reasons, key=str) == [("expired", None), ("withdrawn", RUN_OVER), ("withdrawn", ASKER_GONE)]
        with pytest.raises(Conflict) as refused:
            await there.desk.answer(late.id, "yes", None, by="owner", road="socket")
        assert refused.value.data["answer"]["outcome"] == "expired"
        assert there.session.entry.open_questions == []
        assert there.desk.open_questions() == []


async def test_a_cancelled_asker_whose_answer_is_just_being_written_leaves_one_record(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with asking(tmp_path) as there:
        asked, scope, place = await there.ask()

        async def answer() -> None:
            await there.desk.answer(asked.id, "yes", None, by="owner", road="socket")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            await trio.lowlevel.checkpoint()
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert len(there.outcomes()) == 1
        assert there.ends[place] is None or there.outcomes() == ["answered"]


class Disk:
    """A disk that may be full."""

    is_full = False

    def __call__(self, _fd: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_what_the_disk_refuses_was_neither_asked_nor_answered(tmp_path: Path, autojump_clock: Any) -> None:
    disk = Disk()
    async with asking(tmp_path, sync=disk, durable=True) as there:
        disk.is_full = True
        with pytest.raises(StorageError):
            await there.desk.ask(there.session, DRAFT)
        assert (there.desk.open_questions(), there.records()) == ([], [])
        disk.is_full = False
        asked, _, place = await there.ask()
        disk.is_full = True
        with pytest.raises(StorageError):
            await there.desk.answer(asked.id, "yes", None, by="owner", road="socket")
        assert there.desk.is_open(asked.id)
        assert there.ends[place] is None
        disk.is_full = False
        await there.desk.answer(asked.id, "no", None, by="owner", road="socket")
        assert there.outcomes() == ["answered"]


async def test_an_end_that_grants_nothing_is_told_at_once_and_written_when_the_disk_takes_it(
    tmp_path: Path, autojump_clock: Any
) -> None:
    disk = Disk()
    async with asking(tmp_path, sync=disk, durable=True) as there:
        asked, _, place = await there.ask(timeout_s=1.0)
        disk.is_full = True
        await trio.sleep(2)
        assert getattr(there.ends[place], "outcome", None) == "expired"
        [shown] = await list_questions(there.store, there.desk, lambda _: True, is_open=False)
        assert shown.answer is not None
        assert shown.answer == there.ends[place]
        # Another end is neither written nor told, whoever looks at the open record meanwhile.
        there.desk.note_found(there.session)
        disk.is_full = False
        with pytest.raises(Conflict) as refused:
            await there.desk.answer(asked.id, "yes", None, by="owner", road="socket")
        assert refused.value.data["answer"]["outcome"] == "expired"
        assert not there.outcomes()
        await trio.sleep(10)
        assert there.outcomes() == ["expired"]
        assert there.session.entry.open_questions == []
        assert asked.id in str(there.records())


async def test_one_session_and_one_agent_have_so_many_open_questions(tmp_path: Path, autojump_clock: Any) -> None:
    async with asking(tmp_path) as there:
        for session in range(2):
            if session:
                there.session = (await there.store.create("agent:main:second", "main"))[0]
            for _ in range(MAX_OPEN_QUESTIONS):
                asked, scope, _ = await there.ask()
                await trio.sleep(1)  # else they would come too fast
            with pytest.raises(Conflict) as refused, trio.fail_after(5):
                await there.desk.ask(there.session, DRAFT)
            assert refused.value.code == "too_many_questions"
        there.session = (await there.store.create("agent:main:third", "main"))[0]
        with pytest.raises(Conflict) as refused, trio.fail_after(5):
            await there.desk.ask(there.session, DRAFT)
        assert "agent main" in refused.value.message
        other = (await there.store.create("agent:ops:main", "ops"))[0]
        there.session = other
        await there.ask()
        await there.desk.answer(asked.id, "no", None, by="owner", road="socket")
        there.session = there.store.catalog.by_key["agent:main:third"]
        await there.ask()
        assert not scope.cancel_called


async def test_who_asks_and_withdraws_in_a_loop_is_slowed_down(tmp_path: Path, autojump_clock: Any) -> None:
    async with asking(tmp_path) as there:
        for _ in range(crowding.MAX_PER_MINUTE):
            _, scope, _ = await there.ask()
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded) as refused, trio.fail_after(5):
            await there.desk.ask(there.session, DRAFT)
        assert refused.value.code == "rate_limited"
        await trio.sleep(refused.value.data["retryAfterMs"] / 1000)
        await there.ask()


async def test_a_daemon_that_stops_withdraws_all_and_takes_no_more(tmp_path: Path, autojump_clock: Any) -> None:
    async with asking(tmp_path) as there:
        for _ in range(3):
            await there.ask()
        await there.desk.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert [getattr(end, "outcome", None) for end in there.ends] == ["withdrawn"] * 3
        with pytest.raises(Stopping), trio.fail_after(5):
            await there.desk.ask(there.session, DRAFT)


async def test_after_a_start_what_stood_open_is_withdrawn_once_and_grants_nothing(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with asking(tmp_path) as there:
        asked, _, _ = await there.ask()
        answered, _, _ = await there.ask()
        await there.desk.answer(answered.id, "yes", None, by="owner", road="socket")
        snapshot = there.copy_store(tmp_path / "crash" / "store")
    for start in range(2):
        async with asking(snapshot.parent) as there:
            count = await withdraw_left_questions(there.store, there.desk)
            assert count == (0 if start else 1)
            assert there.outcomes() == ["answered", "withdrawn"]
            assert there.records()[-1]["reason"] == DAEMON_ENDED
            with pytest.raises(Conflict) as refused:
                await there.desk.answer(asked.id, "yes", None, by="owner", road="socket")
            assert refused.value.data["answer"]["outcome"] == "withdrawn"


async def test_a_question_that_another_program_wrote_is_withdrawn_when_somebody_answers(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with asking(tmp_path) as there:
        asked, scope, _ = await there.ask()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        path = there.store.path / there.session.path
        forged = next(line for line in path.read_text().splitlines() if QUESTION in line).replace(asked.id, "f" * 16)
        with path.open("a") as file:
            file.write(forged + "\n")
        there.store.read_new(there.session)
        [ref] = there.session.entry.open_questions
        with pytest.raises(Conflict) as refused:
            await there.desk.answer(ref.id, "yes", None, by="owner", road="socket")
        assert refused.value.data["answer"]["reason"] == NOBODY_WAITS
        assert there.session.entry.open_questions == []


async def test_an_answer_that_another_program_wrote_grants_nothing(tmp_path: Path, autojump_clock: Any) -> None:
    async with asking(tmp_path) as there:
        asked, _, place = await there.ask()
        record = {"questionId": asked.id, "outcome": "answered", "optionId": "yes", "by": "owner", "at": asked.asked_at}
        line = {"type": "custom", "customType": ANSWER, "id": "0" * 16, "data": record}
        with (there.store.path / there.session.path).open("a") as file:
            file.write(json.dumps(line) + "\n")
        there.store.read_new(there.session)
        await trio.testing.wait_all_tasks_blocked()
        assert there.session.entry.open_questions == []
        assert there.ends[place] is None
        [listed] = await list_questions(there.store, there.desk, lambda _: True, is_open=None)
        assert (listed.question, listed.answer) == (asked, None)
        await there.desk.answer(asked.id, "no", None, by="owner", road="socket")
        await trio.testing.wait_all_tasks_blocked()
        end = there.ends[place]
        assert isinstance(end, QuestionAnswer)
        assert end.option_id == "no"


async def test_a_transcript_that_another_program_puts_into_the_store_waits_for_nobody(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        lines = [
            {"type": "session", "version": 3, "id": "found", "sessionKey": "agent:main:found", "agentId": "main"},
            {"type": "custom", "customType": QUESTION, "id": "1" * 16, "data": QUESTION_DATA},
        ]
        folder = there.services.store.path / "agents/main/sessions"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "found.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        await until(lambda: "agent:main:found" in there.services.store.catalog.by_key)
        assert (await owner.call("questions.list", open=True))["questions"] == []
        [listed] = (await owner.call("questions.list"))["questions"]
        assert (listed["status"], listed["answer"]["reason"]) == ("withdrawn", NOBODY_WAITS)
        session = there.services.store.catalog.by_key["agent:main:found"]
        await until(lambda: not session.entry.open_questions)
        [row] = (await owner.call("sessions_list"))["sessions"]
        assert row["state"] == "idle"


async def test_a_question_that_another_program_appends_or_copies_keeps_no_row_waiting(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner, trio.open_nursery() as nursery:
        for key in ("agent:main:asks", "agent:main:told"):
            await owner.call("sessions.create", key=key)
        catalog = there.services.store.catalog
        asks, told = catalog.by_key["agent:main:asks"], catalog.by_key["agent:main:told"]
        ends: list[QuestionAnswer] = []

        async def ask() -> None:
            ends.append(await there.services.questions.ask(asks, DRAFT))

        nursery.start_soon(ask)
        await until(lambda: bool(asks.entry.open_questions))
        folder = there.services.store.path / "agents/main/sessions"
        copied = (folder / f"{asks.session_id}.jsonl").read_text().splitlines()[-1]
        forged = {"type": "custom", "customType": QUESTION, "id": "1" * 16, "data": QUESTION_DATA}
        with (folder / f"{told.session_id}.jsonl").open("a") as file:
            file.write(f"{json.dumps(forged)}\n{copied}\n")
        # The forged one is withdrawn; what was copied is open elsewhere, until it is answered there.
        await until(lambda: len(told.entry.questions) == 2 and len(told.entry.open_questions) == 1)
        [ref] = told.entry.open_questions
        await owner.call("questions.answer", id=ref.id, optionId="no")
        await until(lambda: len(ends) == 1 and not told.entry.open_questions)
        assert ends[0].option_id == "no"
