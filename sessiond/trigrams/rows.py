"""The rows of the index: what is indexed of each file, and which blocks of it may have a text. Synchronous.

The caller holds the lock of the database. Answers about many blocks come as one value: between two rows another thread
may have the interpreter for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from sessiond.trigrams.database import IndexDatabase, IndexDoubt
from sessiond.trigrams.narrowing import CandidateBlock
from sessiond.trigrams.text import cut_rows, make_storable
from sessiond.trigrams.text_blocks import TextBlock

_T = TypeVar("_T", bound=msgspec.Struct)

_FIND_IDS = "select count(*), group_concat(rowid) from (select rowid from texts where texts match ? limit ?)"
_FACTS_OF = "select group_concat(file_id || facts, ';') from block_facts where id in ({})"
_BLOCKS_OF = "select group_concat(id || facts, ';') from block_facts where file_id = ?"
_FILES = "select id, name, indexed_to, checksum, bytes, mtime_ns, messages, chars from files"
# If more have even the rarest parts of a text, all its parts are looked up at once. So many are sooner read than they
# are compared with more parts.
_FEW_BLOCKS = 256
_READ_AT_ONCE = 4
_FILES_AT_ONCE = 1000


class FileRow(msgspec.Struct, frozen=True, gc=False):
    """What is indexed of one file: its lines up to `indexed_to`, where `messages` stand before, in `chars` of text.

    `checksum` is that of the bytes before; `bytes` and `mtime_ns` are those of the file when it was looked at last.
    """

    id: int
    name: str
    indexed_to: int
    checksum: int
    bytes: int
    mtime_ns: int
    messages: int
    chars: int


class StoredBlock(msgspec.Struct, frozen=True, gc=False):
    """A block by its id in the database."""

    id: int
    begin: int
    end: int
    messages_before: int | None
    chars: int


def files(database: IndexDatabase) -> Iterator[FileRow]:
    """All files. Never many of them at once: the memory of 100,000 would not all be given back."""
    last = 0
    with database.reading_once():
        while found := database.run(_FILES + " where id > ? order by id limit ?", last, _FILES_AT_ONCE):
            for row in found:
                yield _convert(row, FileRow)
            last = found[-1][0]


def find_file(database: IndexDatabase, name: str) -> FileRow | None:
    """The file with a name."""
    found = database.run(_FILES + " where name = ? order by id desc limit 1", name)
    return _convert(found[0], FileRow) if found else None


def make_file(database: IndexDatabase, name: str) -> FileRow:
    """A file of which nothing is indexed yet."""
    database.run("insert into files values (null, ?, 0, 0, 0, 0, 0, 0)", name)
    ((file_id,),) = database.run("select last_insert_rowid()")
    return FileRow(file_id, name, 0, 0, 0, 0, 0, 0)


def put_file(database: IndexDatabase, row: FileRow) -> None:
    """Set what is indexed of a file."""
    values = row.indexed_to, row.checksum, row.bytes, row.mtime_ns, row.messages, row.chars
    database.run(
        "update files set indexed_to = ?, checksum = ?, bytes = ?, mtime_ns = ?, messages = ?, chars = ? where id = ?",
        *values,
        row.id,
    )


def drop_file(database: IndexDatabase, file_id: int) -> None:
    """Forget a file. Its texts stay where they are, and count for nothing."""
    database.run("delete from blocks where file_id = ?", file_id)
    database.run("delete from files where id = ?", file_id)


def last_block(database: IndexDatabase, file_id: int) -> StoredBlock | None:
    """The last block of a file."""
    found = database.run(
        "select id, begin_at, end_at, messages_before, chars from blocks where file_id = ?"
        " order by begin_at desc limit 1",
        file_id,
    )
    return _convert(found[0], StoredBlock) if found else None


def add_block(database: IndexDatabase, file_id: int, block: TextBlock) -> int:
    """Add a block of a file; how many characters of text it has."""
    chars = 0
    facts = file_id, block.begin, block.end, block.oldest_ms, block.newest_ms, block.messages_before
    for text in cut_rows(make_storable(block.text)):
        database.run("insert into blocks values (null, ?, ?, ?, ?, ?, ?, ?, ?)", *facts, len(text), block.marks)
        database.run("insert into texts (rowid, text) values (last_insert_rowid(), ?)", text)
        chars += len(text)
    return chars


def drop_block(database: IndexDatabase, block: StoredBlock) -> None:
    """Forget a block, where another one has its text."""
    database.run("delete from blocks where id = ?", block.id)


def note_written(database: IndexDatabase, chars: int) -> None:
    """Add to how many characters were written, whether they still count or not."""
    database.put_about(chars=database.number_about("chars") + chars)


def find_blocks(
    database: IndexDatabase, expressions: Sequence[str], most: int
) -> dict[int, list[CandidateBlock]] | None:
    """The blocks that match `expressions`, by file; None where there are more than `most`. Each expression says more
    than the one before: where that changes nothing any more, or few blocks are left, the next ones are not asked for.
    """
    ids = _find_few_ids(database, expressions[:-1], min(most, _FEW_BLOCKS))
    if ids is None:
        ids = _find_ids(database, expressions[-1], most)
    if ids is None:
        return None
    ((found,),) = database.run(_FACTS_OF.format(",".join(map(str, ids))))
    by_file: dict[int, list[CandidateBlock]] = {}
    for file_id, block in _decode_blocks(found):
        by_file.setdefault(file_id, []).append(block)
    return by_file


def find_ids(database: IndexDatabase, expression: str, most: int) -> tuple[frozenset[int], int]:
    """The ids of the blocks that match, and the greatest id that any block has; 0 where more than `most` match."""
    ids = _find_ids(database, expression, most)
    if ids is None:
        return frozenset(), 0
    ((newest,),) = database.run("select max(id) from blocks")
    return frozenset(ids), newest or 0


def _find_few_ids(database: IndexDatabase, expressions: Sequence[str], most: int) -> list[int] | None:
    """The ids of the blocks that match, if these are few and the last expression changes nothing, else None."""
    before = -1
    for expression in expressions:
        ids = _find_ids(database, expression, most)
        if ids is None or len(ids) == before or len(ids) <= _READ_AT_ONCE:
            return ids
        before = len(ids)
    return None


def _find_ids(database: IndexDatabase, expression: str, most: int) -> list[int] | None:
    ((count, found),) = database.run(_FIND_IDS, expression, most + 1)
    if count > most:
        return None
    return list(map(int, found.split(","))) if found else []


def blocks_of(database: IndexDatabase, file_id: int) -> list[tuple[int, CandidateBlock]]:
    """All blocks of a file, each with its id."""
    ((found,),) = database.run(_BLOCKS_OF, file_id)
    return _decode_blocks(found)


def _convert(row: Sequence[object], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)
    except (msgspec.ValidationError, ValueError):
        raise IndexDoubt("it has values of another type") from None


def _decode_blocks(found: object) -> list[tuple[int, CandidateBlock]]:
    """Blocks from their text form, each with the number before it."""
    if found is None:
        return []
    blocks = []
    try:
        for text in str(found).split(";"):
            number, begin, end, oldest, newest, messages, marks = text.split(",")
            block = CandidateBlock(
                int(begin),
                int(end),
                int(oldest) if oldest else None,
                int(newest) if newest else None,
                int(messages) if messages else None,
                marks,
            )
            blocks.append((int(number), block))
    except ValueError:
        raise IndexDoubt("it has values of another type") from None
    return blocks
