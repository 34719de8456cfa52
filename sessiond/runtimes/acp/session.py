"""Open a session in an agent's process: a new one, or that of an earlier run. Source: runs.md, "acp".

A session that the agent has lost is never passed off as one that was resumed. Knows the connection and the sink.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import trio

from sessiond.errors import quote
from sessiond.model.record import NATIVE
from sessiond.runtimes.acp.connection import AgentRefused
from sessiond.runtimes.acp.frames import AUTH_REQUIRED
from sessiond.runtimes.acp.options import SessionChoices
from sessiond.runtimes.acp.process import AgentProcess, CannotServe
from sessiond.runtimes.presets.fields import array, table, text
from sessiond.runtimes.runtime import RunSink, RunSpec

# What the preset `codex` of exec adds to an id, which may have spaces itself: the tokens that were counted.
_COUNTED = re.compile(r"(?: \d{1,16}){4}\Z")
# Gemini CLI goes on replaying a session after it has answered that the session is loaded.
_REPLAY_SILENCE_S = 0.3


class OpenSession:
    """A session of ours that is open in a process. `cost_usd` is what the agent said last that it has cost so far."""

    def __init__(self, native_id: str, result: Any, *, cost_usd: float | None = None, note: str | None = None) -> None:
        self.native_id = native_id
        self.choices = SessionChoices(result)
        self.cost_usd = cost_usd
        self.context_size: int | None = None
        self.known_lists: dict[str, bytes] = {}
        self._notes = [] if note is None else [note]

    @property
    def model(self) -> str | None:
        """The model that the agent says it uses."""
        return self.choices.model

    def take_notes(self) -> list[str]:
        """What there is to say at the end of this turn; once."""
        notes, self._notes = self._notes, []
        return [*notes, *self.choices.take_notes()]


class SessionRules(msgspec.Struct, frozen=True, kw_only=True):
    """How sessions are opened. `mode` is the id of the mode in which the agent asks for permission, if it has one.

    `claim` raises CannotServe if another session of ours has the id that the agent gave a new one.
    """

    timeout_s: float
    mode: str | None = None
    claim: Callable[[str], None] | None = None


def known_native_id(spec: RunSpec) -> str | None:
    """The agent's own id of the session of a run; None where the run begins a new one."""
    return _COUNTED.sub("", spec.native_session_id or "") or None


async def open_session(
    process: AgentProcess, spec: RunSpec, sink: RunSink, rules: SessionRules, *, cwd: str, servers: list[dict[str, Any]]
) -> OpenSession:
    """The session of a run: resumed where the run has one, else a new one, which begins with a copy of `fork_of` where
    the run has that. CannotServe, AgentGone.
    """
    params = {"cwd": cwd, "mcpServers": servers}
    known = known_native_id(spec)
    with _explain_refusal(process, rules.timeout_s):
        if known is None:
            return await _begin(process, sink, params, rules, original=spec.fork_of)
        found, reason = await _resume(process, known, params, rules)
        if found is not None:
            if spec.native_required:
                await sink.custom(NATIVE, {"nativeId": known})
            return OpenSession(known, found, cost_usd=spec.native_cost_usd)
        if spec.native_required:
            raise CannotServe(_describe_unknown(known, reason))
        return await _begin(process, sink, params, rules, original=spec.fork_of, lost=known, reason=reason)


async def check_session(process: AgentProcess, native_id: str, rules: SessionRules, *, cwd: str) -> str | None:
    """Why the agent cannot go on with this session of its own; None if it can. CannotServe, AgentGone.

    It is closed again where the agent closes sessions.
    """
    with _explain_refusal(process, rules.timeout_s):
        found, reason = await _resume(process, native_id, {"cwd": cwd, "mcpServers": []}, rules)
    if found is None:
        return _describe_unknown(native_id, reason)
    await close_session(process, native_id, rules.timeout_s)
    return None


async def close_session(process: AgentProcess, native_id: str, timeout_s: float) -> None:
    """Have the agent close a session, where it closes sessions. AgentGone."""
    if process.capabilities.close:
        with suppress(AgentRefused, trio.TooSlowError):
            await process.connection.request("session/close", {"sessionId": native_id}, timeout_s)


def _describe_unknown(native_id: str, reason: str) -> str:
    return (
        f"the agent cannot go on with its session {quote(native_id)}: {reason}. Nothing new was begun; look up the id"
        " with the agent program itself"
    )


@contextmanager
def _explain_refusal(process: AgentProcess, timeout_s: float) -> Iterator[None]:
    """Raise CannotServe with a sentence where the agent refuses or does not answer."""
    try:
        yield
    except AgentRefused as error:
        # After a login an agent often has to be started again.
        said = process.explain_refusal(error, "opened no session")
        raise CannotServe(said, for_good=error.code == AUTH_REQUIRED) from None
    except trio.TooSlowError:
        raise CannotServe(f"the agent did not open a session within {timeout_s:g} s", for_good=True) from None


async def _resume(
    process: AgentProcess, native_id: str, params: dict[str, Any], rules: SessionRules
) -> tuple[dict[str, Any] | None, str]:
    """What the agent says of the session that it resumed, else None and why it did not.

    An agent that wants a login has lost nothing: AgentRefused.
    """
    found, reason = await _ask_for(process, native_id, params, rules.timeout_s)
    if found is not None:
        await _set_mode(process, native_id, found, rules)
    return found, reason


async def _ask_for(
    process: AgentProcess, native_id: str, params: dict[str, Any], timeout_s: float
) -> tuple[dict[str, Any] | None, str]:
    params = {"sessionId": native_id, **params}
    refusals = []
    if process.capabilities.resume:
        try:
            return await _ask(process, "session/resume", params, timeout_s), ""
        except AgentRefused as error:
            _raise_if_login(error)
            refusals.append(f"session/resume: {error.message}")
    if process.capabilities.load:
        try:
            # Everything that the session has said so far comes before the answer, and is dropped: no turn goes on.
            found = await _ask(process, "session/load", params, timeout_s, replayed=native_id)
            await process.connection.wait_for_silence(native_id, _REPLAY_SILENCE_S, timeout_s)
            return found, ""
        except AgentRefused as error:
            _raise_if_login(error)
            refusals.append(f"session/load: {error.message}")
    return None, "; ".join(refusals)[:1000] or "it cannot resume sessions"


async def _ask(
    process: AgentProcess, method: str, params: dict[str, Any], timeout_s: float, replayed: str | None = None
) -> dict[str, Any]:
    # The result may be null.
    result = await process.connection.request(method, params, timeout_s, replayed=replayed)
    return result if isinstance(result, dict) else {}


async def _begin(
    process: AgentProcess,
    sink: RunSink,
    params: dict[str, Any],
    rules: SessionRules,
    *,
    original: str | None = None,
    lost: str | None = None,
    reason: str = "",
) -> OpenSession:
    """A new session, or a copy. Its id is on record before its first prompt, so that a crash does not lose it."""
    if original is None:
        result = await process.connection.request("session/new", params, rules.timeout_s)
    elif process.capabilities.fork:
        params = {"sessionId": original, **params}
        result = await process.connection.request("session/fork", params, rules.timeout_s)
    else:
        raise CannotServe(
            f"the agent makes no copies of its sessions, and sessiond does not change {quote(original)} itself: go on"
            " with it in the program"
        )
    native_id = text(result, "sessionId")
    if not native_id or len(native_id) > 1024:
        raise CannotServe("the agent opened a session without an id that can be used")
    if rules.claim is not None:
        rules.claim(native_id)
    await _set_mode(process, native_id, result, rules)
    if lost is None:
        await sink.custom(NATIVE, {"nativeId": native_id})
        return OpenSession(native_id, result)
    await sink.custom(NATIVE, {"nativeId": native_id, "lost": lost, "reason": reason})
    return OpenSession(
        native_id, result, note=f"the agent has lost its session {quote(lost)} and began a new one: {reason}"
    )


async def _set_mode(process: AgentProcess, native_id: str, opened: Any, rules: SessionRules) -> None:
    """Have the agent ask for permission, where it would decide that itself."""
    modes = table(opened, "modes")
    offered = [text(one, "id") for one in array(modes, "availableModes")]
    if rules.mode in offered and text(modes, "currentModeId") != rules.mode:
        await _ask(process, "session/set_mode", {"sessionId": native_id, "modeId": rules.mode}, rules.timeout_s)


def _raise_if_login(error: AgentRefused) -> None:
    if error.code == AUTH_REQUIRED:
        raise error
