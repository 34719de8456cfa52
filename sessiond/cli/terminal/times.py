"""Format times, durations and quantities in few characters. Uses the local time zone; the current time is passed in."""

from __future__ import annotations

import time

_STEPS = ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h"), (86_400 * 60, 86_400, "d"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def moment_in(text: object) -> int | None:
    """An ISO 8601 time as milliseconds since 1970; None if it is not one."""
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def ago(moment_ms: int | None, present_ms: int) -> str:
    """How long ago, as `now`, `40s`, `3m`, `5h`, `12d`, and a date from two months on."""
    if moment_ms is None:
        return ""
    seconds = (present_ms - moment_ms) // 1000
    if seconds < 5:
        return "now" if seconds > -60 else _date(moment_ms)
    for limit, unit, letter in _STEPS:
        if seconds < limit:
            return f"{seconds // unit}{letter}"
    return _date(moment_ms)


def ago_in_words(moment_ms: int | None, present_ms: int) -> str:
    """As `ago`, for a sentence: `now`, `40s ago`, and a date from two months on."""
    when = ago(moment_ms, present_ms)
    return f"{when} ago" if when[-1:] in ("s", "m", "h", "d") else when


def clock(moment_ms: int | None, present_ms: int) -> str:
    """The local time `09:31:05`, with the date unless it is today."""
    if moment_ms is None:
        return "--:--:--"
    local = _local(moment_ms)
    today = _local(present_ms)
    return time.strftime("%H:%M:%S" if local[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", local)


def duration(length_ms: float | None) -> str:
    """`0.4s`, `12s`, `3m 04s`, `2h 05m`, `4d 03h`."""
    if length_ms is None:
        return ""
    if length_ms < 10_000:
        return f"{length_ms / 1000:.1f}s"
    seconds = int(length_ms // 1000)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d {seconds % 86_400 // 3600:02d}h"


def quantity(number: int | None) -> str:
    """`950`, `12.3k`, `4.1M`."""
    if number is None:
        return ""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


def size(byte_count: int) -> str:
    """`812 B`, `4.0 KiB`, `1.2 MiB`."""
    amount = float(byte_count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def _local(moment_ms: int) -> time.struct_time:
    try:
        return time.localtime(moment_ms / 1000)
    except (OverflowError, OSError, ValueError):  # other programs may write any number
        return time.localtime(0)


def _date(moment_ms: int) -> str:
    return time.strftime("%Y-%m-%d", _local(moment_ms))
