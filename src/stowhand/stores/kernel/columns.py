"""Which columns a job is made of. The views of live jobs and of the history have them, in this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stowhand.jobs.fields import FIELDS, OPTIONS
from stowhand.protocols.search import TITLE_LIMIT

COLUMNS = tuple(field.name for field in FIELDS)
KEPT = tuple(field.name for field in FIELDS if field.kept)
"""What the history copies from the table of live jobs as it is."""
DETAILS = tuple(field.name for field in OPTIONS if field.name != "key")
"""What an enqueue sets, and a repeat of its key sets anew, besides task, payload and time."""


def named(names: Iterable[str], table: str = "") -> str:
    """These columns, of a table by its name in the statement."""
    return ", ".join(f"{table}.{name}" if table else name for name in names)


def select(instead: Mapping[str, str]) -> str:
    """The columns as a SELECT names them. ``instead``: expressions for some of them."""
    return ", ".join(f"{instead[name]} AS {name}" if name in instead else name for name in COLUMNS)


JOB = select({})
HEAD = select({"payload": "''", "result": "NULL", "last_error": f"substr(last_error, 1, {TITLE_LIMIT})"})
"""As searches and overviews show a job: without payload and result, and of the last error its first characters."""
