"""The daemon's log on stderr. It has ids and sizes, never message text. For journald: priorities, no times."""

from __future__ import annotations

import errno
import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from sessiond.daemon.notify import logs_to_journal
from sessiond.errors import lacks_memory, printable, reason_of

log = structlog.get_logger("sessiond")

_PRIORITY = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}


def _renderer(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    # The default prints local variables in tracebacks, and those hold message text.
    return structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )


_PLAIN = _renderer(colors=False)


def _escape(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """For people: what programs and other machines have named must not control their terminals."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _journal_line(_logger: Any, method: str, event: dict[str, Any]) -> str:
    text = str(_PLAIN(_logger, method, event))
    prefix = f"<{_PRIORITY.get(method, 6)}>"
    # For journald each line of a traceback is an entry of its own and needs a priority.
    return "\n".join(prefix + line for line in text.splitlines())


def configure(level: str, *, as_json: bool = False) -> None:
    """Log to stderr from `level` (debug, info, warning, error) on, as text or as one JSON object a line."""
    journal = logs_to_journal(sys.stderr)
    shared: list[Any] = [structlog.processors.add_log_level]
    if as_json:
        shared += [structlog.processors.TimeStamper(fmt="iso"), structlog.processors.format_exc_info]
        renderer: Any = structlog.processors.JSONRenderer()
    elif journal:
        shared.append(_escape)
        renderer = _journal_line
    else:
        shared += [structlog.processors.TimeStamper(fmt="%H:%M:%S"), _escape]
        renderer = _renderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


# Between two lines on a shortage, which every request of a flood may meet.
SHORTAGE_LINE_S = 60.0


class FaultLog:
    """Logs what no handler expected: each fault with its traceback, a shortage of memory or threads once a minute."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_line_s = -math.inf
        self._refused = 0

    def note(self, what: str, error: BaseException) -> None:
        """Log an exception of `what`, a method or a task."""
        if not lacks_memory(error):
            log.error("internal error", what=what, exc_info=error)
            return
        self._refused += 1
        now = self._monotonic()
        if now < self._next_line_s:
            return
        with suppress(MemoryError):
            log.warning(
                "no memory or no thread left for a request; it was refused",
                what=what,
                at=_innermost_line(error),
                reason=reason_of(error) if isinstance(error, OSError) else os.strerror(errno.ENOMEM),
                refused=self._refused,
            )
            self._next_line_s, self._refused = now + SHORTAGE_LINE_S, 0


def _innermost_line(error: BaseException) -> str:
    """Where it was raised, as `committer.py:80`: a traceback would take memory that is not there."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f"{at.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{at.tb_lineno}"
