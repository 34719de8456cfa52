"""Lines that are parts of one message: every reader sees the same messages with the same numbers.

The files are small random ones, with the lines of up to three messages mixed; a plain model says what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.joined_lines import JOINING, first_entry, line, texts_of
from support.rows import check_each

from sessiond.events.replay_page import read_page
from sessiond.events.subscription import FollowPlace
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import MAX_PARTS, MAX_SPAN_BYTES
from sessiond.sessions.found import Match
from sessiond.sessions.search_numbers import MatchNumbering
from sessiond.store import dirfd, folding, joining
from sessiond.store.catalog import Folder, Session
from sessiond.store.paging import page_backwards
from sessiond.trigrams.marks import NumberedLine

LIMIT = 32 * 2**20
Item = tuple[str, str | None]
ITEMS = st.lists(
    st.one_of(
        st.tuples(st.just("part"), st.sampled_from(["a", "b", None])),
        st.tuples(st.sampled_from(["tool", "other", "bad"]), st.none()),
        st.tuples(st.just("user"), st.none()),
    ),
    max_size=14,
)


class Model:
    """What a file of `items` has: messages by number, each with the texts of its parts; and the places between lines,
    each with the number of messages before it and the messages as they are there.
    """

    def __init__(self, items: list[Item]) -> None:
        self.lines: list[bytes] = []
        self.messages: dict[int, list[str]] = {}
        self.places: list[tuple[int, int, dict[int, list[str]]]] = [(0, 0, {})]
        opened: tuple[str, int] | None = None
        for number, (kind, message_id) in enumerate(items):
            text = f"t{number}"
            self.lines.append(b"{torn\n" if kind == "bad" else line(kind, text, message_id, at=number + 1))
            if kind == "part" and opened is not None and opened[0] == message_id and len(self.messages[opened[1]]) < 64:
                self.messages[opened[1]].append(text)
            elif kind in ("part", "user", "tool"):
                self.messages[len(self.messages) + 1] = [text]
                if kind != "tool":
                    opened = (message_id, len(self.messages)) if message_id is not None else None
            seen = {seq: list(texts) for seq, texts in self.messages.items()}
            self.places.append((sum(map(len, self.lines)), len(self.messages), seen))


@contextmanager
def file_of(data: bytes) -> Iterator[int]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "native-1.jsonl"
        path.write_bytes(data)
        fd = os.open(path, os.O_RDWR)
        try:
            yield fd
        finally:
            os.close(fd)


def fold(fd: int, entry: Entry | None = None, max_bytes: int | None = None) -> folding.Advance:
    return folding.advance_open(fd, entry or first_entry(), LIMIT, dialect=JOINING, max_bytes=max_bytes)


def read_pages(fd: int, entry: Entry, end: int, end_seq: int, limit: int) -> dict[int, list[str]]:
    """All messages before a place, read in pages of `limit`, as texts by number."""
    found: dict[int, list[str]] = {}
    while True:
        page = page_backwards(
            fd,
            end,
            end_seq,
            wanted=lambda record: True,
            limit=limit,
            max_bytes=2**20,
            record_limit=LIMIT,
            dialect=JOINING,
            stop=entry.file.folded_to,
        )
        for one, seq in page.lines:
            assert seq not in found
            found[seq] = texts_of(one.record.message if one.record is not None else None)
        if not page.has_more:
            return dict(sorted(found.items()))
        end, end_seq = page.start, page.start_seq


INTERLEAVED: list[Item] = [("user", None), ("part", "a"), ("tool", None), ("part", "a"), ("tool", None), ("part", "b")]
LONG: list[Item] = [("part", "a"), ("tool", None)] + [("part", "a")] * (2 * MAX_PARTS + 3) + [("user", None)]


@given(ITEMS, st.data())
@example(INTERLEAVED, None)
@example(LONG, None)
def test_the_file_gives_the_same_entry_in_any_steps_and_each_step_has_the_message_so_far(items, data):
    model = Model(items)
    with file_of(b"") as fd:
        entry = first_entry()
        for number, one in enumerate(model.lines):
            os.pwrite(fd, one, model.places[number][0])
            if data is not None and not data.draw(st.booleans()) and number < len(model.lines) - 1:
                continue  # read it together with the next line
            got = fold(fd, entry)
            entry = got.entry
            end, count, _ = model.places[number + 1]
            assert (got.rewritten, entry.message_count, entry.file.folded_to) == (False, count, end)
            for step in got.steps:
                if step.line.record is not None and step.line.record.message is not None:
                    shown = next(known for place, _, known in model.places if place == step.line.end)
                    assert texts_of(step.line.record.message) == shown[step.part_of or step.seq]
        assert replace(fold(fd).entry, file=entry.file) == entry


@given(ITEMS, st.integers(1, 4))
@example(INTERLEAVED, 1)
@example(INTERLEAVED, 2)
@example(LONG, 1)
def test_pages_before_any_place_have_every_message_whole_under_its_number(items, limit):
    model = Model(items)
    with file_of(b"".join(model.lines)) as fd:
        entry = fold(fd).entry
        for place, count, _ in model.places if len(items) < 20 else model.places[-3:]:
            expected = {seq: texts for seq, texts in model.messages.items() if seq <= count}
            assert read_pages(fd, entry, place, count, limit) == expected


@given(ITEMS)
@example(INTERLEAVED)
@example(LONG)
def test_a_replay_from_any_place_leads_to_the_same_messages(items):
    model = Model(items)
    with file_of(b"".join(model.lines)) as fd:
        facts = fold(fd).entry.file
        counts = {place: count for place, count, _ in model.places}
        for offset, count, seen in model.places:
            shown = dict(seen)
            while offset < facts.folded_to:
                page = read_page(fd, facts, FollowPlace("native-1", offset, count), LIMIT, JOINING)
                assert page is not None
                for one in page.lines:
                    if one.is_message:
                        assert counts[one.line.offset] == one.total - (not one.part_of)
                        count += not one.part_of
                        record = one.line.record
                        shown[one.part_of or count] = texts_of(record.message if record is not None else None)
                offset = page.end
            assert (shown, count) == (model.messages, len(model.messages))


@given(ITEMS)
@example(INTERLEAVED)
def test_the_places_of_a_page_have_the_number_of_messages_before_them(items):
    model = Model(items)
    counts = {place: count for place, count, _ in model.places}
    with file_of(b"".join(model.lines)) as fd:
        entry = fold(fd).entry
        lines = joining.read_joined_backwards(
            fd, entry.file.folded_to, LIMIT, dialect=JOINING, stop=entry.file.folded_to, block=37
        )
        seq = entry.message_count
        for one in lines:
            if one.record is not None and one.record.message is not None:
                assert counts[one.end] == seq
                seq -= 1
        assert seq == 0


@given(ITEMS, st.integers(0, 5), st.integers(0, 5))
@example([("user", None), ("part", "a"), ("tool", None), ("part", "b")], 5, 5)
@example(INTERLEAVED, 5, 5)
@example(LONG, 5, 5)
def test_a_line_is_all_of_its_message_where_the_lines_around_it_tell_so(items, before, behind):
    model = Model(items)
    texts = {text: texts for texts in model.messages.values() for text in texts}
    for number, (kind, message_id) in enumerate(items):
        if kind != "part" or message_id is None:
            continue
        first = max(0, number - before)
        data = b"".join(model.lines[first : number + behind + 1])
        begin = sum(map(len, model.lines[first:number]))
        end = begin + len(model.lines[number]) - 1
        is_whole = joining.is_whole_message(data, begin, end, message_id, record_limit=LIMIT, dialect=JOINING)
        assert not is_whole or len(texts[f"t{number}"]) == 1


def test_a_line_between_other_messages_is_all_of_its_message():
    lines = [line("user", "one"), line("tool"), line("part", "two", "m"), line("tool"), line("part", "three", "n")]
    begin, end = sum(map(len, lines[:2])), sum(map(len, lines[:3])) - 1
    asked = {"record_limit": LIMIT, "dialect": JOINING}
    assert joining.is_whole_message(b"".join(lines), begin, end, "m", **asked)
    assert not joining.is_whole_message(b"".join(lines[:4]), begin, end, "m", **asked)
    assert not joining.is_whole_message(b"".join(lines[1:]), begin - len(lines[0]), end - len(lines[0]), "m", **asked)
    far = line("tool") * 20
    assert not joining.is_whole_message(b"".join([*lines[:3], far, lines[4]]), begin, end, "m", **asked)


def test_a_cursor_behind_a_message_is_behind_its_last_part_unless_another_message_lies_between():
    parts = [line("part", "one", "m"), line("other"), line("part", "two", "m")]
    with file_of(b"".join([*parts, line("tool"), line("part", "three", "m")])) as fd:
        end = fold(fd).entry.file.folded_to
        found = list(joining.read_joined_backwards(fd, end, LIMIT, dialect=JOINING, stop=end))
        assert [(one.offset, one.end) for one in found if one.record is not None and one.record.message is not None][
            -1
        ] == (0, sum(map(len, parts)))


def test_the_last_part_decides_all_but_the_content_and_the_message_keeps_its_id(tmp_path):
    data = line("part", "one", "m", at=5) + line("part", "two", "m", at=9)
    with file_of(data) as fd:
        first, second = fold(fd).steps
        assert first.line.record is not None and second.line.record is not None
        assert second.line.record.message == (
            b'{"role":"assistant","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}],"timestamp":9}'
        )
        assert (second.line.record.timestamp_ms, second.line.record.shown_id, second.part_of) == (9, "m", 1)


@check_each(("content", "texts"), [('"one"', ["one", "x"]), ("[ ]", ["x"]), ("7", ["x"]), ("null", ["x"])])
def test_contents_of_other_forms_are_joined_too(content, texts):
    parts = joining.JoinedParts()
    for inner in (content, '[{"type":"text","text":"x"}]'):
        parts.add(replace(FIRST, message=f'{{"role":"assistant","content":{inner}}}'.encode()))
    assert texts_of(parts.record().message) == texts
    parts.add(replace(FIRST, message=b"no JSON"))
    assert texts_of(parts.record().message) == texts


FIRST = JOINING.parse(line("part", "x", "m")[:-1])


@pytest.mark.parametrize(("between", "count"), [(MAX_SPAN_BYTES - 100, 1), (MAX_SPAN_BYTES, 2)])
def test_parts_far_apart_are_two_messages_in_both_directions(between, count):
    first, second = line("part", "one", "m"), line("part", "two", "m")
    other = b'{"kind":"other","text":"' + b"x" * 2**20 + b'"}\n'
    filler = other * (between // len(other))
    filler += b'{"kind":"other","text":"' + b"x" * (between - len(filler) - 27) + b'"}\n'
    with file_of(first + filler + second) as fd:
        entry = fold(fd).entry
        assert entry.message_count == count
        end = entry.file.folded_to
        found = read_pages(fd, entry, end, count, 10)
        assert found == ({1: ["one", "two"]} if count == 1 else {1: ["one"], 2: ["two"]})
        assert read_pages(fd, entry, len(first), 1, 10) == ({1: ["one", "two"]} if count == 1 else {1: ["one"]})
        opened = joining.find_open_message(fd, len(first) + len(filler), 1, LIMIT, JOINING)
        assert opened is None or (opened.begin, opened.seq) == (0, 1)


def test_a_message_of_many_long_lines_is_joined_though_they_are_not_kept():
    long = "x" * 2**20
    items = [("user", "u", None)] + [("part", f"{number}{long}", "m") for number in range(6)]
    items += [("tool", f"r{long}", None)] * 6 + [("part", "last", "m"), ("tool", long, None)]
    with file_of(b"".join(line(kind, text, message_id) for kind, text, message_id in items)) as fd:
        entry = fold(fd).entry
        got = page_backwards(
            fd,
            entry.file.folded_to,
            entry.message_count,
            wanted=lambda record: True,
            limit=100,
            max_bytes=2**30,
            record_limit=LIMIT,
            dialect=JOINING,
        )
        assert [seq for _, seq in got.lines] == list(range(1, entry.message_count + 1))
        assert sum(texts_of(one.record.message)[0].startswith("r") for one, _ in got.lines if one.record) == 6


@pytest.mark.parametrize("kept", [60, 400])
def test_a_file_written_anew_in_place_is_folded_again_though_its_end_looks_the_same(kept):
    old, new = (line("user", text + "x" * kept) for text in ("old", "new"))
    with file_of(line("user", "first") + old) as fd:
        entry = fold(fd).entry
        os.pwrite(fd, line("user", "first") + new + line("user", "more"), 0)
        got = fold(fd, entry)
        assert got.rewritten and got.entry.message_count == 3
        assert [step.seq for step in got.steps] == [1, 2, 3]
        assert not fold(fd, got.entry).rewritten


def test_a_last_line_that_is_blank_or_long_is_remembered_too():
    with file_of(line("user", "x" * 3 * 2**20) + b"  \n") as fd:
        entry = fold(fd).entry
        os.pwrite(fd, b"\n" + line("user", "more"), entry.file.folded_to)
        got = fold(fd, entry)
        assert not got.rewritten and got.entry.message_count == 2
        os.pwrite(fd, b"n", entry.file.folded_to + 12)
        assert fold(fd, got.entry).rewritten


def test_matches_of_a_search_are_numbered_as_the_messages_are(tmp_path: Path):
    model = Model(INTERLEAVED + LONG[:20])
    (tmp_path / "native-1.jsonl").write_bytes(b"".join(model.lines))
    folder = Folder("", os.open(tmp_path, os.O_RDONLY), JOINING)
    entry = folding.advance(folder.fd, first_entry(), "native-1.jsonl", LIMIT, dialect=JOINING).entry
    session = Session(key=entry.session_key, entry=entry, folder=folder)
    with dirfd.closing(folder.fd), dirfd.closing(folder.open_file("native-1.jsonl")) as fd:
        stop, count = entry.file.folded_to, entry.message_count
        wanted = lambda _: True  # noqa: E731
        shown = page_backwards(
            fd, stop, count, wanted=wanted, limit=1000, max_bytes=2**30, record_limit=LIMIT, dialect=JOINING
        ).lines
        places = [NumberedLine(0, 0), *(NumberedLine(place, count) for place, count, _ in model.places)]
        for counted in (None, *places):
            # Each line of a message may be the one with the text.
            hits = [(line, seq, line.offset) for line, seq in shown]
            begins = [place.offset for place in places]
            hits += [(line, seq, begin) for line, seq in shown for begin in begins if line.offset < begin < line.end]
            matches = {
                Match(session, line.offset, line.end, hit, 0, "user", "", masked=False, check=0, counted=counted): seq
                for line, seq, hit in hits
                if counted is None or hit >= counted.offset
            }
            for match, seq in matches.items():
                numbering = MatchNumbering(LIMIT, [match], 100)
                for _ in numbering.steps():
                    pass
                assert numbering.number_of(match) == seq
