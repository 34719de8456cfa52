"""What every dialect of another program has in common: slower ways to what v3 does without parsing."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.model.dialects.dialect import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import FOREIGN_FOLD_VERSION, fold_foreign, used_foreign_item
from sessiond.model.message import text_of
from sessiond.model.message_list import fold_listed, messages_in
from sessiond.model.record import BadLine, LineEnvelope, Record


def foreign_dialect(
    name: str,
    parse: Callable[[bytes], Record],
    *,
    joins: bool = False,
    lists: bool = False,
    dates_copies: bool = False,
    usage_sign: bytes = b'"usage"',
    usage_signs: tuple[bytes, ...] = (),
) -> TranscriptDialect:
    """The dialect of a program of which only `parse` is special."""

    def text_in(line: bytes) -> str:
        try:
            record = parse(line)
        except BadLine:
            return ""
        return "\n".join(text_of(one.message, "\n") for one in messages_in(record) if one.message is not None)

    return TranscriptDialect(
        name=name,
        parse=parse,
        fold=fold_listed if lists else fold_foreign,
        fold_version=FOREIGN_FOLD_VERSION,
        ineffective_reason=_no_reason,
        text_in=text_in,
        decode_block=_decode_nothing,
        count_messages=_count_nothing,
        used_item=used_foreign_item,
        usage_sign=usage_sign,
        usage_signs=(usage_sign, *usage_signs),
        joins=joins,
        lists=lists,
        dates_copies=dates_copies,
    )


def _no_reason(_entry: Entry, _record: Record) -> None:
    return None


def _decode_nothing(_block: bytes | memoryview) -> list[LineEnvelope]:
    return []


def _count_nothing(_lines: bytes) -> None:
    return None
