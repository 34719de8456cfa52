"""Transcripts that real programs wrote: live steps, pages, replays and any split of the file show the same messages."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.rows import check_each
from support.sampling import spread

from sessiond.events.replay_page import read_page
from sessiond.events.subscription import FollowPlace
from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import SourceFacts
from sessiond.store import folding
from sessiond.store.paging import page_backwards

GOLDEN = Path(__file__).parents[1] / "golden" / "sources"
FILES = sorted(
    str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.jsonl") if path.parts[-3] in ("claude", "codex")
)
LIMIT = 8 * 2**20
Shown = dict[int, tuple[str | None, object]]


def dialect_of(name: str) -> TranscriptDialect:
    return DIALECTS[name.partition("/")[0]]


def begin(name: str) -> Entry:
    return begin_foreign(SourceFacts(name=name.split("/", maxsplit=1)[0]), "n")


def show(record: object) -> tuple[str | None, object]:
    body = msgspec.json.decode(record.message)  # type: ignore[attr-defined]
    return body["role"], body["content"]


def read_steps(fd: int, name: str, max_bytes: int) -> tuple[Shown, Entry, list[tuple[int, int, Shown]]]:
    """The messages as the live steps give them, the entry, and what is shown at each place between lines."""
    dialect, entry = dialect_of(name), begin(name)
    shown: Shown = {}
    places: list[tuple[int, int, Shown]] = [(0, 0, {})]
    while True:
        got = folding.advance_open(fd, entry, LIMIT, dialect=dialect, max_bytes=max_bytes)
        entry = got.entry
        for step in got.steps:
            if step.line.record is not None and step.line.record.message is not None:
                shown[step.part_of or step.seq] = show(step.line.record)
            places.append((step.line.end, step.seq, dict(shown)))
        if not got.more:
            return shown, entry, places


def read_pages(fd: int, name: str, entry: Entry, place: tuple[int, int], limit: int) -> Shown:
    found: Shown = {}
    end, seq = place
    while True:
        page = page_backwards(
            fd,
            end,
            seq,
            wanted=lambda record: True,
            limit=limit,
            max_bytes=2**24,
            record_limit=LIMIT,
            dialect=dialect_of(name),
            stop=entry.file.folded_to,
        )
        found |= {number: show(line.record) for line, number in page.lines}
        if not page.has_more:
            return found
        end, seq = page.start, page.start_seq


@check_each("name", spread(FILES, 4))
def test_a_transcript_of_a_real_program_reads_the_same_in_any_way(name: str) -> None:
    fd = os.open(GOLDEN / name, os.O_RDONLY)
    try:
        shown, entry, places = read_steps(fd, name, 2**24)
        assert list(shown) == list(range(1, entry.message_count + 1))
        by_line, again, _ = read_steps(fd, name, 1)
        assert by_line == shown
        assert again == entry
        newest = entry.file.folded_to, entry.message_count
        for limit in (1, 3, 1000):
            assert read_pages(fd, name, entry, newest, limit) == shown
        for end, seq, seen in places:
            before = {number: message for number, message in shown.items() if number <= seq}
            assert read_pages(fd, name, entry, (end, seq), 7) == before
            page = read_page(fd, entry.file, FollowPlace("n", end, seq), LIMIT, dialect_of(name))
            assert page is not None
            now, count = dict(seen), seq
            for one in page.lines:
                if one.is_message:
                    count += not one.part_of
                    now[one.part_of or count] = show(one.line.record)
            assert page.end < entry.file.folded_to or now == shown
    finally:
        os.close(fd)


@given(st.sampled_from(FILES), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_that_grows_by_any_bytes_gives_the_same_messages(tmp_path: Path, name: str, data: st.DataObject) -> None:
    whole = (GOLDEN / name).read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"")
    fd = os.open(path, os.O_RDWR)
    try:
        entry, shown = begin(name), {}
        dialect = dialect_of(name)
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            os.pwrite(fd, whole[start:end], start)
            got = folding.advance_open(fd, entry, LIMIT, dialect=dialect)
            assert not got.rewritten
            entry = got.entry
            shown |= {
                step.part_of or step.seq: show(step.line.record)
                for step in got.steps
                if step.line.record is not None and step.line.record.message is not None
            }
        expected, at_once, _ = read_steps(fd, name, 2**24)
        assert shown == expected and replace(at_once, file=entry.file) == entry
    finally:
        os.close(fd)
