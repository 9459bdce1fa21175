"""Figures about the jobs of a file, in bounded time. Each function runs inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import COUNTED, MINUTES, Amount, Figures, LiveCounts, Pauses, Tallies, total_ended
from stowhand.protocols.operating import Held
from stowhand.protocols.throughput import MOST_TASKS
from stowhand.stores.sqlite.queue.moment import micros, to_datetime
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.searching import head
from stowhand.stores.sqlite.queue.transaction import Transaction

MOST = 2_000_000
"""Entries of an index that one question reads: a tenth of a second."""
FEW = 20_000
"""Rows that one question reads."""
PROBES = 2_000
"""Rows read of a longer history, which stand for all of it."""
GOLDEN = 0.6180339887498949
"""Steps of this fraction spread evenly, and match no period in the data."""


def figures(tx: Transaction) -> Figures:
    """Live jobs are counted, up to millions; the history is estimated where it is long."""
    tasks, queues, workers = _standing(tx)
    return Figures(
        tasks=tasks.live(),
        queues=queues.live(),
        workers=workers.live(),
        history=_history(tx).ended(),
        lately={minutes: _lately(tx, minutes).ended() for minutes in MINUTES},
        paused={queue: to_datetime(since) for queue, since in tx.run("paused")},
        pauses=pauses(tx),
    )


def standing(tx: Transaction) -> list[LiveCounts]:
    """Live jobs by task."""
    tasks, _, _ = _standing(tx, of_queues=False)
    return tasks.live(MOST_TASKS)


def amounts(tx: Transaction) -> dict[State, Amount]:
    """Live jobs are counted up to 10,000 of each state; the history is estimated where it is long."""
    (failed,), (running,), (errored,) = (
        tx.row(f"some_{name}", most=COUNTED + 1) for name in ("failed", "running", "errored")
    )
    (waiting,) = tx.row("some_waiting", most=COUNTED + 1 + errored)
    ended = total_ended(_history(tx).ended())
    return {
        State.QUEUED: counted(waiting - errored),
        State.PROCESSING: counted(running),
        State.ERRORED: counted(errored),
        State.COMPLETED: ended.completed,
        State.FAILED: counted(failed),
        State.CANCELED: ended.canceled,
    }


def counted(number: int) -> Amount:
    """Of rows that were counted up to 10,000 and one."""
    return Amount(number) if number <= COUNTED else Amount(COUNTED, exact=False, least=True)


def held(tx: Transaction, each: int) -> list[Held]:
    """Of each worker what it has held longest."""
    found: dict[str, tuple[int, list[Job]]] = {}
    for worker, number, *row in tx.run("longest_held", each=each, most=COUNTED):
        found.setdefault(worker, (number, []))[1].append(head(row))
    least = sum(number for number, _ in found.values()) >= COUNTED
    return [
        Held(worker=worker, jobs=Amount(number, not least, least), longest=jobs)
        for worker, (number, jobs) in found.items()
    ]


def pauses(tx: Transaction) -> Pauses:
    """By name."""
    return Pauses.read({task: to_datetime(since) for task, since in tx.run("pauses")})


def _standing(tx: Transaction, *, of_queues: bool = True) -> tuple[Tallies, Tallies, Tallies]:
    """By task, queue and worker. ``of_queues`` false: what waits is not asked by queue, which takes long."""
    tasks, queues, workers = Tallies(), Tallies(), Tallies()
    _add_waiting(tx, tasks, queues, ("tasks", "queues") if of_queues else ("tasks",))
    running = tx.rows("running", few=FEW)
    least = sum(number for *_, number in running) == FEW
    for task, queue, worker, number in running:
        for tallies, name in ((tasks, task), (queues, queue), (workers, worker)):
            if name is not None:
                tallies.add(name, "processing", Amount(number, not least, least))
    _add_failed(tx, tasks, queues)
    return tasks, queues, workers


def _add_waiting(tx: Transaction, tasks: Tallies, queues: Tallies, asked: Sequence[str]) -> None:
    (ids,) = tx.row("live_ids")
    for name, tallies in zip(asked, (tasks, queues), strict=False):
        found = tx.rows(f"all_waiting_{name}") if ids <= MOST else tx.rows(f"waiting_{name}", most=MOST, few=FEW)
        least = sum(number for _, number, _ in found) >= MOST
        for key, number, due in found:
            tallies.add(key, "waiting", Amount(number, not least, least))
            tallies.add(key, "due", Amount(due, not least, least))
    errored = tx.rows("errored", most=MOST)
    least = sum(number for _, _, number in errored) >= MOST
    for task, queue, number in errored:
        tasks.add(task, "errored", Amount(number, not least, least))
        if queue is not None:
            queues.add(queue, "errored", Amount(number, not least, least))


def _add_failed(tx: Transaction, tasks: Tallies, queues: Tallies) -> None:
    counted = 0
    for task, queue, number in tx.run("failed", few=FEW):
        counted += number
        tasks.add(task, "failed", Amount(number))
        if queue is not None:
            queues.add(queue, "failed", Amount(number))
    if counted == FEW:  # which tasks the older ones belong to is unknown without reading them
        (every,) = tx.row("all_failed", most=MOST)
        tasks.add(None, "failed", Amount(every - counted, every < MOST, every >= MOST))


def _history(tx: Transaction) -> Tallies:
    first, last = tx.row("history_ids")
    span = last - first + 1
    if span <= FEW:
        return _tallied(tx.run("history"))
    ids = [first + int(span * (place * GOLDEN % 1)) for place in range(PROBES)]
    rows = tx.run("history_here_and_there", ids=as_json(ids))
    return _tallied(rows, times=span / len(set(ids)))


def _lately(tx: Transaction, minutes: int) -> Tallies:
    since = tx.now.wall - micros(60.0 * minutes)
    rows = tx.rows("lately", since=since, few=FEW)
    times = None
    if sum(number for _, _, number in rows) == FEW:
        (every,) = tx.row("all_lately", since=since, most=MOST)
        times = every / FEW if every > FEW else None
    tallies = _tallied(rows, times)
    for task, number in tx.run("failed_lately", since=since, few=FEW):
        tallies.add(task, "failed", Amount(number, number < FEW))
    return tallies


def _tallied(rows: Iterable[tuple[str, str, int]], times: float | None = None) -> Tallies:
    """``times``: the rows are a sample, of which each stands for so many."""
    tallies = Tallies()
    for task, state, number in rows:
        tallies.add(task, state, Amount(number) if times is None else Amount(round(number * times), exact=False))
    return tallies
