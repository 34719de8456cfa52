"""Read members of untrusted JSON: the value if it has the right type, else the empty value of it. Never raises."""

from __future__ import annotations

from typing import Any

# Larger counts are nonsense, and their sum could not be written as JSON.
_MAX_COUNT = 2**53


def text(item: Any, *path: str) -> str:
    """The string at `path`, else the empty one."""
    value = member(item, *path)
    return value if isinstance(value, str) else ""


def table(item: Any, *path: str) -> dict[str, Any]:
    """The object at `path`, else an empty one."""
    value = member(item, *path)
    return value if isinstance(value, dict) else {}


def array(item: Any, *path: str) -> list[Any]:
    """The array at `path`, else an empty one."""
    value = member(item, *path)
    return value if isinstance(value, list) else []


def count(item: Any, *path: str) -> int:
    """The count at `path`: a whole number from 0 to 2**53, else 0."""
    value = member(item, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else 0


def amount(item: Any, *path: str) -> float | None:
    """The number at `path` (a cost in US dollars), None where there is none."""
    value = member(item, *path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_COUNT:
        return None
    return float(value)


def member(item: Any, *path: str) -> Any:
    """The value at `path`; None if there is none."""
    for name in path:
        if not isinstance(item, dict):
            return None
        item = item.get(name)
    return item


def usage(*, input: int, output: int, cache_read: int, cache_write: int, cost: float | None = None) -> dict[str, Any]:
    """A usage in pi's shape. `input` does not include cached tokens. Source: store.md, "Messages"."""
    counts: dict[str, Any] = {
        "input": input,
        "output": output,
        "cacheRead": cache_read,
        "cacheWrite": cache_write,
        "totalTokens": input + output + cache_read + cache_write,
    }
    return counts if cost is None else {**counts, "cost": {"total": cost}}
