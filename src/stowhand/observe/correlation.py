"""The correlation id of log lines: the id of the job whose execution writes them. Lines of Stowhand always contain it.

handler = logging.StreamHandler()
handler.addFilter(CorrelationFilter("-"))
handler.setFormatter(logging.Formatter("%(asctime)s [%(correlation_id)s] %(message)s"))
"""

from __future__ import annotations

import logging

from stowhand.observe.propagation import current_correlation_id
from stowhand.observe.safe_text import escape

CORRELATION_FIELD = "correlation_id"


class CorrelationFilter(logging.Filter):
    """Filter that sets ``record.correlation_id`` for your own handlers. It accepts every record.

    ``default``: value for a line that belongs to no job. Add the filter to a handler: the filters of a logger do not
    see records of the loggers below it. On a ``QueueHandler`` the filter keeps the id for the thread that writes later.
    """

    def __init__(self, default: str | None = None) -> None:
        super().__init__()
        self._default = default

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the correlation id unless the record has one. Return True for every record."""
        correlation_id = correlation_of(record)
        if correlation_id is None:
            correlation_id = self._default
        elif isinstance(correlation_id, str):
            correlation_id = escape(correlation_id)  # The producer chose the text; it must not break the line.
        setattr(record, CORRELATION_FIELD, correlation_id)
        return True


def correlation_of(record: logging.LogRecord) -> object:
    """Return the record's id, or the id bound here; ``None`` if the record belongs to no job."""
    record_id: object = getattr(record, CORRELATION_FIELD, None)
    return current_correlation_id() if record_id is None else record_id
