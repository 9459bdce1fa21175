"""Which column of a table may have been meant where a documented one is missing.

A worker writes over what stands there. So a name that is alike says too little: what is proposed has the type, is
filled by no default of the application's, and may be left empty where a worker empties it. All else is the user's data.
"""

from __future__ import annotations

import difflib

from stowhand.jobs.job import State
from stowhand.stores.postgres.table.catalog import Column, Facts
from stowhand.stores.postgres.table.column_types import type_findings
from stowhand.stores.postgres.table.fixes import Mender, default_of
from stowhand.stores.table.names import Shape

ALIKE = 0.8
"""Of difflib: ``num_reset`` for ``num_resets``; not ``created_at`` for ``started_at``."""
CALLED = {"state": ("status", "job_state", "job_status")}
"""Other names for the same."""


def meant(documented: str, facts: Facts, shape: Shape) -> str | None:
    """Its name; ``None``: there is none that a worker could be given."""
    own = shape.columns[documented]
    free = [name for name in facts.columns if name not in shape.columns.values()]
    near = [*difflib.get_close_matches(own, free, n=3, cutoff=ALIKE), *CALLED.get(documented, ())]
    return next((name for name in near if name in free and _could_be(documented, facts, shape, name)), None)


def _could_be(documented: str, facts: Facts, shape: Shape, name: str) -> bool:
    column = facts.columns[name]
    wrong = any(type_findings(documented, column, Mender(facts, shape), cancels=True))
    if wrong or column.generated or column.identity:
        return False
    return _default_is_ours(documented, column) and (not column.filled or column.default is not None)


def _default_is_ours(documented: str, column: Column) -> bool:
    if documented == "state":
        return (column.default or "").startswith(f"'{State.QUEUED}'")
    return column.default is None or (column.default.partition("::")[0] == default_of(documented) != "now()")
