"""The correlation id of a log line: of the job in whose execution it was written. Our own lines bear it by themselves.

handler = logging.StreamHandler()
handler.addFilter(CorrelationFilter("-"))
handler.setFormatter(logging.Formatter("%(asctime)s [%(correlation_id)s] %(message)s"))
"""

from __future__ import annotations

import logging

from stowhand.observe.safe_text import escape
from stowhand.protocols.correlation import current

FIELD = "correlation_id"


class CorrelationFilter(logging.Filter):
    """Sets ``record.correlation_id``, for handlers of your own; lets every line through.

    ``default``: what it says of a line that belongs to no job. Add it to the handler, not to a logger, whose filters
    do not see what the loggers below it write. On a ``QueueHandler`` it keeps the id for whoever writes the line later.
    """

    def __init__(self, default: str | None = None) -> None:
        super().__init__()
        self._default = default

    def filter(self, record: logging.LogRecord) -> bool:
        """Everything passes. An id that the record has already stays."""
        found = correlation_of(record)
        if found is None:
            found = self._default
        elif isinstance(found, str):
            found = escape(found)  # one line stays one line: whoever created the job has chosen the text
        setattr(record, FIELD, found)
        return True


def correlation_of(record: logging.LogRecord) -> object:
    """What the record says of itself, else the id that is bound here; ``None``: it belongs to no job."""
    said: object = getattr(record, FIELD, None)
    return current() if said is None else said
