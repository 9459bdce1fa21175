"""What flows keep in the file; each call is one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from stowhand.jobs import limits
from stowhand.jobs.job import Job, State
from stowhand.protocols.flow_tables import (
    ALL,
    FORGIVEN,
    IDLE_LIMIT,
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
from stowhand.stores.sqlite.queue import enqueue, inspector, trouble
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment, micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.statements import load

SQL = load("flows")
PRUNE_AT_ONCE = 2000


class Waiting(msgspec.Struct):
    """What of a parent's payload its waking needs."""

    waits_for: list[str] | None = msgspec.field(default=None, name=WAITS_FOR)


_waiting = msgspec.json.Decoder(Waiting)


class SqliteFlowTables:
    """On the store's connections."""

    def __init__(self, connections: Connections, *, keeps: bool) -> None:
        self._connections = connections
        self.keeps = keeps

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> None:
        """All or none."""
        checked = [msgspec.structs.replace(job, step=limits.check(job.step)) for job in jobs]
        await self._connections.write(partial(_create, flow=flow, jobs=checked), wakes=True)

    async def keep(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """For as long as the job is known."""
        await self._connections.write(partial(_keep, job_id=job_id, lists=lists))

    async def kept(self, list_id: str) -> str | None:
        """One of them."""
        found = await self._connections.read(lambda connection, _: _column(connection, "kept", {"id": list_id}))
        return found[0] if found else None

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """In id order."""
        given = {"flow": flow, "attribute": attribute, "value": value}
        return await self._connections.read(lambda connection, _: _column(connection, "ids", given))

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Those that are there."""
        return set(
            await self._connections.read(lambda connection, _: _column(connection, "exists", {"ids": as_json(ids)}))
        )

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """In the order of the keys."""
        return await self._connections.read(lambda connection, _: [_latest(connection, key) for key in keys])

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """With its steps."""
        return await self._connections.write(partial(_delete, flow=flow, job_id=job_id, keys=keys))

    async def wake(self, key: str) -> Woken:
        """Make it due."""
        woken = await self._connections.write(partial(_wake, key=key))
        if woken is Woken.WOKEN:
            self._connections.wake.ring()
        return woken

    async def spend(self, asked: Spending) -> float:
        """By this machine's clock."""
        return await self._connections.write(partial(_spend, asked=asked))

    async def tally(self, tasks: Sequence[str]) -> Sequence[StepCount]:
        """Counted."""
        return await self._connections.read(partial(_tally, tasks=tasks))

    async def in_queue(self, task: str, limit: int) -> Sequence[PlacedStep]:
        """In order."""
        return await self._connections.read(partial(_in_queue, task=task, limit=limit))

    async def failed(self, tasks: Sequence[str], after: str, limit: int) -> Sequence[str]:
        """In key order."""
        given = {"tasks": as_json(tasks), "after": after, "limit": limit}
        return await self._connections.read(lambda connection, _: _column(connection, "failed", given))


def prune(connection: sqlite3.Connection, now: Moment, *, age: float) -> bool:
    """Delete what belongs to jobs none of whose steps is left. A page at a time; True: there may be more to look at.

    Each job is looked at once in ``age`` seconds, so jobs that stay for long (failed ones do) hold up no others.
    """
    given = {"before": now.wall - micros(age), "limit": PRUNE_AT_ONCE}
    page = connection.execute(SQL["to_look_at"], given).fetchall()
    for job_id, key in page:
        statement = "prune" if _latest(connection, key) is None else "looked_at"
        connection.execute(SQL[statement], {"id": job_id, "now": now.wall})
    for statement in ("prune_waits", "prune_limits"):
        connection.execute(SQL[statement], {"before": now.wall - micros(IDLE_LIMIT)})
    return len(page) == PRUNE_AT_ONCE


def _create(connection: sqlite3.Connection, now: Moment, *, flow: str, jobs: Sequence[NewFlow]) -> None:
    with trouble.refusing():
        for job in jobs:
            if not connection.execute(SQL["create"], {"id": job.id, "flow": flow, "now": now.wall}).rowcount:
                continue
            for attribute, value in job.lookups:
                given = {"flow": flow, "attribute": attribute, "value": value, "id": job.id}
                connection.execute(SQL["find_by"], given)
            _keep(connection, now, job_id=job.id, lists=job.lists)
            enqueue.add(connection, now, job.step)


def _keep(connection: sqlite3.Connection, _now: Moment, *, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
    for list_id, content in lists:
        connection.execute(SQL["keep"], {"id": list_id, "job": job_id, "content": content})


def _latest(connection: sqlite3.Connection, key: str) -> Job | None:
    for place in ("live_step", "past_step"):
        row = connection.execute(SQL[place], {"key": key}).fetchone()
        if row is not None:
            return to_job(row)
    return None


def _delete(connection: sqlite3.Connection, _now: Moment, *, flow: str, job_id: str, keys: Sequence[str]) -> bool:
    found = connection.execute(SQL["delete"], {"id": job_id, "flow": flow}).rowcount
    for key in keys:
        inspector.remove_key(connection, key)
        connection.execute(SQL["forget_steps"], {"key": key})
    return bool(found)


def _wake(connection: sqlite3.Connection, now: Moment, *, key: str) -> Woken:
    row = connection.execute(SQL["parked"], {"key": key}).fetchone()
    names = None if row is None else _waiting.decode(row[3]).waits_for
    if row is None or names is None or row[1] == State.FAILED:
        return Woken.GONE
    if any(_is_open(connection, PREFIX + name) for name in names):
        return Woken.OPEN
    if row[1] == State.PROCESSING:
        return Woken.RUNNING
    connection.execute(SQL["make_due"], {"id": row[0], "now": now.wall})
    return Woken.WOKEN


def _is_open(connection: sqlite3.Connection, awaited: str) -> bool:
    """Has the child with this key not ended, or one of all those whose keys begin so?"""
    least = awaited.removesuffix(ALL)
    # What follows are hexadecimal digits.
    given = {"least": least, "most": f"{least}g" if awaited.endswith(ALL) else least}
    return connection.execute(SQL["is_open"], given).fetchone() is not None


def _spend(connection: sqlite3.Connection, now: Moment, *, asked: Spending) -> float:
    given: dict[str, Any] = {"limiter": asked.limiter, "part": asked.part, "holder": asked.holder, "now": now.wall}
    at = now.wall / 1_000_000
    before = Spent(*(connection.execute(SQL["limit"], given).fetchone() or (0, 0, 0)))
    given["forgiven"] = now.wall - micros(asked.interval + FORGIVEN)
    came_back = (asked.holder,) in connection.execute(SQL["forgive"], given).fetchall()
    spent = spend(at, before, asked, came_back=came_back)
    if spent.wait > 0:
        connection.execute(SQL["note_wait"], given | {"ready_at": now.after(spent.wait)})
    connection.execute(
        SQL["note_limit"], given | {"slot": spent.slot, "calls": spent.calls, "waiting": spent.following}
    )
    return spent.wait


def _tally(connection: sqlite3.Connection, now: Moment, *, tasks: Sequence[str]) -> list[StepCount]:
    rows = connection.execute(SQL["tally"], {"tasks": as_json(tasks), "now": now.wall})
    return [StepCount(task, priority, StepState(state), number) for task, priority, state, number in rows]


def _in_queue(connection: sqlite3.Connection, now: Moment, *, task: str, limit: int) -> list[PlacedStep]:
    given = {"task": task, "limit": limit, "now": now.wall}
    return [
        PlacedStep(key, priority, StepState(state), None if ready_at is None else ready_at / 1_000_000)
        for statement in ("processing", "waiting", "delayed")
        for key, priority, state, ready_at in connection.execute(SQL[statement], given)
    ]


def _column(connection: sqlite3.Connection, statement: str, given: dict[str, Any]) -> list[str]:
    return [value for (value,) in connection.execute(SQL[statement], given)]
