import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.rpc.framing import ItemFramer, LineFramer

CHUNKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def feed_in_chunks(framer, data, sizes):
    """Feed `data` in pieces of the given sizes, over and over, to the end."""
    messages, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        messages += framer.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return messages + framer.finish()


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line)), CHUNKS, st.booleans())
def test_lines_come_out_whole_however_the_bytes_are_cut(lines, sizes, ended):
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    framer = LineFramer(1000)
    expected = [line.strip(b" \t\r") for line in lines]
    assert feed_in_chunks(framer, data, sizes) == [line for line in expected if line]
    assert framer.error is None


def test_a_line_may_have_bytes_up_to_the_limit_and_not_beyond():
    for chunk in (1, 3, 100):
        framer = LineFramer(10)
        assert feed_in_chunks(framer, b"a" * 10 + b"\n" + b"b" * 10, [chunk]) == [b"a" * 10, b"b" * 10]
        framer = LineFramer(10)
        assert feed_in_chunks(framer, b"first\n" + b"a" * 11 + b"\nlater\n", [chunk]) == [b"first"]
        assert framer.error.slug == "limit_exceeded"
        assert framer.error.data == {"limit": "limits.maxFrameBytes", "value": 10}


def test_an_endless_line_is_refused_when_it_passes_the_limit():
    framer = LineFramer(10)
    assert framer.feed(b"a" * 11) == [] and framer.error is not None
    assert (framer.feed(b"\nb\n"), framer.finish()) == ([], [])


def test_a_raised_limit_applies_to_the_line_that_is_being_received():
    framer = LineFramer(10)
    assert framer.feed(b"hello\naaaaaaaa") == [b"hello"]
    framer.limit = 20
    assert framer.feed(b"bbbbbbbb\n") == [b"aaaaaaaabbbbbbbb"]


CBOR = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=30),
    max_leaves=40,
)


@given(st.lists(CBOR, min_size=1, max_size=5), CHUNKS, st.booleans())
def test_items_come_out_whole_however_the_bytes_are_cut(values, sizes, indefinite):
    encoded = [cbor2.dumps(value, indefinite_containers=indefinite) for value in values]
    framer = ItemFramer(100_000, 64)
    assert feed_in_chunks(framer, b"".join(encoded), sizes) == encoded
    assert framer.error is None


def test_an_item_may_have_bytes_up_to_the_limit_and_not_beyond():
    fits, over = cbor2.dumps(b"x" * 98), cbor2.dumps(b"x" * 99)
    for chunk in (1, 7, 1000):
        assert feed_in_chunks(ItemFramer(100, 64), fits + fits, [chunk]) == [fits, fits]
        framer = ItemFramer(100, 64)
        assert feed_in_chunks(framer, fits + over + fits, [chunk]) == [fits]
        assert framer.error.slug == "limit_exceeded"


def test_an_item_with_too_large_an_announced_length_is_refused_at_once():
    framer = ItemFramer(16 * 1024 * 1024, 64)
    assert framer.feed(b"\x5a\xff\xff\xff\xff") == []
    assert framer.error.slug == "limit_exceeded"


def test_an_item_may_only_be_followed_by_another_item():
    framer = ItemFramer(1000, 64)
    assert framer.feed(b"\xa0\xa0\xfe") == [b"\xa0", b"\xa0"]
    assert framer.error.slug == "parse_error"
    assert (framer.feed(b"\xa0"), framer.finish()) == ([], [])


def test_an_incomplete_last_item_is_handed_out_to_be_refused():
    framer = ItemFramer(1000, 64)
    assert framer.feed(b"\xa0\xa1\x61a") == [b"\xa0"]
    assert framer.finish() == [b"\xa1\x61a"]


@pytest.mark.parametrize("make", [lambda: LineFramer(50), lambda: ItemFramer(50, 4)])
@given(data=st.binary(max_size=200), sizes=CHUNKS)
def test_any_bytes_give_the_same_frames_however_they_are_cut(make, data, sizes):
    one, many = make(), make()
    whole = one.feed(data) + one.finish()
    assert feed_in_chunks(many, data, sizes) == whole
    assert (one.error and one.error.slug) == (many.error and many.error.slug)
