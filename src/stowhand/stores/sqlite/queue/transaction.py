"""One transaction on the file: the connection, the time, and this store's statements by name.

Each statement is in a file of ``sql/``, under a line ``-- name: <name>``. The names are unique across all files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from stowhand.stores.database.statements import load_statements
from stowhand.stores.kernel.columns import DETAILS, JOB_COLUMNS, KEPT_COLUMN_NAMES, named, select
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.rows import INSERTED_COLUMNS

_KEPT_COLUMNS = (*KEPT_COLUMN_NAMES, "replaced", "loses_retries", "on_failure")
_SET_AT_END = "payload, state, attempts, resets, last_error, finished_at, epoch, settled_token, last_worker"


def _stored(name: str, value: str, task: str) -> str:
    """Return the expression of a column's stored value.

    If the caller names no queue, the job has the queue that a worker has declared for its task. The queue ``default``
    is stored as NULL.
    """
    if name != "queue":
        return value
    return f"nullif(coalesce({value}, (SELECT queue FROM stowhand_task_queues WHERE task = {task})), 'default')"


COLUMN_FILLINGS = {
    "job": JOB_COLUMNS,
    "claimed": select({"result": "NULL", "last_worker": "worker", "queue": "coalesce(queue, 'default')"}),
    "kept": named(_KEPT_COLUMNS),
    "job_kept": named(_KEPT_COLUMNS, "job"),
    "archived": f"{named(_KEPT_COLUMNS)}, {_SET_AT_END}",
    "details": named(DETAILS),
    "detail_assignments": ", ".join(f"{name} = {_stored(name, f':{name}', ':task')}" for name in DETAILS),
    "inserted": named(INSERTED_COLUMNS),
    "inserted_values": ", ".join(_stored(name, "?", "?") for name in INSERTED_COLUMNS),
}
"""Lists of columns, by their placeholders in the statements."""
SQL_FILES = sorted(files("stowhand.stores.sqlite.queue").joinpath("sql").iterdir(), key=lambda file: file.name)


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in SQL_FILES:
        for name, text in load_statements(file, COLUMN_FILLINGS).items():
            if name in statements:
                raise ValueError(f"statement {name!r} of {file.name} is declared in another file, too")
            statements[name] = text.decode()
    return statements


STATEMENTS = _load()


class Transaction:
    """One transaction on the file. ``keeps_history``: completed and canceled jobs are moved to the history."""

    __slots__ = ("keeps_history", "now", "raw")

    def __init__(self, raw: sqlite3.Connection, now: Moment, *, keeps_history: bool) -> None:
        self.raw = raw
        self.now = now
        self.keeps_history = keeps_history

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """Run a statement with its values and the time: ``:now``, ``:boot`` and ``:ticks``."""
        now = self.now
        return self.raw.execute(STATEMENTS[name], {"now": now.wall, "boot": now.boot, "ticks": now.ticks, **values})

    def run_many(self, name: str, rows: Iterable[Sequence[object]], /) -> None:
        """Run a statement with numbered placeholders once for each row."""
        self.raw.executemany(STATEMENTS[name], rows)

    def row(self, name: str, /, **values: Any) -> Any:
        """Return the first row of a statement, or ``None``."""
        return self.run(name, **values).fetchone()

    def rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return self.run(name, **values).fetchall()

    def column(self, name: str, /, **values: Any) -> list[Any]:
        """Return the values of a statement with one column."""
        return [value for (value,) in self.run(name, **values)]
