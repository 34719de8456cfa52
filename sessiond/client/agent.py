"""A run as the handler of an attached program sees it, and its answer. Knows no transport, only functions to notify and
to call. Source: runs.md, "attached".
"""

from __future__ import annotations

from sessiond.client.errors import RpcError
from sessiond.client.wire import CANCELLED, INTERNAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

YES_OR_NO = (
    {"id": "yes", "label": "Yes", "kind": "allow_once"},
    {"id": "no", "label": "No", "kind": "reject_once"},
)


class AttachedRun:
    """One run, as `attach` passes it to its handler: a BlockingRun, or with the client for Trio a TrioRun.

    `message` is the text to answer, `context` the text that precedes it (may be None), `session_key` the session,
    `step` is `primary`, `reply` or `announce`, `params` all params of the request, `token` is for a second connection.
    `cancelled()` says whether the daemon has cancelled the run; its answer is then ignored.
    """

    def __init__(
        self, params: dict[str, Any], notify: Callable[[str, dict[str, Any]], object], cancelled: Callable[[], bool]
    ) -> None:
        self.params = params
        self.run_id: str = params["runId"]
        self.session_key: str = params["sessionKey"]
        self.message: str = params["message"]
        self.context: str | None = params.get("context")
        self.step: str = params.get("step", "primary")
        self.token: str | None = params.get("token")
        self.cancelled = cancelled
        self._notify = notify

    @property
    def meta(self) -> dict[str, Any]:
        """The `_meta` param for calls on this connection that are made on behalf of the run's session."""
        return {"runId": self.run_id}

    def delta(self, text: str) -> None:
        """Send `text` to subscribers as the next part of the reply; nothing is stored."""
        self._send("delta", text=text)

    def tool(self, phase: str, tool_call_id: str, name: str, **more: Any) -> None:
        """Tell subscribers that a tool starts, goes on or ends (`phase`: start, update, end); nothing is stored."""
        self._send("tool", phase=phase, toolCallId=tool_call_id, name=name, **more)

    def append(self, message: dict[str, Any]) -> None:
        """Write a message (`{role, content, ...}`) to the transcript now, before the run ends."""
        self._send("message", message=message)

    def _send(self, kind: str, **params: Any) -> None:
        self._notify("run.event", {"runId": self.run_id, "type": kind, **params})


class BlockingRun(AttachedRun):
    """A run of the blocking client."""

    def __init__(
        self,
        params: dict[str, Any],
        notify: Callable[[str, dict[str, Any]], object],
        cancelled: Callable[[], bool],
        call: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        super().__init__(params, notify, cancelled)
        self._call = call

    def ask(
        self,
        title: str,
        options: Iterable[Mapping[str, str]] = YES_OR_NO,
        *,
        detail: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Ask a person, and wait: `{questionId, outcome, optionId?, note?, answeredBy?}`.

        `outcome` is `answered`, `expired` after `timeout_s`, or `withdrawn` where the run ended meanwhile. Each option
        is `{id, label, kind}`; kinds are allow_once, allow_always, reject_once and reject_always.
        """
        answer: dict[str, Any] = self._call(
            "agents.ask", question_params(self.run_id, title, options, detail, timeout_s)
        )
        return answer


def question_params(
    run_id: str, title: str, options: Iterable[Mapping[str, str]], detail: str | None, timeout_s: float | None
) -> dict[str, Any]:
    """The params of `agents.ask`."""
    more = {"detail": detail, "timeoutSeconds": timeout_s}
    given = {name: value for name, value in more.items() if value is not None}
    return {"runId": run_id, "title": title, "options": [dict(option) for option in options], **given}


def run_answer(result: Any) -> dict[str, Any]:
    """The answer to `run.start` for a handler's result: a str is the reply, a dict the whole answer, None no reply."""
    if result is None:
        return {}
    return result if isinstance(result, dict) else {"reply": str(result)}


def call_cancelled_error() -> RpcError:
    return RpcError(CANCELLED, "cancelled", "the run was called off")


def attach_params(agent_id: str, can_steer: bool) -> dict[str, Any]:
    return {"agentId": agent_id, **({"capabilities": ["steer"]} if can_steer else {})}


def channel_params(channel: str, account_id: str | None, threads: bool) -> dict[str, Any]:
    params: dict[str, Any] = {"channel": channel}
    if account_id is not None:
        params["accountId"] = account_id
    if threads:
        params["threads"] = True
    return params


def handler_failed(method: str, error: Exception) -> RpcError:
    """The error answer for a handler that raised; logs its traceback in the program of the handler."""
    import logging

    logging.getLogger("sessiond.client").error("the handler of %s failed", method, exc_info=error)
    return RpcError(INTERNAL, "internal", f"{type(error).__name__}: {error}")
