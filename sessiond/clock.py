"""Time and ids, as objects that are passed in, so that tests can replace them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall_ms()` is milliseconds since 1970; `monotonic()` is seconds for measuring durations."""

    wall_ms: Callable[[], int] = _wall_ms
    monotonic: Callable[[], float] = time.monotonic


class _RandomWords:
    """Random texts of 16 hex digits, made many at a time.

    A send needs nine. With a system call for each, other threads got the interpreter lock nine times.
    """

    _AT_ONCE, _DIGITS = 512, 16

    def __init__(self) -> None:
        self._words: Iterator[str] = iter(())
        # A forked process must not use the same words as its parent.
        os.register_at_fork(after_in_child=self._forget)

    def take(self) -> str:
        # The iterator of a list gives each word once, also to several threads.
        while (word := next(self._words, None)) is None:
            text = os.urandom(self._AT_ONCE * self._DIGITS // 2).hex()
            self._words = iter([text[at : at + self._DIGITS] for at in range(0, len(text), self._DIGITS)])
        return word

    def _forget(self) -> None:
        self._words = iter(())


_RANDOM_WORDS = _RandomWords()
# RFC 9562, section 4.1: the digit of the variant is one of four.
_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def _uuid() -> str:
    one, other = _RANDOM_WORDS.take(), _RANDOM_WORDS.take()
    return f"{one[:8]}-{one[8:12]}-4{one[13:]}-{_VARIANTS[other[0]]}{other[1:4]}-{other[4:]}"


def _record_id() -> str:
    # pi uses 8 hex digits; with 100,000 records two of those collide about once, with 16 never.
    return _RANDOM_WORDS.take()


@dataclass(frozen=True, slots=True)
class Ids:
    """`uuid()` for sessions and deliveries, `record()` for transcript records (16 hex digits)."""

    uuid: Callable[[], str] = _uuid
    record: Callable[[], str] = _record_id


def iso_ms(wall_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds and Z, as record timestamps are written."""
    minute, rest = divmod(wall_ms, 60_000)
    second, millis = divmod(rest, 1000)
    # From tables: formatting the numbers took a seventh of a page of history.
    return f"{_minute_text(minute)}{_TWO_DIGITS[second]}{_MILLI_TEXTS[millis]}"


@lru_cache(maxsize=1024)
def _minute_text(minute: int) -> str:
    day, minute = divmod(minute, 1440)
    return f"{date.fromordinal(_EPOCH + day).isoformat()}T{_TWO_DIGITS[minute // 60]}:{_TWO_DIGITS[minute % 60]}:"


def parse_iso_ms(text: str) -> int | None:
    """Milliseconds since 1970 of an ISO timestamp; None if it is not one."""
    # As `iso_ms` writes them, which nearly all are: a third of the time.
    seconds, millis = _SECONDS.get(text[16:19]), _MILLIS.get(text[19:])
    if seconds is not None and millis is not None and text[13] == ":":
        minute = _parse(text[:16])
        return minute + seconds + millis if minute is not None else None
    return _parse(text)


def are_iso_ms(values: list[object]) -> bool:
    """Whether all of them are texts as `iso_ms` writes a time from 1970 on. A tenth of the time of parsing and
    formatting each.
    """
    texts = [value for value in values if type(value) is str]
    joined = "".join(texts)
    return (
        len(texts) == len(values)
        and joined.isascii()
        and joined.encode().translate(_DIGITS_AS_ZEROS) == _ISO_SHAPE * len(texts)
        and set(map(len, texts)) <= {len(_ISO_SHAPE)}
        and set(joined[_TENS_OF_SECONDS :: len(_ISO_SHAPE)]) <= set("012345")
        and all(map(_is_minute, {text[:16] for text in texts}))
    )


@lru_cache(maxsize=1024)
def _is_minute(text: str) -> bool:
    found = _parse(text)
    return found is not None and found >= 0 and _minute_text(found // 60_000) == f"{text}:"


_EPOCH = date(1970, 1, 1).toordinal()
_TWO_DIGITS = [f"{number:02d}" for number in range(60)]
_MILLI_TEXTS = [f".{milli:03d}Z" for milli in range(1000)]
_ISO_SHAPE, _TENS_OF_SECONDS = b"0000-00-00T00:00:00.000Z", 17
_DIGITS_AS_ZEROS = bytes.maketrans(b"0123456789", b"0000000000")
_SECONDS = {f":{second:02d}": second * 1000 for second in range(60)}
_MILLIS = {text: milli for milli, text in enumerate(_MILLI_TEXTS)}


@lru_cache(maxsize=1024)
def _parse(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Not timestamp(): its float loses a millisecond now and then.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
