"""A daemon that is asked while faults are met, and what it acknowledged, refused or left unanswered, and when."""

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
# How long a fault that stays, and one that does not, are lived with.
_MOMENT_S, _SOON_S = 0.7, 4.0
MAIN = "agent:main:main"


@dataclass(frozen=True)
class CallOutcome:
    """How one call ended. `mark` is the number of file calls made when it did."""

    what: str
    outcome: Literal["done", "refused", "unknown"]
    result: Any
    mark: int


@dataclass
class Scene:
    """One daemon under one operation. `texts` says which message text a call is about; `lasting`: the fault stays."""

    daemon: FaultyDaemon
    told: list[CallOutcome] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    lasting: bool = False
    # Answers that no fault of the disk may have.
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, error: dict[str, Any]) -> None:
        """A refusal says that it is the disk, and never an error of ours."""
        if error["code"] != STORAGE:
            self.wrong.append(f"{what} was answered with {error}")

    def ask(self, what: str, method: str, /, *, wire: Wire | None = None, text: str = "", **params: Any) -> Any:
        """The result, None where it was refused or the daemon died."""
        if text:
            self.texts[what] = text
        try:
            if wire is None:
                with self.daemon.connect() as own:
                    answer = own.ask(method, **params)
            else:
                answer = wire.ask(method, **params)
        except (OSError, ValueError):
            self.told.append(CallOutcome(what, "unknown", None, self.daemon.control.counter))
            return None
        mark = self.daemon.control.counter
        if "error" in answer:
            self.note(what, answer["error"])
            self.told.append(CallOutcome(what, "refused", answer["error"], mark))
            return None
        self.told.append(CallOutcome(what, "done", answer["result"], mark))
        return answer["result"]

    def outcome(self, what: str, mark: int | None = None) -> str:
        """How that call ended; with `mark` as it was known after so many file calls."""
        found = next((one for one in self.told if one.what == what), None)
        return "unknown" if found is None or (mark is not None and found.mark > mark) else found.outcome

    def result(self, what: str) -> Any:
        return next(one.result for one in self.told if one.what == what and one.outcome == "done")

    def inject(self, what: str, key: str = MAIN) -> None:
        message = {"role": "user", "content": what}
        self.ask(what, "chat.inject", text=what, sessionKey=key, messages=[message])

    def send(self, what: str, key: str = MAIN, **params: Any) -> Any:
        """A message to an echoing agent, and the end of its run."""
        sent = self.ask(what, "chat.send", text=what, sessionKey=key, message=what, **params)
        self.wait(sent)
        return sent

    def wait(self, sent: Any) -> None:
        """Until the run has ended, or for so long as a disk that stays full is worth."""
        if sent:
            with suppress(OSError, ValueError), self.daemon.connect() as wire:
                wire.ask(
                    "agent.wait", runId=sent["runId"], timeoutMs=_MOMENT_S * 1000 if self.lasting else PATIENCE_S * 1000
                )

    def settle(self, *, strict: bool = False) -> None:
        """Until nothing goes on any more; where it is not `strict`, a fault may keep it going, and not for long."""
        patience_s = PATIENCE_S if strict else _MOMENT_S if self.lasting else _SOON_S
        deadline = time.monotonic() + patience_s
        with suppress(*(() if strict else (OSError, ValueError))):
            while self.daemon.process.poll() is None and not idle(self.daemon):
                if time.monotonic() > deadline:
                    assert not strict, "runs, conversations or deliveries do not end"
                    return
                time.sleep(0.005)

    def forget_refusals(self) -> None:
        """After a fault that let nothing be taken back."""
        self.told = [one for one in self.told if one.outcome != "refused"]


def idle(daemon: FaultyDaemon) -> bool:
    """Whether nothing goes on: no run, no conversation, no delivery."""
    outbox = daemon.store / "outbox"
    waits = outbox.is_dir() and any(name.endswith(".json") for name in os.listdir(outbox))
    # A note that names no session: files are being made or removed just now.
    notes = daemon.store / "spawning"
    waits = waits or (notes.is_dir() and any("." not in name for name in os.listdir(notes)))
    if waits or daemon.call("daemon.status")["liveRuns"]:
        return False
    return not any(transcript.waits for transcript in transcripts(daemon.store))
