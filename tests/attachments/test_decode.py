"""Every check before a byte is written: error codes and fields, limits on both sides, strict base64, and the order."""

from __future__ import annotations

import base64
import binascii
import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.attachments.decode import Attachment, Encoding, PreparedFile, PreparedFiles, decoded_size, prepare
from sessiond.config.settings import AttachmentsConfig
from sessiond.errors import Forbidden, InvalidParams, LimitExceeded, SessiondError

DEFAULTS = AttachmentsConfig()
CONTENT = "$.attachments[0].content"


@dataclass(frozen=True)
class Binary:
    """An attachment as decoded from CBOR, whose content may be bytes."""

    name: str
    content: str | bytes
    encoding: Encoding | None = None
    mime_type: str | None = None


def text(name: str = "a", content: str = "x", **more: Any) -> Attachment:
    return Attachment(name=name, content=content, **more)


def b64(content: str, name: str = "a") -> Attachment:
    return Attachment(name=name, content=content, encoding="base64")


def refusal(items: list[Attachment], config: AttachmentsConfig = DEFAULTS) -> tuple[type, str | None, dict[str, Any]]:
    with pytest.raises(SessiondError) as caught:
        prepare(items, config)
    return type(caught.value), caught.value.code, caught.value.data


def test_valid_attachments_are_decoded_in_their_order() -> None:
    items: list[Attachment | Binary] = [
        text("a.txt", "héllo", mime_type="text/plain; charset=utf-8"),
        text("b", "", encoding="utf8"),
        b64("AAECAw==", "c"),
        b64("", "d"),
        Binary("e", b"\xff\x00"),
        Binary("f", b"QQ==", "base64"),
    ]
    assert prepare(items, DEFAULTS) == PreparedFiles(
        (
            PreparedFile("a.txt", "héllo".encode(), "text/plain; charset=utf-8"),
            PreparedFile("b", b""),
            PreparedFile("c", b"\0\x01\x02\x03"),
            PreparedFile("d", b""),
            PreparedFile("e", b"\xff\x00"),
            PreparedFile("f", b"QQ=="),
        )
    )


def test_an_empty_list_is_accepted_even_where_attachments_are_disabled() -> None:
    assert prepare([], AttachmentsConfig(enabled=False)) == PreparedFiles()


def test_unknown_fields_and_wrong_types_are_refused_on_the_wire() -> None:
    convert = msgspec.json.Decoder(list[Attachment]).decode
    assert convert('[{"name":"a","content":"x","encoding":"base64","mimeType":"t/p"}]') == [
        Attachment(name="a", content="x", encoding="base64", mime_type="t/p")
    ]
    for wrong in ('{"name":"a"}', '{"name":"a","content":1}', '{"name":"a","content":"","encoding":"hex"}',
                  '{"name":"a","content":"","path":"/"}', '{"name":1,"content":""}'):  # fmt: skip
        with pytest.raises(msgspec.ValidationError):
            convert(f"[{wrong}]")


def test_attachments_are_forbidden_where_they_are_disabled() -> None:
    assert refusal([text()], AttachmentsConfig(enabled=False)) == (Forbidden, "attachments_disabled", {})


@check_each("max_files", [0, 1, 50])
def test_as_many_files_as_the_limit_are_accepted_and_one_more_is_refused(max_files: int) -> None:
    config = AttachmentsConfig(max_files=max_files)
    items = [text(f"f{i}") for i in range(max_files + 1)]
    assert len(prepare(items[:-1], config).files) == max_files
    assert refusal(items, config) == (
        LimitExceeded,
        "attachments_file_count_exceeded",
        {
            "field": "$.attachments",
            "limit": "tools.sessions_spawn.attachments.maxFiles",
            "value": max_files,
            "actual": max_files + 1,
        },
    )


@check_each("size", [0, 1, 2, 3, 1_048_576])
@check_each("form", ["utf8", "base64", "bytes"])
def test_a_file_of_the_size_limit_is_accepted_and_one_byte_more_is_refused(size: int, form: str) -> None:
    def item(data: bytes) -> Binary:
        match form:
            case "utf8":
                return Binary("a", data.decode())
            case "base64":
                return Binary("a", base64.b64encode(data).decode(), "base64")
            case _:
                return Binary("a", data)

    config = AttachmentsConfig(max_file_bytes=size)
    assert prepare([item(b"x" * size)], config).total_bytes == size
    with pytest.raises(LimitExceeded) as caught:
        prepare([item(b"x" * (size + 1))], config)
    assert (caught.value.code, caught.value.data) == (
        "attachments_file_bytes_exceeded",
        {
            "field": CONTENT,
            "limit": "tools.sessions_spawn.attachments.maxFileBytes",
            "value": size,
            "actual": size + 1,
        },
    )


def test_the_size_of_a_file_is_counted_in_bytes_and_not_in_characters() -> None:
    config = AttachmentsConfig(max_file_bytes=3)
    assert prepare([text(content="é1")], config).total_bytes == 3
    assert refusal([text(content="éé")], config)[1] == "attachments_file_bytes_exceeded"


@pytest.mark.parametrize(("limit", "code"), [("max_file_bytes", "file_bytes"), ("max_total_bytes", "total_bytes")])
def test_text_within_the_byte_limits_is_accepted_and_beyond_refused(limit: str, code: str) -> None:
    """Text whose character count alone leaves open whether it is within the limit."""
    config = AttachmentsConfig(**{limit: 6})
    assert prepare([text("a", "äöü")], config).total_bytes == 6
    assert refusal([text("a", "äöüx")], config)[1] == f"attachments_{code}_exceeded"


def test_a_total_of_the_limit_is_accepted_and_one_byte_more_is_refused() -> None:
    config = AttachmentsConfig(max_total_bytes=10)
    assert prepare([text("a", "x" * 5), b64("AAAAAAA=", "b")], config).total_bytes == 10
    assert refusal([text("a", "x" * 5), b64("AAAAAAAA", "b")], config) == (
        LimitExceeded,
        "attachments_total_bytes_exceeded",
        {
            "field": "$.attachments",
            "limit": "tools.sessions_spawn.attachments.maxTotalBytes",
            "value": 10,
            "actual": 11,
        },
    )


def test_the_default_limits_are_the_documented_ones() -> None:
    five = [b64("A" * 1_398_100 + "AA==", f"f{i}") for i in range(5)]
    assert prepare(five, DEFAULTS).total_bytes == 5_242_880
    assert refusal([*five, text("one")])[1] == "attachments_total_bytes_exceeded"


REFUSED_BASE64 = {
    "A": "its length is no multiple of four: padding is missing",
    "AA": "its length is no multiple of four: padding is missing",
    "AAA": "its length is no multiple of four: padding is missing",
    "AAAAA": "its length is no multiple of four: padding is missing",
    "AA=": "its length is no multiple of four: padding is missing",
    "=": "its length is no multiple of four: padding is missing",
    "==": "its length is no multiple of four: padding is missing",
    "AAAA==": "its length is no multiple of four: padding is missing",
    "AB==": "the bits after its last byte are not zero",
    "AAAAAP==": "the bits after its last byte are not zero",
    "AAB=": "the bits after its last byte are not zero",
    "AAD=": "the bits after its last byte are not zero",
    "====": "it holds a character outside the standard alphabet",
    "A===": "it holds a character outside the standard alphabet",
    "=AAA": "it holds a character outside the standard alphabet",
    "AA=A": "it holds a character outside the standard alphabet",
    "AA==AAAA": "it holds a character outside the standard alphabet",
    "AAA=AAAA": "it holds a character outside the standard alphabet",
    "AAAA\n": "it holds a character outside the standard alphabet",
    "AAA\n": "it holds a character outside the standard alphabet",
    " AAA": "it holds a character outside the standard alphabet",
    "AA A": "it holds a character outside the standard alphabet",
    "AA\t=": "it holds a character outside the standard alphabet",
    "-_-_": "it holds a character outside the standard alphabet",
    "AAA-": "it holds a character outside the standard alphabet",
    "AAA\0": "it holds a character outside the standard alphabet",
    "AAAé": "it holds a character outside the standard alphabet",
    "AAA\uff21": "it holds a character outside the standard alphabet",
    "\ud800AAA": "it holds a character outside the standard alphabet",
    "data:;base64,AAAA": "it holds a character outside the standard alphabet",
}


@check_each("content", REFUSED_BASE64)
def test_anything_but_strict_base64_is_refused_with_the_reason(content: str) -> None:
    assert refusal([b64(content)]) == (
        InvalidParams,
        "attachments_invalid_base64",
        {"field": CONTENT, "reason": REFUSED_BASE64[content]},
    )


@given(st.binary(max_size=400))
def test_base64_is_decoded_to_the_original_bytes(data: bytes) -> None:
    content = base64.b64encode(data).decode()
    assert decoded_size(content, CONTENT) == len(data)
    assert prepare([b64(content)], DEFAULTS).files[0].data == data


@given(st.text(st.sampled_from("AZaz09+/=-_ \n\u0660Qw"), max_size=12))
@example("AA==")
@example("AAE=")
def test_only_the_canonical_base64_of_some_bytes_is_accepted(content: str) -> None:
    try:
        size = decoded_size(content, CONTENT)
    except InvalidParams:
        with pytest.raises((binascii.Error, ValueError, AssertionError)):
            assert base64.b64encode(binascii.a2b_base64(content, strict_mode=True)).decode() == content
    else:
        data = prepare([b64(content)], DEFAULTS).files[0].data
        assert (len(data), base64.b64encode(data).decode()) == (size, content)


def test_too_long_content_is_refused_before_it_is_decoded() -> None:
    large = "A" * 4_194_304
    items = [b64(large, f"f{i}") for i in range(20)]  # 60 MiB when decoded
    tracemalloc.start()
    try:
        assert refusal(items)[1] == "attachments_file_bytes_exceeded"
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_text_with_a_lone_surrogate_is_refused() -> None:
    assert refusal([text(content="a\ud800")]) == (InvalidParams, "attachments_invalid_content", {"field": CONTENT})


@check_each("mime_type", ["text/plain", "x", "x" * 255, "text/plain; charset=utf-8"])
def test_a_printable_mime_type_is_kept(mime_type: str) -> None:
    assert prepare([text(mime_type=mime_type)], DEFAULTS).files[0].mime_type == mime_type


@check_each("mime_type", ["", "x" * 256, "text/plain\r\nX: y", "tëxt/plain", "\0", "\ud800"])
def test_any_other_mime_type_is_refused(mime_type: str) -> None:
    assert refusal([text(mime_type=mime_type)]) == (
        InvalidParams,
        "attachments_invalid_mime_type",
        {"field": "$.attachments[0].mimeType"},
    )


def test_the_field_of_an_error_counts_attachments_from_zero() -> None:
    assert refusal([text("a"), text("b"), text("c/")])[2]["field"] == "$.attachments[2].name"
    assert refusal([text("a"), b64("!", "b")])[2]["field"] == "$.attachments[1].content"


def test_of_several_faults_the_first_in_the_documented_order_is_reported() -> None:
    """Each step removes the first fault; the next refusal is the next one in the documented list."""
    config = AttachmentsConfig(enabled=False, max_files=2, max_file_bytes=3, max_total_bytes=5)
    steps = [
        [text("/"), text("b"), text("B"), b64("!", "d"), text("e", "xxxx")],
        [text("b"), text("B"), b64("!", "d"), text("e", "xxxx")],
        [text("b"), b64("!", "d"), text("e", "xxxx")],
        [text("b"), b64("AAAA", "d"), text("e", "xxxx")],
        [b64("AAAA", "d"), text("e", "xxxx")],
        [b64("AAAA", "d"), text("e", "xxx")],
        [text("e", "xxx")],
    ]
    assert [refusal(items, config)[1] for items in steps] == [
        "attachments_invalid_name",
        "attachments_duplicate_name",
        "attachments_invalid_base64",
        "attachments_file_count_exceeded",
        "attachments_file_bytes_exceeded",
        "attachments_total_bytes_exceeded",
        "attachments_disabled",
    ]
