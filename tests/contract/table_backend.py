"""A user's table in the clothes of a serial key, so that the suite can be run on it.

What a table's store offers is its own (``claim``, ``settle``, the heart …). What it leaves to the application is done
here as an application does it, in plain SQL: inserting, looking, asking for a cancellation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import psycopg
from psycopg.rows import dict_row

from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.queue_store import ActionResult, Answer, JobFilter, QueueStore
from stowhand.protocols.store import Claim, ClaimRequest, Heartbeats, Pulse, Reply, StoreOptions
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from stowhand.table import TableOptions, TableStore
from tests.contract.backends import Image, Secrets, raising

RETRIES = 24
RESETS = 5
PLAIN = {"serial", "key", "flags", "max_resets", "max_attempts"}
"""What a job of a serial key may have and a record has not."""

OWN = ("task text", "payload text", "priority int")
"""The application's columns."""
CHANNEL = "jobs_wake"


class NotOffered(AssertionError):
    """A test asks for what a table's store leaves to the application, or has not: it lacks a mark (``needs.py``)."""


class Rows(Protocol):
    """The application's own way to its table."""

    name: str
    url: str

    def ask(self, text: str, *values: Any) -> list[dict[str, Any]]:
        """One statement; ``%s`` is a place."""

    def refuse(self, condition: str) -> None:
        """A trigger that raises where a row would be changed so."""


class PostgresRows:
    """In PostgreSQL, with a trigger that notifies."""

    name = "table"

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self.ask("DROP TABLE IF EXISTS jobs; DROP FUNCTION IF EXISTS jobs_notify CASCADE")
        self.ask(full_ddl(DdlOptions(shape=read_shape("jobs", None, {}), channel=CHANNEL)))
        self.ask(f"ALTER TABLE jobs {', '.join(f'ADD {column}' for column in OWN)}")

    def ask(self, text: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def refuse(self, condition: str) -> None:
        self._connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF {condition} THEN RAISE EXCEPTION 'no'; END IF; RETURN new; END $$;"
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()".encode()
        )

    def close(self) -> None:
        self._connection.close()


class SqliteRows:
    """In a file."""

    name = "table_sqlite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        with closing(sqlite3.connect(path)) as file:
            file.executescript(full_ddl(DdlOptions(shape=read_shape("jobs", None, {}), dialect="sqlite")))
            for column in OWN:
                file.execute(f"ALTER TABLE jobs ADD {column}")

    def ask(self, text: str, *values: Any) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._path)) as file, file:
            file.row_factory = sqlite3.Row
            given = [
                f"{one.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}" if isinstance(one, datetime) else one for one in values
            ]
            return [dict(row) for row in file.execute(text.replace("%s", "?"), given).fetchall()]

    def refuse(self, condition: str) -> None:
        self.ask(f"CREATE TRIGGER refuse BEFORE UPDATE ON jobs WHEN {condition} BEGIN SELECT RAISE(ABORT, 'no'); END")

    def close(self) -> None:
        pass


def options(**given: Any) -> TableOptions[dict[str, Any]]:
    """Of the table above."""
    usual: dict[str, Any] = {
        "name": "jobs",
        "table_name": "jobs j",
        "order_by_expression": ("priority", sql("process_after"), "id"),
        "max_num_retries": RETRIES,
        "max_resets": RESETS,
        "retry_after": 60.0,
    }
    return TableOptions(**usual | given)


class TableBackend:
    """A table as a home of jobs."""

    def __init__(self, rows: PostgresRows | SqliteRows) -> None:
        self.rows = rows
        self.name = rows.name

    def store(self, options: StoreOptions) -> QueueStore:
        return cast("QueueStore", AdaptedStore(self.rows, options))

    def image(self, job_id: int) -> Image | None:
        result = self.rows.ask("SELECT * FROM jobs WHERE id = %s", job_id)
        return result[0] if result else None

    def secrets(self) -> dict[int, Secrets]:
        raise NotOffered("a table has no columns of that kind")

    def ticks(self, identifier: str) -> list[datetime]:
        raise NotOffered("a table has no crontab")

    def refuse(self, job_id: int, *states: State) -> None:
        self.rows.refuse(raising(job_id, states))


class AdaptedStore:
    """One store on the table."""

    is_listening = False

    def __init__(self, rows: PostgresRows | SqliteRows, given: StoreOptions) -> None:
        assert given.pinned is not None
        self._rows, self._now = rows, given.pinned
        channel = CHANNEL if isinstance(rows, PostgresRows) else None
        self.jobs = self.inspect = self.admin = self
        self._store = TableStore(rows.url, options(notify_channel=channel), _pinned=given.pinned)

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        if request.forbidden_flags:
            raise NotOffered("flags")
        conditions: tuple[Any, ...] = ()
        if request.tasks is not None:
            if not request.tasks:
                return []
            conditions = (Where("task", "in", request.tasks),)
        claims = await self._store.claim(msgspec.structs.replace(request, tasks=None, conditions=conditions))
        jobs = [self._job(claim.record) for claim in claims]
        return [
            Claim(claim.lease, job, job.task, claim.attempts, claim.max_attempts, None, claim.resets)
            for claim, job in zip(claims, jobs, strict=True)
        ]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        return await self._store.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        return await self._store.next_due(None)

    async def wait(self, timeout: float) -> bool:
        return await self._store.wait(timeout)

    def heartbeats(self) -> Heartbeats:
        return cast("Heartbeats", AdaptedHeartbeats(self._store.heartbeats(), self._rows))

    # -- as an application does it ---------------------------------------------------------------

    async def enqueue(self, job: NewJob) -> Job:
        return self._insert(job)

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[int]:
        return [self._insert(job).id for job in jobs]

    async def get(self, job_id: int) -> Job | None:
        result = self._rows.ask("SELECT * FROM jobs WHERE id = %s", job_id)
        return self._job(result[0]) if result else None

    async def list(self, job_filter: JobFilter) -> Sequence[Job]:
        jobs = [self._job(row) for row in self._rows.ask("SELECT * FROM jobs ORDER BY id")]
        return [job for job in jobs if job.state in (job_filter.states or tuple(State))]

    async def counts(self) -> dict[State, int]:
        rows = self._rows.ask("SELECT state, count(*) AS number FROM jobs GROUP BY state")
        return dict.fromkeys(State, 0) | {State(row["state"]): row["number"] for row in rows}

    async def cancel(self, job_id: int) -> Answer:
        self._rows.ask("UPDATE jobs SET cancel = true WHERE id = %s", job_id)
        return Answer(job_id, ActionResult.ASKED)

    async def remove(self, job_id: int) -> Answer:
        self._rows.ask("DELETE FROM jobs WHERE id = %s", job_id)
        return Answer(job_id, ActionResult.DONE)

    def __getattr__(self, name: str) -> Any:
        raise NotOffered(name)

    def _insert(self, job: NewJob) -> Job:
        plain = NewJob(task=job.task)
        strange = [name for name in PLAIN if getattr(job, name) != getattr(plain, name)]
        if strange:
            raise NotOffered(", ".join(strange))
        due = job.run_at or self._now() + timedelta(seconds=job.delay or 0.0)
        values = (job.task, job.payload, job.priority, self._now(), due)
        statement = (
            "INSERT INTO jobs (task, payload, priority, queued_at, process_after)"
            " VALUES (%s, %s, %s, %s, %s) RETURNING *"
        )
        return self._job(self._rows.ask(statement, *values)[0])

    def _job(self, row: dict[str, Any]) -> Job:
        state, failures = State(row["state"]), row["num_failures"]
        began = state in (State.PROCESSING, State.COMPLETED) or (
            state is State.CANCELED and row["started_at"] is not None
        )
        return Job(
            id=row["id"],
            task=row["task"],
            payload_text=row["payload"],
            state=state,
            serial=None,
            priority=row["priority"],
            run_at=moment(row["process_after"]),
            attempts=failures + began,
            max_attempts=RETRIES + 1,
            resets=row["num_resets"],
            last_error=row["failure_message"],
            created_at=moment(row["queued_at"]),
            started_at=row["started_at"] and moment(row["started_at"]),
            finished_at=row["finished_at"] and moment(row["finished_at"]) if state.terminal else None,
            worker=row["worker_hostname"].rpartition("/")[0] or None if state is State.PROCESSING else None,
            cancel_requested=bool(row["cancel"]),
        )


class AdaptedHeartbeats:
    """A heart that names the task of a record, and not the table."""

    def __init__(self, heartbeats: Heartbeats, rows: PostgresRows | SqliteRows) -> None:
        self._heartbeats, self._rows = heartbeats, rows

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        return await self._heartbeats.beat(leases, lease)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        return self._named(await self._heartbeats.reset_stalled(slack))

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        return self._named(await self._heartbeats.reset_worker(worker))

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        return self._named(await self._heartbeats.reset_lease(lease))

    def _named(self, taken: Sequence[ResetJob]) -> Sequence[ResetJob]:
        tasks = {row["id"]: row["task"] for row in self._rows.ask("SELECT id, task FROM jobs")} if taken else {}
        return [msgspec.structs.replace(one, task=tasks[one.job_id]) for one in taken]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._heartbeats, name)


def moment(value: datetime | str) -> datetime:
    """Aware, in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromisoformat(value.replace("Z", "")).replace(tzinfo=UTC)
