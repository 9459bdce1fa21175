"""The rules of health: ages of loops against their bounds, processes against their latest report.

A loop that waits is alive, and so is one whose store does not answer: it tries again. A loop that has not moved for
longer than any call or handler may take is stuck; only a restart of the process helps then.

A child process writes its report to a file every second (``report_every``), and its parent reads it.
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

PATIENCE = 60.0
"""Seconds that a call to the store may take, at least: drivers time out before."""
LONGEST_POLL = 10.0
CRON_PATIENCE = 600.0
"""Seconds: a backfill of up to a year takes its time."""
SILENT = 10.0
"""Seconds since the latest report of a process, due every second, after which it is not ready."""
STARTING = 60.0
"""Seconds that a process may take to its first report."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one process's worker. Moments are of the machine's monotonic clock."""

    at: float
    ages: dict[str, float]
    """Seconds, by loop."""
    heard: float | None
    """When the store last answered; ``None``: never yet."""
    claimed: bool
    """A claim has been answered: it can take jobs."""
    refused: dict[str, float] = {}
    """Seconds for which the store has answered with errors alone, by loop."""
    unready: str | None = None
    """Why the worker claims nothing new, if it does not."""


class Process(msgspec.Struct, frozen=True):
    """A process with a worker. ``since``: seconds since it was started; ``report``: the latest, if there is one."""

    name: str
    """Empty: this process itself."""
    since: float
    report: Report | None

    @property
    def label(self) -> str:
        """What stands before the name of one of its loops."""
        return f"{self.name}, " if self.name else ""


def report_of(liveness: LoopLiveness, clock: Clock) -> Report:
    """The health of a worker of this process."""
    return Report(
        at=clock.monotonic(),
        ages=liveness.ages(),
        heard=liveness.heard,
        claimed=liveness.claimed,
        refused=liveness.refused(),
        unready=liveness.unready(),
    )


def bounds(options: WorkerOptions, timings: Timings = DEFAULT_TIMINGS) -> dict[str, float]:
    """Return, by loop, the age in seconds above which it is not alive."""
    call = max(PATIENCE, 2 * options.lease)
    return {
        "loop": max(timings.blocked_at_least, options.lease),
        "heartbeat": call,
        "claiming": call,
        "settling": call,
        "waking": max(options.poll_interval or 0.0, LONGEST_POLL) + call,
        "cron": CRON_PATIENCE,
    }


def stuck(ages: Mapping[str, float], bound: Mapping[str, float], whose: str = "") -> list[str]:
    """Half a sentence for each loop whose age is above its bound."""
    return [
        f"{whose}{name}: nothing for {age:.0f} s, at most {bound[name]:g} s"
        for name, age in ages.items()
        if age > bound[name]
    ]


def stuck_processes(processes: Sequence[Process], bound: Mapping[str, float], now: float) -> list[str]:
    """Return half a sentence for each stuck loop of a process, and for each process that does not report."""
    found = []
    for one in processes:
        age = age_of(one, now)
        if age > STARTING:
            found.append(f"{one.name}: nothing for {age:.0f} s, at most {STARTING:g} s")
        elif one.report is not None:
            found += stuck(one.report.ages, bound, one.label)
    return found


def starting(processes: Sequence[Process], place: str = "store") -> list[str]:
    """Why processes are not ready whose first claim has not been answered."""
    late = [one.name or "it" for one in processes if one.report is None or not one.report.claimed]
    return [f"{name} is starting: the {place} has answered no claim yet" for name in late]


def unready_processes(processes: Sequence[Process], now: float) -> list[str]:
    """Why processes that have started are not ready. One that cannot even write its report (a full disk) is not, and
    neither is one whose calls the store refuses: it may answer reads, and refuse writes."""
    found = []
    for one in processes:
        if one.report is None:
            continue
        age = age_of(one, now)
        if age > SILENT:
            found.append(f"{one.name}: nothing for {age:.0f} s")
        found += [
            f"{one.label}{name}: the store has answered with errors for {seconds:.0f} s; the log says which"
            for name, seconds in one.report.refused.items()
        ]
        if one.report.unready:
            found.append(f"{one.label}{one.report.unready}")
    return found


def age_of(process: Process, now: float) -> float:
    """Seconds since its latest report, or since it was started."""
    return process.since if process.report is None else max(now - process.report.at, 0.0)


def rounded(ages: Mapping[str, float]) -> dict[str, float]:
    """Return the ages, rounded for people."""
    return {name: round(age, 1) for name, age in ages.items()}


def write_report(folder: Path, report: Report) -> None:
    """Write the report of this process, whole or not at all."""
    with suppress(OSError):
        new = folder / f"{os.getpid()}.new"
        new.write_bytes(msgspec.json.encode(report))
        new.replace(_file(folder, os.getpid()))


def read_report(folder: Path | None, pid: int) -> Report | None:
    """The latest report of a process, if there is one."""
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
