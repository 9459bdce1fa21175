"""What operators ask: pause, purge, serial keys."""

from __future__ import annotations

from datetime import timedelta

from stowhand.jobs.job import State
from stowhand.protocols.operator import (
    MAX_PURGE_COUNT,
    Ages,
    PurgeResult,
    QueueChange,
    SerialChange,
    SerialRow,
    read_serial,
)
from tests.model.engine.rows import Row, Rows, Transaction

OVER = (State.COMPLETED, State.FAILED, State.CANCELED)


class Operator:
    """Pauses serial keys and queues, and purges."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def pause_serial(self, name: str) -> SerialChange:
        with self._transaction() as rows:
            is_new = read_serial(name) not in rows.paused_serials
            rows.paused_serials.setdefault(name, rows.now)
            return SerialChange(name, is_new)

    async def resume_serial(self, name: str) -> SerialChange:
        with self._transaction() as rows:
            return SerialChange(name, rows.paused_serials.pop(read_serial(name), None) is not None)

    async def pause_queue(self, name: str) -> QueueChange:
        with self._transaction() as rows:
            is_new = name not in rows.paused_queues
            rows.paused_queues.add(name)
            return QueueChange(name, is_new)

    async def resume_queue(self, name: str) -> QueueChange:
        with self._transaction() as rows:
            was_paused = name in rows.paused_queues
            rows.paused_queues.discard(name)
            return QueueChange(name, was_paused)

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> PurgeResult:
        """Delete what ended longer ago than the age for its state; ``dry_run``: only count it."""
        with self._transaction() as rows:
            old = {state: old_rows(rows, state, getattr(ages, state.value)) for state in OVER}
            if dry_run:
                return PurgeResult(**{state.value: min(len(some), MAX_PURGE_COUNT + 1) for state, some in old.items()})
            rows.forget(row for some in old.values() for row in some)
            return PurgeResult(**{state.value: len(some) for state, some in old.items()})


def old_rows(rows: Rows, state: State, age: float | None) -> list[Row]:
    """What ended in this state longer ago than that."""
    if age is None:
        return []
    before = rows.now - timedelta(seconds=age)
    return [
        row for row in rows.every() if row.state is state and row.finished_at is not None and row.finished_at < before
    ]


def serial_row(rows: Rows, name: str) -> SerialRow:
    """One queue."""
    own = [row for row in rows.live.values() if row.serial == name]
    waiting = [row for row in own if row.waits()]
    running = [row.id for row in own if row.state is State.PROCESSING]
    return SerialRow(
        name=name,
        paused_since=rows.paused_serials.get(name),
        held_by=running[0] if running else None,
        waiting=len(waiting),
        due=sum(row.run_at <= rows.now for row in waiting),
        running=len(running),
        failed=sum(row.state is State.FAILED for row in own),
        due_since=min((row.run_at for row in waiting if row.run_at <= rows.now), default=None),
    )
