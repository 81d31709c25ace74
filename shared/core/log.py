"""Structured logs on standard error: one line per event, JSON when it is not a terminal.

The configuration lives here; modules call ``get_logger(__name__)`` and log nouns and facts, never secrets or payloads.
structlog is imported with the first line that is written: it costs a third of the start of a command, and most
commands write none.
"""

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from soong.shared.core.startup import drawing_stream
from soong.shared.core.texts import inert
from soong.shared.core.value import Value

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

Clean = Callable[[str], str]


class _LogSettings(Value):
    """The arguments of :func:`configure`, until structlog is there."""

    level: int
    process: str
    clean: Clean


class _Pending:
    """The settings that structlog has yet to be given; none when it has them, or when nobody gave any."""

    settings: _LogSettings | None = None


_pending: Final = _Pending()


class Logger:
    """Writes events of one module. Below the level of the process it does nothing."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def debug(self, event: str, **facts: object) -> None:
        self._write("debug", logging.DEBUG, event, facts)

    def info(self, event: str, **facts: object) -> None:
        self._write("info", logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write("warning", logging.WARNING, event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", logging.ERROR, event, facts)

    def critical(self, event: str, **facts: object) -> None:
        self._write("critical", logging.CRITICAL, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Write an error with the traceback of the exception that is being handled."""
        self._write("error", logging.ERROR, event, {"exc_info": True, **facts})

    def _write(self, method: str, level: int, event: str, facts: dict[str, object]) -> None:
        settings = _pending.settings
        if settings is not None and level < settings.level:
            return
        import structlog  # see above

        if settings is not None:
            _apply(settings)
        getattr(structlog.get_logger(module=self._module), method)(event, **facts)


def configure(level: str, *, process: str, clean: Clean = str) -> None:
    """Set up logging for a process named ``process`` (orchestrator, worker, cli). ``clean`` takes secrets out of every
    text before it is written, tracebacks among them (EVT-05).
    """
    _pending.settings = _LogSettings(logging.getLevelNamesMapping()[level.upper()], process, clean)
    if "structlog" in sys.modules:
        _apply(_pending.settings)


def get_logger(name: str) -> Logger:
    return Logger(name)


def _apply(settings: _LogSettings) -> None:
    import structlog

    is_shown = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cleaner(settings.clean),
            *(_for_terminals() if is_shown else (structlog.processors.JSONRenderer(),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        logger_factory=structlog.PrintLoggerFactory(drawing_stream(sys.stderr)),
    )
    structlog.contextvars.bind_contextvars(process=settings.process)
    _pending.settings = None


def _for_terminals() -> "tuple[Processor, ...]":
    """Return what writes an entry in colours, every text of it inert: the stream must not take the colours out."""
    import structlog

    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return _cleaner(inert), renderer


def _cleaner(clean: Clean) -> "Callable[[WrappedLogger, str, EventDict], EventDict]":
    def clean_all(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
        return {name: _cleaned(value, clean) for name, value in event.items()}

    return clean_all


def _cleaned(value: object, clean: Clean) -> object:
    """Return a field without secrets; a value that is neither text nor a plain collection is written as its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {clean(str(name)): _cleaned(item, clean) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned(item, clean) for item in value]
    return clean(value if isinstance(value, str) else repr(value))
