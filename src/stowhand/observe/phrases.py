"""Parts of log lines: everything that comes from outside is escaped here, and cut."""

from __future__ import annotations

from stowhand.events import (
    ConnectionAwaited,
    DrainEnded,
    DrainStarted,
    JobEnded,
    JobLost,
    JobsReset,
    JobStarted,
    JobUnknown,
    ResultDropped,
    ThreadAbandoned,
)
from stowhand.jobs.lease import JobId
from stowhand.observe.safe_text import escape, shorten, telling_line
from stowhand.protocols.operating import BUILT_IN

NAMES_SHOWN = 50
"""Task names and job ids in one line, at most."""
ERROR_WIDTH = 500


AboutAJob = (
    JobStarted
    | JobEnded
    | JobLost
    | JobUnknown
    | ResultDropped
    | ThreadAbandoned
    | ConnectionAwaited
    | DrainStarted
    | DrainEnded
)


def job(event: AboutAJob) -> str:
    """Which job: its id and its task."""
    return f"{escape(str(event.job_id))} ({escape(event.task)})"


def attempt(event: JobEnded) -> str:
    """Which attempt of how many."""
    return f"attempt {event.attempt}/{event.max_attempts}"


def because(error: str | None) -> str:
    """The telling line of an error."""
    return f": {escape(shorten(telling_line(error), ERROR_WIDTH))}" if error else ""


def traceback_of(error: str | None) -> str | None:
    """What an error's text says beyond its first line: where it was raised."""
    _, _, rest = (error or "").partition("\n")
    return rest.strip() or None


def shown(event: JobsReset) -> str:
    """Which jobs were taken back; of many, the first."""
    return ids(tuple(one.job_id for one in event.jobs))


def names(given: tuple[str, ...]) -> str:
    """Names in quotes; of many, the first."""
    shown = ", ".join(f"'{escape(name)}'" for name in given[:NAMES_SHOWN]) or "none"
    return shown + (f" and {len(given) - NAMES_SHOWN} more" if len(given) > NAMES_SHOWN else "")


def own(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Without those that every worker has; unless it has no others."""
    return tuple(task for task in tasks if task not in BUILT_IN) or tasks


def short(text: str) -> str:
    """One line of it, safe to print."""
    return escape(shorten(text, ERROR_WIDTH))


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def ids(job_ids: tuple[JobId, ...]) -> str:
    """Which jobs; of many, the first."""
    shown = ", ".join(escape(str(job_id)) for job_id in job_ids[:NAMES_SHOWN])
    more = f" and {len(job_ids) - NAMES_SHOWN} more" if len(job_ids) > NAMES_SHOWN else ""
    return f"{'task' if len(job_ids) == 1 else 'tasks'} {shown}{more}"


def running(count: int) -> str:
    """How many run."""
    return "1 running job is" if count == 1 else f"{count} running jobs are"
