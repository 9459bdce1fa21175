"""What flows keep in a memory store: the rules of ``stowhand.protocols.flow_tables`` as plain code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter

import msgspec

from stowhand.jobs import limits
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_tables import (
    ALL,
    FORGIVEN,
    IDLE_LIMIT,
    PARKED,
    PREFIX,
    WAITS_FOR,
    NewFlow,
    PlacedStep,
    Spending,
    Spent,
    StepCount,
    StepState,
    Woken,
    spend,
)
from stowhand.stores.memory import acting, enqueueing
from stowhand.stores.memory.rows import IN_TURN, Row, Rows, Transaction


@dataclass
class Limit:
    """What a limiter has let pass in its window, and until when it made which jobs wait."""

    spent: Spent = field(default_factory=lambda: Spent(0, 0, 0))
    waits: dict[str, float] = field(default_factory=dict)
    used_at: float = 0.0


class MemoryFlowTables:
    """Under the store's lock."""

    def __init__(self, transaction: Transaction, *, keeps: bool) -> None:
        self._transaction = transaction
        self.keeps = keeps
        self._jobs: dict[str, tuple[str, datetime]] = {}
        """By id: the flow, and when it was created."""
        self._lookups: set[tuple[str, str, str, str]] = set()
        self._lists: dict[str, tuple[str, str]] = {}
        """By id: the job, and the content."""
        self._limits: dict[tuple[str, str], Limit] = {}

    def clear(self) -> None:
        """As they were in the beginning."""
        for kept in (self._jobs, self._lookups, self._lists, self._limits):
            kept.clear()

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> Sequence[str]:
        steps = [(job, limits.check(job.step)) for job in jobs]
        with self._transaction() as rows, rows.all_or_nothing():
            holders: dict[str, str] = {}
            ids = [self._holder(rows, flow, job, holders) for job in jobs]
            new = [(job, step) for (job, step), holder in zip(steps, ids, strict=True) if holder == job.id]
            new = [(job, step) for job, step in new if job.id not in self._jobs]
            for _, step in new:
                enqueueing.add(rows, step)
            for job, _ in new:
                self._jobs[job.id] = (flow, rows.now)
                self._lookups |= {(flow, attribute, value, job.id) for attribute, value in job.lookups}
                self._keep(job.id, job.lists)
            return ids

    def _holder(self, rows: Rows, flow: str, job: NewFlow, holders: dict[str, str]) -> str:
        """The id of the job that holds its key, or its own; ``holders``: of the same call."""
        if job.key is None:
            return job.id
        if job.key not in holders:
            known = sorted(entry[3] for entry in self._lookups if entry[:3] == (flow, "", job.key))
            steps = ((job_id, rows.holder(f"{PREFIX}{flow}:{job_id}")) for job_id in known)
            live = (job_id for job_id, step in steps if step is not None and step.state is not State.FAILED)
            holders[job.key] = next(live, job.id)
        return holders[job.key]

    async def keep(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        with self._transaction():
            self._keep(job_id, lists)

    def _keep(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        if job_id in self._jobs:
            self._lists = {list_id: (job_id, content) for list_id, content in lists} | self._lists

    async def kept(self, list_id: str) -> str | None:
        with self._transaction():
            return self._lists.get(list_id, ("", None))[1]

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        with self._transaction():
            return sorted(entry[3] for entry in self._lookups if entry[:3] == (flow, attribute, value))

    async def exists(self, ids: Sequence[str]) -> set[str]:
        with self._transaction():
            return self._jobs.keys() & set(ids)

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        with self._transaction() as rows:
            found = [newest(rows, key) for key in keys]
            return [None if row is None else row.job() for row in found]

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        with self._transaction() as rows:
            found = self._jobs.get(job_id, ("",))[0] == flow
            if found:
                self._forget({job_id})
            for key in keys:
                acting.remove_key(rows, key)
                rows.forget([row for row in rows.history.values() if row.key == key])
            return found

    async def wake(self, key: str) -> Woken:
        with self._transaction() as rows:
            row = rows.holder(key)
            names = None if row is None else msgspec.json.decode(row.payload).get(WAITS_FOR)
            if row is None or names is None or row.state is State.FAILED:
                return Woken.GONE
            if any(is_open(rows, name) for name in names):
                return Woken.OPEN
            if row.state is State.PROCESSING:
                return Woken.RUNNING
            row.run_at = min(row.run_at, rows.now)
            rows.announce()
            return Woken.WOKEN

    async def spend(self, asked: Spending) -> float:
        with self._transaction() as rows:
            at = rows.now.timestamp()
            limit = self._limits.setdefault((asked.limiter, asked.part), Limit())
            limit.used_at = at
            came_back = limit.waits.pop(asked.holder, None) is not None
            forgiven = at - asked.interval - FORGIVEN
            limit.waits = {holder: ready_at for holder, ready_at in limit.waits.items() if ready_at >= forgiven}
            limit.spent = spend(at, limit.spent, asked, came_back=came_back)
            if limit.spent.wait > 0:
                limit.waits[asked.holder] = at + limit.spent.wait
            return limit.spent.wait

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        with self._transaction() as rows:
            alike = [
                (row.task, row.priority, step_state(row, rows.now))
                for row in rows.live.values()
                if row.task in set(tasks)
            ]
            return [StepCount(*each, alike.count(each)) for each in dict.fromkeys(alike)]

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        with self._transaction() as rows:
            mine = [row for row in rows.live.values() if row.task == task and row.key is not None]
            running = [row for row in rows.running() if row.task == task and row.key is not None]
            due = sorted((row for row in mine if step_state(row, rows.now) is StepState.WAITING), key=IN_TURN)
            later = sorted(
                (row for row in mine if row.waits() and row.run_at > rows.now), key=attrgetter("run_at", "id")
            )
            return [placed(row, rows.now) for kind in (running, due, later) for row in kind[:limit]]

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        with self._transaction() as rows:
            keys = [row.key for row in rows.live.values() if row.state is State.FAILED and row.task in set(tasks)]
            return sorted(key for key in keys if key is not None and key > after)[:limit]

    def prune(self, rows: Rows) -> None:
        """Forget jobs none of whose steps is left, and limiters that are no longer used."""
        before = rows.now - timedelta(seconds=rows.retention or 0.0)
        self._forget(
            {
                job_id
                for job_id, (flow, created_at) in self._jobs.items()
                if created_at < before and newest(rows, f"{PREFIX}{flow}:{job_id}") is None
            }
        )
        idle = rows.now.timestamp() - IDLE_LIMIT
        self._limits = {part: limit for part, limit in self._limits.items() if limit.used_at >= idle}

    def _forget(self, ids: set[str]) -> None:
        for job_id in ids:
            del self._jobs[job_id]
        self._lookups = {entry for entry in self._lookups if entry[3] not in ids}
        self._lists = {list_id: kept for list_id, kept in self._lists.items() if kept[0] not in ids}


def newest(rows: Rows, key: str) -> Row | None:
    """The live step of a key, else the last one in the history."""
    past = [row for row in rows.history.values() if row.key == key]
    return rows.holder(key) or max(past, key=lambda row: row.id, default=None)


def is_open(rows: Rows, awaited: str) -> bool:
    """Whether the child with this id, or any whose id begins so, has not ended."""
    stem = PREFIX + awaited.removesuffix(ALL)
    if not awaited.endswith(ALL):
        children = [child] if (child := rows.holder(stem)) is not None else []
    else:
        children = [row for row in rows.live.values() if row.key is not None and row.key.startswith(stem)]
    return any(child.state is not State.FAILED for child in children)


def step_state(row: Row, now: datetime) -> StepState:
    """Of a live row."""
    if not row.waits():
        return StepState(row.state.value)
    if row.run_at <= now:
        return StepState.WAITING
    return StepState.PARKED if PARKED in row.flags else StepState.DELAYED


def placed(row: Row, now: datetime) -> PlacedStep:
    """Of a live row with a key."""
    where = step_state(row, now)
    later = where in (StepState.DELAYED, StepState.PARKED)
    return PlacedStep(str(row.key), row.priority, where, row.run_at.timestamp() if later else None)
