"""A believable day for looking at the page: sessions of ours and of Claude Code, as files, and agents of each kind.

`main` is an attached agent: whoever attaches (`attach`) says what it does, word by word. The others echo.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.page_stores import header
from support.real_daemon import Wire

from sessiond.clock import iso_ms

if TYPE_CHECKING:
    from playwright.sync_api import Page

MAIN, CHILD, REVIEWER, FAILED = (
    "agent:main:main",
    "agent:coder:subagent:tail",
    "agent:reviewer:main",
    "agent:coder:webp",
)
CLAUDE_ID = "5c0ffee0-0000-4000-8000-000000000001"
TIDEPOOL, SITE = "/home/ada/src/tidepool", "/home/ada/src/harbour-site"
CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "attached" }
subagents = { allowAgents = ["*"] }
""" + "".join(f'\n[[agents.list]]\nid = "{name}"\nruntime = {{ type = "echo" }}\n' for name in ("coder", "reviewer"))
_MINUTE_MS = 60_000
_LINE_BEFORE = "    def reopen(self):\n        self.fd = os.open(self.path, os.O_RDONLY)\n"
_LINE_AFTER = (
    "    def reopen(self):\n        old, self.fd = self.fd, os.open(self.path, os.O_RDONLY)\n        os.close(old)\n"
)


class Transcript:
    """A transcript of ours, written message by message; four seconds pass with each."""

    def __init__(
        self, key: str, cwd: str, began_ms: int, *, label: str | None = None, parent: str | None = None
    ) -> None:
        self.agent = key.split(":")[1]
        self.id = str(uuid.uuid5(uuid.NAMESPACE_URL, key))
        self.at_ms = began_ms
        more = {"spawnedBy": parent} if parent else {}
        self._lines = [header(self.id, key, began_ms, cwd=cwd, **more)]
        self._count = 0
        if label:
            self.record("custom", customType="sessiond/entry", data={"sessionKey": key, "label": label})

    def record(self, kind: str, **fields: Any) -> None:
        self._count += 1
        line = {"type": kind, "id": f"{self._count:016x}", "parentId": None, "timestamp": iso_ms(self.at_ms), **fields}
        self._lines.append(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    def message(self, role: str, content: Any, *, after_ms: int = 4000, **more: Any) -> None:
        self.at_ms += after_ms
        self.record("message", message={"role": role, "content": content, "timestamp": self.at_ms, **more})

    def user(self, text: str, *, from_key: str | None = None, after_ms: int = 4000) -> None:
        provenance = {"kind": "inter_session", "sourceSessionKey": from_key, "sourceTool": "sessions_send"}
        self.message("user", text, after_ms=after_ms, **({"provenance": provenance} if from_key else {}))

    def say(self, *blocks: Any) -> None:
        usage = {"input": 2400, "output": 310, "cacheRead": 31_000, "cacheWrite": 900, "totalTokens": 34_610}
        usage["cost"] = {"input": 0.02, "output": 0.03, "cacheRead": 0.01, "cacheWrite": 0.01, "total": 0.07}  # type: ignore[assignment]
        parts = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
        self.message("assistant", parts, model="claude-opus-4-5", provider="anthropic", usage=usage, stopReason="stop")

    def tool(self, name: str, arguments: Any, result: str, *, took_ms: int = 1200, failed: bool = False) -> None:
        call_id = f"call{self._count}"
        self.say({"type": "toolCall", "id": call_id, "name": name, "arguments": arguments})
        text = [{"type": "text", "text": result}]
        self.message("toolResult", text, after_ms=took_ms, toolCallId=call_id, toolName=name, isError=failed)

    def run(self, status: str, error: str | None = None) -> None:
        run = {"runId": f"{self.id}.{self._count:016x}", "at": self.at_ms}
        self.record(
            "custom", customType="sessiond/run", data={**run, "status": "accepted", "request": {"message": "x"}}
        )
        self.record("custom", customType="sessiond/run", data={**run, "status": "running"})
        end = {**run, "status": status, "at": self.at_ms + 9000, "replyBefore": True}
        self.record("custom", customType="sessiond/run", data=end | ({"error": error} if error else {}))

    def save(self, store: Path) -> None:
        folder = store / "agents" / self.agent / "sessions"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / f"{self.id}.jsonl").write_bytes(b"".join(self._lines))


def write_day(folder: Path, now_ms: int | None = None) -> None:
    """The store and the home folder of a daemon in `folder`."""
    now_ms = now_ms or int(time.time() * 1000)
    store = folder / "store"
    _write_main(now_ms - 1500 * _MINUTE_MS).save(store)
    _write_child(now_ms - 50 * _MINUTE_MS).save(store)
    reviewer = Transcript(REVIEWER, TIDEPOOL, now_ms - 70 * _MINUTE_MS, label="reviewer")
    reviewer.user("What do you think of the new tail in #418?", from_key=MAIN)
    reviewer.say("One thing: the descriptor of the old file stays open until the next event.")
    reviewer.run("ok")
    reviewer.save(store)
    failed = Transcript(FAILED, SITE, now_ms - 120 * _MINUTE_MS, label="images to webp")
    failed.user("Convert all images below `static/` to webp.")
    failed.tool("Bash", {"command": "cwebp -version"}, "sh: 1: cwebp: not found", failed=True, took_ms=60)
    failed.run("error", "The program ended with exit status 1: cwebp is not installed")
    failed.save(store)
    _write_claude(folder / ".claude" / "projects" / "-home-ada-src-harbour-site", now_ms - 240 * _MINUTE_MS)


def _write_main(began_ms: int) -> Transcript:
    main = Transcript(MAIN, TIDEPOOL, began_ms)
    main.user(
        "What is left before the 2.4 release of tidepool? Please look at the pull requests and the failing nightly."
    )
    main.say({"type": "thinking", "thinking": "First the pull requests, then the nightly log."}, "I look at both.")
    main.tool(
        "Bash", {"command": "gh pr list --state open", "description": "List"}, "#418 tail: a replaced file\n#421 docs"
    )
    main.tool("Bash", {"command": "just nightly-log | tail -40"}, "1 failed, 412 passed in 88.1 s", took_ms=4200)
    main.say(
        "Two things are left:\n\n1. **#418** `tail: a replaced file` – approved, but the nightly fails.\n"
        "2. **#421** quick start – one comment is open.\n\nI suggest to give the failing test to a sub-agent. "
        "Details are in [the log](https://ci.example.org/tidepool/9912)."
    )
    main.user("Do that. And ask the reviewer what they think of the new tail.", after_ms=1445 * _MINUTE_MS)
    task = {"task": "Fix test_replaced_file in tests/test_tail.py.", "agentId": "coder", "label": "fix-replaced-file"}
    main.tool("mcp__sessiond__sessions_spawn", task, '{"status":"accepted"}', took_ms=300)
    asked = {"label": "reviewer", "message": "What do you think of the new tail in #418?"}
    main.tool("mcp__sessiond__sessions_send", asked, '{"status":"ok"}', took_ms=21_000)
    main.say("The sub-agent is at work. The reviewer found one thing: **the descriptor of the old file stays open**.")
    main.run("ok")
    return main


def _write_child(began_ms: int) -> Transcript:
    child = Transcript(CHILD, TIDEPOOL, began_ms, label="fix-replaced-file", parent=MAIN)
    child.user("Fix `test_replaced_file` in `tests/test_tail.py`.", from_key=MAIN)
    child.tool("Read", {"file_path": f"{TIDEPOOL}/tidepool/tail.py"}, "class Tail:\n" + _LINE_BEFORE)
    edit = {"file_path": f"{TIDEPOOL}/tidepool/tail.py", "old_string": _LINE_BEFORE, "new_string": _LINE_AFTER}
    child.tool("Edit", edit, "The file has been updated.", took_ms=80)
    child.tool("Bash", {"command": "just test tests/test_tail.py -x"}, "E   TimeoutError", failed=True, took_ms=4200)
    child.user("The reviewer adds: the descriptor of the old file stays open.", from_key=MAIN)
    child.say(
        "It is closed in `reopen`. What is missing:\n\n```python\nreturn os.stat(self.path).st_ino != self.inode\n```"
    )
    child.tool("Bash", {"command": "just test tests/test_tail.py -x"}, "7 passed in 1.02s", took_ms=1900)
    child.run("ok")
    return child


def _write_claude(folder: Path, at_ms: int) -> None:
    folder.mkdir(parents=True)
    question = "The navigation jumps on Safari when the font loads. Why?"
    answer = [{"type": "text", "text": "The fallback has other metrics: use `size-adjust`."}]
    said = [("user", {"role": "user", "content": question}), ("assistant", {"role": "assistant", "content": answer})]
    lines = []
    for number, (role, message) in enumerate(said):
        shared = {"uuid": str(number), "sessionId": CLAUDE_ID, "timestamp": iso_ms(at_ms + number * 4000), "cwd": SITE}
        model = {"id": "m", "model": "claude-opus-4-5-20251101"} if role == "assistant" else {}
        lines.append(json.dumps({"type": role, **shared, "userType": "external", "message": message | model}) + "\n")
    (folder / f"{CLAUDE_ID}.jsonl").write_text("".join(lines))


def address_of(key: str) -> str:
    """Where the page shows a session."""
    return f"#/session/{key.replace(':', '%3A')}"


def write(page: Page, text: str) -> None:
    """Write a message, without sending it."""
    page.locator("message-composer textarea").fill(text)


class AttachedAgent:
    """An attached agent, played by a test."""

    def __init__(self, wire: Wire, agent_id: str = "main") -> None:
        self.wire = wire
        wire.call("agents.attach", agentId=agent_id, capabilities=["steer"])
        self._request_id: Any = None
        self._ask_id = ""
        self.run: dict[str, Any] = {}

    def begin(self) -> dict[str, Any]:
        """Wait for a run; its params."""
        asked = self._wait_for("run.start")
        self._request_id, self.run = asked["id"], asked["params"]
        return self.run

    def take_steer(self) -> str:
        """Wait for a message into the run, and take it; its text."""
        asked = self._wait_for("run.steer")
        self.wire.send({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
        text: str = asked["params"]["message"]
        return text

    def ask(self, title: str, *options: tuple[str, str, str], **more: Any) -> None:
        """Ask a person, in the name of the run that has begun. An option is its id, its label and its kind."""
        self._ask_id = f"asked {title}"
        offered = [{"id": name, "label": label, "kind": kind} for name, label, kind in options]
        params = {"runId": self.run["runId"], "title": title, "options": offered, **more}
        self.wire.send({"jsonrpc": "2.0", "id": self._ask_id, "method": "agents.ask", "params": params})

    def take_back(self) -> None:
        """Take back what was asked."""
        self.wire.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": self._ask_id}})

    def take_answer(self) -> dict[str, Any]:
        """Wait for the answer to what was asked."""
        while True:
            message = self._next()
            if str(message.get("id")).startswith("asked ") and "method" not in message:
                answer: dict[str, Any] = message["result"]
                return answer

    def _wait_for(self, method: str) -> dict[str, Any]:
        while True:
            message = self._next()
            if message.get("method") == method:
                return message

    def _next(self) -> dict[str, Any]:
        return self.wire.events.pop(0) if self.wire.events else self.wire.receive()

    def tell(self, kind: str, **fields: Any) -> None:
        """A `run.event` of the run that has begun."""
        self.wire.call("run.event", runId=self.run["runId"], type=kind, **fields)

    def end(self, reply: str) -> None:
        self.wire.send({"jsonrpc": "2.0", "id": self._request_id, "result": {"reply": reply}})
