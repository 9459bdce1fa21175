"""The correlation id of a log line: of the job in whose execution it was written. Our own lines have it anyway.

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
    """Sets ``record.correlation_id``, for handlers of your own; lets every line through.

    ``default``: for a line that belongs to no job. Add it to the handler, not to a logger, whose filters
    do not see what the loggers below it write. On a ``QueueHandler`` it keeps the id for the thread that writes later.
    """

    def __init__(self, default: str | None = None) -> None:
        super().__init__()
        self._default = default

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the correlation id unless the record has one. Returns True for every record."""
        correlation_id = correlation_of(record)
        if correlation_id is None:
            correlation_id = self._default
        elif isinstance(correlation_id, str):
            correlation_id = escape(correlation_id)  # the enqueuer chose the text; it must not break the line
        setattr(record, CORRELATION_FIELD, correlation_id)
        return True


def correlation_of(record: logging.LogRecord) -> object:
    """Return the record's id, or the id bound here; ``None`` if the record belongs to no job."""
    own: object = getattr(record, CORRELATION_FIELD, None)
    return current_correlation_id() if own is None else own
