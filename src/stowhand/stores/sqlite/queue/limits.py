"""Limits of tasks, inside a write transaction, so that only one claim reads and changes them at a time.

A running job of a concurrency limit has a slot: a number in its own row, unique while the job is processing. Whatever
ends ``processing`` frees the slot in the same write. A claim leaves out tasks whose limits have no room, and admits as
many of the chosen jobs as there is room for. PostgreSQL has the same rules in functions/limits.sql.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stowhand.jobs import task_limits
from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.jobs.task_limits import NO_LIMITS, LimitValues, TaskDeclarations, TaskLimits, overridden
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

NEVER = float("inf")


class Limit:
    """A limit, or one key of a limit, and the slots in use."""

    def __init__(
        self,
        tx: Transaction,
        name: str,
        values: LimitValues,
        used: Iterable[int],
        times: tuple[int | None, int | None, int | None],
    ) -> None:
        """``times``: the columns ``next_start``, ``held_until`` and ``served_at``."""
        next_start, held_until, self.served_at = times
        self.name = name
        self.values = values
        self._now = tx.now.wall / 1_000_000
        self._next_start = None if next_start is None else next_start / 1_000_000
        self._held_until = 0.0 if held_until is None else held_until / 1_000_000
        self._lowest_free_slot = 1
        self._used = set(used)
        self._started = 0

    @property
    def opens_for_slots_at(self) -> float:
        """Seconds since 1970 from which a job of the concurrency may start; NEVER: when a job ends."""
        concurrency = self.values.concurrency
        return NEVER if concurrency is not None and len(self._used) >= concurrency else self._held_until

    @property
    def opens_for_starts_at(self) -> float:
        """Seconds since 1970 from which a job of the rate may start."""
        if self.values.rate is None:
            return self._held_until
        return max(self._held_until, task_limits.rate_opens_at(self.values, self._next_start, self._now))

    @property
    def may_start(self) -> bool:
        """Whether one more job of the rate may start now."""
        if self._held_until > self._now:
            return False
        if self.values.rate is None:
            return True
        return task_limits.starts_allowed(self.values, self._next_start, self._now) > self._started

    @property
    def has_room(self) -> bool:
        """Whether one more job of the concurrency may start now."""
        if self._held_until > self._now:
            return False
        return self.values.concurrency is None or len(self._used) < self.values.concurrency

    @property
    def is_half_used(self) -> bool:
        """Whether half of the slots are in use, so that no job is claimed ahead."""
        return self.values.concurrency is not None and len(self._used) >= self.values.concurrency // 2

    def take_slot(self) -> int:
        """Return the lowest free slot, which is then in use."""
        while self._lowest_free_slot in self._used:
            self._lowest_free_slot += 1
        self._used.add(self._lowest_free_slot)
        return self._lowest_free_slot

    def start(self) -> None:
        """Count a start."""
        self._started += 1

    @property
    def changed_next_start(self) -> int | None:
        """The new value of the column, if jobs of a rate start now."""
        if not self._started or self.values.rate is None:
            return None
        return round(task_limits.after_starts(self.values, self._next_start, self._now, self._started) * 1_000_000)


class Limits:
    """The limits of all tasks, as this transaction reads them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._by_task = _read_task_limits(tx)
        self._limits = {row[0]: _read_limit(tx, row) for row in tx.rows("limits")}
        self._keys: dict[str, Limit] = {}

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

    def key(self, name: str) -> Limit:
        """Return a key of a limit by its stored name."""
        if name not in self._keys:
            limit = self._limits.get(name.partition(KEY_SEPARATOR)[0])
            values = LimitValues() if limit is None else limit.values.of_keys()
            if self._tx.row("is_paused", name=name):
                values = LimitValues(concurrency=0)
            used = self._tx.column("used_key_slots", name=name)
            times = self._tx.row("limit_key", name=name) or (None, None, None)
            self._keys[name] = Limit(self._tx, name, values, used, times)
        return self._keys[name]

    def key_opens_at(self, name: str) -> int:
        """Return the time in microseconds from which jobs of this key may start by its rate, or after a hold."""
        return round(self.key(name).opens_for_starts_at * 1_000_000)

    @property
    def fair_tasks(self) -> set[str]:
        """The tasks whose keys take turns."""
        return {task for task, own in self._by_task.items() if own.fair}

    def park(self, task: str, ids: Sequence[int]) -> None:
        """Give waiting jobs of a task their keys, so that they leave the order of claims."""
        own, names = self._by_task[task], defaultdict(list)
        assert own.key_limit is not None
        for job_id, _, _, payload in self._tx.run("limited_jobs", ids=as_json(ids)):
            names[task_limits.key_name(own.key_limit, own.key, payload)].append(job_id)
        for name, keyed in names.items():
            self._tx.run("set_key", name=name, ids=as_json(keyed))

    def admit(self, chosen: Sequence[int], request: ClaimRequest) -> Admission:
        """Return those of the chosen jobs that may start, in their order. Jobs whose key has no room are parked.

        Jobs beyond the free slots are claimed ahead, which jobs with a rate never are, and jobs of a concurrency limit
        only while less than half of it is in use.
        """
        admission = Admission()
        if not self._limits and not request.task_rooms:
            admission.ids += chosen
            return admission
        jobs = {row[0]: row[1:] for row in self._tx.run("limited_jobs", ids=as_json(chosen))}
        rooms = Counter(request.task_rooms)
        free = len(chosen) if request.free_slots is None else request.free_slots
        for job_id in chosen:
            task, serial, payload = jobs[job_id]
            if task in request.task_rooms and rooms[task] < 1:
                continue
            own = self._by_task.get(task, NO_LIMITS)
            key_name = serial if serial is not None and KEY_SEPARATOR in serial else None
            if serial is None and own.key_limit is not None:
                key_name = task_limits.key_name(own.key_limit, own.key, payload)
            if self._admit_one(admission, job_id, own, key_name, is_ahead=len(admission.ids) >= free):
                rooms[task] -= 1
                if serial is None and key_name is not None:
                    admission.new_keys.setdefault(key_name, []).append(job_id)
            elif job_id in admission.slotless and serial is None and key_name is not None:
                admission.parked.setdefault(key_name, []).append(job_id)
        return admission

    def _admit_one(
        self, admission: Admission, job_id: int, own: TaskLimits, key_name: str | None, *, is_ahead: bool
    ) -> bool:
        concurrency = None if own.concurrency is None else self._limits[own.concurrency]
        rate = None if own.rate is None else self._limits[own.rate]
        key = None if key_name is None else self.key(key_name)
        if concurrency is not None and (not concurrency.has_room or (is_ahead and concurrency.is_half_used)):
            return False
        if rate is not None and (is_ahead or not rate.may_start):
            return False
        if key is not None and not (key.has_room and key.may_start):
            admission.slotless.add(job_id)
            return False
        if key is not None and key.values.rate is not None and is_ahead:
            return False
        for limit in (rate, key):
            if limit is not None:
                limit.start()
        if concurrency is not None:
            admission.slots[job_id] = (concurrency.name, concurrency.take_slot())
        if key is not None:
            admission.key_slots[job_id] = key.take_slot()
            if own.fair:
                admission.turns[job_id] = key.name
        admission.ids.append(job_id)
        return True

    def write_keys(self, admission: Admission) -> None:
        """Give the jobs their keys: those that start, and those that are parked."""
        for names in (admission.new_keys, admission.parked):
            for name, ids in names.items():
                self._tx.run("set_key", name=name, ids=as_json(ids))

    def write(self, admission: Admission, claimed: Mapping[int, object]) -> None:
        """Write the slots and the starts of the claimed jobs."""
        slots = [(job_id, *slot) for job_id, slot in admission.slots.items() if job_id in claimed]
        if slots:
            self._tx.run("set_slots", slots=as_json(slots))
        for job_id, slot in admission.key_slots.items():
            if job_id in claimed:
                self._tx.run("set_key_slot", id=job_id, slot=slot)
        turns = [name for job_id, name in admission.turns.items() if job_id in claimed]
        for name in turns:
            self._tx.run("set_served", name=name)
            self._tx.run("recheck_heads", name=name)
        for name, limit in self._limits.items():
            if (next_start := limit.changed_next_start) is not None:
                self._tx.run("set_next_start", name=name, next_start=next_start)
        for name, key in self._keys.items():
            if (next_start := key.changed_next_start) is not None:
                self._tx.run("set_key_start", name=name, next_start=next_start)
                self._tx.run("recheck_heads", name=name)


class Admission:
    """The result of ``Limits.admit``."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        """The jobs that may start."""
        self.slots: dict[int, tuple[str, int]] = {}
        """The slots of jobs in concurrency limits."""
        self.key_slots: dict[int, int] = {}
        """The slots of jobs in keys of limits."""
        self.turns: dict[int, str] = {}
        """The keys of jobs whose keys take turns."""
        self.new_keys: dict[str, list[int]] = {}
        """Jobs that may start and have no key yet, by their key."""
        self.slotless: set[int] = set()
        """Jobs whose key has no room."""
        self.parked: dict[str, list[int]] = {}
        """Those of them that have no key yet, by their key. They leave the order of claims."""


def hold(tx: Transaction, task: str, serial: str | None, seconds: float) -> None:
    """Start no job of the limits of this task for some time; of a task with keys, no job of this key."""
    until = tx.now.wall + micros(seconds)
    if serial is not None and KEY_SEPARATOR in serial:
        tx.run("hold_key", name=serial, until=until)
        tx.run("recheck_heads", name=serial)
        return
    for name in _read_task_limits(tx).get(task, NO_LIMITS).names:
        tx.run("hold_limit", name=name, until=until)


def declare(tx: Transaction, declarations: TaskDeclarations) -> None:
    """Store the limits that the tasks of a starting worker declare. Overrides stay."""
    overrides = {row[0]: _decode(row[2]) for row in tx.rows("limits")}
    for name, values in declarations.limits.items():
        in_effect = overridden(values, overrides.get(name, LimitValues()))
        tx.run("declare_limit", name=name, declared=_encode(values), key_concurrency=in_effect.key_concurrency)
    tasks_before = _read_task_limits(tx)
    for task, before in tasks_before.items():
        now = declarations.tasks.get(task, NO_LIMITS)
        if task in declarations.queues and (before.key_limit, before.key) != (now.key_limit, now.key):
            tx.run("take_keys", task=task)
    for task, own in declarations.tasks.items():
        names = {"concurrency": own.concurrency, "rate": own.rate, "key_limit": own.key_limit, "key": own.key}
        tx.run("declare_task_limits", task=task, **names, fair=own.fair)
    tx.run("clear_task_limits", tasks=as_json([task for task in declarations.queues if task not in declarations.tasks]))
    for name in _fair_limits(tasks_before.values()) - _fair_limits(_read_task_limits(tx).values()):
        tx.run("end_turns", name=name)
        tx.run("recheck_keys", name=name)
    tx.run("clear_limits")


def set_override(tx: Transaction, name: str, changes: LimitValues) -> bool:
    """Override values of a limit. Return whether that changes the override. Raises InvalidJob."""
    declared, override = _find(tx, name)
    task_limits.refuse_undeclared(name, declared, changes)
    override = overridden(override, changes)
    key_concurrency = overridden(declared, override).key_concurrency
    values = {"name": name, "override": _encode(override), "key_concurrency": key_concurrency}
    return tx.run("set_override", **values).rowcount > 0


def reset(tx: Transaction, name: str) -> bool:
    """Remove the override of a limit, and end its hold and those of its keys.

    Return whether there was one. Raises InvalidJob.
    """
    _find(tx, name)
    has_changed = tx.run("reset_limit", name=name).rowcount > 0
    if tx.run("end_holds", name=name).rowcount > 0:
        tx.run("recheck_keys", name=name)
        has_changed = True
    tx.run("clear_limits")
    return has_changed


def _find(tx: Transaction, name: str) -> tuple[LimitValues, LimitValues]:
    """Return the declaration and the override of a limit. Raises InvalidJob."""
    for known, declared, override, *_ in tx.rows("limits"):
        if known == name:
            return _decode(declared), _decode(override)
    raise task_limits.unknown_limit(name)


def _fair_limits(tasks: Iterable[TaskLimits]) -> set[str]:
    return {own.key_limit for own in tasks if own.fair and own.key_limit is not None}


def _read_task_limits(tx: Transaction) -> dict[str, TaskLimits]:
    return {
        task: TaskLimits(concurrency, rate, key_limit, key, bool(fair))
        for task, concurrency, rate, key_limit, key, fair in tx.run("task_limits")
    }


def _read_limit(tx: Transaction, row: tuple[str, str, str, int | None, int | None]) -> Limit:
    name, declared, override, *times = row
    values = overridden(_decode(declared), _decode(override))
    used = [] if values.concurrency is None else tx.column("used_slots", name=name)
    return Limit(tx, name, values, used, (times[0], times[1], None))


def _decode(text: str) -> LimitValues:
    return msgspec.json.decode(text, type=LimitValues)


def _encode(values: LimitValues) -> str:
    return msgspec.json.encode(values).decode()
