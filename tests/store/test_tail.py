"""The tail: the lines are the same however the bytes are divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.store.tail import Tail

LIMIT = 10
contents = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"defgh", b"0123456789"]), max_size=40).map(b"".join)


def expected(content: bytes, limit: int = LIMIT) -> list[tuple[int, bytes | None]]:
    """The complete lines of `content`, split in one step."""
    lines: list[tuple[int, bytes | None]] = []
    offset = 0
    for line in content.split(b"\n")[:-1]:
        lines.append((offset, line if len(line) <= limit else None))
        offset += len(line) + 1
    return lines


@given(contents, st.data())
def test_any_chunking_gives_the_same_lines(content, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    tail = Tail(0, LIMIT)
    got: list[tuple[int, bytes | None]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        got += tail.feed(content[begin:end])
    assert got == expected(content)
    assert (tail.offset, tail.whole) == (len(content), content.rfind(b"\n") + 1)


def test_offsets_count_from_the_offset_given_to_the_tail():
    tail = Tail(100, LIMIT)
    assert list(tail.feed(b"ab\nc")) == [(100, b"ab")]
    assert list(tail.feed(b"d\n")) == [(103, b"cd")]
    assert (tail.offset, tail.whole) == (106, 106)


def test_a_line_at_the_limit_is_accepted_and_a_longer_one_is_not():
    assert list(Tail(0, LIMIT).feed(b"0123456789\n0123456789x\nab\n")) == [(0, b"0123456789"), (11, None), (23, b"ab")]


def test_a_line_over_the_limit_is_not_buffered_while_it_grows():
    tail = Tail(0, LIMIT)
    for _ in range(1000):
        assert list(tail.feed(b"x" * 100)) == []
    assert tail.passed_to == 100_000
    assert sum(map(len, tail._half)) == 0
    assert list(tail.feed(b"\nok\n")) == [(0, None), (100_001, b"ok")]
    assert tail.passed_to == 0


def test_a_tail_can_resume_within_a_line_over_the_limit():
    tail = Tail(5, LIMIT, passed_to=1000)
    assert (tail.offset, tail.whole) == (1000, 5)
    assert list(tail.feed(b"x\nab\n")) == [(5, None), (1002, b"ab")]


def test_a_half_line_is_held_back_until_it_is_complete():
    tail = Tail(0, LIMIT)
    assert list(tail.feed(b"half")) == []
    assert (tail.whole, tail.passed_to) == (0, 0)
    assert list(tail.feed(b"\n")) == [(0, b"half")]


@given(contents, st.data())
def test_a_tail_resumed_after_the_last_whole_line_gives_the_same_lines(content, data):
    cut = data.draw(st.integers(0, len(content)))
    first = Tail(0, LIMIT)
    got = list(first.feed(content[:cut]))
    second = Tail(first.whole, LIMIT, first.passed_to)
    assert got + list(second.feed(content[second.offset :])) == expected(content)
