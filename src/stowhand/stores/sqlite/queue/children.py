"""Ends of child jobs, which are recorded as steps of their parents (protocols/workflows.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

NO_RESULT = "null"
"""The value of a child that has completed without a result."""


class End(NamedTuple):
    """The end of a job: a value or an error."""

    job_id: int
    value: str | None = None
    """The result as JSON text."""
    error: str | None = None


def record_ends(tx: Transaction, ends: Sequence[End]) -> None:
    """Record the ends of those jobs that are children. The last child of a step wakes the parent.

    Call it before the rows of ended jobs are deleted. An end that is recorded already is not counted again.
    """
    if not ends:
        return
    values = as_json(ends)
    rows = tx.rows("record_ends", ends=values)
    for (parent_id, step), count in Counter(rows).items():
        counted = tx.row("count_ends", id=parent_id, step=step, ended=count)
        if counted == (0,):
            tx.run("wake_parent", id=parent_id, step=step)
    if len(rows) < len(ends):
        for end in ends:
            if end.value is not None:
                tx.run("record_late_value", id=end.job_id, value=end.value)
