"""Pages of history: the same as pages of a plain list, however they are read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.dialects import V3
from sessiond.store import paging, transcript
from sessiond.store.paging import MessagePage
from sessiond.store.transcript import Line

LIMIT = 60


def message(number: int, role: str = "user", padding: int = 0) -> bytes:
    return b'{"type":"message","message":{"role":"%b","n":%d%b}}' % (role.encode(), number, b" " * padding)


@contextmanager
def file_with_content(content: bytes) -> Iterator[int]:
    """A descriptor of a temporary file with this content."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.fileno()


def reference_page(
    content: bytes, end: int, end_seq: int, *, limit: int, max_bytes: int, roles: set[str]
) -> MessagePage:
    """The expected page, computed from a list of all lines."""
    with file_with_content(content) as fd:
        lines = [line for line in transcript.read_lines(fd, 0, LIMIT, dialect=V3) if line.end <= end]
    seq, numbered = end_seq - sum(line.record is not None and line.record.is_message for line in lines), []
    for line in lines:
        is_message = line.record is not None and line.record.is_message
        seq += is_message
        numbered.append((line, seq, is_message and line.record is not None and line.record.role in roles))
    wanted = [(line, seq) for line, seq, fits in numbered if fits]
    taken: list[tuple[Line, int]] = []
    size = 0
    for line, seq in reversed(wanted):
        own = len(line.record.message or b"") if line.record else 0
        counted = own if own <= max_bytes else 0
        if len(taken) == limit or (taken and size + min(own, max_bytes) > max_bytes):
            break
        taken.insert(0, (line, seq))
        size += counted
    more = len(taken) < len(wanted)
    start = taken[0][0].offset if more else 0
    skipped = sum(line.record is None and line.offset >= start for line in lines)
    return MessagePage(
        lines=taken,
        start=start,
        start_seq=taken[0][1] - 1 if more else 0,
        has_more=more,
        skipped=skipped,
        bytes=size,
    )


page_lines = st.lists(
    st.sampled_from(
        [message(1), message(2, "toolResult"), message(3, padding=9), b'{"type":"x"}', b"{torn", b"", b"z" * 70]
    ),
    max_size=25,
)


@given(
    page_lines,
    st.tuples(st.integers(1, 6), st.integers(1, 150)),
    st.sampled_from([{"user"}, {"user", "toolResult"}]),
)
def test_pages_equal_those_of_a_list_and_together_contain_every_message(lines, limits, roles):
    limit, max_bytes = limits
    content = b"".join(line + b"\n" for line in lines)
    end, seq = len(content), sum(line.startswith(b'{"type":"message"') for line in lines)
    skipped, messages = 0, []
    with file_with_content(content) as fd:
        while True:
            page = paging.page_backwards(
                fd,
                end,
                seq,
                wanted=lambda record: record.role in roles,
                limit=limit,
                max_bytes=max_bytes,
                record_limit=LIMIT,
                dialect=V3,
            )
            assert page == reference_page(content, end, seq, limit=limit, max_bytes=max_bytes, roles=roles)
            skipped += page.skipped
            messages = page.lines + messages
            if not page.has_more:
                break
            end, seq = page.start, page.start_seq
        everything = list(transcript.read_lines(fd, 0, LIMIT, dialect=V3))
    seqs = [place for place, _ in enumerate((line for line in everything if line.record and line.record.is_message), 1)]
    assert [seq for _, seq in messages] == [
        seq
        for seq, line in zip(seqs, (x for x in everything if x.record and x.record.is_message), strict=True)
        if line.record and line.record.role in roles
    ]
    assert skipped == sum(line.record is None for line in everything)


def page(content: bytes, limit: int, max_bytes: int) -> list[int]:
    with file_with_content(content) as fd:
        got = paging.page_backwards(
            fd,
            len(content),
            content.count(b"\n"),
            wanted=lambda record: True,
            limit=limit,
            max_bytes=max_bytes,
            record_limit=LIMIT,
            dialect=V3,
        )
    return [json.loads(line.record.message or b"")["n"] for line, _ in got.lines if line.record]


def test_a_page_is_filled_up_to_its_byte_limit_and_not_beyond():
    content = b"".join(message(number) + b"\n" for number in range(1, 6))
    size = len(b'{"role":"user","n":1}')
    assert page(content, 10, 3 * size) == [3, 4, 5]
    assert page(content, 10, 3 * size - 1) == [4, 5]
    assert page(content, 3, 10 * size) == [3, 4, 5]


def test_a_message_over_the_byte_limit_is_included_and_takes_no_room():
    content = message(1) + b"\n" + message(2, padding=10) + b"\n" + message(3) + b"\n"
    size = len(b'{"role":"user","n":1}')
    assert page(content, 10, size) == [3]
    assert page(content[: content.rfind(b"\n", 0, -1) + 1], 10, size) == [1, 2]
