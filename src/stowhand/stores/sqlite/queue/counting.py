"""Figures about the jobs of a file, in bounded time. Each function runs inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import State
from stowhand.protocols.figures import COUNTED, Amount, Figures, LiveCounts, Pauses, Tallies
from stowhand.protocols.throughput import MOST_TASKS
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.stores.sqlite.queue.transaction import Transaction

MOST = 2_000_000
"""Entries of an index that one question reads: a tenth of a second."""
FEW = 20_000
"""Rows that one question reads."""


def figures(tx: Transaction, most: int) -> Figures:
    """By indexes. Live jobs are counted up to millions, whatever ``most`` is."""
    tasks, queues, workers = _standing(tx)
    return Figures(
        states=amounts(tx, most),
        tasks=tasks.live(),
        queues=queues.live(),
        workers=workers.live(),
        paused={queue: to_datetime(since) for queue, since in tx.run("paused")},
        pauses=pauses(tx),
    )


def standing(tx: Transaction) -> list[LiveCounts]:
    """Live jobs by task."""
    tasks, _, _ = _standing(tx, of_queues=False)
    return tasks.live(MOST_TASKS)


def amounts(tx: Transaction, most: int = COUNTED) -> dict[State, Amount]:
    """Jobs by state, each counted up to ``most``.

    What is queued or completed is all that is not errored or canceled, so those two are counted further.
    """
    (failed,), (running,) = (tx.row(f"some_{name}", most=most + 1) for name in ("failed", "running"))
    (errored,), (canceled,) = (tx.row(f"some_{name}", most=MOST) for name in ("errored", "canceled"))
    (waiting,) = tx.row("some_waiting", most=most + 1 + errored)
    (over,) = tx.row("some_over", most=most + 1 + canceled)
    counts = {State.FAILED: failed, State.PROCESSING: running, State.ERRORED: errored, State.CANCELED: canceled}
    counts |= {State.QUEUED: waiting - errored, State.COMPLETED: over - canceled}
    return {state: Amount.up_to(most, counts[state]) for state in State}


def pauses(tx: Transaction) -> Pauses:
    """By name."""
    return Pauses(tasks={task: to_datetime(since) for task, since in tx.run("pauses")})


def _standing(tx: Transaction, *, of_queues: bool = True) -> tuple[Tallies, Tallies, Tallies]:
    """By task, queue and worker. ``of_queues`` false: what waits is not asked by queue, which takes long."""
    tasks, queues, workers = Tallies(), Tallies(), Tallies()
    _add_waiting(tx, tasks, queues, ("tasks", "queues") if of_queues else ("tasks",))
    running = tx.rows("running", few=FEW)
    least = sum(number for *_, number in running) == FEW
    for task, queue, worker, number in running:
        for tallies, name in ((tasks, task), (queues, queue), (workers, worker)):
            if name is not None:
                tallies.add(name, "processing", Amount(number, least))
    _add_failed(tx, tasks, queues)
    return tasks, queues, workers


def _add_waiting(tx: Transaction, tasks: Tallies, queues: Tallies, asked: Sequence[str]) -> None:
    (ids,) = tx.row("live_ids")
    for name, tallies in zip(asked, (tasks, queues), strict=False):
        found = tx.rows(f"all_waiting_{name}") if ids <= MOST else tx.rows(f"waiting_{name}", most=MOST, few=FEW)
        least = sum(number for _, number, _ in found) >= MOST
        for key, number, due in found:
            tallies.add(key, "waiting", Amount(number, least))
            tallies.add(key, "due", Amount(due, least))
    errored = tx.rows("errored", most=MOST)
    least = sum(number for _, _, number in errored) >= MOST
    for task, queue, number in errored:
        tasks.add(task, "errored", Amount(number, least))
        if queue is not None:
            queues.add(queue, "errored", Amount(number, least))


def _add_failed(tx: Transaction, tasks: Tallies, queues: Tallies) -> None:
    """By the newest; which tasks older ones belong to is unknown without reading them."""
    failed = tx.rows("failed", few=FEW)
    least = sum(number for *_, number in failed) == FEW
    for task, queue, number in failed:
        tasks.add(task, "failed", Amount(number, least))
        if queue is not None:
            queues.add(queue, "failed", Amount(number, least))
