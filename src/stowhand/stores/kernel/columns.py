"""The columns of a job. The views of live jobs and of the history have them in this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stowhand.jobs.fields import FIELDS, OPTION_FIELDS
from stowhand.protocols.search import TITLE_LIMIT

COLUMN_NAMES = tuple(field.name for field in FIELDS)
KEPT_COLUMN_NAMES = tuple(field.name for field in FIELDS if field.kept)
"""Columns that the history copies unchanged from the table of live jobs."""
DETAILS = tuple(field.name for field in OPTION_FIELDS if field.name != "key")
"""Columns besides task, payload, run time and key that an enqueue sets. An enqueue with the same key replaces them."""


def named(names: Iterable[str], table: str = "") -> str:
    """Return these columns as a list in SQL. ``table``: the name of their table in the statement."""
    return ", ".join(f"{table}.{name}" if table else name for name in names)


def select(replacements: Mapping[str, str]) -> str:
    """Return the columns as the list of a SELECT. ``instead``: expressions that replace some of them."""
    return ", ".join(f"{replacements[name]} AS {name}" if name in replacements else name for name in COLUMN_NAMES)


JOB_COLUMNS = select({})
JOB_SUMMARY_COLUMNS = select({"payload": "''", "result": "NULL", "last_error": f"substr(last_error, 1, {TITLE_LIMIT})"})
"""List of a SELECT for searches and overviews: no payload, no result, and the first characters of the last error."""
