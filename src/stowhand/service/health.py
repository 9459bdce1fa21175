"""Health rules: each loop has a maximum age, and each process must report in time.

A loop that waits is alive, and so is a loop whose store does not answer: it retries. A loop that makes no progress for
longer than any call or handler may take is stuck. Only a restart of the process helps then.

A child process writes its report to a file every second (``report_interval``), and its parent reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from stowhand.clock import Clock
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.host import DEFAULT_TIMINGS, LoopLiveness, Timings

MIN_STORE_CALL_SECONDS = 60.0
"""Lower bound of the maximum duration of a store call. Drivers time out earlier."""
MIN_POLL_BOUND_SECONDS = 10.0
"""Lower bound of the maximum duration of a wait for wake-ups."""
MAX_CRON_SECONDS = 600.0
"""Large, because a backfill may span up to a year."""
MAX_REPORT_AGE_SECONDS = 10.0
"""Age of a process's latest report above which the process is not ready. A report is due every second."""
MAX_START_SECONDS = 60.0
"""Seconds that a process may take until its first report."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one process's worker. Times are of the machine's monotonic clock."""

    at: float
    ages: dict[str, float]
    """Seconds since each loop last made progress, by loop."""
    last_answer_at: float | None
    """Time of the store's latest answer; ``None`` before the first."""
    has_claimed: bool
    """Whether the store has answered a claim, so that the worker can take jobs."""
    refused: dict[str, float] = {}
    """Seconds for which the store has answered with errors only, by loop."""
    unready: str | None = None
    """Reason why the worker claims no new jobs; ``None`` if it claims."""


class Process(msgspec.Struct, frozen=True):
    """A process with a worker. ``since``: seconds since its start; ``report``: its latest report, if any."""

    name: str
    """Empty for this process itself."""
    since: float
    report: Report | None

    @property
    def label(self) -> str:
        """Prefix for the names of its loops."""
        return f"{self.name}, " if self.name else ""


def report_of(liveness: LoopLiveness, clock: Clock) -> Report:
    """Return the health of a worker of this process."""
    return Report(
        at=clock.monotonic(),
        ages=liveness.ages(),
        last_answer_at=liveness.last_answer_at,
        has_claimed=liveness.has_claimed,
        refused=liveness.refused(),
        unready=liveness.unready(),
    )


def max_loop_ages(options: WorkerOptions, timings: Timings = DEFAULT_TIMINGS) -> dict[str, float]:
    """Return, by loop, the age in seconds above which it is not alive."""
    call_seconds = max(MIN_STORE_CALL_SECONDS, 2 * options.lease)
    return {
        "loop": max(timings.min_blocked_time, options.lease),
        "heartbeat": call_seconds,
        "claiming": call_seconds,
        "settling": call_seconds,
        "waking": max(options.poll_interval or 0.0, MIN_POLL_BOUND_SECONDS) + call_seconds,
        "cron": MAX_CRON_SECONDS,
    }


def stuck_reasons(ages: Mapping[str, float], max_ages: Mapping[str, float], owner: str = "") -> list[str]:
    """Return a phrase for each loop whose age exceeds its maximum."""
    return [
        f"{owner}{name}: no progress for {age:.0f} s, limit {max_ages[name]:g} s"
        for name, age in ages.items()
        if age > max_ages[name]
    ]


def stuck_process_reasons(processes: Sequence[Process], max_ages: Mapping[str, float], now: float) -> list[str]:
    """Return a phrase for each stuck loop of a process, and for each process that does not report."""
    reasons = []
    for process in processes:
        age = age_of(process, now)
        if age > MAX_START_SECONDS:
            reasons.append(f"{process.name}: no progress for {age:.0f} s, limit {MAX_START_SECONDS:g} s")
        elif process.report is not None:
            reasons += stuck_reasons(process.report.ages, max_ages, process.label)
    return reasons


def starting_reasons(processes: Sequence[Process], store_noun: str = "store") -> list[str]:
    """Return a phrase for each process whose first claim has not been answered."""
    names = [process.name or "it" for process in processes if process.report is None or not process.report.has_claimed]
    return [f"{name} is starting: the {store_noun} has answered no claim yet" for name in names]


def unready_reasons(processes: Sequence[Process], now: float) -> list[str]:
    """Return the reasons why started processes are not ready.

    A process that cannot write its report (a full disk) is not ready. Neither is one whose calls the store refuses: a
    store may answer reads and refuse writes.
    """
    reasons = []
    for process in processes:
        if process.report is None:
            continue
        age = age_of(process, now)
        if age > MAX_REPORT_AGE_SECONDS:
            reasons.append(f"{process.name}: no progress for {age:.0f} s")
        reasons += [
            f"{process.label}{name}: the store has answered with errors for {seconds:.0f} s; the log says which"
            for name, seconds in process.report.refused.items()
        ]
        if process.report.unready:
            reasons.append(f"{process.label}{process.report.unready}")
    return reasons


def age_of(process: Process, now: float) -> float:
    """Return the seconds since the latest report of the process, or since its start."""
    return process.since if process.report is None else max(now - process.report.at, 0.0)


def rounded_ages(ages: Mapping[str, float]) -> dict[str, float]:
    """Return the ages, rounded for display."""
    return {name: round(age, 1) for name, age in ages.items()}


def write_report(folder: Path, report: Report) -> None:
    """Write the report of this process atomically. After a failure the previous report grows old and shows it."""
    with suppress(OSError):
        new = folder / f"{os.getpid()}.new"
        new.write_bytes(msgspec.json.encode(report))
        new.replace(_file(folder, os.getpid()))


def read_report(folder: Path | None, pid: int) -> Report | None:
    """Return the latest report of a process, if any."""
    if folder is None:
        return None
    try:
        return msgspec.json.decode(_file(folder, pid).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def forget_report(folder: Path | None, pid: int) -> None:
    """Delete the report of a process that has died."""
    if folder is not None:
        _file(folder, pid).unlink(missing_ok=True)


def _file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"
