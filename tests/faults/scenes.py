"""Calls to a daemon with faults, and which of them it acknowledged, refused or left unanswered, and when."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from faults.faulty_daemons import FaultyDaemon
from faults.transcripts import transcripts
from support.real_daemon import PATIENCE_S, Wire

STORAGE = -32009
# How long to wait for runs to end while a fault is permanent, and while it is not.
_PERMANENT_FAULT_WAIT_S, _PASSING_FAULT_WAIT_S = 0.7, 4.0
MAIN = "agent:main:main"


@dataclass(frozen=True)
class CallOutcome:
    """How one call ended. `mark` is the number of file calls that the daemon had made by then."""

    what: str
    outcome: Literal["done", "refused", "unknown"]
    result: Any
    mark: int


@dataclass
class Scene:
    """One daemon during one operation. `texts` has the message text of each call; `lasting`: the fault is permanent."""

    daemon: FaultyDaemon
    outcomes: list[CallOutcome] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    lasting: bool = False
    # Answers that no disk fault may cause.
    wrong: list[str] = field(default_factory=list)

    def check_refusal(self, what: str, error: dict[str, Any]) -> None:
        """Note a refusal with another code than that of a storage error."""
        if error["code"] != STORAGE:
            self.wrong.append(f"{what} was answered with {error}")

    def ask(self, what: str, method: str, /, *, wire: Wire | None = None, text: str = "", **params: Any) -> Any:
        """The result of a call; None if it was refused or the daemon died."""
        if text:
            self.texts[what] = text
        try:
            if wire is None:
                with self.daemon.connect() as own:
                    answer = own.ask(method, **params)
            else:
                answer = wire.ask(method, **params)
        except (OSError, ValueError):
            self.outcomes.append(CallOutcome(what, "unknown", None, self.daemon.control.counter))
            return None
        mark = self.daemon.control.counter
        if "error" in answer:
            self.check_refusal(what, answer["error"])
            self.outcomes.append(CallOutcome(what, "refused", answer["error"], mark))
            return None
        self.outcomes.append(CallOutcome(what, "done", answer["result"], mark))
        return answer["result"]

    def outcome(self, what: str, mark: int | None = None) -> str:
        """How that call ended; with `mark`, what was known after so many file calls."""
        found = next((one for one in self.outcomes if one.what == what), None)
        return "unknown" if found is None or (mark is not None and found.mark > mark) else found.outcome

    def result(self, what: str) -> Any:
        return next(one.result for one in self.outcomes if one.what == what and one.outcome == "done")

    def inject(self, what: str, key: str = MAIN) -> None:
        message = {"role": "user", "content": what}
        self.ask(what, "chat.inject", text=what, sessionKey=key, messages=[message])

    def send(self, what: str, key: str = MAIN, **params: Any) -> Any:
        """Send a message to the echo agent and wait for the end of its run."""
        sent = self.ask(what, "chat.send", text=what, sessionKey=key, message=what, **params)
        self.wait(sent)
        return sent

    def wait(self, sent: Any) -> None:
        """Wait for the end of the run; only shortly if the fault is permanent."""
        if sent:
            with suppress(OSError, ValueError), self.daemon.connect() as wire:
                wire.ask(
                    "agent.wait",
                    runId=sent["runId"],
                    timeoutMs=_PERMANENT_FAULT_WAIT_S * 1000 if self.lasting else PATIENCE_S * 1000,
                )

    def settle(self, *, strict: bool = False) -> None:
        """Wait until the daemon is idle. Without `strict` stop waiting early, because a fault may prevent that."""
        patience_s = PATIENCE_S if strict else _PERMANENT_FAULT_WAIT_S if self.lasting else _PASSING_FAULT_WAIT_S
        deadline = time.monotonic() + patience_s
        with suppress(*(() if strict else (OSError, ValueError))):
            while self.daemon.process.poll() is None and not idle(self.daemon):
                if time.monotonic() > deadline:
                    assert not strict, "runs, conversations or deliveries do not end"
                    return
                time.sleep(0.005)

    def forget_refusals(self) -> None:
        """Ignore refusals, after a fault that prevented blanking out what was written."""
        self.outcomes = [one for one in self.outcomes if one.outcome != "refused"]


def idle(daemon: FaultyDaemon) -> bool:
    """Whether there is no run, no conversation and no delivery."""
    outbox = daemon.store / "outbox"
    busy = outbox.is_dir() and any(name.endswith(".json") for name in os.listdir(outbox))
    # A note without a session means that files are being created or removed.
    notes = daemon.store / "spawning"
    busy = busy or (notes.is_dir() and any("." not in name for name in os.listdir(notes)))
    if busy or daemon.call("daemon.status")["liveRuns"]:
        return False
    return not any(transcript.has_open_work for transcript in transcripts(daemon.store))
