"""The daemon's log on stderr. It has ids and sizes, never message text. For journald: priorities, no times."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from sessiond.daemon.notify import logs_to_journal

_PRIORITY = {"critical": 2, "error": 3, "exception": 3, "warning": 4, "info": 6, "debug": 7}


def _renderer(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    # The default prints local variables in tracebacks, and those hold message text.
    return structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )


_PLAIN = _renderer(colors=False)


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
        renderer = _journal_line
    else:
        shared.append(structlog.processors.TimeStamper(fmt="%H:%M:%S"))
        renderer = _renderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
