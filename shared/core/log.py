"""Structured logs on standard error: one line per event, JSON when it is not a terminal.

The configuration lives here; modules call ``get_logger(__name__)`` and log nouns and facts, never secrets or payloads.
"""

import logging
import sys
from collections.abc import Callable
from typing import cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from soong.shared.core.inert import inert
from soong.shared.core.terminal import drawing_stream

Clean = Callable[[str], str]


def configure(level: str, *, process: str, clean: Clean = str) -> None:
    """Set up logging for a process named ``process`` (orchestrator, worker, cli).

    ``clean`` takes secrets out of every text before it is written, tracebacks among them (EVT-05).
    """
    is_shown = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cleaner(clean),
            *(_for_terminals() if is_shown else (structlog.processors.JSONRenderer(),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(drawing_stream(sys.stderr)),
    )
    structlog.contextvars.bind_contextvars(process=process)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(module=name))


def _for_terminals() -> tuple[Processor, ...]:
    """Return what writes an entry in colours, every text of it inert: the stream must not take the colours out."""
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return _cleaner(inert), renderer


def _cleaner(clean: Clean) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    def clean_all(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {name: _cleaned(value, clean) for name, value in event.items()}

    return clean_all


def _cleaned(value: object, clean: Clean) -> object:
    """Return a field without secrets; what is neither text nor a plain collection is written as its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {clean(str(name)): _cleaned(item, clean) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned(item, clean) for item in value]
    return clean(value if isinstance(value, str) else repr(value))
