"""Which records of a claim are bad, where some are: looked for only after an error. Decides; reads nothing.

bad         the view shows it twice, or not at all once it is processing, or an expression raises for it
the view's  every record of a claim of several is bad: nothing is claimed then, and no attempt is used
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stowhand.jobs.lease import JobId

AT_ONCE = 50
"""Records that such a claim takes at most: the next one takes the others."""
BESIDE = 5
"""Records that are looked at before one that is claimed alone is called bad."""
TWICE = "the view shows it more than once: its joins must give one row for each record"
HIDDEN = "the view does not show it once it is processing: it must not leave out records by what a claim changes"
NOT_CHANGED = "a trigger of the table keeps it as it is"


class ViewFault(Exception):
    """Every record of a claim of several is bad; why the first one is."""


Rows = dict[JobId, tuple[Any, ...]]
Reasons = dict[JobId, str]


def shown(keys: Sequence[JobId], found: Sequence[tuple[Any, ...]], refused: Reasons) -> tuple[Rows, Reasons]:
    """The row of each key, and why the bad ones have none. ``found``: rows with the key first; ``refused``: why some
    could not be read. Raises ViewFault."""
    rows: Rows = {}
    bad = dict(refused)
    for row in found:
        if row[0] in rows:
            bad[row[0]] = TWICE
        rows[row[0]] = row
    bad |= {key: HIDDEN for key in keys if key not in rows and key not in bad}
    if len(bad) > 1 and len(bad) == len(keys):
        raise ViewFault(f"none of {len(bad)} records could be read: record {keys[0]}: {bad[keys[0]]}")
    return {key: row for key, row in rows.items() if key not in bad}, bad
