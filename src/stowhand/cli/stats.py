"""``stowhand stats``: how many jobs stand where, how fast they are done, and who works."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from stowhand.cli.moments import iso, say, say_span
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.cli.tables import table
from stowhand.job import State
from stowhand.operating import TaskRow, WorkerRow
from stowhand.queue_store import QueueStore

MINUTES = (1, 5, 15)
"""Of which it is said how many jobs ended."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    states: dict[State, int]
    tasks: Sequence[TaskRow]
    oldest_due: float
    """Seconds."""
    finished: dict[int, dict[State, int]]
    """By the last minutes."""
    workers: Sequence[WorkerRow]
    paused: Sequence[str]
    """Names of queues."""


@click.command()
@click.option("as_json", "--json", is_flag=True, help="One JSON object.")
@store_options
def command(as_json: bool, **typed: Any) -> None:
    """Jobs by state and by task, how long the oldest has been due, how many ended lately, and who works.

    It counts every job, the history too: on a large store that takes a moment.
    """
    found = with_store(settings_of(typed).store, read_stats)
    click.echo(stats_json(found) if as_json else "\n".join(_lines(found)))


async def read_stats(store: QueueStore, minutes: Sequence[int] = MINUTES) -> Stats:
    """A few questions, one after the other. The history is gone through once, and once for each of the minutes."""
    tasks = await store.task_counts()
    return Stats(
        states=_states(tasks),
        tasks=tasks,
        oldest_due=await store.oldest_due(),
        finished={number: await store.finished(60.0 * number) for number in minutes},
        workers=await store.workers(),
        paused=[row.name for row in await store.queues() if row.paused_since is not None],
    )


def _states(tasks: Sequence[TaskRow]) -> dict[State, int]:
    """As ``counts``, which would go through everything once more."""
    return {
        State.QUEUED: sum(row.waiting - row.errored for row in tasks),
        State.PROCESSING: sum(row.running for row in tasks),
        State.ERRORED: sum(row.errored for row in tasks),
        State.COMPLETED: sum(row.completed for row in tasks),
        State.FAILED: sum(row.failed for row in tasks),
        State.CANCELED: sum(row.canceled for row in tasks),
    }


def _lines(found: Stats) -> Iterator[str]:
    yield ", ".join(f"{number} {state.value}" for state, number in found.states.items())
    yield f"oldest due: {say_span(found.oldest_due)}" if found.oldest_due else "oldest due: nothing is due"
    yield from table(
        ("LAST", "COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
        [_ended(minutes, ended) for minutes, ended in found.finished.items()],
        right=("COMPLETED", "FAILED", "CANCELED", "PER SECOND"),
    )
    if found.paused:
        yield from table(("PAUSED QUEUES",), [(", ".join(found.paused),)])
    if found.tasks:
        heads = ("TASK", "WAITING", "DUE", "RUNNING", "FAILED", "COMPLETED", "CANCELED")
        yield ""
        yield from table(heads, [_task(row) for row in found.tasks], right=heads[1:])
    yield ""
    if found.workers:
        heads = ("WORKER", "STATE", "JOBS AT ONCE", "VERSION", "SINCE", "SEEN", "TASKS")
        yield from table(heads, [_worker(row) for row in found.workers], right=("JOBS AT ONCE",))
    else:
        yield "No workers."


def _ended(minutes: int, ended: dict[State, int]) -> tuple[str, ...]:
    numbers = [ended[state] for state in (State.COMPLETED, State.FAILED, State.CANCELED)]
    return (f"{minutes}m", *map(str, numbers), f"{sum(numbers) / (60 * minutes):.2f}")


def _task(row: TaskRow) -> tuple[str, ...]:
    numbers = (row.waiting, row.due, row.running, row.failed, row.completed, row.canceled)
    return (row.task, *map(str, numbers))


def _worker(row: WorkerRow) -> tuple[str, ...]:
    card = row.card
    state = "lost" if not row.alive else "stopping" if card.stopping else "alive"
    tasks = "any" if card.tasks is None else ", ".join(card.tasks)
    at_once = str(card.concurrency)
    return (card.name, state, at_once, card.version, say(row.started_at), say(row.seen_at), tasks)


def stats_json(found: Stats) -> str:
    """One object."""
    workers = [
        msgspec.structs.asdict(row.card)
        | {"alive": row.alive, "started_at": iso(row.started_at), "seen_at": iso(row.seen_at)}
        for row in found.workers
    ]
    return json.dumps(
        {
            "states": found.states,
            "tasks": [msgspec.structs.asdict(row) for row in found.tasks],
            "oldest_due": found.oldest_due,
            "finished": {f"{minutes}m": ended for minutes, ended in found.finished.items()},
            "paused": list(found.paused),
            "workers": workers,
        }
    )
