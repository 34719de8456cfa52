"""Files whose lines change a list of messages: every reader sees the same messages with the same numbers.

The files are small random ones in the form of Gemini CLI; a plain list says what is in them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.events.replay_page import read_page
from sessiond.events.subscription import FollowPlace
from sessiond.model.dialects import DIALECTS
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.source_facts import SourceFacts
from sessiond.store import folding
from sessiond.store.listing import LEAST_KEPT_BYTES, MessageListing
from sessiond.store.paging import page_backwards
from sessiond.store.transcript import Line

GEMINI = DIALECTS["gemini"]
LIMIT = 2**20
KEYS = st.sampled_from("abcd")
Item = tuple[str, Any]
ITEMS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "answer", "call", "echo", "rewind"]), KEYS),
        st.tuples(st.just("list"), st.lists(KEYS, min_size=1, max_size=4, unique=True)),
        st.tuples(st.sampled_from(["other", "bad"]), st.none()),
    ),
    max_size=12,
)


def first_entry() -> Entry:
    return begin_foreign(SourceFacts(name="gemini"), "native-1")


def object_of(kind: str, key: str, text: str) -> dict[str, Any]:
    match kind:
        case "answer":
            return {"id": key, "type": "gemini", "content": text}
        case "call":
            call = {"id": f"r{key}", "name": "ls", "args": {}, "status": "success", "result": f"{text}-result"}
            return {"id": key, "type": "gemini", "content": text, "toolCalls": [call]}
        case "echo":
            response = {"id": f"r{key}", "name": "ls", "response": {"output": text}}
            return {"id": key, "type": "user", "content": [{"functionResponse": response}]}
        case _:
            return {"id": key, "type": "user", "content": text}


class Model:
    """What a file of `items` has: the list behind each line, as pairs of key and text. Followers read it anew where the
    line cut it or replaced one that is not among the newest messages.
    """

    def __init__(self, items: list[Item]) -> None:
        self.lines: list[bytes] = []
        self.lists: list[list[tuple[str, str]]] = [[]]
        self.cuts: list[bool] = []
        self.late: list[bool] = []
        for number, (kind, key) in enumerate(items):
            before, text = self.lists[-1], f"t{number}"
            after = list(before)
            body: dict[str, Any] = {"$set": {"lastUpdated": "now"}}
            if kind == "rewind":
                body = {"$rewindTo": key}
                keys = [one for one, _ in before]
                after = before[: keys.index(key)] if key in keys else []
            elif kind == "list":
                body = {"$set": {"messages": [object_of("user", one, text) for one in key]}}
                keys = [one for one, _ in before]
                after = [(one, text) for one in key]
                if key[: len(keys)] == keys:
                    after = before + after[len(keys) :]
            elif key is not None:
                body = object_of(kind, key, text)
                if kind == "echo":
                    self._put(after, f"r{key}", text, replaces=False)
                else:
                    self._put(after, key, text)
                if kind == "call":
                    self._put(after, f"r{key}", f"{text}-result")
            self.lines.append(b"{torn\n" if kind == "bad" else json.dumps(body).encode() + b"\n")
            self.cuts.append([one for one, _ in before] != [one for one, _ in after[: len(before)]])
            put = {"user": [key], "answer": [key], "call": [key, f"r{key}"]}.get(kind, [])
            replaced = [place for place, (one, _) in enumerate(before, 1) if one in put]
            self.late.append(bool(replaced) and replaced[0] <= len(before) - len(put))
            self.lists.append(after)

    @staticmethod
    def _put(messages: list[tuple[str, str]], key: str, text: str, *, replaces: bool = True) -> None:
        places = [place for place, (one, _) in enumerate(messages) if one == key]
        if not places:
            messages.append((key, text))
        elif replaces:
            messages[places[0]] = (key, text)

    @property
    def places(self) -> list[int]:
        return [sum(map(len, self.lines[:count])) for count in range(len(self.lines) + 1)]


def pair_of(line: Line) -> tuple[str, str]:
    assert line.record is not None
    body = msgspec.json.decode(line.record.message or b"")
    content = body["content"]
    return line.record.message_id or "", content if isinstance(content, str) else content[0]["text"]


class File:
    """A file with some bytes, open."""

    def __init__(self, data: bytes) -> None:
        self._folder = TemporaryDirectory()
        self.path = Path(self._folder.name) / "native-1.jsonl"
        self.path.write_bytes(data)
        self.fd = os.open(self.path, os.O_RDONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        self._folder.cleanup()

    def advance(self, entry: Entry) -> folding.Advance:
        return folding.advance_open(self.fd, entry, LIMIT, dialect=GEMINI)


@given(ITEMS, st.integers(1, 4))
def test_pages_have_the_messages_of_the_list_with_their_numbers(items, limit):
    model = Model(items)
    expected = model.lists[-1]
    with File(b"".join(model.lines)) as file:
        end = stop = model.places[-1]
        end_seq, found = len(expected), list[tuple[int, tuple[str, str]]]()
        markers: list[tuple[int, int]] = []
        for _ in range(len(expected) + 1):
            page = page_backwards(
                file.fd,
                end,
                end_seq,
                wanted=lambda _record: True,
                limit=limit,
                max_bytes=LIMIT,
                record_limit=LIMIT,
                dialect=GEMINI,
                stop=stop,
            )
            found = [*((seq, pair_of(line)) for line, seq in page.lines), *found]
            markers = [*((line.offset, seq) for line, seq in page.markers), *markers]
            end, end_seq = page.start, page.start_seq
            if not page.has_more:
                break
        known = [(line.offset, seq) for line, seq in MessageListing(file.fd, stop, LIMIT, GEMINI).markers]
    assert found == list(enumerate(expected, 1))
    assert markers == known, "each marker is on one page"
    assert all(seq <= len(expected) for _, seq in markers)
    if items and items[-1][0] == "rewind":
        assert markers[-1][1] == len(expected)


@given(ITEMS, st.integers(0, 12))
def test_what_is_read_line_by_line_makes_the_same_list_and_a_cut_is_said(items, cut):
    model = Model(items)
    cut = min(cut, len(model.lines))
    shown, count = list[tuple[str, str]](), 0
    entry = first_entry()
    with File(b"") as file:
        for until in (cut, len(model.lines)):
            file.path.write_bytes(b"".join(model.lines[:until]))
            got = file.advance(entry)
            entry = got.entry
            assert entry.message_count == len(model.lists[until])
            assert got.rewritten == any(model.cuts[count:until] + model.late[count:until])
            if got.rewritten:
                # Followers read the list anew.
                listing = MessageListing(file.fd, entry.file.folded_to, LIMIT, GEMINI)
                shown = [pair_of(listing.read(number + 1)) for number in range(len(listing.messages))]
            else:
                for step in got.steps:
                    if step.line.record is not None and step.line.record.message is not None:
                        number = step.part_of or step.seq
                        shown[number - 1 : number] = [pair_of(step.line)]
            count = until
            assert shown == model.lists[until]


CUT_AND_LATE: list[Item] = [("user", "a"), ("user", "b"), ("call", "c"), ("rewind", "c"), ("user", "d"), ("user", "a")]


@given(ITEMS, st.integers(0, 12), st.integers(1, 3))
@example(CUT_AND_LATE, 0, 1)
@example([*CUT_AND_LATE, ("user", "e"), ("call", "b"), ("user", "d")], 0, 1)
def test_a_replay_from_any_place_brings_a_follower_up_to_date_or_begins_again(items, had, max_lines):
    model = Model(items)
    had = min(had, len(model.lines))
    with File(b"".join(model.lines)) as file:
        facts = file.advance(first_entry()).entry.file
        place = FollowPlace("native-1", model.places[had], len(model.lists[had]))
        shown = dict(enumerate(model.lists[had], 1))
        page = read_page(file.fd, facts, place, LIMIT, GEMINI)
        assert page is not None
        assert page.is_cut == (bool(shown) and any(model.cuts[had:]))
        if page.is_cut:
            shown, place = {}, FollowPlace("native-1", 0, 0)
        for _ in range(3 * len(items) + 3):
            page = read_page(file.fd, facts, place, LIMIT, GEMINI, max_lines=max_lines)
            assert page is not None and not page.is_cut and page.end >= place.offset
            for item in page.lines:
                shown[item.part_of or item.total] = pair_of(item.line)
            place = FollowPlace("native-1", page.end, page.lines[-1].total if page.lines else place.seq)
            if page.end == facts.folded_to:
                break
        assert page.end == facts.folded_to
        assert [shown[number] for number in sorted(shown)] == model.lists[-1]


def test_a_place_between_two_messages_of_a_line_goes_on_with_the_second():
    model = Model([("user", "a"), ("call", "b")])
    with File(b"".join(model.lines)) as file:
        facts = file.advance(first_entry()).entry.file
        page = read_page(file.fd, facts, FollowPlace("native-1", model.places[2], 2), LIMIT, GEMINI)
        assert page is not None and [pair_of(item.line) for item in page.lines] == [("rb", "t1-result")]


@check_each("golden", ["tool", "resumed", "compressed", "delegating", "subagent"])
def test_the_files_of_the_real_program_read_in_either_way(golden):
    path = Path(__file__).parents[1] / "golden" / "sources" / "gemini" / f"{golden}.jsonl"
    with File(path.read_bytes()) as file:
        entry = file.advance(first_entry()).entry
        listing = MessageListing(file.fd, entry.file.folded_to, LIMIT, GEMINI)
        assert len(listing.messages) == entry.message_count
        lines = [listing.read(number + 1) for number in range(entry.message_count)]
        assert all(line.record is not None and line.record.message is not None for line in lines)
        assert lines[::-1] == list(listing.read_backwards(entry.message_count))


def test_a_long_file_is_read_on_from_where_it_was_read_last_unless_it_was_rewritten():
    def said(key: str) -> bytes:
        return json.dumps(object_of("user", key, f"{key} " + "x" * 4000)).encode() + b"\n"

    def keys_of(file: File, stop: int) -> list[str]:
        listing = MessageListing(file.fd, stop, LIMIT, GEMINI)
        return [pair_of(listing.read(number + 1))[0] for number in range(len(listing.messages))]

    keys = [f"k{number}" for number in range(2 + LEAST_KEPT_BYTES // 4000)]
    with File(b"".join(map(said, keys))) as file:
        size = file.path.stat().st_size
        assert keys_of(file, size) == keys
        with file.path.open("ab") as end:
            end.write(b'{"$rewindTo": "k3"}\n' + said("new"))
        grown = file.path.stat().st_size
        assert keys_of(file, grown) == [*keys[:3], "new"]
        assert keys_of(file, size) == keys, "an earlier place is read from the beginning"
        with file.path.open("r+b") as damaged:
            damaged.seek(len(said("k0")))
            damaged.write(b"[")
        assert len(MessageListing(file.fd, size, LIMIT, GEMINI).messages) == len(keys), (
            "what was read is not read again"
        )
        other = [*reversed(keys), "more"]
        file.path.write_bytes(b"".join(map(said, other)))
        assert keys_of(file, file.path.stat().st_size) == other
