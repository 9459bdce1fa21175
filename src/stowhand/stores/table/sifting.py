"""Which records of a claim are bad, where some are: found by halving, and only after an error. Decides; reads nothing.

bad         the view shows it twice, or not at all once it is processing, or an expression raises for it
the view's  every record of a claim of several is bad: nothing is claimed then, and no attempt is used
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from stowhand.jobs.lease import JobId

AT_ONCE = 50
"""Records that such a claim takes at most: the next one takes the others."""
BESIDE = 5
"""Records that are looked at before one that is claimed alone is called bad."""
TWICE = "the view shows it more than once: its joins must give one row for each record"
HIDDEN = "the view does not show it once it is processing: it must not leave out records by what a claim changes"
NOT_CHANGED = "a trigger of the table keeps it as it is"


class Refused(Exception):
    """The database refused a part; why."""


class ViewFault(Exception):
    """Every record of a claim of several is bad; why the first one is."""


Rows = dict[JobId, tuple[Any, ...]]
Reasons = dict[JobId, str]
Parts = Generator[list[JobId], "Sequence[tuple[Any, ...]] | Refused", tuple[Rows, Reasons]]


def halving(keys: Sequence[JobId]) -> Parts:
    """Yields keys to be tried together; is sent the rows that came of it (the key first), or Refused.

    Gives one row for each key that has one, and why for each that was refused.
    """
    rows: Rows = {}
    refused: Reasons = {}
    parts = [list(keys)] if keys else []
    while parts:
        part = parts.pop()
        answer = yield part
        if not isinstance(answer, Refused):
            for row in answer:
                if row[0] in rows:
                    refused[row[0]] = TWICE
                rows.setdefault(row[0], row)
        elif len(part) == 1:
            refused[part[0]] = str(answer)
        else:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
    return {key: row for key, row in rows.items() if key not in refused}, refused


def shown(keys: Sequence[JobId], rows: Rows, refused: Reasons) -> Reasons:
    """Why each of the bad ones is bad. Raises ViewFault."""
    bad = {key: refused.get(key, HIDDEN) for key in keys if key not in rows}
    if len(bad) > 1 and len(bad) == len(keys):
        raise ViewFault(f"none of {len(bad)} records could be read: record {keys[0]}: {bad[keys[0]]}")
    return bad
