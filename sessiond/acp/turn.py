"""One prompt of an editor: sent as a message, followed to the end of its run, or cancelled."""

from __future__ import annotations

import threading
from typing import Any

from sessiond.acp import frames
from sessiond.acp.opened import OpenedSession
from sessiond.acp.refusals import CALL_S, Refusal, refusal_of
from sessiond.client import CallTimeout, Client, ClientError, ConnectionLost, DaemonNotRunning
from sessiond.client.retry import is_wait_over

# A wait that a lost daemon interrupts is taken up again after so long at most; then a cancellation is tried again too.
WAIT_S = 10.0
_STOP_REASONS = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turn_requests",
    "refusal": "refusal",
}
_REASONS = {
    "interrupted": "interrupted: sessiond was restarted while the agent worked; say it again to go on",
    "timeout": "the run met its time limit",
}


class EditorTurn:
    """A `session/prompt` from its arrival to its answer. `cancel` may be called from any thread, at any time."""

    def __init__(self, request: frames.EditorRequest) -> None:
        self.request = request
        self._lock = threading.Lock()  # guards what follows
        self._is_cancelled = False
        self._running: tuple[Client, str, str] | None = None  # with the key of the session and the id of the run
        self._is_abort_due = False
        self._was_aborted = False  # the daemon knows that it is to end the run

    def cancel(self) -> None:
        """Have the turn end soon, as cancelled. Does not wait."""
        with self._lock:
            self._is_cancelled = self._is_abort_due = True
            is_running = self._running is not None
        if is_running:
            threading.Thread(target=self._abort, daemon=True).start()

    def run(self, session: OpenedSession) -> dict[str, Any]:
        """The result of the prompt. Refusal."""
        from sessiond.acp.prompt import BadPrompt, read_prompt  # imported on first use, to keep the start quick

        try:
            message = read_prompt(self.request.params.get("prompt"))
        except BadPrompt as error:
            raise Refusal(frames.INVALID_PARAMS, str(error)) from None
        if self._is_cancelled:
            return {"stopReason": "cancelled"}
        params: dict[str, Any] = {"message": message.text}
        if message.attachments:
            params["attachments"] = message.attachments
        with session.expects_prompt(message.text):
            try:
                return self._send(session, params)
            except ClientError as error:
                return self._end_at(error, session)

    def _end_at(self, error: ClientError, session: OpenedSession) -> dict[str, Any]:
        """The result of a prompt that met this error: the protocol knows none of one that was cancelled. Refusal."""
        if not self._is_cancelled:
            raise refusal_of(error) from None
        if self._running is not None and not self._was_aborted:
            session.say(f"The agent may be at work still: it was not told of the cancellation. {error}")
        return {"stopReason": "cancelled"}

    def _send(self, session: OpenedSession, params: dict[str, Any]) -> dict[str, Any]:
        session.follow_again()
        accepted = session.client.call("chat.send", {"sessionKey": session.key, **params})
        if accepted.get("status") == "handled":  # a command of the owner, such as /reset
            session.say(str(accepted.get("reply") or f"{accepted.get('command')}: done"))
            return {"stopReason": "end_turn"}
        if accepted.get("reason") == "inbox":
            session.say("The message is kept: a program reads its messages here when it wants to, and no agent runs.")
            return {"stopReason": "end_turn"}
        if accepted.get("sessionKey") not in (None, session.key):
            session.continue_in(accepted["sessionKey"], accepted["cursor"])
        run_id = accepted["runId"]
        with self._lock:
            self._running = (session.client, session.key, run_id)
        end = self._wait(session.waits, run_id)
        session.catch_up()
        return {**self._result(end), "_meta": {"sessionKey": session.key, "runId": run_id}}

    def _wait(self, client: Client, run_id: str) -> dict[str, Any]:
        """The end of the run. Goes on waiting while the daemon is away, unless the turn was cancelled."""
        while True:
            self._abort()
            try:
                end = client.wait(run_id, WAIT_S)
            except (CallTimeout, ConnectionLost, DaemonNotRunning):
                if self._is_cancelled:
                    raise
                continue
            if is_wait_over(end):
                return end

    def _abort(self) -> None:
        """Abort the run if that is due; it stays due where the daemon cannot be reached."""
        with self._lock:
            is_due, running = self._is_abort_due, self._running
            self._is_abort_due = False
        if not is_due or running is None:
            return
        client, key, run_id = running
        try:
            client.call("chat.abort", sessionKey=key, runId=run_id, timeout_s=CALL_S)
            self._was_aborted = True
        except ClientError:
            self._is_abort_due = True

    def _result(self, end: dict[str, Any]) -> dict[str, Any]:
        status, reason = end["status"], _STOP_REASONS.get(str(end.get("stopReason")))
        if self._is_cancelled or status == "aborted":
            return {"stopReason": "cancelled"}
        if status == "ok" or reason == "refusal":
            return {"stopReason": reason or "end_turn"}
        if end.get("reason") == "ancestor_busy":
            text = f"not waiting: {end.get('sessionKey', 'the session')} waits for this very run"
            raise Refusal(frames.INTERNAL_ERROR, text, {"type": "ancestor_busy"})
        error = str(end.get("error") or status)
        data = {"type": "run_failed", "status": status, "error": error, "runId": end.get("runId")}
        raise Refusal(frames.INTERNAL_ERROR, _REASONS.get(error, error), data)
