"""``stowhand stats``: jobs by state, how fast they end, and which workers are alive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from stowhand.cli.counted import OTHERS, Counted, Ended, counted_json, counted_lines, read_counted
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.text_table import table
from stowhand.clock import wall_clock
from stowhand.jobs.moments import ago, iso, say_span
from stowhand.protocols.figures import Amount, Figures, LiveCounts
from stowhand.protocols.operating import WorkerRow
from stowhand.protocols.queue_store import QueueStore

WORKER_HEADS = ("WORKER", "STATE", "BUSY", "AHEAD", "ABANDONED", "VERSION", "UP", "SEEN", "TASKS")


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
    workers: Sequence[WorkerLine]
    counted: Counted = Counted()
    """What workers have counted in the last minutes."""
    now: datetime
    """When it was asked, by this machine's clock."""

    @property
    def ahead(self) -> int:
        """Jobs that are claimed and not begun."""
        return sum(line.ahead for line in self.workers)


@click.command()
@click.option("as_json", "--json", is_flag=True, help="One JSON object.")
@store_options
def command(as_json: bool, **typed: Any) -> None:
    """Jobs by state and by task, how long the oldest has been due, how many ended lately, how long they waited and ran,
    and the workers.

    Numbers are exact up to 10,000, and beyond it "more than 10,000"; in tables >10000.
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
        workers=[WorkerLine(row, held.get(row.card.name, 0)) for row in workers],
        counted=await read_counted(store),
        now=wall_clock(),
    )


def state_line(found: Stats) -> str:
    """``3 queued, 8 processing (5 of them ahead), …``"""
    parts = [f"{amount.words} {state.value}" for state, amount in found.figures.states.items()]
    if found.ahead:
        parts[1] += f" ({found.ahead} of them claimed ahead)"
    return ", ".join(parts)


def _lines(found: Stats) -> Iterator[str]:
    yield state_line(found)
    yield f"oldest due: {say_span(found.oldest_due)}" if found.oldest_due else "oldest due: nothing is due"
    yield from table(
        ("LAST", "COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
        [_ended(minutes, ended) for minutes, ended in found.counted.lately.items()],
        right=("COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
    )
    if found.figures.paused:
        yield from table(("PAUSED QUEUES",), [(", ".join(found.figures.paused),)])
    if names := found.figures.pauses.names():
        yield from table(("PAUSED",), [(", ".join(names),)])
    if found.figures.tasks:
        heads = ("TASK", "WAITING", "DUE", "RUNNING", "FAILED")
        yield ""
        yield from table(heads, [_task(one) for one in by_name(found.figures.tasks)], right=heads[1:])
    yield from counted_lines(found.counted)
    yield ""
    if found.workers:
        workers = [_worker(line, found.now) for line in found.workers]
        yield from table(WORKER_HEADS, workers, right=("BUSY", "AHEAD", "ABANDONED"))
    else:
        yield "No workers."


def _ended(minutes: int, ended: Ended) -> tuple[str, ...]:
    tally = ended.tally
    return (f"{minutes}m", str(tally.ok), str(tally.failures), str(tally.canceled), f"{ended.rate:.2f}")


def by_name(counts: Sequence[LiveCounts]) -> list[LiveCounts]:
    """In order, those without a name last."""
    return sorted(counts, key=lambda one: (one.name is None, one.name or ""))


def _task(one: LiveCounts) -> tuple[str, ...]:
    return (one.name or OTHERS, *map(str, (one.waiting, one.due, one.processing, one.failed)))


def _worker(line: WorkerLine, now: datetime) -> tuple[str, ...]:
    card = line.row.card
    tasks = "any" if card.tasks is None else ", ".join(card.tasks)
    busy, up = f"{line.busy}/{card.concurrency}", say_span((now - line.row.started_at).total_seconds())
    version = card.version if card.app_version is None else f"{card.version}, app {card.app_version}"
    threads = str(card.abandoned_threads)
    return (card.name, line.row.state, busy, str(line.ahead), threads, version, up, ago(line.row.seen_at, now), tasks)


def stats_json(found: Stats) -> str:
    """One object; numbers of which there are more are named in ``more_than``."""
    states = found.figures.states
    return json.dumps(
        {
            "states": {state: amount.number for state, amount in states.items()},
            "more_than": [state for state, amount in states.items() if amount.least],
            "claimed_ahead": found.ahead,
            "tasks": [_task_json(one) for one in by_name(found.figures.tasks)],
            "serials": [_standing_json("serial", one, found.figures) for one in found.figures.serials],
            "oldest_due": found.oldest_due,
            "finished": {f"{minutes}m": _ended_json(ended) for minutes, ended in found.counted.lately.items()},
            "counted": counted_json(found.counted),
            "paused": list(found.figures.paused),
            "paused_tasks": list(found.figures.pauses.tasks),
            "workers": [
                msgspec.structs.asdict(line.row.card)
                | {"alive": line.row.alive, "busy": line.busy, "claimed_ahead": line.ahead}
                | {"started_at": iso(line.row.started_at), "seen_at": iso(line.row.seen_at)}
                for line in found.workers
            ],
        }
    )


def _task_json(one: LiveCounts) -> dict[str, object]:
    amounts = {"waiting": one.waiting, "due": one.due, "errored": one.errored, "running": one.processing}
    return {"task": one.name, **_numbers(amounts | {"failed": one.failed})}


def _standing_json(what: str, one: LiveCounts, figures: Figures) -> dict[str, object]:
    amounts = {"waiting": one.waiting, "due": one.due, "running": one.processing, "failed": one.failed}
    return {what: one.name, "paused": one.name in figures.paused, **_numbers(amounts)}


def _ended_json(ended: Ended) -> dict[str, object]:
    tally = ended.tally
    counts = {"completed": tally.ok, "failed": tally.failures, "canceled": tally.canceled}
    return {**counts, "per_second": round(ended.rate, 3)}


def _numbers(amounts: dict[str, Amount]) -> dict[str, object]:
    more = [name for name, amount in amounts.items() if amount.least]
    numbers: dict[str, object] = {name: amount.number for name, amount in amounts.items()}
    return numbers | ({"more_than": more} if more else {})
