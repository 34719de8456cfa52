"""Editors for the tests of `sessiond acp`: one made with the official SDK, and one that writes any bytes."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from support.patience import PATIENCE_S
from support.real_daemon import PROGRAM, Daemon

SDK_CLIENT = Path(__file__).parent / "acp_sdk_client.py"


class _LineProcess:
    """A process that is written to and read from line by line."""

    def __init__(self, command: list[str], daemon: Daemon, env: dict[str, str]) -> None:
        self.stderr = daemon.folder / "editor-stderr"
        with self.stderr.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=daemon.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def next_line(self) -> dict[str, Any]:
        line = self._lines.get(timeout=PATIENCE_S)
        assert line is not None, f"it has ended: {self.stderr.read_text()}"
        return line

    def end(self) -> int:
        """Close its standard input; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


class CallRefused(Exception):
    """The error that the agent answered with."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")


class SdkEditor(_LineProcess):
    """An editor made with the official SDK. What came is kept by session."""

    def __init__(self, daemon: Daemon, *args: str, **env: str) -> None:
        agent = [*PROGRAM, "acp", *args]
        super().__init__([sys.executable, str(SDK_CLIENT), *agent], daemon, env)
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._updates: dict[str, list[dict[str, Any]]] = {}
        # With the ids of their requests.
        self._new_questions: list[tuple[int, dict[str, Any]]] = []
        self.taken_back: list[int] = []
        # Not waited for: two of them start at the same time.
        self._hello = self.begin("initialize", protocol_version=1)

    def begin(self, method: str, /, **args: Any) -> int:
        """Begin a call; what `result_of` takes."""
        self._count += 1
        self.write(json.dumps({"n": self._count, "call": method, "args": args}).encode() + b"\n")
        return self._count

    def result_of(self, number: int) -> Any:
        """The result of a call. CallRefused."""
        while number not in self._answers:
            self._take_line()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise CallRefused(answer["error"])
        return answer["result"]

    def call(self, method: str, /, **args: Any) -> Any:
        """The result of a method of the SDK. CallRefused."""
        return self.result_of(self.begin(method, **args))

    def prompt(self, session_id: str, text: str) -> Any:
        return self.result_of(self.begin_prompt(session_id, text))

    def begin_prompt(self, session_id: str, text: str) -> int:
        return self.begin("prompt", session_id=session_id, prompt=[{"type": "text", "text": text}])

    def wait_for_update(self, session_id: str, wanted: Callable[[dict[str, Any]], object]) -> None:
        """Read up to an update; what was read stays in `new_updates`."""
        while not any(wanted(update) for update in self._updates.get(session_id, ())):
            self._take_line()

    def next_question(self) -> tuple[int, dict[str, Any]]:
        """The id and the params of the next question that the editor is asked."""
        while not self._new_questions:
            self._take_line()
        return self._new_questions.pop(0)

    def choose(self, number: int, option_id: str, reason: str | None = None) -> None:
        """Answer a question."""
        said = {} if reason is None else {"reason": reason}
        self._answer({"answer": number, "outcome": {"outcome": "selected", "optionId": option_id}, **said})

    def dismiss(self, number: int) -> None:
        """Close the dialog of a question."""
        self._answer({"answer": number, "outcome": {"outcome": "cancelled"}})

    def _answer(self, order: dict[str, Any]) -> None:
        self.write(json.dumps(order).encode() + b"\n")

    def wait_until_taken_back(self, number: int) -> None:
        while number not in self.taken_back:
            self._take_line()

    def new_updates(self, session_id: str) -> list[dict[str, Any]]:
        """The updates of a session since the last time."""
        return self._updates.pop(session_id, [])

    def new_texts(self, session_id: str) -> list[str]:
        """The chunks and calls since the last time, in short: `user: ...`, `agent: ...`, `call ID STATUS ...`."""
        return [shown for update in self.new_updates(session_id) if (shown := describe_update(update))]

    def _take_line(self) -> None:
        line = self.next_line()
        assert "bad" not in line, line
        if "n" in line:
            self._answers[line["n"]] = line
        elif "asked" in line:
            self._new_questions.append((line["asked"], line["params"]))
        elif "taken_back" in line:
            self.taken_back.append(line["taken_back"])
        else:
            self._updates.setdefault(line["session"], []).append(line["update"])


def describe_update(update: dict[str, Any]) -> str | None:
    """An update in short."""
    kind = update["sessionUpdate"]
    if kind.endswith("_chunk"):
        who = kind.removesuffix("_chunk").removesuffix("_message").removeprefix("agent_")
        return f"{who}: {update['content'].get('text', update['content']['type'])}"
    if kind.startswith("tool_call"):
        words = [one["content"]["text"] for one in update.get("content") or () if one["type"] == "content"]
        return " ".join(["call", update["toolCallId"], str(update.get("status")), *words])
    return None


class RawEditor(_LineProcess):
    """An editor that writes any bytes. `updates` has those that came before an answer."""

    def __init__(self, daemon: Daemon, *args: str, **env: str) -> None:
        super().__init__([*PROGRAM, "acp", *args], daemon, env)
        self._next_id = 0
        self.updates: list[dict[str, Any]] = []

    def call(self, method: str, /, **params: Any) -> Any:
        """The result of a request, whose ids begin at 0. CallRefused."""
        request = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params}
        self._next_id += 1
        self.write(json.dumps(request).encode() + b"\n")
        while "method" in (frame := self.next_line()):
            self.updates.append(frame["params"]["update"])
        assert frame["id"] == request["id"]
        if "error" in frame:
            raise CallRefused(frame["error"])
        return frame["result"]

    def ask(self, data: bytes) -> dict[str, Any]:
        """The next frame of the agent after writing `data`."""
        self.write(data)
        return self.next_line()
