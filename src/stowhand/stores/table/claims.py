"""Rules of claims that are the same for every database, without any access to it.

bad records  The view shows a record twice, or hides it once it is processing, or an expression raises for it. They are
             searched for only after an error. If every record of a larger claim is bad, the view is wrong: nothing is
             claimed, and no attempt is used.
tokens       The start times of claims and the abandoned tokens stay in memory, because the table has no column for
             them. No other process claims with these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from stowhand.clock import stopwatch
from stowhand.jobs.lease import JobId, Lease
from stowhand.stores.table.backend import ClaimedRow
from stowhand.stores.table.names import Shape

MAX_RECORDS_AFTER_ERROR = 50
"""The limit of a claim after an error. The next claim takes the other records."""
NEIGHBORS_TO_READ = 5
"""Number of other records to read, before a record that is claimed alone counts as bad."""
SHOWN_TWICE = "the view shows it more than once: its joins must return one row for each record"
HIDDEN_WHILE_PROCESSING = (
    "the view does not show it once it is processing: it must not filter by columns that a claim changes"
)
NOT_CHANGED = "a trigger of the table keeps it unchanged"


class UnreadableView(Exception):
    """Every record of a larger claim is bad. The message has the reason of the first one."""


class UnseenRecord(Exception):
    """The view does not show a claimed record, or shows it twice."""


Rows = dict[JobId, tuple[Any, ...]]
Reasons = dict[JobId, str]
ClaimCounters = Mapping[JobId, tuple[int, int, int]]
"""Epoch, failures and resets of each claimed record."""


def rows_by_key(keys: Collection[JobId], records: Sequence[tuple[Any, ...]]) -> Rows:
    """Return the row of each key, which is its first value. Raises UnseenRecord unless each key has one row."""
    rows = {row[0]: row for row in records}
    if len(rows) != len(records) or rows.keys() != set(keys):
        raise UnseenRecord
    return rows


def claimed_rows(
    shape: Shape,
    token: str,
    counters: ClaimCounters,
    rows: Rows,
    bad: Reasons,
    job_id: Callable[[Any], JobId] = lambda key: key,
) -> list[ClaimedRow]:
    """Return the rows of a claim.

    Args:
        shape: The table's names.
        token: The token of the claim.
        counters: The claimed records.
        rows: Their rows in the view, with the key first.
        bad: The reasons of records that cannot be read.
        job_id: Converts a key to the id in a lease.

    """
    claimed = []
    for key, (epoch, failures, resets) in counters.items():
        fault = f"the view {shape.view.display_name}: record {key}: {bad[key]}" if key in bad else ""
        values = () if fault else rows[key][1:]
        claimed.append(ClaimedRow(Lease(job_id(key), token, epoch), values, failures, resets, fault=fault))
    return claimed


def read_by_key(keys: Sequence[JobId], records: Sequence[tuple[Any, ...]], errors: Reasons) -> tuple[Rows, Reasons]:
    """Return the row of each key, and the reasons of bad ones. Raises UnreadableView.

    Args:
        keys: The keys of the claimed records.
        records: Their rows in the view, with the key first.
        errors: The reasons of records that raised an error.

    """
    rows: Rows = {}
    bad = dict(errors)
    for row in records:
        if row[0] in rows:
            bad[row[0]] = SHOWN_TWICE
        rows[row[0]] = row
    bad |= {key: HIDDEN_WHILE_PROCESSING for key in keys if key not in rows and key not in bad}
    if len(bad) > 1 and len(bad) == len(keys):
        raise UnreadableView(f"none of {len(bad)} records could be read: record {keys[0]}: {bad[keys[0]]}")
    return {key: row for key, row in rows.items() if key not in bad}, bad


MAX_CLAIMS = 10_000
"""Maximum number of start times in memory. A claim is abandoned soon after its start, if at all."""
MAX_TOKENS = 10_000
"""Maximum number of tokens in memory. A claim ends long before this process has made as many others."""


class StartedClaims:
    """Start times of claims, written by the event loop and read by the thread of the heartbeats.

    When a claim is abandoned, its token is known, but not the epochs of its records. Within one lease after its start
    no worker can have reset these records, so they are released. Later, another program may have reset and claimed them
    without a token, so they are not released: a sweep resets those whose leases have expired.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._started_at: dict[str, float] = {}

    def note(self, token: str) -> None:
        """Record the start of a claim under this token."""
        self._started_at[token] = stopwatch()
        if len(self._started_at) > MAX_CLAIMS:
            del self._started_at[next(iter(self._started_at))]

    def may_hold(self, token: str) -> bool:
        """Return whether records with this token still belong to this claim. True for claims of other processes."""
        started_at = self._started_at.get(token)
        return started_at is None or stopwatch() - started_at < self._lease


class AbandonedTokens:
    """Tokens with which no claim may succeed any more.

    A claim checks its token while no token can be added: in a write transaction of SQLite, or under the claim's lock
    on PostgreSQL.
    """

    def __init__(self, lease: float) -> None:
        self._tokens: dict[str, None] = {}
        self.started_claims = StartedClaims(lease)

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Add a token, from any thread."""
        self._tokens[token] = None
        if len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
