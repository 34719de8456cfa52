"""After a start: whoever waited for an answer ended with the daemon, so every question that was open is withdrawn.

Nothing is granted by what is on disk: a run that goes on asks anew.
"""

from __future__ import annotations

import structlog

from sessiond.errors import SessiondError
from sessiond.questions.desk import DAEMON_ENDED, QuestionDesk
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.questions")


async def withdraw_left_questions(store: SessionStore, desk: QuestionDesk) -> int:
    """Withdraw the questions that an earlier process left open; how many. To be called before anybody can ask."""
    count = 0
    for session in store.catalog.asking_sessions():
        for ref in session.entry.open_questions:
            try:
                await desk.withdraw_left(session, ref, DAEMON_ENDED)
            except SessiondError as error:
                # Nobody waits for it, so it is shown as withdrawn all the same.
                log.warning("a question stays open on disk", session_key=session.key, reason=error.message)
                break
            log.info("a question was open when the daemon ended", question_id=ref.id, session_key=session.key)
            count += 1
    return count
