"""Bring a session's entry up to date with its file: read what is new, and fold it.

Synchronous; used at the start, by the feed and by `doctor`. Knows files and entries. Does not know subscribers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.fold import fold_bad_line
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.lax import whole_ms
from sessiond.store import dirfd, transcript
from sessiond.store.catalog import Folder
from sessiond.store.folded_steps import FoldedLine, JoinedSteps, ListedSteps
from sessiond.store.tail import Tail
from sessiond.store.transcript import Line, LookAhead, WrittenBytes

# At most so many lines without effect are reported one by one.
_NAMED = 5


class OddLine(msgspec.Struct, frozen=True):
    """A line that was skipped, or a record of the daemon without effect: its place, and the reason.

    `number` counts lines from 1; None far into a file, where counting takes too long.
    """

    offset: int
    reason: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{describe_place(self.number, self.offset)}: {self.reason}"


def describe_place(number: int | None, offset: int) -> str:
    """A place in a transcript in words."""
    return f"at byte {offset}" if number is None else f"line {number} (at byte {offset})"


class Advance(msgspec.Struct):
    """The result of reading on. `rewritten`: the file shrank or was replaced, and was read from the start.

    `odd` are the first few lines without effect, and `odd_count` is the number of all.
    """

    entry: Entry
    steps: list[FoldedLine]
    rewritten: bool
    more: bool
    odd: list[OddLine] = []
    odd_count: int = 0


def advance(
    folder_fd: int,
    entry: Entry,
    file_name: str,
    record_limit: int,
    *,
    dialect: TranscriptDialect,
    max_bytes: int | None = None,
    collect: bool = True,
    parsed: Mapping[int, Line] | None = None,
) -> Advance:
    """The entry after every whole line that the file has and the entry has not seen. Raises OSError where it is gone.

    After `max_bytes` no further line is begun; `more` then says that something is left. Without `collect` there are no
    steps, and memory does not grow with the file. `parsed` are lines that were parsed ahead.
    """
    fd = dirfd.open_file(folder_fd, file_name, os.O_RDONLY)
    try:
        return advance_open(
            fd, entry, record_limit, dialect=dialect, max_bytes=max_bytes, collect=collect, parsed=parsed
        )
    finally:
        os.close(fd)


def read_on(
    folder: Folder,
    entry: Entry,
    file_name: str,
    record_limit: int,
    *,
    max_bytes: int | None = None,
    collect: bool = True,
    parsed: Mapping[int, Line] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Advance:
    """As `advance`, for a transcript of a folder; also for one of another program. No further line is begun once it
    `is_over`.
    """
    with dirfd.closing(folder.open_file(file_name)) as fd:
        return read_on_open(
            fd, folder, entry, record_limit, max_bytes=max_bytes, collect=collect, parsed=parsed, is_over=is_over
        )


def read_on_open(
    fd: int,
    folder: Folder,
    entry: Entry,
    record_limit: int,
    *,
    max_bytes: int | None = None,
    collect: bool = True,
    parsed: Mapping[int, Line] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Advance:
    """As `read_on`, on an open file. Without `collect` odd lines have no numbers: counting the lines before them at
    every step would take longer than the steps.
    """
    got = advance_open(
        fd,
        entry,
        record_limit,
        dialect=folder.dialect,
        max_bytes=max_bytes,
        collect=collect,
        parsed=parsed,
        numbers_odd=collect,
        is_over=is_over,
    )
    if folder.source is not None:
        got.entry = keep_identity(got.entry, entry)
    return got


def keep_identity(entry: Entry, before: Entry) -> Entry:
    """The entry of another program's session: its id and key are those by which it was found, whatever is in its file.

    Where it was found may also say its parent and its folder, which the file need not.
    """
    return replace(
        entry,
        session_id=before.session_id,
        session_key=before.session_key,
        spawned_by=entry.spawned_by or before.spawned_by,
        cwd=entry.cwd or before.cwd,
    )


def advance_open(
    fd: int,
    entry: Entry,
    record_limit: int,
    *,
    dialect: TranscriptDialect,
    max_bytes: int | None = None,
    collect: bool = True,
    parsed: Mapping[int, Line] | None = None,
    numbers_odd: bool = True,
    is_over: Callable[[], bool] | None = None,
) -> Advance:
    """As `advance`, on an open file. `numbers_odd`: whether odd lines are told by their numbers too."""
    stat, facts = os.fstat(fd), entry.file
    rewritten = not (continues(fd, facts, stat) and has_last_line(fd, entry))
    mtime_ms = whole_ms(stat.st_mtime_ns // 1_000_000) or 0
    if rewritten or facts.fold != dialect.fold_version:
        entry = begin_anew(entry, rewritten_at=mtime_ms if rewritten and not holds(fd, facts, stat) else None)
        facts = entry.file
    start, last_id = facts.folded_to, facts.last_id
    passed_to = facts.passed_to if start < facts.passed_to <= stat.st_size else 0
    tail, odd = Tail(start, record_limit, passed_to), _Oddities()
    steps: list[FoldedLine] = []
    joined = JoinedSteps(fd, entry, record_limit, dialect) if dialect.joins and collect else None
    listed = ListedSteps(fd, entry, record_limit, dialect) if dialect.lists and collect else None
    read_to, tail_begin = stat.st_size, None
    for line in transcript.read_tail(fd, tail, stop=stat.st_size, parsed=parsed, dialect=dialect):
        tail_begin = line.offset
        entry, last_id = _fold_line(entry, last_id, line, mtime_ms, odd, dialect=dialect)
        if listed is not None:
            steps += listed.steps(line, entry)
        elif joined is not None:
            steps.append(joined.step(fd, line, entry))
        elif collect:
            steps.append(FoldedLine(line, entry, entry.message_count, transcript.checksum(fd, line.end)))
        is_full = max_bytes is not None and (line.end - start >= max_bytes or (joined is not None and joined.is_long))
        if is_full or (is_over is not None and is_over()):
            read_to = line.end
            break
    more = read_to < stat.st_size
    folded_to = read_to if more else tail.whole
    facts = FileFacts(
        bytes=0 if more and (not start or entry.is_incomplete) else read_to,
        mtime_ns=stat.st_mtime_ns,
        inode=dirfd.inode_of(stat),
        folded_to=folded_to,
        last_id=last_id,
        check=transcript.checksum(fd, folded_to),
        passed_to=0 if more else tail.passed_to,
        fold=dialect.fold_version,
        had_messages=facts.had_messages,
        rewritten_at=facts.rewritten_at,
    )
    entry = replace(entry, file=facts)
    if tail_begin is not None and entry.source is not None:
        check = transcript.line_checksum(fd, tail_begin, folded_to)
        entry = replace(entry, source=replace(entry.source, tail_begin=tail_begin, tail_check=check))
    named = odd.number_first(fd) if numbers_odd else odd.first
    rewritten = rewritten or (listed is not None and listed.is_cut)
    return Advance(entry, steps, rewritten=rewritten, more=more, odd=named, odd_count=odd.count)


def advance_written(
    entry: Entry, written: WrittenBytes, record_limit: int, *, dialect: TranscriptDialect
) -> Advance | None:
    """As `advance`, over what the daemon has written and verified, without reading the file. None where something else
    has to be read too, or said of it.
    """
    facts = entry.file
    known = (facts.inode, facts.folded_to, facts.bytes, facts.passed_to, facts.fold)
    if not written.offset or known != (written.inode, written.offset, written.offset, 0, dialect.fold_version):
        return None
    mtime_ms = whole_ms(written.mtime_ns // 1_000_000) or 0
    tail, last_id, odd = Tail(written.offset, record_limit), facts.last_id, _Oddities()
    steps: list[FoldedLine] = []
    for begin, text in tail.feed(written.data):
        line = transcript.line_of(begin, text, tail.whole, record_limit, dialect)
        if line is not None:
            entry, last_id = _fold_line(entry, last_id, line, mtime_ms, odd, dialect=dialect)
            steps.append(FoldedLine(line, entry, entry.message_count, written.checksum(line.end)))
    if odd.count or tail.whole != written.end:
        return None
    facts = replace(
        facts,
        bytes=written.end,
        mtime_ns=written.mtime_ns,
        folded_to=written.end,
        last_id=last_id,
        check=written.checksum(written.end),
    )
    return Advance(replace(entry, file=facts), steps, rewritten=False, more=False)


def parse_ahead(folder: Folder, entry: Entry, file_name: str, record_limit: int, max_bytes: int) -> LookAhead:
    """The long line, if there is one, within the next `max_bytes` that `advance` reads, for its `parsed`.

    Raises OSError. Call it in a worker thread.
    """
    fd = folder.open_file(file_name)
    try:
        return transcript.find_long_line(
            fd, entry.file.folded_to, record_limit, within=max_bytes, dialect=folder.dialect
        )
    finally:
        os.close(fd)


def begin_anew(entry: Entry, *, rewritten_at: int | None = None) -> Entry:
    """An entry to fold the whole file into: it knows nothing but how many messages a file that was rewritten had."""
    facts = entry.file
    had, moment = facts.had_messages, facts.rewritten_at
    if rewritten_at is not None and (entry.message_count or had):
        had, moment = max(entry.message_count, had), rewritten_at
    source = entry.source
    empty = Entry(session_id=entry.session_id) if source is None else begin_foreign(source, entry.session_id)
    return replace(empty, file=FileFacts(had_messages=had, rewritten_at=moment))


class _Oddities:
    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.first: list[OddLine] = []
        self.count = 0

    def add(self, line: Line, reason: str) -> None:
        self.count += 1
        if self.count <= _NAMED:
            self.first.append(OddLine(line.offset, reason))

    def number_first(self, fd: int) -> list[OddLine]:
        """The first of them with their numbers."""
        return [OddLine(one.offset, one.reason, transcript.line_number(fd, one.offset)) for one in self.first]


def _fold_line(
    entry: Entry, last_id: str | None, line: Line, mtime_ms: int, odd: _Oddities, *, dialect: TranscriptDialect
) -> tuple[Entry, str | None]:
    if line.record is None:
        odd.add(line, line.bad or "no record")
        return fold_bad_line(entry), last_id
    record = line.record
    folded = dialect.fold(entry, record, line.offset, mtime_ms)
    if folded is entry and record.custom_type is not None:
        reason = dialect.ineffective_reason(entry, record)
        if reason is not None:
            odd.add(line, reason)
    # The header's id is the session's, and no record's parent.
    return folded, record.id if record.id is not None and record.type != "session" else last_id


def is_current(facts: FileFacts, stat: os.stat_result, dialect: TranscriptDialect) -> bool:
    """Whether nothing happened to the file since it was folded, by the fold that is in use."""
    return (
        facts.mtime_ns == stat.st_mtime_ns
        and facts.bytes == stat.st_size
        and facts.inode == dirfd.inode_of(stat)
        and facts.fold == dialect.fold_version
    )


def continues(fd: int, facts: FileFacts, stat: os.stat_result) -> bool:
    """Whether the file still begins with what was folded; False where it was emptied, cut, or is another one."""
    if facts.inode == 0:
        return True
    return facts.inode == dirfd.inode_of(stat) and holds(fd, facts, stat)


def has_last_line(fd: int, entry: Entry) -> bool:
    """Whether the last folded line of another program's file is still there as it was: they may write in place."""
    source, folded_to = entry.source, entry.file.folded_to
    if source is None or not folded_to:
        return True
    return transcript.line_checksum(fd, source.tail_begin, folded_to) == source.tail_check


def holds(fd: int, facts: FileFacts, stat: os.stat_result) -> bool:
    """Whether the file has the content that was folded. Its inode may differ, as in a copy of the store."""
    return stat.st_size >= facts.bytes and transcript.checksum(fd, facts.folded_to) == facts.check
