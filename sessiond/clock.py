"""Time and ids, as values that are handed in, so that tests can hand in others."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall_ms()` is milliseconds since 1970; `monotonic()` is seconds for measuring durations."""

    wall_ms: Callable[[], int] = _wall_ms
    monotonic: Callable[[], float] = time.monotonic


def _uuid() -> str:
    return str(uuid.uuid4())


def _record_id() -> str:
    # pi uses 8 hex digits; with 100,000 records two of those collide about once, with 16 never.
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class Ids:
    """`uuid()` for sessions and deliveries, `record()` for transcript records (16 hex digits)."""

    uuid: Callable[[], str] = _uuid
    record: Callable[[], str] = _record_id


def iso_ms(wall_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds and Z, as record timestamps are written."""
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


def parse_iso_ms(text: str) -> int | None:
    """Milliseconds since 1970 of an ISO timestamp; None where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Not timestamp(): its float loses a millisecond now and then.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
