"""The destination and format of log lines. Only this package uses ``logging``.

Text:  ``[job(worker-1: hello{1})] INFO: Hello, Bobby Tables``
JSON:  ``{"time": …, "level": "info", "scope": "job", "worker": "worker-1", "task": "hello", "job_id": 1, …}``

A line that is written while a correlation id is bound contains it: ``(correlation_id=…)``, ``"correlation_id": …``.
With OpenTelemetry, JSON lines have ``trace_id`` and ``span_id``; lines of the format ``traced`` have ``trace_id``.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import msgspec

from stowhand.clock import wall_clock
from stowhand.jobs.lease import JobId
from stowhand.observe.attempt_context import current_attempt, current_span_ids
from stowhand.observe.correlation import CORRELATION_FIELD, correlation_of
from stowhand.observe.safe_text import escape, escape_lines, redact, scrub

ROOT_LOGGER_NAME = "stowhand"
LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
LOG_ENTRY_LIMIT = 64 * 1024
"""Maximum length of a message."""
_LEVEL_COLORS = {
    "DEBUG": "\x1b[2m",
    "INFO": "\x1b[36m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[31m",
}
_COLOR_RESET = "\x1b[0m"
_VERBOSE_LIBRARIES = ("asyncio",)
"""Libraries whose info lines are not shown."""
_DRIVER_LOGGERS = ("psycopg", "psycopg.pool")
"""Loggers of the database driver. Errors and events of Stowhand report its failures. Its warnings are not shown."""


class Scope(msgspec.Struct, frozen=True):
    """Source of a log line."""

    label: str
    worker: str | None = None
    task: str | None = None
    job_id: JobId | None = None
    extra: Mapping[str, Any] = {}
    attempt: int | None = None

    def __str__(self) -> str:
        if self.worker is None:
            return self.label
        if self.job_id is None:
            return f"{self.label}({escape(self.worker)})"
        return f"{self.label}({escape(self.worker)}: {escape(self.task or '')}{{{escape(str(self.job_id))}}})"


def configure_logging(level: str = "info", fmt: str = "text", stream: TextIO | None = None) -> None:
    """Send log lines to ``stream`` (stderr), and remove other handlers that write there.

    For processes of the command line; an embedding program configures logging itself.

    ``fmt``: ``text``, ``timed`` (text with the UTC time), ``traced`` (text with trace ids), or ``json``. On a terminal
    text starts with the time of day.
    """
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    if fmt == "json":
        handler.setFormatter(JsonLines())
    else:
        prefix = _timestamp if fmt == "timed" else _prefix_on(target)
        handler.setFormatter(TextLines(color=wants_color(target), traced=fmt == "traced", prefix=prefix))
    _take_over(handler)
    logging.getLogger().setLevel(max(LOG_LEVELS[level], logging.INFO))
    logging.getLogger(ROOT_LOGGER_NAME).setLevel(LOG_LEVELS[level])
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else max(LOG_LEVELS[level], logging.WARNING))
    for name in _DRIVER_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else max(LOG_LEVELS[level], logging.ERROR))


@contextmanager
def logging_restored() -> Iterator[None]:
    """Restore the settings of ``configure_logging`` after a block in which a library such as Django sets up logging."""
    levels = [(logger, logger.level) for logger in _loggers() if logger is logging.root or _is_ours(logger)]
    stream_handlers = (handler for handler in logging.root.handlers if isinstance(handler, logging.StreamHandler))
    handler = next((handler for handler in stream_handlers if _writes_our_lines(handler)), None)
    try:
        yield
    finally:
        if handler is not None:
            for logger, level in levels:
                logger.setLevel(level)
                logger.disabled = False
            _take_over(handler)


def configure_unless_configured() -> None:
    """Send lines of Stowhand and errors of the database driver to stderr unless the program has configured logging.

    Without a handler of its own, Python prints the driver's lines as bare text.
    """
    own_logger = logging.getLogger(ROOT_LOGGER_NAME)
    if own_logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines(color=wants_color(sys.stderr), prefix=_prefix_on(sys.stderr)))
    own_logger.addHandler(handler)
    own_logger.setLevel(logging.DEBUG if is_debugging() else logging.INFO)
    driver = logging.getLogger("psycopg")
    driver.addHandler(handler)
    driver.setLevel(logging.INFO if is_debugging() else logging.ERROR)


def wants_color(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colors enabled (no NO_COLOR, no TERM=dumb)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def logger_of(label: str) -> logging.Logger:
    """Return the logger of a label: ``stowhand.core``, ``stowhand.worker``, ``stowhand.job``."""
    return logging.getLogger(f"{ROOT_LOGGER_NAME}.{label}")


def is_debugging() -> bool:
    """Return whether tracebacks are shown."""
    if os.environ.get("STOWHAND_DEBUG", "") not in ("", "0"):
        return True
    return logging.getLogger(ROOT_LOGGER_NAME).isEnabledFor(logging.DEBUG)


class TextLines(logging.Formatter):
    """Formatter of text lines. Further lines of a message are indented.

    ``prefix`` returns the start of each line; ``traced`` adds the trace id.
    """

    def __init__(self, *, color: bool = False, traced: bool = False, prefix: Callable[[], str] = str) -> None:
        super().__init__()
        self._color = color
        self._traced = traced
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        scope = getattr(record, "scope", None)
        origin = str(scope) if scope is not None else escape(record.name)
        level = (
            f"{_LEVEL_COLORS.get(record.levelname, '')}{record.levelname}{_COLOR_RESET}"
            if self._color
            else record.levelname
        )
        first, *further = escape_lines(_message(record).rstrip("\n")).split("\n")
        line = "\n".join([f"{self._prefix()}[{origin}] {level}: {first}{self._pairs(record)}", *further])
        if trace := _trace(record) or (is_debugging() and getattr(record, "traceback", None)):
            line += "\n    " + escape_lines(trace)
        return scrub(line)

    def _pairs(self, record: logging.LogRecord) -> str:
        """Return the fields after the message, in parentheses."""
        origin = _origin(record)
        names = (CORRELATION_FIELD, "trace_id") if self._traced else (CORRELATION_FIELD,)
        pairs = [*_meta(record).items(), *((name, origin[name]) for name in names if name in origin)]
        if not pairs:
            return ""
        return " (" + ", ".join(f"{escape(str(name))}={escape(_text_of(value))}" for name, value in pairs) + ")"


def _timestamp() -> str:
    """Return the UTC time: ``2030-01-31 09:00:00.000Z ``."""
    return f"{wall_clock().isoformat(sep=' ', timespec='milliseconds').removesuffix('+00:00')}Z "


def _time_of_day() -> str:
    """Return the local time of day: ``10:00:00 ``."""
    return f"{wall_clock().astimezone():%H:%M:%S} "


def _prefix_on(stream: TextIO) -> Callable[[], str]:
    """Return a function that returns the prefix of a line: the time on a terminal, since journals add their own."""
    return _time_of_day if stream.isatty() else str


class JsonLines(logging.Formatter):
    """Formatter of JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"time": wall_clock().isoformat(), "level": record.levelname.lower()}
        scope = getattr(record, "scope", None)
        if scope is None:
            entry["scope"] = record.name
        else:
            names = {"scope": scope.label, "worker": scope.worker, "task": scope.task, "job_id": scope.job_id}
            entry |= {name: value for name, value in names.items() if value is not None}
        entry |= {name: value for name, value in _attempt_fields(scope).items() if value is not None}
        entry |= _origin(record)
        entry["message"] = _message(record)
        entry |= getattr(record, "facts", {})
        if meta := _meta(record):
            entry["meta"] = meta
        if trace := _trace(record) or getattr(record, "traceback", None):
            entry["trace"] = trace
        return _encode(entry)


def _take_over(handler: logging.StreamHandler[TextIO]) -> None:
    """Add the handler to the root logger, and remove other handlers of its lines that write to the same stream."""
    for logger in _loggers():
        if not _reaches_root(logger):
            continue
        for other in logger.handlers[:]:
            has_same_stream = isinstance(other, logging.StreamHandler) and other.stream is handler.stream
            if has_same_stream or (logger is logging.root and _writes_our_lines(other)):
                logger.removeHandler(other)
    logging.root.addHandler(handler)


def _loggers() -> list[logging.Logger]:
    named_loggers = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(logger for logger in named_loggers if isinstance(logger, logging.Logger))]


def _is_ours(logger: logging.Logger) -> bool:
    return logger.name.partition(".")[0] == ROOT_LOGGER_NAME


def _writes_our_lines(handler: logging.Handler) -> bool:
    return isinstance(handler.formatter, TextLines | JsonLines)


def _reaches_root(logger: logging.Logger) -> bool:
    ancestor: logging.Logger | None = logger
    while ancestor is not None and ancestor.propagate:
        ancestor = ancestor.parent
    return ancestor is None or ancestor is logging.root


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return text if len(text) <= LOG_ENTRY_LIMIT else text[:LOG_ENTRY_LIMIT] + "[...]"


def _meta(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record: those of its scope, then those of the call."""
    scope = getattr(record, "scope", None)
    meta: dict[str, Any] = redact({**(scope.extra if scope is not None else {}), **getattr(record, "meta", {})})
    return meta


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip()


def _attempt_fields(scope: Scope | None) -> dict[str, Any]:
    """Return the fields of the current attempt that the scope does not contain."""
    context = current_attempt()
    if scope is None or scope.job_id is None:
        return {"task": context.task, "job_id": context.job_id, "attempt": context.attempt}
    return {"attempt": context.attempt if scope.attempt is None and context.job_id == scope.job_id else scope.attempt}


def _origin(record: logging.LogRecord) -> dict[str, object]:
    """Return the correlation id and the ids of the span."""
    ids, correlation_id = current_span_ids(), correlation_of(record)
    if correlation_id is None and ids is not None:
        correlation_id = ids.correlation_id
    fields: dict[str, object] = {} if correlation_id is None else {CORRELATION_FIELD: correlation_id}
    return fields if ids is None else fields | {"trace_id": ids.trace_id, "span_id": ids.span_id}


def _encode(entry: dict[str, Any]) -> str:
    """Return the entry as one line: strings of JSON contain no line breaks."""
    try:
        # Redact first: the escapes of JSON could hide a password from the patterns.
        raw = msgspec.json.encode({name: redact(value) for name, value in entry.items()}, enc_hook=str)
    except Exception:  # noqa: BLE001  boundary: a logged value must not end the task; it is written as text
        raw = msgspec.json.encode({name: scrub(_text_of(value)) for name, value in entry.items()})
    return raw.decode()


def _text_of(value: object) -> str:
    """Return ``str(value)``, or a substitute if that raises, without lone surrogates."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001  boundary: a logged value must not end the task
        text = f"<{type(value).__name__}: str() raised {type(error).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()
