"""A crash leaves any beginning of a transcript, whole lines or not: after a start what was asked has one end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.supervised_runs import MAIN, run_harness

from sessiond.errors import Conflict
from sessiond.model.question import QuestionDraft, QuestionOption
from sessiond.model.record import ANSWER, QUESTION
from sessiond.questions.listing import list_questions
from sessiond.questions.recovery import withdraw_left_questions

DRAFT = QuestionDraft(title="May I?", options=(QuestionOption("yes", "Yes", "allow_once"),), detail="é" * 50)


async def test_after_any_cut_each_question_is_answered_as_its_record_says_or_withdrawn(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with run_harness(tmp_path / "store") as harness, trio.open_nursery() as nursery:
        session = await harness.session()
        for number in range(2):
            nursery.start_soon(harness.desk.ask, session, DRAFT)
            await trio.testing.wait_all_tasks_blocked()
            [asked] = harness.desk.open_questions()
            if not number:
                await harness.desk.answer(asked.question.id, "yes", None, by="owner", road="socket")
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)  # they are listed by the time at which they were asked
        template = harness.copy_store(tmp_path / "template")
        place = session.path
        nursery.cancel_scope.cancel()
    whole = (template / place).read_bytes()
    lines = whole.splitlines(keepends=True)
    ends = [sum(map(len, lines[:count])) for count in range(1, len(lines) + 1)]
    middles = [end - 1 - len(line) // 2 for end, line in zip(ends, lines, strict=True)][1:]
    for cut in sorted([*ends, *middles]):
        folder = tmp_path / f"cut-{cut}" / "store"
        shutil.copytree(template, folder)
        (folder / place).write_bytes(whole[:cut])
        asked_ids = [line for line in whole[:cut].split(b"\n")[:-1] if QUESTION.encode() in line]
        is_answered = any(ANSWER.encode() in line for line in whole[:cut].split(b"\n")[:-1])
        for _ in range(2):
            async with run_harness(folder) as harness:
                await withdraw_left_questions(harness.store, harness.desk)
                found = await list_questions(harness.store, harness.desk, lambda _: True, is_open=None)
                outcomes = [one.answer.outcome if one.answer is not None else "open" for one in found]
                expected = ["answered" if is_answered else "withdrawn", "withdrawn"][: len(asked_ids)]
                assert outcomes == expected, cut
                session = harness.store.catalog.by_key[MAIN]
                assert session.entry.open_questions == []
                for one in found:
                    with pytest.raises(Conflict):
                        await harness.desk.answer(one.question.id, "yes", None, by="owner", road="socket")
