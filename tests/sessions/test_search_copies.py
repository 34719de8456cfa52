"""A message that several files have, because one is a fork of another, is found once: in the oldest session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sampling import amount
from support.store_listeners import SilentListener

from sessiond.clock import iso_ms
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.keys import KeyRules
from sessiond.model.source_facts import SourceFacts
from sessiond.sessions.found import Match, MessageIdentity, NewestMatches, seniority
from sessiond.sessions.search import Query, Search
from sessiond.store import folding
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder
from sessiond.store.store import open_store

GOLDEN = Path(__file__).parents[1] / "golden" / "sources"
LIMIT = 8 * 2**20
T = 1_795_300_000_000


class ForeignFiles:
    """Files of programs in a folder, as sessions."""

    def __init__(self, folder: Path, closing: ExitStack) -> None:
        self.folder, self.closing = folder, closing

    def add(self, source: str, native_id: str, data: bytes) -> Session:
        (self.folder / f"{native_id}.jsonl").write_bytes(data)
        fd = os.open(self.folder, os.O_RDONLY)
        self.closing.callback(os.close, fd)
        entry = begin_foreign(SourceFacts(name=source), native_id)
        dialect = DIALECTS[source]
        entry = folding.advance(fd, entry, f"{native_id}.jsonl", LIMIT, dialect=dialect).entry
        return Session(key=entry.session_key, entry=entry, folder=Folder("", fd, dialect))

    def add_golden(self, path: str) -> Session:
        source, file = path.split("/", maxsplit=1)[0], GOLDEN / path
        data = file.read_bytes()
        head = json.loads(data.splitlines()[0])
        native_id = {"codex": lambda: head["payload"]["id"], "pi": lambda: head["id"]}.get(source, lambda: file.stem)()
        return self.add(source, native_id, data)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ForeignFiles]:
    with ExitStack() as closing:
        yield ForeignFiles(tmp_path, closing)


def _show(text: str) -> str:
    return text


def find(folder: Path, sessions: list[Session], text: str, limit: int = 50, block: int = 10**6) -> list[Match]:
    async def look() -> list[Match]:
        async with open_store(
            folder / "store", listener=SilentListener, durable=False, record_limit=LIMIT, rules=KeyRules()
        ) as store:
            looking = Search(store, sessions, Query(text=text, limit=limit, shown=_show, block=block))
            for _ in looking.steps():
                pass
            return looking.matches()

    return trio.run(look)


@pytest.mark.parametrize(
    ("original", "fork", "text", "only_in_fork"),
    [
        ("claude/2.1.330/compacted.jsonl", "claude/2.1.330/fork.jsonl", "answer 1", "in the fork"),
        ("claude/2.0.20/plain.jsonl", "claude/2.0.20/resumed.jsonl", "answer", "answer 2"),
        ("codex/0.169.0/legacy.jsonl", "codex/0.169.0/legacy-fork.jsonl", "after the compaction", "in the fork"),
        ("pi/session.jsonl", "pi/fork.jsonl", "forty-two", "in the fork"),
    ],
)
def test_what_a_fork_copied_is_found_in_the_original(
    files: ForeignFiles, original: str, fork: str, text: str, only_in_fork: str
) -> None:
    first, second = files.add_golden(original), files.add_golden(fork)
    alone = find(files.folder, [first], text)
    assert alone, "the original has the text"
    assert find(files.folder, [second], text), "a search in the fork alone finds it there"
    senior = min(first, second, key=seniority)
    both = find(files.folder, [second, first], text)
    copied = {(match.timestamp, match.snippet) for match in find(files.folder, [senior], text)}
    assert copied <= {(match.timestamp, match.snippet) for match in both if match.session is senior}
    snippets = [(match.role, match.snippet) for match in both]
    assert len(snippets) == len(set(snippets)), "nothing is found twice"
    assert find(files.folder, [first, second], only_in_fork)


def claude_line(number: int, text: str, *, part: int = 0, message_id: str | None = None) -> bytes:
    content = [{"type": "text", "text": text}]
    is_user = message_id is None
    message: dict[str, Any] = {"role": "user" if is_user else "assistant", "content": content}
    if not is_user:
        message |= {"id": message_id, "model": "m"}
    stamp = iso_ms(T + number * 1000 + part)
    body = {"type": message["role"], "uuid": f"u{number}-{part}", "timestamp": stamp, "message": message}
    return msgspec.json.encode(body) + b"\n"


def codex_line(number: int, text: str, at: int | None = None) -> bytes:
    content = [{"type": "input_text", "text": text}]
    payload = {"type": "message", "role": "user", "id": f"msg_{number}", "content": content}
    stamp = iso_ms(T + (at if at is not None else number) * 1000)
    return msgspec.json.encode({"timestamp": stamp, "type": "response_item", "payload": payload}) + b"\n"


def codex_head(native_id: str, at: int, original: str | None) -> bytes:
    payload: dict[str, Any] = {"id": native_id, "timestamp": iso_ms(T + at * 1000), "cwd": "/"}
    if original is not None:
        payload["forked_from_id"] = original
    body = {"timestamp": iso_ms(T + at * 1000), "type": "session_meta", "payload": payload}
    return msgspec.json.encode(body) + b"\n"


class Corpus:
    """Sessions that fork one another, and what each of them has: (number of the message, its time)."""

    def __init__(self) -> None:
        self.next = 0
        self.held: list[tuple[str, list[tuple[int, str]]]] = []
        self.data: list[bytes] = []

    def add(self, source: str, copied_from: int | None, share: int, texts: list[str]) -> None:
        name = f"n{len(self.held)}"
        of_source = [place for place, (program, _) in enumerate(self.held) if program == source]
        original = of_source[copied_from % len(of_source)] if of_source and copied_from is not None else None
        copied = self.held[original][1][:share] if original is not None else []
        at = self.next
        own = [(at + 1 + place, text) for place, text in enumerate(texts)]
        self.next += len(own) + 1
        lines = [codex_head(name, at, f"n{original}" if original is not None else None)] if source == "codex" else []
        for number, text in copied:
            lines.append(codex_line(number, text, at) if source == "codex" else claude_message(number, text))
        lines += [codex_line(*one) if source == "codex" else claude_message(*one) for one in own]
        self.held.append((source, [*copied, *own]))
        self.data.append(b"".join(lines))


def claude_message(number: int, text: str) -> bytes:
    """A message of a user, or one of an assistant in two lines."""
    if number % 2:
        return claude_line(number, text)
    return b"".join(claude_line(number, text, part=part, message_id=f"msg_{number}") for part in range(2))


added = st.tuples(
    st.sampled_from(["claude", "claude", "codex"]),
    st.none() | st.integers(0, 5),
    st.integers(0, 6),
    st.lists(st.sampled_from(["needle", "needle and thread", "hay"]), max_size=5),
)


@settings(max_examples=amount(300, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(added, min_size=1, max_size=6), limit=st.integers(1, 8), block=st.sampled_from([64, 700, 10**6]))
def test_a_search_finds_each_message_once_in_its_oldest_session(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int | None, int, list[str]]],
    limit: int,
    block: int,
) -> None:
    corpus = Corpus()
    for step in steps:
        corpus.add(*step)
    with ExitStack() as closing:
        files = ForeignFiles(tmp_path_factory.mktemp("files"), closing)
        sessions = [
            files.add(source, f"n{place}", data)
            for place, ((source, _), data) in enumerate(zip(corpus.held, corpus.data, strict=True))
        ]
        found = find(files.folder, sessions, "needle", limit, block)
    owner: dict[int, Session] = {}
    for session, (_, held) in sorted(zip(sessions, corpus.held, strict=True), key=lambda one: seniority(one[0])):
        for number, text in held:
            if "needle" in text:
                owner.setdefault(number, session)
    expected = [(owner[number].key, number) for number in sorted(owner, reverse=True)]
    assert [(match.session.key, (match.timestamp - T) // 1000) for match in found] == expected[: limit + 1]


def test_forks_that_name_each_other_lose_nothing(files: ForeignFiles) -> None:
    sessions = [
        files.add("codex", name, codex_head(name, at, other) + codex_line(9, "needle", 10))
        for name, at, other in (("n1", 1, "n2"), ("n2", 2, "n1"), ("n3", 3, "n3"))
    ]
    assert [match.session.key for match in find(files.folder, sessions, "needle")] == ["codex:n1"]


def test_messages_with_one_id_are_different_if_their_text_or_time_is(files: ForeignFiles) -> None:
    lines = [claude_line(1, "needle one", message_id="msg_1"), claude_line(2, "needle one", message_id="msg_1")]
    lines.append(claude_line(2, "needle two", message_id="msg_1"))
    sessions = [files.add("claude", f"n{place}", line) for place, line in enumerate(lines)]
    assert len(find(files.folder, sessions, "needle")) == 3


def _match(session: Session, at: int, offset: int = 0) -> Match:
    return Match(
        session=session,
        offset=offset,
        end=offset,
        hit=offset,
        timestamp=at,
        role="user",
        snippet="",
        masked=False,
        check=0,
    )


def test_what_is_kept_does_not_grow_with_the_number_of_matches(files: ForeignFiles) -> None:
    sessions = [files.add("claude", f"n{place}", claude_line(1, "x")) for place in range(3)]
    newest = NewestMatches(5)
    for at in range(20_000, 0, -1):
        for session in sessions:
            newest.add(_match(session, at), MessageIdentity(f"m{at}", at, 0))
    assert [match.timestamp for match in newest.newest_first()] == list(range(20_000, 19_994, -1))
    assert {match.session.key for match in newest.newest_first()} == {"claude:n0"}
    for at in range(20_001, 40_000):
        for session in sessions:
            newest.add(_match(session, at), MessageIdentity(f"m{at}", at, 0))
    assert len(newest._kept) == 6
    assert len(newest._seniors) < 1000
    for offset in range(20_000):
        newest.add(_match(sessions[0], 50_000, offset), None)
    assert len(newest._kept) < 2000
    assert [match.offset for match in newest.newest_first()] == list(range(19_999, 19_993, -1))


def test_a_copy_that_comes_before_its_original_takes_no_place(files: ForeignFiles) -> None:
    """Of one time, with a limit that is full: the original is further down, so the page is of other messages."""
    senior, junior, other = (files.add("claude", f"n{9 - place}", claude_line(place, "x")) for place in range(3))
    newest = NewestMatches(1)
    for session, name in ((junior, "copied"), (other, "one"), (other, "two"), (senior, "copied")):
        newest.add(_match(session, 7, len(name)), MessageIdentity(name, 7, 0))
    assert [match.session.key for match in newest.newest_first()] == ["claude:n7", "claude:n9"]
    rest = NewestMatches(1, newest.newest_first()[0].place)
    for session, name in ((junior, "copied"), (other, "one"), (senior, "copied")):
        rest.add(_match(session, 7, len(name)), MessageIdentity(name, 7, 0))
    assert [match.session.key for match in rest.newest_first()] == ["claude:n9"]


ADDED = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.none() | st.integers(0, 2))


@settings(max_examples=amount(5000, 60), deadline=None)
@given(added=st.lists(ADDED, max_size=25, unique_by=lambda one: one[:3]), limit=st.integers(1, 4), data=st.data())
def test_pages_are_those_of_all_matches_in_whatever_order_they_come(
    added: list[tuple[int, int, int, int | None]], limit: int, data: st.DataObject
) -> None:
    # The seniority of the sessions is not the order of their keys.
    entries = [Entry(session_id=f"n{number}", created_at=7 * number % 4) for number in range(4)]
    sessions = [Session(entry.session_id, entry, Folder("", -1, DIALECTS["claude"])) for entry in entries]
    matches = [
        (_match(sessions[number], at, offset), None if name is None else MessageIdentity(f"m{name}", at, 0))
        for number, at, offset, name in added
    ]
    first: dict[object, Match] = {}
    for match, identity in matches:
        known = first.setdefault(identity or match.place, match)
        if seniority(match.session) < seniority(known.session):
            first[identity or match.place] = match
    # Of two in one session the one that comes first counts: each session is read backwards.
    expected = sorted(match.place for match in first.values())
    found: list[object] = []
    after = None
    while True:
        newest = NewestMatches(limit, after)
        for match, identity in data.draw(st.permutations(matches)) if _is_unambiguous(matches) else matches:
            newest.add(match, identity)
        page = [match.place for match in newest.newest_first()]
        found += page[:limit]
        if len(page) <= limit:
            break
        after = page[limit - 1]
    assert found == expected


def _is_unambiguous(matches: list[tuple[Match, MessageIdentity | None]]) -> bool:
    named = [(match.session, identity) for match, identity in matches if identity is not None]
    return len(named) == len(set(named))
