"""Questions of runs. One that waits for a person has no run slot: whoever waits must not keep others from starting."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.questions.desk import QuestionDesk
from sessiond.runs.run import Run

# What a run waits for that is no run; no run has this id.
_A_PERSON = "question"


class RunQuestions:
    """`park` and `unpark` are the supervisor's: they free the slot of a run, and take one again."""

    def __init__(
        self, desk: QuestionDesk, park: Callable[[Run, str], None], unpark: Callable[[Run, str], None]
    ) -> None:
        self._desk, self._park, self._unpark = desk, park, unpark

    async def ask(self, run: Run, draft: QuestionDraft, timeout_s: float | None = None) -> QuestionAnswer:
        """Ask in the session of the run, and wait. As `QuestionDesk.ask`."""
        self._park(run, _A_PERSON)
        try:
            return await self._desk.ask(run.session, draft, run_id=run.run_id, timeout_s=timeout_s)
        finally:
            self._unpark(run, _A_PERSON)

    async def withdraw_of(self, run: Run) -> None:
        """Withdraw what the run still asks: it is over, whoever asked for it."""
        await self._desk.withdraw_of_run(run.run_id)
