"""Does a trigger of the user's set a column? Read in its definition, which is never run.

What is found is a warning and no refusal: the text does not say when it sets the column. A definition on PostgreSQL
does not show what its function does; a worker notices that when it claims a record, or renews its lease.
"""

from __future__ import annotations

import re

CHANGES_CLAIM = (
    "a trigger sets {column}, by which a claim is known: let it leave that column alone while a record is processing"
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def sets_column(definition: str, column: str) -> bool:
    """It has an UPDATE that does, or passes the name to a ready-made function: ``moddatetime(started_at)``."""
    source, name = _COMMENT.sub(" ", definition), re.escape(column)
    ways = (rf'\bset\b[^;]*?(?<![\w.])"?{name}"?\s*=', rf"\bexecute\b.*\([^)]*'{name}'")
    return any(re.search(way, source, re.IGNORECASE | re.DOTALL) for way in ways)
