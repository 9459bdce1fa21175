"""Your own table as a queue: its store and options, conditions, the resetter, and a budget for its handler."""

from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.stores.table.attempt_store import AttemptStore
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.store import TableStore
from stowhand.worker.admission import Budget
from stowhand.worker.resetter import Resetter, ResetterOptions

__all__ = [
    "AttemptStore",
    "Budget",
    "ExecutionLogEntry",
    "Finding",
    "Resetter",
    "ResetterOptions",
    "TableOptions",
    "TableStore",
    "Where",
    "sql",
]
