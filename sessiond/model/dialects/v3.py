"""The dialect of our own transcripts, which is pi's: session files of version 3. Source: store.md, "Record types"."""

from __future__ import annotations

import re

import msgspec

from sessiond.model.dialects.dialect import TranscriptDialect
from sessiond.model.fold import FOLD_VERSION, fold, ineffective_reason, used_item
from sessiond.model.lax import decoder_of, mend_surrogates
from sessiond.model.message import text_of
from sessiond.model.record import decode_block, parse

_LINE = b'\n{"type":"'
_MESSAGE_LINE = b'\n{"type":"message",'
# The beginning of a message as this program and pi write it, up to its role. Messages of the hidden role (`system`) are
# not counted.
_MESSAGE_HEAD = re.compile(
    rb'\n\{"type":"message","id":"[^"\\]*","parentId":(?:null|"[^"\\]*"),"timestamp":"[^"\\]*",'
    rb'"message":\{"role":"(?!system")[^"\\]*"'
)


class _LineHead(msgspec.Struct, frozen=True, gc=False):
    # A line of which this is something else is no message, and is not decoded to see that.
    type: str = ""
    message: msgspec.Raw = msgspec.Raw(b"null")


_decode_head = decoder_of(_LineHead).decode


def _text_in(line: bytes) -> str:
    try:
        head = _decode_head(mend_surrogates(line))
        # Text blocks are separated by newlines, so that no match spans two of them.
        return text_of(head.message, "\n") if head.type == "message" else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _count_messages(lines: bytes) -> int | None:
    """The number of messages, counted without parsing; None if some line is not formatted as this program and pi do."""
    text = b"\n" + lines[:-1]
    messages = len(_MESSAGE_HEAD.findall(text))
    plain = text.count(_LINE) == text.count(b"\n") and text.count(_MESSAGE_LINE) == messages
    return messages if plain else None


DIALECT = TranscriptDialect(
    name="v3",
    parse=parse,
    fold=fold,
    fold_version=FOLD_VERSION,
    ineffective_reason=ineffective_reason,
    text_in=_text_in,
    decode_block=decode_block,
    count_messages=_count_messages,
    used_item=used_item,
    usage_sign=b'"usage"',
    usage_signs=(b'"usage"', b"sessiond/run", b"sessiond/entry", b"model_change"),
)
