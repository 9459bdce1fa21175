"""What becomes of a job that found no first connection in the pool: it goes back unspent, though not for ever.

Which connections a task wants is known only when it runs. How often a job went back is kept in this worker's memory
alone: it serves to report a pool that never has one, and is forgotten when the job has found one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from stowhand.errors import NoConnectionFree
from stowhand.events import ConnectionAwaited, Events
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import Snooze
from stowhand.jobs.outcomes import causes
from stowhand.protocols.handler import Attempt, Stop
from stowhand.stores.database.borrower import BORROWER, Borrower

LATER = 30.0
"""Seconds until such a job is due again."""
TIMES = 5
"""How often it goes back; then it is an error of the attempt."""
REMEMBERED = 10_000
"""Jobs, at most."""


def borrowing(attempt: Attempt[Any]) -> None:
    """From here on, in this context, what is borrowed from a pool is borrowed by this attempt."""
    BORROWER.set(Borrower(attempt.until_canceled, lambda: attempt.cancel_reason == Stop.TIMEOUT))


class FirstConnection:
    """Of one worker."""

    def __init__(self, events: Events, worker: str) -> None:
        self._events = events
        self._worker = worker
        self.times: OrderedDict[JobId, int] = OrderedDict()
        """How often each job went back."""

    def judge(self, attempt: Attempt[Any], error: BaseException) -> Snooze | None:
        """``None``: what the attempt raised has other reasons, or has had this one too often."""
        borrower = BORROWER.get()
        if borrower is None or not _is_of_the_pool(borrower, error):
            return None
        job_id, times = attempt.lease.job_id, self.times.pop(attempt.lease.job_id, 0) + 1
        if times <= TIMES:
            self.times[job_id] = times
            if len(self.times) > REMEMBERED:
                self.times.popitem(last=False)
        self._events.emit(ConnectionAwaited(self._worker, job_id, attempt.claim.task, times, TIMES, LATER))
        return Snooze(LATER) if times <= TIMES else None

    def found(self, attempt: Attempt[Any]) -> None:
        """The attempt is over otherwise."""
        self.times.pop(attempt.lease.job_id, None)


def _is_of_the_pool(borrower: Borrower, error: BaseException) -> bool:
    """The refusal itself, whatever it was made of on its way; or the time ran out while a thread waited."""
    if any(isinstance(one, NoConnectionFree) for one in causes(error)):
        return True
    waited = borrower.waiting > 0 or borrower.refused
    return isinstance(error, asyncio.CancelledError) and borrower.timed_out() and waited
