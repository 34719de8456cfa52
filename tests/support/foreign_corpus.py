"""A corpus of other programs' sessions for tests and benchmarks: the same bytes for the same numbers, each time.

Of the shape that real ones have: nine tenths of a Claude file are bookkeeping, sizes are very unequal, most are
old. `python tests/support/foreign_corpus.py HOME 2000 2000` writes 2,000 sessions of 2,000 MB below HOME.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WORDS = (
    *("the", "daemon", "reads", "a", "file", "and", "follows", "it", "until", "somebody"),
    *("asks", "what", "was", "said", "about", "tests", "folders"),
)
# The share of each program, and of the bytes of a session.
_PROGRAMS = ("claude", "claude", "claude", "codex", "codex", "gemini", "pi")
_BEGAN_S = 1_750_000_000


def write_corpus(home: Path, sessions: int, megabytes: float, *, seed: int = 1) -> dict[str, list[Path]]:
    """Write the corpus below `home`; the files by program."""
    rng = random.Random(seed)
    weights = [rng.paretovariate(1.2) for _ in range(sessions)]
    unit = megabytes * 1e6 / sum(weights)
    written: dict[str, list[Path]] = {}
    for number, weight in enumerate(weights):
        program = _PROGRAMS[number % len(_PROGRAMS)]
        began_s = _BEGAN_S + number * 3600
        path, lines = _WRITERS[program](home, rng, number, began_s)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, lines, int(weight * unit))
        os.utime(path, (began_s + 600, began_s + 600))
        written.setdefault(program, []).append(path)
    return written


def _write(path: Path, lines: Iterator[dict[str, Any]], size: int) -> None:
    with path.open("wb", buffering=1 << 20) as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            if file.tell() >= size:
                return


def _uuid(rng: random.Random) -> str:
    text = f"{rng.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _stamp(began_s: int, turn: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(began_s + turn))


def _claude(home: Path, rng: random.Random, number: int, began_s: int) -> tuple[Path, Iterator[dict[str, Any]]]:
    native_id = _uuid(rng)
    cwd = f"/home/me/work{number % 20}"
    filler = "x" * 40_000

    def lines() -> Iterator[dict[str, Any]]:
        turn = 0
        while True:
            turn += 1
            shared = {"uuid": _uuid(rng), "sessionId": native_id, "timestamp": _stamp(began_s, turn), "cwd": cwd}
            yield {
                "type": "user",
                **shared,
                "userType": "external",
                "message": {"role": "user", "content": _text(rng, 30)},
            }
            yield {"type": "api-request-blob", **shared, "blob": filler}
            call, message_id = _uuid(rng), f"msg_{_uuid(rng)}"
            usage = {"input_tokens": 100, "output_tokens": 50, "cache_read_input_tokens": 1000}
            for block in (
                {"type": "thinking", "thinking": _text(rng, 60), "signature": "s"},
                {"type": "text", "text": _text(rng, 120)},
                {"type": "tool_use", "id": call, "name": "Read", "input": {"path": cwd}},
            ):
                message = {
                    "id": message_id,
                    "model": "claude-sonnet-4-5",
                    "role": "assistant",
                    "content": [block],
                    "usage": usage,
                }
                yield {"type": "assistant", **shared, "requestId": "r", "message": message}
            result = [{"type": "tool_result", "tool_use_id": call, "content": _text(rng, 200)}]
            yield {"type": "user", **shared, "message": {"role": "user", "content": result}, "toolUseResult": {}}
            yield {"type": "attachment", **shared, "attachment": {"type": "prompt_snapshot", "text": filler[:20_000]}}

    return home / ".claude" / "projects" / cwd.replace("/", "-") / f"{native_id}.jsonl", lines()


def _codex(home: Path, rng: random.Random, number: int, began_s: int) -> tuple[Path, Iterator[dict[str, Any]]]:
    native_id, cwd = _uuid(rng), f"/home/me/work{number % 20}"

    def lines() -> Iterator[dict[str, Any]]:
        meta = {"id": native_id, "cwd": cwd, "timestamp": _stamp(began_s, 0), "base_instructions": "x" * 20_000}
        yield {"timestamp": _stamp(began_s, 0), "type": "session_meta", "payload": meta}
        turn = 0
        while True:
            turn += 1
            stamp = _stamp(began_s, turn)
            yield {"timestamp": stamp, "type": "turn_context", "payload": {"cwd": cwd, "model": "gpt-5"}}
            for role, kind, words in (("user", "input_text", 30), ("assistant", "output_text", 150)):
                content = [{"type": kind, "text": _text(rng, words)}]
                yield {
                    "timestamp": stamp,
                    "type": "response_item",
                    "payload": {"type": "message", "role": role, "content": content},
                }
            call = _uuid(rng)
            arguments = json.dumps({"command": ["ls", cwd]})
            yield {
                "timestamp": stamp,
                "type": "response_item",
                "payload": {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": call},
            }
            yield {
                "timestamp": stamp,
                "type": "response_item",
                "payload": {"type": "function_call_output", "call_id": call, "output": _text(rng, 400)},
            }
            yield {
                "timestamp": stamp,
                "type": "event_msg",
                "payload": {"type": "token_count", "info": {"total_token_usage": {"input_tokens": turn}}},
            }

    day = f"2025/{1 + number % 12:02d}/{1 + number % 28:02d}"
    name = f"rollout-{day.replace('/', '-')}T03-04-05-{native_id}.jsonl"
    return home / ".codex" / "sessions" / day / name, lines()


def _gemini(home: Path, rng: random.Random, number: int, began_s: int) -> tuple[Path, Iterator[dict[str, Any]]]:
    native_id = _uuid(rng)

    def lines() -> Iterator[dict[str, Any]]:
        yield {"sessionId": native_id, "projectHash": "h", "startTime": _stamp(began_s, 0), "kind": "main"}
        turn = 0
        while True:
            turn += 1
            stamp = _stamp(began_s, turn)
            yield {"id": _uuid(rng), "timestamp": stamp, "type": "user", "content": [{"text": _text(rng, 30)}]}
            answer = {
                "id": _uuid(rng),
                "timestamp": stamp,
                "type": "gemini",
                "content": _text(rng, 150),
                "model": "gemini-2.5",
            }
            yield answer
            call = {
                "id": _uuid(rng),
                "name": "ls",
                "args": {},
                "result": [{"text": _text(rng, 200)}],
                "status": "success",
            }
            yield answer | {"toolCalls": [call], "tokens": {"input": 10, "output": 5, "total": 15}}

    name = f"session-2025-01-02T03-04-{native_id[:8]}.jsonl"
    return home / ".gemini" / "tmp" / f"work{number % 20}" / "chats" / name, lines()


def _pi(home: Path, rng: random.Random, number: int, began_s: int) -> tuple[Path, Iterator[dict[str, Any]]]:
    native_id, cwd = _uuid(rng), f"/home/me/work{number % 20}"

    def lines() -> Iterator[dict[str, Any]]:
        yield {"type": "session", "version": 3, "id": native_id, "timestamp": _stamp(began_s, 0), "cwd": cwd}
        turn = 0
        while True:
            turn += 1
            for role, words in (("user", 30), ("assistant", 150)):
                message = {
                    "role": role,
                    "content": [{"type": "text", "text": _text(rng, words)}],
                    "timestamp": began_s * 1000,
                }
                yield {
                    "type": "message",
                    "id": f"{rng.getrandbits(32):08x}",
                    "timestamp": _stamp(began_s, turn),
                    "message": message,
                }

    return home / ".pi" / "agent" / "sessions" / f"--home-me-work{number % 20}--" / f"2025_{native_id}.jsonl", lines()


_WRITERS: dict[str, Callable[[Path, random.Random, int, int], tuple[Path, Iterator[dict[str, Any]]]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "pi": _pi,
}

if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
