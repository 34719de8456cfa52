"""Transcripts of several programs for tests of searches, what reading every message finds in them, and an index that
leaves out what it may.

The reference knows the readers of history and nothing of the search.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from sessiond.clock import iso_ms
from sessiond.model.case import fold_case
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.message import text_of
from sessiond.model.source_facts import SourceFacts
from sessiond.sessions.found import Match, identity_of
from sessiond.sessions.search import Query, Search
from sessiond.sessions.search_numbers import MatchNumbering
from sessiond.store import dirfd, folding, transcript
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder
from sessiond.store.joining import ForwardJoiner
from sessiond.store.paging import page_backwards
from sessiond.trigrams.marks import MarkWriter, NumberedLine
from sessiond.trigrams.narrowing import NO_INDEX, CandidateBlock, Narrowed, SearchIndex, SessionCandidates

T = 1_795_300_000_000
LIMIT = 4096
TEXTS = (
    "needle",
    "Needle and thread",
    "hay",
    "a needle\nin two lines",
    "\u65e5\u672c needle",
    "thread",
    "NEEDLE token=alpha1234567890",
)


class Said(NamedTuple):
    """One line: `at` is its time in seconds, None where it has none. `name` says which message it is of."""

    kind: str
    name: int
    text: str
    at: int | None


KINDS = ("user", "user", "answer", "answer", "result", "note", "torn", "system", "rewind")
said = st.builds(
    Said,
    kind=st.sampled_from(KINDS),
    name=st.integers(0, 4),
    text=st.sampled_from(TEXTS),
    at=st.none() | st.integers(0, 30) | st.integers(0, 30),
)


class Transcript(NamedTuple):
    """A file of one program. `copies` is the number of an earlier file of which it begins as a copy."""

    program: str
    lines: list[Said]
    copies: int | None = None


PROGRAMS = ("v3", "claude", "codex", "gemini")
transcripts = st.lists(
    st.builds(
        Transcript,
        program=st.sampled_from(PROGRAMS),
        lines=st.lists(said, max_size=12),
        copies=st.none() | st.integers(0, 5),
    ),
    min_size=1,
    max_size=5,
)


def _v3(one: Said) -> Any:
    stamp = {} if one.at is None else {"timestamp": iso_ms(T + one.at * 1000)}
    if one.kind in ("note", "rewind"):
        return {"type": "custom", "customType": "x", "data": {"text": one.text}, **stamp}
    role = {"answer": "assistant", "result": "toolResult", "system": "system"}.get(one.kind, "user")
    content: Any = one.text if one.name % 2 else [{"type": "text", "text": part} for part in one.text.split("\n")]
    return {"type": "message", "id": f"m{one.name}", **stamp, "message": {"role": role, "content": content}}


def _claude(one: Said) -> Any:
    stamp = {} if one.at is None else {"timestamp": iso_ms(T + one.at * 1000)}
    if one.kind in ("note", "rewind", "system"):
        return {"type": "progress", "text": one.text, **stamp}
    block: Any = {"type": "text", "text": one.text}
    role = "user"
    if one.kind == "result":
        block = {"type": "tool_result", "tool_use_id": f"t{one.name}", "content": one.text}
    message: dict[str, Any] = {"role": role, "content": [block]}
    if one.kind == "answer":
        message |= {"role": "assistant", "id": f"msg_{one.name}", "model": "m"}
    return {"type": message["role"], "uuid": f"u{one.name}-{one.at}", "message": message, **stamp}


def _codex(one: Said) -> Any:
    stamp = {} if one.at is None else {"timestamp": iso_ms(T + one.at * 1000)}
    if one.kind in ("note", "rewind", "system", "result"):
        return {"type": "event_msg", "payload": {"type": "other", "text": one.text}, **stamp}
    is_user = one.kind == "user"
    content = [{"type": "input_text" if is_user else "output_text", "text": one.text}]
    payload = {"type": "message", "role": "user" if is_user else "assistant", "id": f"i{one.name}", "content": content}
    return {"type": "response_item", "payload": payload, **stamp}


def _gemini(one: Said) -> Any:
    if one.kind == "rewind":
        return {"$rewindTo": f"g{one.name}"}
    if one.kind in ("note", "system"):
        return {"type": "info", "id": f"n{one.name}", "content": one.text}
    stamp = {} if one.at is None else {"timestamp": iso_ms(T + one.at * 1000)}
    calls = [{"id": f"c{one.name}", "name": "ls", "status": "success", "result": one.text}] * (one.kind == "result")
    kind = "user" if one.kind == "user" else "gemini"
    return {"id": f"g{one.name}", "type": kind, "content": one.text, "toolCalls": calls, **stamp}


_LINES: dict[str, Callable[[Said], Any]] = {"v3": _v3, "claude": _claude, "codex": _codex, "gemini": _gemini}


_PLACES = {
    "claude": ".claude/projects/-w/{}.jsonl",
    "codex": ".codex/sessions/2026/01/01/rollout-2026-01-01T00-00-00-{}.jsonl",
    "gemini": ".gemini/tmp/w/chats/session-2026-01-01T00-00-{}.jsonl",
}


def write_home(home: Path, files: Iterable[Transcript]) -> None:
    """The files where their programs have them."""
    for program, name, text in _lay_out(files, "{:08x}-1111-4222-8333-0123456789ab"):
        path = home / _PLACES[program].format(name[:8] if program == "gemini" else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _lay_out(files: Iterable[Transcript], name_form: str) -> Iterator[tuple[str, str, str]]:
    """Program, id and content of each file."""
    before: list[tuple[str, list[Said]]] = []
    for number, file in enumerate(files):
        name, place = name_form.format(number), file.copies % number if file.copies is not None and number else None
        if place is not None and before[place][0] != file.program:
            place = None
        lines = [*(before[place][1] if place is not None else ()), *file.lines]
        if file.program == "codex" and place is not None:
            copied = len(lines) - len(file.lines)
            lines[:copied] = [one._replace(at=40 + number) for one in lines[:copied]]
        original = name_form.format(place) if place is not None else None
        rows = [json.dumps(_head(file.program, name, T + number, original))]
        rows += [_write(file.program, one) for one in lines]
        yield file.program, name, "\n".join(rows) + "\n"
        before.append((file.program, lines))


def _head(program: str, name: str, at: int, original: str | None) -> dict[str, Any]:
    stamp = iso_ms(at)
    match program:
        case "v3":
            key = {"sessionKey": f"agent:main:{name}", "agentId": "main"}
            return {"type": "session", "version": 3, "id": name, "timestamp": stamp, "cwd": "/", **key}
        case "codex":
            forked = {} if original is None else {"forked_from_id": original}
            return {"timestamp": stamp, "type": "session_meta", "payload": {"id": name, "cwd": "/", **forked}}
        case "gemini":
            return {"sessionId": name, "projectHash": "w", "startTime": stamp, "lastUpdated": stamp, "kind": "main"}
        case _:
            return {"type": "nothing", "timestamp": stamp}


class SearchedFiles:
    """The files as sessions, oldest first."""

    def __init__(self, folder: Path, files: Iterable[Transcript], closing: ExitStack) -> None:
        self.folder, self._closing = folder, closing
        self.sessions: list[Session] = []
        for program, name, text in _lay_out(files, "n{}"):
            (folder / f"{name}.jsonl").write_text(text)
            self.sessions.append(self._open(program, name))

    def _open(self, program: str, name: str) -> Session:
        fd = os.open(self.folder, os.O_RDONLY)
        self._closing.callback(os.close, fd)
        dialect = DIALECTS[program]
        entry = begin_foreign(SourceFacts(name=program), name)
        if program == "v3":
            entry = Entry(session_id=name)
        entry = folding.advance(fd, entry, f"{name}.jsonl", LIMIT, dialect=dialect).entry
        return Session(key=entry.session_key, entry=entry, folder=Folder("", fd, dialect))


def _write(program: str, one: Said) -> str:
    if one.kind == "torn":
        return '{"type": "message", "text": "' + one.text.replace("\n", " ")
    return json.dumps(_LINES[program](one), ensure_ascii=one.name % 2 == 0)


class Expected(NamedTuple):
    """A message that a search has to find."""

    timestamp: int
    key: str
    offset: int
    end: int
    number: int
    role: str


def read_everything(sessions: Iterable[Session], query: Query) -> list[Expected]:
    """What a search has to find: every message of every history that has the text, each once, in order."""
    found: list[tuple[Expected, Session, Any]] = []
    for session in sessions:
        found += [(one, session, identity) for one, identity in _read(session, query)]
    # A copy with a new time is not found where the time of its original is not searched.
    originals = _copied_later(found)
    since, until = query.since_ms or 0, query.until_ms if query.until_ms is not None else 2**60
    found = [one for one in found if since <= one[0].timestamp <= until]
    seniors: dict[Any, Session] = {}
    for _, session, identity in found:
        if identity is not None:
            rival = seniors.setdefault(identity, session)
            if (session.entry.created_at, session.key) < (rival.entry.created_at, rival.key):
                seniors[identity] = session
    shown: dict[Any, Expected] = {}
    for place, (one, session, identity) in enumerate(found):
        if (session.key, identity and (identity.id, identity.text)) in originals:
            continue
        if identity is None or (seniors[identity] is session):
            shown.setdefault(identity if identity is not None else place, one)
    return sorted(shown.values(), key=lambda one: (-one.timestamp, one.key, -one.offset, -one.number))


def _copied_later(found: list[tuple[Expected, Session, Any]]) -> set[tuple[str, Any]]:
    """What forks with new times have from their originals."""
    by_key = {session.key: session for _, session, _ in found}
    copied = set()
    for _, session, _ in found:
        source = session.entry.source
        original = by_key.get(f"codex:{source.forked_from}") if source is not None and source.forked_from else None
        if original is not None and session.dialect.dates_copies:
            mine = {(one.id, one.text) for _, other, one in found if other is original and one is not None}
            copied |= {(session.key, identity) for identity in mine}
    return copied


def _read(session: Session, query: Query) -> Iterator[tuple[Expected, Any]]:
    entry, wanted = session.entry, fold_case(query.text)
    with dirfd.closing(session.folder.open_file(session.file_name)) as fd:
        page = page_backwards(
            fd,
            entry.file.folded_to,
            entry.message_count,
            wanted=lambda _: True,
            limit=10_000,
            max_bytes=2**30,
            record_limit=LIMIT,
            dialect=session.dialect,
        )
    for line, number in reversed(page.lines):
        record = line.record
        assert record is not None
        text = text_of(record.message or b"{}", "\n")
        shown = query.shown(text)
        at = record.timestamp_ms if record.timestamp_ms is not None else entry.created_at
        if wanted in fold_case(text) and wanted in fold_case(shown) and query.role in (None, record.role):
            one = Expected(at, session.key, line.offset, line.end, number, record.role or "other")
            yield one, identity_of(record, shown)


class TruthfulIndex:
    """An index that leaves out lines at random, none of which has the text; what else it says may be left out too."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose

    def narrow(self, text: str) -> Narrowed:
        return _TruthfulNarrowed(text, self._choose)


class _TruthfulNarrowed:
    def __init__(self, text: str, choose: random.Random) -> None:
        self._text, self._choose = text, choose

    def leave_out(self, sessions: Iterable[Session]) -> list[Session]:
        return [session for session in sessions if self._may_have(session) or self._choose.random() < 0.5]

    def _may_have(self, session: Session) -> bool:
        with dirfd.closing(session.folder.open_file(session.file_name)) as fd:
            data = os.pread(fd, session.entry.file.folded_to, 0)
        return any(self._text in fold_case(session.dialect.text_in(line)) for line in data.split(b"\n"))

    def find_in(self, session: Session) -> SessionCandidates:
        choose, dialect, facts = self._choose, session.dialect, session.entry.file
        with dirfd.closing(session.folder.open_file(session.file_name)) as fd:
            data = os.pread(fd, facts.folded_to, 0)
            joiner = ForwardJoiner(fd, LIMIT, dialect, place=0, count=0, is_known=True)
            lines = {line.offset: line for line in transcript.read_lines(fd, 0, LIMIT, dialect=dialect)}
            offset, found, done = 0, list[CandidateBlock](), 0
            begin, before, has_text, times = 0, 0, False, list[int | None]()
            marks = MarkWriter(NumberedLine(0, 0))
            stop = choose.choice((0, 0.5, 1, 1)) * len(data)
            count = 0
            for text in data.split(b"\n")[:-1]:
                if offset >= stop:
                    break
                line = lines.get(offset)
                if line is not None and line.record is not None and line.record.message is not None:
                    times.append(line.record.timestamp_ms)
                    part_of = joiner.join(line)[1] if dialect.joins else 0
                    behind = joiner.count if dialect.joins else count + 1
                    if choose.random() < 0.5:
                        marks.add(NumberedLine(offset, count, part_of or behind))
                    count = behind
                has_text = has_text or self._text in fold_case(dialect.text_in(text))
                offset += len(text) + 1
                if choose.random() < 0.4:
                    if has_text or choose.random() < 0.3:
                        block = self._block(begin, offset, None if dialect.lists else before, times)
                        found.append(block._replace(marks="" if dialect.lists else marks.text))
                    marks = MarkWriter(NumberedLine(offset, count))
                    begin, before, has_text, times, done = offset, count, False, [], offset
            return SessionCandidates(done, tuple(found))

    def _block(self, begin: int, end: int, before: int | None, times: list[int | None]) -> CandidateBlock:
        known = [at for at in times if at is not None]
        if len(known) < len(times) or not known or self._choose.random() < 0.2:
            return CandidateBlock(begin, end, None, None, before)
        return CandidateBlock(begin, end, min(known), max(known), before if self._choose.random() < 0.8 else None)

    def bytes_of(self, session: Session) -> int:
        return session.entry.file.folded_to


class _Store:
    record_limit = LIMIT


def find(sessions: list[Session], query: Query, index: SearchIndex = NO_INDEX) -> tuple[list[Expected], Search]:
    """One page of the search: at most one match more than the limit."""
    looking = Search(_Store(), sessions, query, index)  # type: ignore[arg-type]
    for _ in looking.steps():
        pass
    matches = looking.matches()
    numbering = MatchNumbering(LIMIT, matches, query.block)
    for _ in numbering.steps():
        pass
    return [_describe(match, numbering) for match in matches], looking


def _describe(match: Match, numbering: MatchNumbering) -> Expected:
    number = numbering.number_of(match)
    assert number is not None
    return Expected(match.timestamp, match.session.key, match.offset, match.end, number, match.role)
