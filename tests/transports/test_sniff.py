import pytest
from support.rows import check_each

from sessiond.errors import InvalidRequest
from sessiond.transports.dialects import CBOR_SEQUENCE, DIALECTS, HTTP, NDJSON
from sessiond.transports.sniff import dialect_of


def test_every_first_byte_has_one_dialect_or_one_clear_error():
    found = {}
    for byte in range(256):
        try:
            found[byte] = dialect_of(bytes([byte, 0x20]))
        except InvalidRequest as error:
            assert f"0x{byte:02x}" in error.message and "HTTP/1.1" in error.message  # noqa: PT017
            found[byte] = None
    assert {byte for byte, dialect in found.items() if dialect is NDJSON} == set(b"{[ \t\r\n")
    assert {byte for byte, dialect in found.items() if dialect is CBOR_SEQUENCE} == set(range(0x80, 0xDC))
    assert {byte for byte, dialect in found.items() if dialect is HTTP} == set(range(0x41, 0x5B))


@check_each("size", range(1, 15))
def test_a_beginning_of_content_length_is_undecided(size):
    assert dialect_of(b"Content-Length: 12\r\n"[:size]) is None
    assert dialect_of(b"Content-Length: 12\r\n"[:size] + b" /x HTTP/1.1") is HTTP


def test_without_bytes_the_dialect_is_undecided():
    assert dialect_of(b"") is None


@check_each("first", [b"Content-Length:", b"Content-Length: 5\r\n\r\n{}", b"CONTENT-LENGTH: 5"])
def test_lsp_framing_is_refused_by_name(first):
    with pytest.raises(InvalidRequest, match="LSP framing"):
        dialect_of(first)


@check_each("first", [b"CONNECT ", b"COPY", b"GET / HTTP/1.1", b"Contents /"])
def test_other_words_in_capitals_are_http(first):
    assert dialect_of(first) is HTTP


def test_no_two_dialects_have_the_same_first_byte():
    first = [byte for dialect in DIALECTS for byte in dialect.first_bytes]
    assert len(first) == len(set(first))
