"""The ledger of the chaos test: what ran when, by the lines of its handlers and by the faults of their processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.nemesis import Fleet
from tests.support.history import Transition

LEASE_SECONDS = 2.0


class Entry(NamedTuple):
    """One line of the ledger."""

    what: str
    number: int
    job_id: int
    epoch: int
    token: str
    pids: tuple[int, ...]
    """The process, and its parent, whose death or pause ends what it does."""
    at: float
    task: str
    key: str


class Execution(NamedTuple):
    """One execution of a handler."""

    began: Entry
    end: float


def read_ledger(path: Path) -> list[Entry]:
    entries = []
    for line in path.read_text().splitlines():
        what, number, job_id, epoch, token, pids, at, task, key = line.split("\t")
        processes = tuple(map(int, pids.split()))
        entries.append(Entry(what, int(number), int(job_id), int(epoch), token, processes, float(at), task, key))
    return entries


def executions(entries: Sequence[Entry], fleet: Fleet, transitions: Sequence[Transition]) -> Iterator[Execution]:
    """Yield every execution. One without a last line ends with its process, or with its lease at the latest.

    One whose process was paused beyond its lease ends when the store has ended that lease: what it still does after the
    pause is not counted.
    """
    resets = {(one.job, one.before.token): one.at for one in transitions if one.before is not None and one.is_reset}
    ends = {(entry.job_id, entry.token): entry.at for entry in entries if entry.what != "began"}
    for entry in entries:
        if entry.what != "began":
            continue
        reset_at = resets.get((entry.job_id, entry.token))
        end = ends.get((entry.job_id, entry.token))
        if end is None:
            end = min([fleet.deaths[pid] for pid in entry.pids if pid in fleet.deaths], default=float("inf"))
            end = end if reset_at is None else min(end, reset_at)
        if reset_at is not None and _was_paused(entry.pids, reset_at, fleet):
            end = min(end, reset_at)
        yield Execution(entry, end)


def _was_paused(pids: Sequence[int], reset_at: float, fleet: Fleet) -> bool:
    """Whether one of the processes was frozen during the lease that was then reset."""
    return any(
        paused in pids and since < reset_at < since + fleet.freeze + LEASE_SECONDS for paused, since in fleet.pauses
    )


def overlaps(found: Iterable[Execution], maxima: Mapping[str, int], keyed: Iterable[str]) -> list[str]:
    """Return every start of a job while as many of its limit are running as may.

    Args:
        found: The executions.
        maxima: The number of jobs of a task that may run; other tasks have no limit.
        keyed: The tasks of which so many may run for each key.

    """
    by_limit: dict[Hashable, list[Execution]] = defaultdict(list)
    for one in found:
        if one.began.task in maxima and one.end > one.began.at:
            by_limit[one.began.task, one.began.key if one.began.task in keyed else None].append(one)
    complaints = []
    for group in by_limit.values():
        running: list[Execution] = []
        for one in sorted(group, key=lambda one: one.began.at):
            running = [other for other in running if other.end > one.began.at]
            if len(running) >= maxima[one.began.task]:
                complaints.append(f"{one} began beside {running}")
            running.append(one)
    return complaints
