"""No bytes raise an error, no changed bit is accepted, and nothing counts elsewhere than where it was sent."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.link.envelope import (
    MAX_CONTENT_BYTES,
    MAX_MESSAGE_BYTES,
    Envelopes,
    PeerMessage,
    Refused,
    read_fields,
)
from sessiond.link.identity import Identity, PublicIdentity
from sessiond.link.subjects import Address, Kind, parse_subject, stream_subject, token_of

LAP, MARS, MOON = Identity(bytes([1]) * 64), Identity(bytes([2]) * 64), Identity(bytes([3]) * 64)
EVERYBODY = {"lap": LAP.public, "mars": MARS.public, "moon": MOON.public}
PLAIN = Envelopes("lap", LAP, EVERYBODY)
SEALING = Envelopes("lap", LAP, EVERYBODY, encrypt=True)
READER = Envelopes("mars", MARS, EVERYBODY)
BOTH = pytest.mark.parametrize("writer", [PLAIN, SEALING], ids=["signed", "sealed"])
ID = "3f2b6c1e-0000-4000-8000-000000000001"
ADDRESS = Address("lap", "mars", "rec", token_of(ID))


class Range(msgspec.Struct):
    begin: int
    end: int


@BOTH
def test_what_is_packed_is_what_is_opened(writer: Envelopes) -> None:
    data = writer.pack("mars", "rec", ID, Range(0, 5), b"bytes")
    opened = READER.open_at(ADDRESS, data)
    assert opened == PeerMessage("lap", "mars", "rec", ID, b'{"begin":0,"end":5}', b"bytes", writer is SEALING)
    assert isinstance(opened, PeerMessage)
    assert read_fields(opened, Range) == Range(0, 5)
    assert (ID.encode() in data, b"begin" in data, b"bytes" in data) == (writer is PLAIN,) * 3


def test_the_form_of_an_envelope_stays_what_it_is() -> None:
    """Another machine may have an older sessiond."""
    data = PLAIN.pack("mars", "cmd", "id", {"a": 1}, b"\0\1")
    assert data[:-64] == b"\x01\x00\x03lap\x04mars\x03cmd" + b'\x02id\x00\x00\x00\x07{"a":1}\0\1'
    sealed = SEALING.pack("mars", "cmd", "id", {"a": 1}, b"\0\1")
    assert sealed[:15] == b"\x01\x01\x03lap\x04mars\x03cmd"
    assert len(sealed) == len(data) + 32 + 16


# Sealed by an earlier run of this code: what lies on a server for two weeks must stay readable.
KEPT = bytes.fromhex(
    "0101036c6170046d61727303726563a63be26c21a4b6d54b90607dd64bfd7cdbeb16a998421495505b0d7a68b4b439b58777144552ad00"
    "ee9d91f2b13a52a728b2992562d73eccd5aa03bbfb1144dbff57c33e0cd1d61563159d1a41c433a420c88e8d8c981bb7a564e937ca4957"
    "03329e5c6ae9cf837b994042377946e3f61aace1fcef978c605ee8b2ee30dd5b8d32bbb637bd1de9cd931b4e96a0b8c3d6cd7362092e97"
    "84d2057fb8b6f06783a6e74ebf9f0540cbab0fa1ce953dad4c3509"
)


def test_a_message_sealed_earlier_is_still_opened() -> None:
    opened = READER.open_at(ADDRESS, KEPT)
    assert opened == PeerMessage("lap", "mars", "rec", ID, b'{"begin":0,"end":5}', b"bytes", True)


@given(
    st.booleans(), st.text(max_size=60), st.dictionaries(st.text(max_size=5), st.integers(0, 9)), st.binary(max_size=99)
)
@example(True, "", {}, b"")
@example(False, "\0", {}, b"\0" * 64)
def test_any_content_comes_back(encrypt: bool, identity: str, fields: dict[str, int], payload: bytes) -> None:
    writer = SEALING if encrypt else PLAIN
    opened = READER.open(writer.pack("mars", "ans", identity, fields, payload), "ans")
    assert isinstance(opened, PeerMessage)
    assert (opened.id, read_fields(opened, dict), opened.payload) == (identity, fields, payload)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x01")
@example(b"\x01\x00")
@example(b"\x02\x00" + bytes(100))
@example(b"\x01\x02" + bytes(100))
@example(b"\x01\x00\xff")
@example(b"\x01\x00\x03lap\x04mars\x03rec")
@example(b"\x01\x00\x03lap\x04mars\x03rec" + bytes(64))
@example(b"\x01\x01\x03lap\x04mars\x03rec" + bytes(64))
@example(b"\x01\x00\x03L*p\x04mars\x03rec" + bytes(64))
@example(b"\x01\x00\x03lap\x04mars\x03xyz" + bytes(64))
def test_any_bytes_are_refused_with_a_reason(data: bytes) -> None:
    refused = READER.open_at(ADDRESS, data)
    assert isinstance(refused, Refused)
    assert refused.sentence


@pytest.mark.parametrize("identity", [b"\xff", "\ud800".encode("utf-8", "surrogatepass")])
def test_an_id_that_is_no_text_is_no_content_and_is_not_packed(identity: bytes) -> None:
    # No file and no database has a name for it.
    whole = PLAIN.pack("mars", "cmd", "x" * len(identity))[:-64].replace(b"x" * len(identity), identity)
    refused = READER.open(whole + LAP.sign(b"sessiond link envelope 1\0" + hashlib.sha256(whole).digest()), "cmd")
    assert isinstance(refused, Refused)
    assert refused.reason == "content"
    with pytest.raises(ValueError, match="surrogates not allowed"):
        PLAIN.pack("mars", "cmd", "\ud800")


@given(st.data(), st.booleans())
def test_no_changed_bit_is_accepted(data: st.DataObject, encrypt: bool) -> None:
    whole = bytearray((SEALING if encrypt else PLAIN).pack("mars", "rec", ID, Range(0, 5), b"bytes"))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[at // 8] ^= 1 << at % 8
    assert isinstance(READER.open_at(ADDRESS, bytes(whole)), Refused)


@given(st.data(), st.booleans())
def test_nothing_cut_or_lengthened_is_accepted(data: st.DataObject, encrypt: bool) -> None:
    whole = (SEALING if encrypt else PLAIN).pack("mars", "rec", ID, Range(0, 5), b"bytes")
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    more = data.draw(st.binary(max_size=80))
    changed = whole[:begin] + more + whole[end:]
    if changed != whole:
        assert isinstance(READER.open_at(ADDRESS, changed), Refused)


@BOTH
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (Address("moon", "mars", "rec", token_of(ID)), "sender"),
        (Address("lap", "mars", "ask", token_of(ID)), "kind"),
        (Address("lap", "mars", "rec", token_of("another")), "token"),
    ],
)
def test_a_message_moved_to_another_subject_is_refused(writer: Envelopes, address: Address, reason: str) -> None:
    refused = READER.open_at(address, writer.pack("mars", "rec", ID))
    assert isinstance(refused, Refused)
    assert refused.reason == reason


@BOTH
def test_a_message_for_another_machine_or_of_a_stranger_is_refused(writer: Envelopes) -> None:
    data = writer.pack("mars", "req", ID)
    reasons = [
        Envelopes("moon", MOON, EVERYBODY).open(data, "req"),
        Envelopes("mars", MARS, {"moon": MOON.public}).open(data, "req"),
        Envelopes("mars", MARS, {"lap": MOON.public}).open(data, "req"),
    ]
    assert [isinstance(found, Refused) and found.reason for found in reasons] == ["receiver", "sender", "signature"]


def test_another_peer_cannot_pass_on_what_was_sealed_as_its_own() -> None:
    """Mars could take the signature of the laptop off and sign for itself what it cannot read."""
    data = SEALING.pack("moon", "rec", ID, payload=b"secret")
    start = len(b"\x01\x01\x03lap\x04moon\x03rec")
    stolen = b"\x01\x01\x04mars\x04moon\x03rec" + data[start:-64]
    forged = stolen + MARS.sign(b"sessiond link envelope 1\0" + hashlib.sha256(stolen).digest())
    refused = Envelopes("moon", MOON, EVERYBODY).open(forged, "rec")
    assert isinstance(refused, Refused)
    assert refused.reason == "seal"


def test_a_sealed_message_is_another_one_every_time() -> None:
    assert SEALING.pack("mars", "rec", ID) != SEALING.pack("mars", "rec", ID)
    assert PLAIN.pack("mars", "rec", ID) == PLAIN.pack("mars", "rec", ID)


def test_a_peer_with_a_weak_key_is_refused_and_nothing_is_sealed_for_it() -> None:
    weak = PublicIdentity(LAP.public.signing, bytes(32))
    refused = Envelopes("mars", MARS, {"lap": weak}).open(SEALING.pack("mars", "rec", ID), "rec")
    assert isinstance(refused, Refused)
    assert refused.reason == "seal"
    with pytest.raises(ValueError, match="shared"):
        Envelopes("lap", LAP, {"mars": weak}, encrypt=True).pack("mars", "rec", ID)


def sign(content: bytes, flags: int = 0) -> bytes:
    """A message of the laptop with any content."""
    whole = bytes((1, flags)) + b"\x03lap\x04mars\x03rec" + content
    return whole + LAP.sign(b"sessiond link envelope 1\0" + hashlib.sha256(whole).digest())


@given(st.binary(max_size=60))
@example(b"")
@example(b"\x05ab")
@example(b"\x01\xff\0\0\0\0")
@example(b"\x01a\0\0\0")
@example(b"\x01a\0\0\0\x01")
@example(b"\x01a\0\0\0\x01{")
@example(b"\0\0\0\0\0")
def test_a_peer_may_have_signed_any_content(content: bytes) -> None:
    opened = READER.open(sign(content), "rec")
    if isinstance(opened, PeerMessage):
        found = read_fields(opened, Range)
        assert isinstance(found, Range | Refused)
    else:
        assert opened.reason == "content"


@pytest.mark.parametrize("flags", [2, 3, 128, 255])
def test_a_flag_of_a_later_version_is_not_overlooked(flags: int) -> None:
    refused = READER.open(sign(b"\x01a\0\0\0\x02{}", flags), "rec")
    assert isinstance(refused, Refused)
    assert refused.reason == "form"


def test_fields_end_where_the_content_does() -> None:
    assert isinstance(READER.open(sign(b"\x01a\0\0\0\x02{}"), "rec"), PeerMessage)
    refused = READER.open(sign(b"\x01a\0\0\0\x03{}"), "rec")
    assert isinstance(refused, Refused)
    assert refused.reason == "content"


def test_fields_that_are_nested_too_deeply_are_refused() -> None:
    deep = b"[" * 100_000
    opened = READER.open(sign(b"\x01a" + len(deep).to_bytes(4, "big") + deep), "rec")
    assert isinstance(opened, PeerMessage)
    assert isinstance(read_fields(opened, list), Refused)


@BOTH
def test_the_longest_message_is_a_million_bytes(writer: Envelopes) -> None:
    room = MAX_MESSAGE_BYTES - len(writer.pack("mars", "rec", ID))
    data = writer.pack("mars", "rec", ID, payload=bytes(room))
    assert len(data) == MAX_MESSAGE_BYTES
    assert isinstance(READER.open(data, "rec"), PeerMessage)
    with pytest.raises(ValueError, match="1000000 are the most"):
        writer.pack("mars", "rec", ID, payload=bytes(room + 1))
    refused = READER.open(data + b"\0", "rec")
    assert isinstance(refused, Refused)
    assert refused.reason == "form"


@BOTH
def test_an_id_of_255_bytes_and_a_content_of_the_promised_length_fit(writer: Envelopes) -> None:
    longest = Envelopes("a" * 32, LAP, {"b" * 32: MARS.public}, encrypt=writer is SEALING)
    data = longest.pack("b" * 32, "rec", "x" * 255, payload=bytes(MAX_CONTENT_BYTES - 2))
    assert len(data) <= MAX_MESSAGE_BYTES
    with pytest.raises(ValueError, match="255 are the most"):
        longest.pack("b" * 32, "rec", "x" * 256)


@given(st.text(max_size=80))
@example("x.lap.mars.rec." + "0" * 32)
@example("x.lap.mars.req." + "0" * 32)
@example("x.LAP.mars.rec." + "0" * 32)
@example("x.lap.mars.rec." + "0" * 31)
@example("_INBOX.mars.rec")
def test_any_text_is_a_subject_of_the_stream_or_none(text: str) -> None:
    found = parse_subject(text)
    if found is not None:
        assert f"x.{found.sender}.{found.receiver}.{found.kind}.{found.token}" == text


@pytest.mark.parametrize("kind", ["rec", "row", "cmd", "ans", "ask"])
def test_a_subject_says_who_whom_what_and_a_token(kind: Kind) -> None:
    assert parse_subject(stream_subject("lap", "mars", kind, ID)) == Address("lap", "mars", kind, token_of(ID))
