"""``stowhand stats``: jobs by state, how fast they end, and which workers are alive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from stowhand.cli.counted import MINUTES, OTHERS, Counted, counted_json, counted_lines, read_counted
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.text_table import table
from stowhand.clock import wall_clock
from stowhand.jobs.moments import ago, iso, say_span
from stowhand.protocols.figures import Amount, EndedCounts, Figures, LiveCounts, total_ended
from stowhand.protocols.operating import WorkerRow
from stowhand.protocols.queue_store import QueueStore

WORKER_HEADS = ("WORKER", "STATE", "BUSY", "AHEAD", "ABANDONED", "VERSION", "UP", "SEEN", "TASKS")


class TaskLine(msgspec.Struct, frozen=True):
    """What is known of one task: its live jobs, what its history keeps, and what ended in the last minute."""

    name: str | None
    standing: LiveCounts
    history: EndedCounts
    minute: EndedCounts

    @property
    def per_second(self) -> float:
        """Jobs that ended, over the last minute."""
        return self.minute.every.number / 60


class WorkerLine(msgspec.Struct, frozen=True):
    """A worker, and what it holds."""

    row: WorkerRow
    held: int
    """Jobs that it has claimed."""

    @property
    def busy(self) -> int:
        """Slots with a job in them: a worker runs no more at once."""
        return min(self.held, self.row.card.concurrency)

    @property
    def ahead(self) -> int:
        """Jobs that it has claimed and not begun."""
        return self.held - self.busy


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    figures: Figures
    oldest_due: float
    """Seconds."""
    tasks: Sequence[TaskLine]
    """By name, those without one last."""
    workers: Sequence[WorkerLine]
    counted: Counted = Counted({}, 1.0)
    """What workers have counted in the last minutes."""
    now: datetime
    """When it was asked, by this machine's clock."""

    @property
    def ahead(self) -> int:
        """Jobs that are claimed and not begun."""
        return sum(line.ahead for line in self.workers)

    @property
    def unkept(self) -> int:
        """Jobs that were completed while workers counted (below five minutes), and that are in no history."""
        counted, kept = sum(tally.ok for tally in self.counted.tasks.values()), total_ended(self.figures.lately[5])
        return max(0, counted - kept.completed.number) if kept.completed.exact else 0


@click.command()
@click.option("as_json", "--json", is_flag=True, help="One JSON object.")
@store_options
def command(as_json: bool, **typed: Any) -> None:
    """Jobs by state and by task, how long the oldest has been due, how many ended lately, how long they waited and ran,
    and the workers.

    Numbers of large stores are estimates ("about 3.1 million"); in tables they begin with ~.
    """
    found = with_store(settings_of(typed).store, read_stats)
    click.echo(stats_json(found) if as_json else "\n".join(_lines(found)))


async def read_stats(store: QueueStore) -> Stats:
    """A few questions, one after the other."""
    figures, workers = await store.inspect.figures(), await store.inspect.workers()
    held = {one.name: one.processing.number for one in figures.workers}
    return Stats(
        figures=figures,
        oldest_due=await store.inspect.oldest_due(),
        tasks=_task_lines(figures),
        workers=[WorkerLine(row, held.get(row.card.name, 0)) for row in workers],
        counted=await read_counted(store),
        now=wall_clock(),
    )


def _task_lines(figures: Figures) -> list[TaskLine]:
    standing = {one.name: one for one in figures.tasks}
    history = {one.name: one for one in figures.history}
    minute = {one.name: one for one in figures.lately[1]}
    names = sorted(standing.keys() | history.keys() | minute.keys(), key=lambda name: (name is None, name or ""))
    return [
        TaskLine(
            name,
            standing.get(name, LiveCounts(name=name)),
            history.get(name, EndedCounts(name=name)),
            minute.get(name, EndedCounts(name=name)),
        )
        for name in names
    ]


def state_line(found: Stats) -> str:
    """``3 queued, 8 processing (5 of them ahead), …``"""
    parts = [f"{amount.words} {state.value}" for state, amount in found.figures.states().items()]
    if found.ahead:
        parts[1] += f" ({found.ahead} of them claimed ahead)"
    return ", ".join(parts)


def unkept_lines(found: Stats) -> Iterator[str]:
    """Why what is counted from the history is too little, where it is."""
    if found.unkept:
        yield f"{found.unkept} more completed in the last {MINUTES}m: the history does not keep them"


def _lines(found: Stats) -> Iterator[str]:
    yield state_line(found)
    yield f"oldest due: {say_span(found.oldest_due)}" if found.oldest_due else "oldest due: nothing is due"
    yield from table(
        ("LAST", "COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
        [_ended(minutes, total_ended(some)) for minutes, some in found.figures.lately.items()],
        right=("COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
    )
    yield from unkept_lines(found)
    if found.figures.paused:
        yield from table(("PAUSED QUEUES",), [(", ".join(found.figures.paused),)])
    if names := found.figures.pauses.names():
        yield from table(("PAUSED",), [(", ".join(names),)])
    if found.tasks:
        heads = ("TASK", "WAITING", "DUE", "RUNNING", "FAILED", "COMPLETED", "CANCELED", "PER SECOND")
        yield ""
        yield from table(heads, [_task(line) for line in found.tasks], right=heads[1:])
    yield from counted_lines(found.counted)
    yield ""
    if found.workers:
        workers = [_worker(line, found.now) for line in found.workers]
        yield from table(WORKER_HEADS, workers, right=("BUSY", "AHEAD", "ABANDONED"))
    else:
        yield "No workers."


def _ended(minutes: int, ended: EndedCounts) -> tuple[str, ...]:
    rate = f"{ended.every.number / (60 * minutes):.2f}"
    return (f"{minutes}m", str(ended.completed), str(ended.failed), str(ended.canceled), rate)


def _task(line: TaskLine) -> tuple[str, ...]:
    one, history = line.standing, line.history
    amounts = (one.waiting, one.due, one.processing, one.failed, history.completed, history.canceled)
    return (line.name or OTHERS, *map(str, amounts), f"{line.per_second:.2f}")


def _worker(line: WorkerLine, now: datetime) -> tuple[str, ...]:
    card = line.row.card
    tasks = "any" if card.tasks is None else ", ".join(card.tasks)
    busy, up = f"{line.busy}/{card.concurrency}", say_span((now - line.row.started_at).total_seconds())
    version = card.version if card.app_version is None else f"{card.version}, app {card.app_version}"
    threads = str(card.abandoned_threads)
    return (card.name, line.row.state, busy, str(line.ahead), threads, version, up, ago(line.row.seen_at, now), tasks)


def stats_json(found: Stats) -> str:
    """One object; numbers that are estimates are named in ``estimated``."""
    states = found.figures.states()
    return json.dumps(
        {
            "states": {state: amount.number for state, amount in states.items()},
            "estimated": [state for state, amount in states.items() if not amount.exact],
            "claimed_ahead": found.ahead,
            "tasks": [_task_json(line) for line in found.tasks],
            "queues": [_standing_json("queue", one, found.figures) for one in found.figures.queues],
            "oldest_due": found.oldest_due,
            "finished": {
                f"{minutes}m": _ended_json(total_ended(some)) for minutes, some in found.figures.lately.items()
            },
            "counted": counted_json(found.counted),
            "paused": list(found.figures.paused),
            "paused_tasks": list(found.figures.pauses.tasks),
            "paused_without_queue": found.figures.pauses.unqueued is not None,
            "workers": [
                msgspec.structs.asdict(line.row.card)
                | {"alive": line.row.alive, "busy": line.busy, "claimed_ahead": line.ahead}
                | {"started_at": iso(line.row.started_at), "seen_at": iso(line.row.seen_at)}
                for line in found.workers
            ],
        }
    )


def _task_json(line: TaskLine) -> dict[str, object]:
    one, history = line.standing, line.history
    amounts = {"waiting": one.waiting, "due": one.due, "errored": one.errored, "running": one.processing}
    amounts |= {"failed": one.failed, "completed": history.completed, "canceled": history.canceled}
    return {"task": line.name, **_numbers(amounts), "per_second": round(line.per_second, 3)}


def _standing_json(what: str, one: LiveCounts, figures: Figures) -> dict[str, object]:
    amounts = {"waiting": one.waiting, "due": one.due, "running": one.processing, "failed": one.failed}
    return {what: one.name, "paused": one.name in figures.paused, **_numbers(amounts)}


def _ended_json(ended: EndedCounts) -> dict[str, object]:
    return _numbers({"completed": ended.completed, "failed": ended.failed, "canceled": ended.canceled})


def _numbers(amounts: dict[str, Amount]) -> dict[str, object]:
    estimated = [name for name, amount in amounts.items() if not amount.exact]
    numbers: dict[str, object] = {name: amount.number for name, amount in amounts.items()}
    return numbers | ({"estimated": estimated} if estimated else {})
