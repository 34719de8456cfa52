import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each
from support.sampling import spread
from support.shortage import refused_threads

from sessiond.errors import LimitExceeded, Overloaded, SessiondError
from sessiond.rpc.cbor_items import ItemScanner, check_item, check_single_item
from sessiond.rpc.framing import ItemFramer
from sessiond.rpc.limits import MAX_CBOR_ITEMS


def end_of(data: bytes, max_nesting: int = 64) -> int | None:
    return ItemScanner(max_nesting).scan(data)


# RFC 8949, appendix A: every well-formed form, with its whole length.
WELL_FORMED = (
    "00 17 1818 1903e8 1a000f4240 1bffffffffffffffff 20 3903e7 f90000 fa47c35000 fb3ff199999999999a f4 f5 "
    "f6 f7 f0 f8ff c11a514b67b0 d818456449455446 40 4401020304 60 6449455446 80 83010203 "
    "98190102030405060708090a0b0c0d0e0f101112131415161718181819 a0 a201020304 826161a161626163 "
    "5f42010243030405ff 7f657374726561646d696e67ff 9fff 9f018202039f0405ffff 83018202039f0405ff "
    "bf61610161629f0203ffff bf6346756ef563416d7421ff d9d9f7a0 5fff 7fff bfff a17f6161ff01 "
    "9b0000000000000000 "
)


@check_each("form", WELL_FORMED.split())
def test_the_end_of_every_well_formed_item_is_found(form):
    data = bytes.fromhex(form)
    assert end_of(data) == len(data)
    assert end_of(data + b"\x00") == len(data)
    assert [end_of(data[:size]) for size in range(len(data))] == [None] * len(data)


# RFC 8949, appendix F.
MALFORMED = (
    "1c 1d 1e 3c 5c 7d 9e bc dc fe fc fd 1f 3f df ff f800 f818 f81f 81ff 82ffff a1ff a101ff bf01ff "
    "5f00ff 5f21ff 5f6100ff 5f80ff 5fa0ff 5fc000ff 5fe0ff 7f4100ff 5f5f4100ffff 7f7f6100ffff c1ff 9f1c 9fdfff"
)


@check_each("form", MALFORMED.split())
def test_malformed_items_are_refused(form):
    with pytest.raises(SessiondError) as caught:
        end_of(bytes.fromhex(form))
    assert caught.value.slug == "parse_error"


@check_each("opening", [b"\x81", b"\x9f", b"\xa1\x00", b"\xbf\x00", b"\xc1"])
def test_nesting_is_allowed_up_to_the_limit_and_not_beyond(opening):
    closing = b"\xff" if opening[0] in (0x9F, 0xBF) else b""
    fits = opening * 4 + b"\x00" + closing * 4
    assert end_of(fits, 4) == len(fits)
    with pytest.raises(SessiondError) as caught:
        end_of(opening * 5 + b"\x00" + closing * 5, 4)
    assert (caught.value.slug, caught.value.data) == ("invalid_request", {"limit": "limits.maxNesting", "value": 4})


def test_a_hundred_thousand_levels_are_refused_as_soon_as_the_limit_is_passed():
    with pytest.raises(SessiondError) as caught:
        end_of(b"\x81" * 100_000)
    assert caught.value.slug == "invalid_request"


def test_an_empty_container_counts_as_a_level():
    assert end_of(b"\x81\x80", 2) == 2
    with pytest.raises(SessiondError):
        end_of(b"\x81\x80", 1)


def test_a_frame_holds_exactly_one_whole_item():
    check_single_item(b"\xa0", 64)
    for frame in (b"", b"\xa0\xa0", b"\xa1\x00", b"\xa0\xff"):
        with pytest.raises(SessiondError) as caught:
            check_single_item(frame, 64)
        assert caught.value.slug == "parse_error"


@given(st.binary(max_size=80))
def test_the_scanner_agrees_with_cbor2_on_what_is_well_formed(data):
    try:
        end = end_of(data, 400)
    except SessiondError:
        end = -1
    if end is None or end == -1:
        # cbor2 must not read a whole item either.
        with pytest.raises(cbor2.CBORDecodeError):
            cbor2.loads(data)
        return
    # cbor2 refuses more (bad text, keys that cannot be hashed), but where it accepts an item it finds the same end.
    rest = data[end:]
    try:
        found = cbor2.loads(data[:end])
    except cbor2.CBORDecodeError:
        return
    assert repr(found) == repr(cbor2.loads(data[:end] + rest))


@pytest.mark.parametrize("together", spread([3, 1, 4096], 1))
def test_the_bound_on_items_counts_for_each_message_not_for_the_connection(together):
    ping = cbor2.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}})
    framer, found, sent = ItemFramer(1 << 20, 64), 0, 0
    while sent < 70_000:
        found += len(framer.feed(ping * together))
        sent += together
        assert framer.error is None
    assert found == sent


def test_a_message_may_have_items_up_to_the_limit_and_not_beyond():
    most = b"\x9a" + (MAX_CBOR_ITEMS - 1).to_bytes(4, "big") + b"\x01" * (MAX_CBOR_ITEMS - 1)
    assert end_of(most) == len(most)
    with pytest.raises(LimitExceeded):
        end_of(b"\x9a" + MAX_CBOR_ITEMS.to_bytes(4, "big") + b"\x01" * MAX_CBOR_ITEMS)


async def test_a_long_item_that_no_thread_can_check_is_refused():
    item = cbor2.dumps(b"x" * 20_000)
    with refused_threads(), pytest.raises(Overloaded):
        await check_item(item, 64)
    await check_item(item, 64)
