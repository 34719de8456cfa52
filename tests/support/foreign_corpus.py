"""Sessions of other programs by the thousand, made of turns of the real ones in tests/golden/sources.

Nine tenths of what Claude Code writes are no messages: requests, their shapes, attachments. So it is here. The same
bytes for the same numbers: `python tests/support/foreign_corpus.py HOME 2000 2000` writes 2,000 sessions of 2,000 MB.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parents[1] / "golden" / "sources"
# The time of the newest file, and between two.
_NEWEST_S = 1_795_000_000
_APART_S = 600
_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
# Ids in turns of all programs: a number of the turn is put in them, so that none occurs twice.
_CALL = re.compile(rb"\b(msg|toolu|call|fc|rs|req|resp)_(?=[0-9])")
_SESSION, _TURN, _BEFORE = b"@SESSION@", b"@TURN@", b"@BEFORE@"
_BLOB_BYTES = 55_000


class Corpus(NamedTuple):
    """What was made: the home, and how much of it."""

    home: Path
    files: list[Path]
    bytes: int


class _Program(NamedTuple):
    """How files of a program look: the path by number and id, the lines at the head, those of a turn."""

    place: Callable[[int, str], str]
    head: bytes
    turn: bytes
    last: bytes = b""


def session_id(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-0123456789ab"


def _lines(name: str) -> list[bytes]:
    return (GOLDEN / name).read_bytes().splitlines(keepends=True)


def _with_ids(data: bytes, session: bytes) -> bytes:
    """Lines in which the ids of the session and of the turn can be filled in."""
    data = data.replace(session, _SESSION)
    data = _UUID.sub(lambda found: _TURN + found[1], data)
    return _CALL.sub(lambda found: found[1] + b"_" + _TURN, data)


def _claude() -> _Program:
    lines = _lines("claude/2.1.330/tools.jsonl")
    session = b"b1511287-17e3-4067-9652-8b78876d0462"
    blob = b'{"type":"api-request-blob","sessionId":"%s","hash":"a1","message":{"role":"fill","content":"%s"}}\n'
    lines.insert(20, blob % (session, b'filler \\"text\\" ' * (_BLOB_BYTES // 16)))
    turn = _with_ids(b"".join(lines), session).replace(b'"parentUuid":null', b'"parentUuid":' + _BEFORE, 1)
    last = re.findall(rb'"uuid":"@TURN@([^"]+)"', turn)[-1]
    return _Program(lambda n, name: f".claude/projects/-home-me-p{n % 40}/{name}.jsonl", b"", turn, last)


def _codex() -> _Program:
    lines = _lines("codex/0.169.0/tools.jsonl")
    session = b"01a203f8-e32f-7b41-b278-a90fce7a79b2"
    return _Program(
        lambda n, name: f".codex/sessions/2026/01/{n % 28 + 1:02d}/rollout-2026-01-01T00-00-00-{name}.jsonl",
        _with_ids(lines[0], session),
        _with_ids(b"".join(lines[1:]), session),
    )


def _gemini() -> _Program:
    lines = _lines("gemini/tool.jsonl")
    session = b"92c563ea-6120-442e-84b6-a1a044307c3d"
    return _Program(
        lambda n, name: f".gemini/tmp/p{n % 5}/chats/session-2026-01-01T00-00-{name[:8]}.jsonl",
        _with_ids(b"".join(lines[:2]), session),
        _with_ids(b"".join(lines[2:]), session),
    )


def _pi() -> _Program:
    lines = _lines("pi/session.jsonl")
    session = b"01a203e7-91ca-76e1-93b0-6b50b5beb6be"
    turn = re.sub(rb'"(id|parentId)":"[0-9a-f]{4}([0-9a-f]{4})"', rb'"\1":"%s\2"' % _TURN, b"".join(lines[4:8]))
    return _Program(
        lambda n, name: f".pi/agent/sessions/-home-me-p{n % 5}/2026-01-01T00-00-00-000Z_{name}.jsonl",
        _with_ids(b"".join(lines[:4]), session),
        _with_ids(turn, session),
    )


def make_turns(program: _Program, number: int, size: int) -> bytes:
    """The bytes of a session of about that size; of one turn at least."""
    name = session_id(number).encode()
    pieces = [program.head.replace(_SESSION, name).replace(_TURN, b"%08x" % number)]
    total, count, before = len(pieces[0]), 0, b"null"
    turn = program.turn.replace(_SESSION, name)
    while total < size or not count:
        ids = b"%04x%04x" % (number, count)
        pieces.append(turn.replace(_TURN, ids).replace(_BEFORE, before))
        before = b'"' + ids + program.last + b'"'
        total += len(pieces[-1])
        count += 1
    return b"".join(pieces)


def claude_file(home: Path, number: int, megabytes: float) -> Path:
    """One session of Claude Code of about that size."""
    program = _claude()
    path = home / program.place(number, session_id(number))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        step = make_turns(program, number, 4_000_000)
        while file.tell() < megabytes * 1e6:
            file.write(step if megabytes > 4 else make_turns(program, number, int(megabytes * 1e6)))
    return path


def write_corpus(home: Path, sessions: int, megabytes: float, *, first: int = 0) -> Corpus:
    """So many sessions of so many bytes in all, with the ids from `first` on: eight of ten of Claude Code, a few many
    times longer than most, none shorter than a turn.
    """
    programs = [_claude(), _codex(), _gemini(), _pi()] + [_claude()] * 8 + [_codex()] + [_claude()] * 7
    weights = [3.0 ** (number * 7 % 11 - 5) for number in range(sessions)]
    mean = megabytes * 1e6 / sum(weights)
    files, total = [], 0
    for number, weight in enumerate(weights, first):
        program = programs[number % len(programs)]
        path = home / program.place(number, session_id(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        data = make_turns(program, number, int(weight * mean))
        path.write_bytes(data)
        moment = _NEWEST_S - number * _APART_S
        os.utime(path, (moment, moment))
        files.append(path)
        total += len(data)
    return Corpus(home, files, total)


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
