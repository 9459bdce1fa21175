"""What the doctor reports about the work itself: which workers do it, and what does not move."""

from __future__ import annotations

from collections.abc import Iterator

from stowhand.cli.findings import Finding, ok, warn
from stowhand.cli.moments import say_span
from stowhand.cli.stats import Stats, WorkerLine, state_line
from stowhand.protocols.figures import Amount, total_ended

SHOWN = 5
"""Names in one finding, at most."""


def examine_work(found: Stats) -> Iterator[Finding]:
    """The most important first."""
    alive = [line for line in found.workers if line.row.alive]
    yield from _workers(found, alive)
    yield from _tasks_without_workers(found, alive)
    if found.figures.paused:
        yield warn("queues", f"paused: {_some(list(found.figures.paused))}; stowhand queues resume lets them go on")
    if names := found.figures.pauses.names():
        yield warn("tasks", f"paused: {_some(names)}; stowhand queues resume --task / --without-queue lets them go on")
    lost = [line.row.card.name for line in found.workers if not line.row.alive]
    if lost:
        yield warn("workers", f"said no goodbye within a day: {_some(lost)}")
    failed = total_ended(found.figures.lately[15]).failed
    if failed.number:
        yield warn("failures", f"{failed} in the last 15 minutes: stowhand jobs list --state failed")
    yield ok("jobs", state_line(found))


def _due(found: Stats) -> Amount:
    return sum((one.due for one in found.figures.tasks), Amount())


def _workers(found: Stats, alive: list[WorkerLine]) -> Iterator[Finding]:
    due = _due(found)
    if not alive:
        if due.number:
            late = f", the oldest for {say_span(found.oldest_due)}" if found.oldest_due else ""
            yield warn("workers", f"none is alive, and {due} jobs are due{late}: start one (stowhand worker)")
        else:
            yield ok("workers", "none is alive, and nothing is due")
        return
    busy, slots = sum(line.busy for line in alive), sum(line.row.card.concurrency for line in alive)
    yield ok("workers", f"{len(alive)} alive, {busy} of {slots} slots busy, {due} jobs due")


def _tasks_without_workers(found: Stats, alive: list[WorkerLine]) -> Iterator[Finding]:
    if not alive or any(line.row.card.tasks is None for line in alive):
        return
    known = {task for line in alive for task in line.row.card.tasks or ()}
    orphaned = [f"{one.name} ({one.due})" for one in found.figures.tasks if one.due.number and one.name not in known]
    if orphaned:
        yield warn("tasks", f"due, and no live worker has it: {_some(orphaned)}")


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
