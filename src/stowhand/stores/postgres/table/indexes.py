"""Which indexes hold what waits, and not what is over: those by which a claim may walk in order."""

from __future__ import annotations

from typing import Any

from stowhand.jobs.job import State
from stowhand.stores.postgres.table.catalog import Facts, Index
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


def waiting_indexes(facts: Facts, shape: Shape, options: TableOptions[Any]) -> list[str]:
    """Their names. Whether one gives the order of claims too, a plan says (claiming.py)."""
    state, retries = shape.columns["state"], options.max_num_retries > 0
    return [index.name for index in facts.indexes if index.valid and _waits(index, state, retries)]


def _waits(index: Index, state: str, retries: bool) -> bool:
    if index.predicate is None or state not in index.predicate:
        # A column of its own gives the order of one state alone.
        return bool(index.columns) and index.columns[0] == state and not retries
    named = {one for one in State if f"'{one}'" in index.predicate}
    return State.QUEUED in named and named <= {State.QUEUED, State.ERRORED}
