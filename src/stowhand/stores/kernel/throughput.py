"""Counts of ended attempts and jobs, by time and task."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from stowhand.protocols.throughput import HOUR_SECONDS, MINUTE_SECONDS
from stowhand.stores.kernel.question import Engine, Query, Question
from stowhand.stores.periods import Row

_THROUGHPUT_ROWS = """
SELECT begins, task, CAST(tally AS text) FROM {%s}
WHERE seconds = :seconds AND begins > :since AND begins < :until
"""
_EARLIEST_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""No job ended before this time."""
_counts_decoder = msgspec.json.Decoder(dict[str, int])


def read_throughput(
    engine: Engine, since: datetime, until: datetime, task: str | None, *, by_task: bool
) -> Question[list[Row]]:
    """Return the rows that overlap the period from ``since`` until ``until``. ``task``: ``None`` means any task."""
    source = "throughput" if by_task or task is not None else "total_throughput"
    text = _THROUGHPUT_ROWS % source + ("" if task is None else "AND task = :task")
    rows: list[Row] = []
    for seconds in (HOUR_SECONDS, MINUTE_SECONDS):
        after = max(since, _EARLIEST_TIME) - timedelta(seconds=seconds)
        values = {"seconds": seconds, "since": after, "until": until, "task": task}
        for begins, name, counts in (yield Query(text, values)):
            rows.append((seconds, int(engine.read_moment(begins).timestamp()), name, _counts_decoder.decode(counts)))
    return rows
