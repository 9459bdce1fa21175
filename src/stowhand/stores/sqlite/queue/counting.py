"""Figures about the jobs of a file, in bounded time. Each function runs inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from stowhand.protocols.figures import MINUTES, Amount, Figures, Pauses, Tallies
from stowhand.stores.sqlite.queue.moment import Moment, micros, to_datetime
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.statements import load

SQL = load("figures")
MOST = 2_000_000
"""Entries of an index that one question reads: a tenth of a second."""
FEW = 20_000
"""Rows that one question reads."""
PROBES = 2_000
"""Rows read of a longer history, which stand for all of it."""
GOLDEN = 0.6180339887498949
"""Steps of this fraction spread evenly, and match no period in the data."""


def figures(connection: sqlite3.Connection, now: Moment) -> Figures:
    """Live jobs are counted, up to millions; the history is estimated where it is long."""
    tasks, queues, workers = Tallies(), Tallies(), Tallies()
    _add_waiting(connection, now, tasks, queues)
    for task, queue, worker, number in connection.execute(SQL["running"], {"few": FEW}):
        for tallies, name in ((tasks, task), (queues, queue), (workers, worker)):
            if name is not None:
                tallies.add(name, "processing", Amount(number))
    _add_failed(connection, tasks, queues)
    return Figures(
        tasks=tasks.live(),
        queues=queues.live(),
        workers=workers.live(),
        history=_history(connection).ended(),
        lately={minutes: _lately(connection, now, minutes).ended() for minutes in MINUTES},
        paused={queue: to_datetime(since) for queue, since in connection.execute(SQL["paused"])},
        pauses=pauses(connection),
    )


def pauses(connection: sqlite3.Connection) -> Pauses:
    """By name."""
    return Pauses.read({task: to_datetime(since) for task, since in connection.execute(SQL["pauses"])})


def oldest_due(connection: sqlite3.Connection, now: Moment) -> float:
    """Seconds for which the job that is due longest could have run."""
    (waited,) = connection.execute(SQL["oldest_due"], {"now": now.wall}).fetchone()
    return float(waited) / 1_000_000


def _add_waiting(connection: sqlite3.Connection, now: Moment, tasks: Tallies, queues: Tallies) -> None:
    given = {"now": now.wall, "most": MOST, "few": FEW}
    for name, tallies in (("waiting_tasks", tasks), ("waiting_queues", queues)):
        found = connection.execute(SQL[name], given).fetchall()
        exact = sum(number for _, number, _ in found) < MOST
        for key, number, due in found:
            tallies.add(key, "waiting", Amount(number, exact))
            tallies.add(key, "due", Amount(due, exact))
    for task, queue, number in connection.execute(SQL["errored"], given):
        tasks.add(task, "errored", Amount(number))
        if queue is not None:
            queues.add(queue, "errored", Amount(number))


def _add_failed(connection: sqlite3.Connection, tasks: Tallies, queues: Tallies) -> None:
    counted = 0
    for task, queue, number in connection.execute(SQL["failed"], {"few": FEW}):
        counted += number
        tasks.add(task, "failed", Amount(number))
        if queue is not None:
            queues.add(queue, "failed", Amount(number))
    if counted == FEW:  # which tasks the older ones belong to is unknown without reading them
        (every,) = connection.execute(SQL["all_failed"], {"most": MOST}).fetchone()
        tasks.add(None, "failed", Amount(every - counted, every < MOST))


def _history(connection: sqlite3.Connection) -> Tallies:
    first, last = connection.execute(SQL["history_ids"]).fetchone()
    span = last - first + 1
    if span <= FEW:
        return _tallied(connection.execute(SQL["history"]))
    ids = [first + int(span * (place * GOLDEN % 1)) for place in range(PROBES)]
    rows = connection.execute(SQL["history_here_and_there"], {"ids": as_json(ids)})
    return _tallied(rows, times=span / len(set(ids)))


def _lately(connection: sqlite3.Connection, now: Moment, minutes: int) -> Tallies:
    given = {"since": now.wall - micros(60.0 * minutes), "few": FEW, "most": MOST}
    rows = connection.execute(SQL["lately"], given).fetchall()
    times = None
    if sum(number for _, _, number in rows) == FEW:
        (every,) = connection.execute(SQL["all_lately"], given).fetchone()
        times = every / FEW if every > FEW else None
    tallies = _tallied(rows, times)
    for task, number in connection.execute(SQL["failed_lately"], given):
        tallies.add(task, "failed", Amount(number, number < FEW))
    return tallies


def _tallied(rows: Iterable[tuple[str, str, int]], times: float | None = None) -> Tallies:
    """``times``: the rows are a sample, of which each stands for so many."""
    tallies = Tallies()
    for task, state, number in rows:
        tallies.add(task, state, Amount(number) if times is None else Amount(round(number * times), exact=False))
    return tallies
