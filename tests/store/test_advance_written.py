"""What a commit has written is folded as if it was read from the file, or else the file is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.model.record import header_line
from sessiond.store import folding, transcript
from sessiond.store.catalog import Folder
from sessiond.store.folding import Advance
from sessiond.store.transcript import WrittenBytes

LIMIT = 1 << 20
NAME = "s.jsonl"


def line(record_id: str, text: str) -> bytes:
    body = {"type": "message", "id": record_id, "message": {"role": "user", "content": text}}
    return json.dumps(body).encode() + b"\n"


@pytest.fixture
def before(tmp_path: Path, folder: Folder) -> Entry:
    """The entry of a file to which nothing is appended yet."""
    header = header_line("s", "agent:main:main", "main", 1_795_300_000_000, cwd="/w")
    (tmp_path / NAME).write_bytes(header + line("a", "x" * 200))
    return read_on(folder, Entry(session_id="s")).entry


def read_on(folder: Folder, entry: Entry) -> Advance:
    return folding.advance(folder.fd, entry, NAME, LIMIT, dialect=V3)


def write(path: Path, entry: Entry, data: bytes) -> WrittenBytes:
    with (path / NAME).open("ab") as file:
        file.write(data)
    content, status = (path / NAME).read_bytes(), os.stat(path / NAME)
    offset = entry.file.folded_to
    text = content[offset - transcript.CHECKED :]
    return WrittenBytes(text, offset, len(content), status.st_ino, status.st_mtime_ns)


@pytest.mark.parametrize("texts", [["short"], ["one", "two", "x" * 500], [""] * 20], ids=len)
def test_what_was_written_is_folded_as_if_it_was_read(
    tmp_path: Path, folder: Folder, before: Entry, texts: list[str]
) -> None:
    written = write(tmp_path, before, b"".join(line(f"b{number}", text) for number, text in enumerate(texts)))
    got = folding.advance_written(before, written, LIMIT, dialect=V3)
    assert got == read_on(folder, before)
    assert got is not None and len(got.steps) == len(texts)
    assert got.entry.file.last_id == f"b{len(texts) - 1}"


def test_what_was_written_into_another_file_or_elsewhere_is_not_folded(tmp_path: Path, before: Entry) -> None:
    written = write(tmp_path, before, line("b", "hi"))
    assert folding.advance_written(before, written, LIMIT, dialect=V3) is not None
    facts = before.file
    for other in (
        replace(facts, inode=facts.inode + 1),
        replace(facts, folded_to=facts.folded_to - 1),
        replace(facts, bytes=facts.bytes + 1),
        replace(facts, passed_to=facts.bytes),
        replace(facts, fold=facts.fold + 1),
    ):
        assert folding.advance_written(replace(before, file=other), written, LIMIT, dialect=V3) is None


@pytest.mark.parametrize("data", [b"no record\n", line("b", "hi")[:-5]], ids=["odd", "half"])
def test_lines_of_which_there_is_more_to_say_are_read(tmp_path: Path, before: Entry, data: bytes) -> None:
    assert folding.advance_written(before, write(tmp_path, before, data), LIMIT, dialect=V3) is None
