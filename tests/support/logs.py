"""Log lines of a test, and logging as it was before."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from stowhand.observe.logs import configure_logging

LOGGERS = (None, "stowhand", "psycopg", "psycopg.pool", "asyncio")  # whose levels are configured


@contextmanager
def logging_restored() -> Iterator[None]:
    """Logging is global: what is configured in the block must not reach the next test."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers


@contextmanager
def lines_of(level: str, fmt: str) -> Iterator[io.StringIO]:
    """Everything that is logged in the block."""
    with logging_restored():
        stream = io.StringIO()
        configure_logging(level, fmt, stream)
        yield stream
