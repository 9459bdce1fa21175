"""What is judged alike on every database: which name may have been meant, and which columns a worker empties.

Whether a column can serve is for the database's catalog and types to say: that is with each of them (``checks``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection

import msgspec

from stowhand.jobs.job import State
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import Plan, full_ddl, view_ddl
from stowhand.stores.table.names import Relation, Shape

COUNTERS = ("num_resets", "num_failures")
EMPTIED = ("failure_message", "started_at", "finished_at", "process_after", "execution_logs")
"""A claim, a requeue or a hand-back writes NULL there."""
CARRIED = ("state", "process_after", *COUNTERS, "cancel")
"""What a waiting record would lose if the column beside its own began empty."""
_BEGUN = frozenset({"started_at", "last_heartbeat_at"})
FILLED = {
    State.QUEUED: frozenset[str](),
    State.PROCESSING: _BEGUN,
    State.ERRORED: _BEGUN | {"finished_at", "process_after", "failure_message", "num_failures"},
    State.COMPLETED: _BEGUN | {"finished_at"},
    State.FAILED: _BEGUN | {"finished_at", "failure_message", "num_failures"},
    State.CANCELED: _BEGUN | {"finished_at"},
}
"""State -> what a worker has filled in of a row that it has brought there."""
CALLED = {"state": ("status", "job_state", "job_status")}
"""Other names for the same."""


def near_relation(wanted: Relation, names: Collection[str]) -> str | None:
    """The name among these that may have been meant."""
    alike = [name for name in names if name.lower() == wanted.name.lower()]
    return next(iter((*alike, *difflib.get_close_matches(wanted.name, names, n=1, cutoff=0.75))), None)


def near_columns(documented: str, own: str, free: Collection[str]) -> list[str]:
    """Those of these that may have been meant: ``num_reset`` for ``num_resets``; not ``created_at`` for ``started_at``.

    A worker writes over what is there, so a name says too little: the type and the default decide.
    """
    near = difflib.get_close_matches(own, free, n=3, cutoff=0.8)
    return [*near, *(name for name in CALLED.get(documented, ()) if name in free)]


def absent(shape: Shape, wanted: Relation, meant: str | None, dialect: str, *, makeable: bool) -> Finding:
    """Of the table, or of the view. ``meant``: another name, as the option takes it.

    ``makeable``: the view has a table, or gets one.
    """
    what, option = ("table", "table_name") if wanted is shape.table else ("view", "view_name")
    problem = f"there is no {what} {'.'.join(wanted.parts)}"
    if meant is not None:
        return Finding(f"{problem}; did you mean {option}={meant!r}?")
    if wanted is shape.table:
        alone = msgspec.structs.replace(shape, view=shape.table, viewed=False)
        return Finding(problem, full_ddl(Plan(shape=alone, dialect=dialect)).strip())
    return Finding(problem, view_ddl(shape, dialect) if makeable else "")


def unused(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, or the next one that nothing has: ``job_state_2``."""
    number, found = 1, name
    while is_taken(found):
        number += 1
        found = f"{name}_{number}"
    return found
