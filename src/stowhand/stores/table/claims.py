"""What claims of a table have to know, whichever database holds it. Reads nothing.

bad records  looked for only after an error: the view shows one twice, or not at all once it is processing, or an
             expression raises for it. Where every record of a claim of several is bad, the view is at fault: nothing is
             claimed then, and no attempt is used
tokens       when claims began, and whose tokens were abandoned. The table has no place for it, and only this process
             claims with these tokens
next due     read no oftener than the cost of reading allows. A table without an index is walked for it, at every poll
             of an idle worker. Without an answer that worker looks again after its plain poll interval
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stowhand.clock import stopwatch
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


EXPENSIVE_SECONDS = 0.05
"""Seconds. A look is expensive when two in a row took as long: one alone may have met a busy machine."""
PAUSE_PER_SECOND = 50.0
"""Seconds without another look for each second that an expensive one took."""
PLAIN_POLL_SECONDS = 2.0
"""Seconds: what is due later than the next plain poll need not be known."""


class Due:
    """Of one store."""

    def __init__(self, now: Callable[[], float] = stopwatch) -> None:
        self._now = now
        self._took, self._not_before = 0.0, float("-inf")
        self._at = float("inf")
        """When the first was due, as far as was known."""

    async def ask(
        self, look: Callable[[], Awaitable[float | None]], touch: Callable[[], Awaitable[object]]
    ) -> float | None:
        """Seconds; ``None``: nothing waits. 0 while it is too early to look again: claim again after a plain poll.

        ``touch`` runs instead then, and costs little: a caller also learns by this call whether the store answers.
        """
        began = self._now()
        if began < self._not_before:
            await touch()
            left = self._at - began
            return left if 0 < left < PLAIN_POLL_SECONDS else 0.0
        found = await look()
        over = self._now()
        self._at = float("inf") if found is None else over + found
        price, self._took = min(over - began, self._took), over - began
        if price >= EXPENSIVE_SECONDS:
            self._not_before = over + PAUSE_PER_SECOND * price
        return found
