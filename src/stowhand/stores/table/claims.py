"""What claims of a table have to know, whichever database holds it. Reads nothing.

bad records  looked for only after an error: the view shows one twice, or not at all once it is processing, or an
             expression raises for it. Where every record of a claim of several is bad, the view is at fault: nothing is
             claimed then, and no attempt is used
tokens       when claims began, and whose tokens were abandoned. The table has no place for it, and only this process
             claims with these tokens
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stowhand.clock import stopwatch
from stowhand.jobs.lease import JobId, Lease
from stowhand.stores.table.backend import Taken
from stowhand.stores.table.names import Shape

AT_ONCE = 50
"""Records that such a claim takes at most: the next one takes the others."""
BESIDE = 5
"""Records that are looked at before one that is claimed alone is called bad."""
TWICE = "the view shows it more than once: its joins must give one row for each record"
HIDDEN = "the view does not show it once it is processing: it must not leave out records by what a claim changes"
NOT_CHANGED = "a trigger of the table keeps it as it is"


class ViewFault(Exception):
    """Every record of a claim of several is bad; why the first one is."""


class Unseen(Exception):
    """The view does not show, or shows twice, what was claimed."""


Rows = dict[JobId, tuple[Any, ...]]
Reasons = dict[JobId, str]
Marks = Mapping[JobId, tuple[int, int, int]]
"""Of each record that was claimed: epoch, failures and resets."""


def rows_by_key(keys: Collection[JobId], found: Sequence[tuple[Any, ...]]) -> Rows:
    """The row of each key. ``found``: rows with the key first. Raises Unseen where one has none, or several."""
    rows = {row[0]: row for row in found}
    if len(rows) != len(found) or rows.keys() != set(keys):
        raise Unseen
    return rows


def taken_of(
    shape: Shape,
    token: str,
    marks: Marks,
    rows: Rows,
    bad: Reasons,
    job_id: Callable[[Any], JobId] = lambda key: key,
) -> list[Taken]:
    """What a claim took. ``rows``: what the view shows of it; ``bad``: why some of it cannot be read; ``job_id``: the
    id of a key."""
    found = []
    for key, (epoch, failures, resets) in marks.items():
        fault = f"the view {shape.view.shown}: record {key}: {bad[key]}" if key in bad else ""
        values = () if fault else rows[key][1:]
        found.append(Taken(Lease(job_id(key), token, epoch), values, failures, resets, fault=fault))
    return found


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


MAX_CLAIMS = 10_000
"""Claims; one is abandoned soon after it, if at all."""
MAX_TOKENS = 10_000
"""Tokens; a claim is asked for by this very process, and ends long before so many others."""


class Begun:
    """Written by the loop that claims, read by the heartbeats' thread.

    To abandon a claim its token is known, but not the epochs of what it may have taken. Within a lease of its
    beginning no worker can have reset those records; after it, another program may have, and run them again under marks
    that it does not know. They come back by themselves then.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._at: dict[str, float] = {}

    def note(self, token: str) -> None:
        """A claim under this token begins."""
        self._at[token] = stopwatch()
        if len(self._at) > MAX_CLAIMS:
            del self._at[next(iter(self._at))]

    def may_hold(self, token: str) -> bool:
        """Records with this token are still this claim's. True for an unknown claim: another process's."""
        began = self._at.get(token)
        return began is None or stopwatch() - began < self._lease


class Abandoned:
    """Tokens that may claim nothing more.

    A token is added, and looked for by its claim, while nothing can come between that and the end of the claim: in a
    write transaction of SQLite; before and under the claim's lock on PostgreSQL.
    """

    def __init__(self, lease: float) -> None:
        self._tokens: dict[str, None] = {}
        self.begun = Begun(lease)

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """From any thread."""
        self._tokens[token] = None
        if len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
