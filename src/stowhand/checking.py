"""What an administrator and a timetable may be asked for; ``limits`` says the same of jobs. All raise InvalidJob."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from stowhand import limits
from stowhand.errors import InvalidJob
from stowhand.queue_store import LEDGER_DAYS, Reschedule, Tick
from stowhand.text import clean

IDENTIFIER_LIMIT = 256
"""Characters of a crontab item's identifier."""
MANUALLY_FAILED = "Manually marked as failed"


def check_reschedule(to: Reschedule) -> Reschedule:
    """The values that a job may have, and no others."""
    limits.check_details(priority=to.priority, attempts=to.attempts, max_attempts=to.max_attempts, run_at=to.run_at)
    return to


def read_reason(reason: str | None) -> str:
    """Why jobs are failed by hand, safe to store."""
    return MANUALLY_FAILED if reason is None else clean(reason)


def check_identifier(identifier: str) -> str:
    """The name of an item of a crontab."""
    return limits.check_name("identifier", identifier, IDENTIFIER_LIMIT)


def check_ticks(ticks: Sequence[Tick], now: datetime) -> None:
    """Whole minutes that the ledger still remembers: of older ones nobody could say whether they were scheduled."""
    oldest = now - timedelta(days=LEDGER_DAYS)
    for tick in ticks:
        name = check_identifier(tick.identifier)
        if tick.at.utcoffset() is None or tick.at.second or tick.at.microsecond:
            raise InvalidJob(f"{name}: a tick at {tick.at.isoformat()}; give a whole minute with a time zone")
        if tick.at < oldest:
            raise InvalidJob(
                f"{name}: a tick at {tick.at.isoformat()} is older than {LEDGER_DAYS} days, which is as far as the"
                " ledger remembers: it might have been scheduled before"
            )
