"""Structured logs on standard error: one line an event, JSON when it is no terminal.

The configuration lives here; modules call ``get_logger(__name__)`` and log nouns and facts, never secrets or payloads.
"""

import logging
import sys
from typing import cast

import structlog


def configure(level: str, *, process: str) -> None:
    """Set up logging for a process named ``process`` (orchestrator, worker, cli)."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(module=name))
