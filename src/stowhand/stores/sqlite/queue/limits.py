"""Limits of tasks, inside a write transaction, so that only one claim reads and changes them at a time.

A running job of a concurrency limit has a slot: a number in its own row, unique while the job is processing. Whatever
ends ``processing`` frees the slot in the same write. A claim leaves out tasks whose limits have no room, and admits as
many of the chosen jobs as there is room for. PostgreSQL has the same rules in functions/limits.sql.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from stowhand.jobs import task_limits
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits, overridden
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

NEVER = float("inf")


class Limit:
    """A row of the table of limits, and the slots in use."""

    def __init__(self, tx: Transaction, row: tuple[str, str, str, int | None, int | None]) -> None:
        self.name, declared, override, next_start, held_until = row
        self.values = overridden(_decode(declared), _decode(override))
        self._now = tx.now.wall / 1_000_000
        self._next_start = None if next_start is None else next_start / 1_000_000
        self._held_until = 0.0 if held_until is None else held_until / 1_000_000
        self._lowest_free_slot = 1
        self.used: set[int] = set()
        if self.values.concurrency is not None:
            self.used.update(tx.column("used_slots", name=self.name))

    @property
    def opens_for_slots_at(self) -> float:
        """Seconds since 1970 from which a job of the concurrency limit may start; NEVER: when a job ends."""
        concurrency = self.values.concurrency
        return NEVER if concurrency is not None and len(self.used) >= concurrency else self._held_until

    @property
    def opens_for_starts_at(self) -> float:
        """Seconds since 1970 from which a job of the rate may start."""
        if self.values.rate is None:
            return self._held_until
        return max(self._held_until, task_limits.rate_opens_at(self.values, self._next_start, self._now))

    @property
    def starts(self) -> float:
        """Number of jobs of the rate that may start now."""
        if self._held_until > self._now:
            return 0
        if self.values.rate is None:
            return NEVER
        return task_limits.starts_allowed(self.values, self._next_start, self._now)

    @property
    def room(self) -> float:
        """Number of jobs of the concurrency limit that may start now."""
        if self._held_until > self._now:
            return 0
        return NEVER if self.values.concurrency is None else self.values.concurrency - len(self.used)

    @property
    def is_half_used(self) -> bool:
        """Whether half of the slots are in use, so that no job is claimed ahead."""
        return self.values.concurrency is not None and len(self.used) >= self.values.concurrency // 2

    def take_slot(self) -> int:
        """Return the lowest free slot, which is then in use."""
        while self._lowest_free_slot in self.used:
            self._lowest_free_slot += 1
        self.used.add(self._lowest_free_slot)
        return self._lowest_free_slot

    def next_start(self, started: int) -> int:
        """Return the value of the column when this many jobs start now."""
        return round(task_limits.after_starts(self.values, self._next_start, self._now, started) * 1_000_000)


class Limits:
    """The limits of all tasks, as this transaction reads them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._by_task = {task: TaskLimits(*names) for task, *names in tx.run("task_limits")}
        self._limits = {row[0]: Limit(tx, row) for row in tx.rows("limits")} if self._by_task else {}

    def closed_tasks(self) -> dict[str, float]:
        """Return the tasks of which no job may start now, with the seconds since 1970 from which one may."""
        now = self._tx.now.wall / 1_000_000
        times = {task: self._opens_at(own) for task, own in self._by_task.items()}
        return {task: opens_at for task, opens_at in times.items() if opens_at > now}

    def _opens_at(self, own: TaskLimits) -> float:
        opens_at = 0.0
        if own.concurrency is not None:
            opens_at = self._limits[own.concurrency].opens_for_slots_at
        if own.rate is not None:
            opens_at = max(opens_at, self._limits[own.rate].opens_for_starts_at)
        return opens_at

    def admit(self, chosen: Sequence[int], request: ClaimRequest) -> Admission:
        """Return those of the chosen jobs that may start, in their order.

        Jobs beyond the free slots are claimed ahead, which jobs with a rate never are, and jobs of a concurrency limit
        only while less than half of it is in use.
        """
        if not self._by_task and not request.task_rooms:
            return Admission(list(chosen), {}, {})
        tasks = dict(self._tx.run("tasks_of", ids=as_json(chosen)))
        rooms = Counter(request.task_rooms)
        admission = Admission([], {}, Counter())
        free = len(chosen) if request.free_slots is None else request.free_slots
        for job_id in chosen:
            task = tasks[job_id]
            if task in request.task_rooms and rooms[task] < 1:
                continue
            if self._admit_one(admission, job_id, self._by_task.get(task), is_ahead=len(admission.ids) >= free):
                rooms[task] -= 1
        return admission

    def _admit_one(self, admission: Admission, job_id: int, own: TaskLimits | None, *, is_ahead: bool) -> bool:
        if own is not None:
            concurrency = None if own.concurrency is None else self._limits[own.concurrency]
            rate = None if own.rate is None else self._limits[own.rate]
            if concurrency is not None and (concurrency.room < 1 or (is_ahead and concurrency.is_half_used)):
                return False
            if rate is not None and (is_ahead or rate.starts - admission.starts[rate.name] < 1):
                return False
            if rate is not None:
                admission.starts[rate.name] += 1
            if concurrency is not None:
                admission.slots[job_id] = (concurrency.name, concurrency.take_slot())
        admission.ids.append(job_id)
        return True

    def write(self, admission: Admission, claimed: Mapping[int, object]) -> None:
        """Write the slots and the starts of the claimed jobs."""
        slots = [(job_id, *slot) for job_id, slot in admission.slots.items() if job_id in claimed]
        if slots:
            self._tx.run("set_slots", slots=as_json(slots))
        for name, started in admission.starts.items():
            self._tx.run("set_next_start", name=name, next_start=self._limits[name].next_start(started))


class Admission(NamedTuple):
    """The jobs that may start, their slots, and the number of starts by the name of the rate."""

    ids: list[int]
    slots: dict[int, tuple[str, int]]
    starts: Counter[str] | dict[str, int]


def hold(tx: Transaction, task: str, seconds: float) -> None:
    """Start no job of the limits of this task for some time. A longer hold stays."""
    for own in (TaskLimits(*names) for name, *names in tx.run("task_limits") if name == task):
        for name in own.names:
            tx.run("hold_limit", name=name, until=tx.now.wall + micros(seconds))


def declare(tx: Transaction, declarations: TaskDeclarations) -> None:
    """Store the limits that the tasks of a starting worker declare. Overrides stay."""
    for name, values in declarations.limits.items():
        tx.run("declare_limit", name=name, declared=_encode(values))
    for task, own in declarations.tasks.items():
        tx.run("declare_task_limits", task=task, concurrency=own.concurrency, rate=own.rate)
    tx.run("clear_task_limits", tasks=as_json([task for task in declarations.queues if task not in declarations.tasks]))
    tx.run("clear_limits")


def set_override(tx: Transaction, name: str, changes: LimitValues) -> bool:
    """Override values of a limit. Return whether that changes the override. Raises InvalidJob."""
    declared, override = _find(tx, name)
    task_limits.refuse_undeclared(name, declared, changes)
    return tx.run("set_override", name=name, override=_encode(overridden(override, changes))).rowcount > 0


def reset(tx: Transaction, name: str) -> bool:
    """Remove the override of a limit, and end its hold. Return whether there was one. Raises InvalidJob."""
    _find(tx, name)
    has_changed = tx.run("reset_limit", name=name).rowcount > 0
    tx.run("clear_limits")
    return has_changed


def _find(tx: Transaction, name: str) -> tuple[LimitValues, LimitValues]:
    """Return the declaration and the override of a limit. Raises InvalidJob."""
    for known, declared, override, *_ in tx.rows("limits"):
        if known == name:
            return _decode(declared), _decode(override)
    raise task_limits.unknown_limit(name)


def _decode(text: str) -> LimitValues:
    return msgspec.json.decode(text, type=LimitValues)


def _encode(values: LimitValues) -> str:
    return msgspec.json.encode(values).decode()
