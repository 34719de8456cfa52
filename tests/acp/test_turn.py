"""A prompt that is cancelled ends as the protocol demands, also where the daemon is lost meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.rows import check_each

from sessiond.acp.frames import EditorRequest
from sessiond.acp.refusals import Refusal
from sessiond.acp.turn import EditorTurn
from sessiond.client import ConnectionLost


class LostSession:
    """A session whose daemon is lost in the call `lost_in`. `before` is called right before that."""

    key = "k"

    def __init__(self, lost_in: str, before: Any) -> None:
        self._lost_in, self._before = lost_in, before
        self.client = self.waits = self
        self.said: list[str] = []

    def follow_again(self) -> None: ...

    @contextmanager
    def expects_prompt(self, text: str) -> Iterator[None]:
        yield

    def say(self, text: str) -> None:
        self.said.append(text)

    def call(self, method: str, *_: Any, **__: Any) -> dict[str, Any]:
        if method in (self._lost_in, "chat.abort"):
            self._lose(method)
        return {"runId": "r"}

    def wait(self, *_: Any) -> dict[str, Any]:
        self._lose("agent.wait")
        raise AssertionError

    def _lose(self, method: str) -> None:
        if method == self._lost_in:
            self._before()
        raise ConnectionLost("the daemon is lost")


@check_each(("lost_in", "said"), [("chat.send", 0), ("agent.wait", 1)])
def test_a_cancelled_prompt_is_no_error_where_the_daemon_is_lost(lost_in: str, said: int) -> None:
    turn = EditorTurn(EditorRequest(1, "session/prompt", {"prompt": [{"type": "text", "text": "x"}]}))
    session: Any = LostSession(lost_in, turn.cancel)
    assert turn.run(session) == {"stopReason": "cancelled"}
    assert len(session.said) == said and all("was not told of the cancellation" in text for text in session.said)


def test_a_prompt_that_was_not_cancelled_fails_where_the_daemon_is_lost() -> None:
    turn = EditorTurn(EditorRequest(1, "session/prompt", {"prompt": [{"type": "text", "text": "x"}]}))
    session: Any = LostSession("chat.send", lambda: None)
    with pytest.raises(Refusal, match="the daemon is lost"):
        turn.run(session)
