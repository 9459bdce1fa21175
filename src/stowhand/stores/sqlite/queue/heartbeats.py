"""The heartbeats of the queue: leases, progress, maintenance, the list of workers, and throughput."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from stowhand.clock import stopwatch
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.jobs.task_limits import TaskDeclarations
from stowhand.protocols.attempt import Progress
from stowhand.protocols.operator import (
    LOST_WORKER_RETENTION_SECONDS,
    VERSION_ABSENCE_SECONDS,
    VERSION_RETENTION_SECONDS,
    WorkerDescription,
)
from stowhand.protocols.queue_store import LEDGER_DAYS
from stowhand.protocols.store import SECONDS_PER_DAY
from stowhand.protocols.throughput import HOUR_RETENTION_SECONDS, TaskMinute
from stowhand.protocols.workflows import EVENT_RETENTION_SECONDS
from stowhand.stores.database.sqlite_connection import SqliteConnection, WriteProbe
from stowhand.stores.sqlite.queue import flow_tables, limits, schema, throughput
from stowhand.stores.sqlite.queue.cancellation import expire
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.on_failure import enqueue_reports
from stowhand.stores.sqlite.queue.plan import QueuePlan
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.sqlite.shared.leaser import Leaser

MAX_ROWS_PER_PRUNE = 2000
"""A transaction with 2000 rows takes well under 50 ms, so that other writers can run in between."""
MAX_PRUNE_SECONDS = 2.0
"""The limit of one call for each kind of row. The next call continues."""
MAX_JOBS_PER_STEP_CHECK = 2000
"""A call checks this number of jobs that have steps, in a few milliseconds. The next call continues."""


class SqliteHeartbeats(Leaser[Transaction]):
    """Heartbeats with two connections; ``no_wait_connection`` does not wait for other writers."""

    def __init__(
        self,
        connection: SqliteConnection[Transaction],
        no_wait_connection: SqliteConnection[Transaction],
        probe: WriteProbe | None,
        history: float | None,
        failed_retention: float | None = None,
    ) -> None:
        super().__init__(connection, probe, QueuePlan())
        self._no_wait_connection = no_wait_connection
        self._has_declared = False
        self._last_job_with_steps = 0
        """Where the next check of the jobs that have steps continues."""
        self._history = history or 0.0
        self._failed_retention = failed_retention

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Return the leases whose jobs have a cancellation request."""
        pairs = as_json([lease.pair for lease in leases])
        return frozenset(self._connection.read(lambda tx: tx.rows("find_canceled", leases=pairs)))

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset a page of jobs whose lease expired more than ``slack`` seconds ago, or in another boot.

        Also enqueue the ``on_failure`` jobs of jobs that a foreign statement has failed.
        """
        if self._connection.read(lambda tx: tx.row("has_unreported")) is not None:
            self._connection.write(lambda tx: enqueue_reports(tx, None))
        return await super().reset_stalled(slack)

    async def check(self) -> None:
        """Raise SchemaTooNew if a newer, breaking migration has been applied."""
        self._connection.read(lambda tx: schema.check_newer(tx.raw))

    async def maintain(self) -> None:
        """Prune old rows page by page, cancel expired jobs, and add up throughput.

        Pruned are history, failed jobs, tables of flows, steps and events of workflows, abandoned tokens, workers and
        the ledger.
        """
        if self._connection.read(lambda tx: tx.row("expired", limit=1)) is not None:
            self._connection.write(expire)
        self._prune("history", self._history)
        self._prune_flows(self._history)
        self._prune_steps()
        self._prune("events", EVENT_RETENTION_SECONDS)
        if self._failed_retention is not None:
            self._prune("failed", self._failed_retention)
        self._prune("uniques", 0)
        self._prune("abandoned", SECONDS_PER_DAY)
        self._prune("limit_keys", 0)
        self._prune("workers", LOST_WORKER_RETENTION_SECONDS)
        self._prune("app_versions", VERSION_RETENTION_SECONDS)
        # Keep ticks a day longer than they can be scheduled, since the clock may be set back.
        self._prune("ticks", (LEDGER_DAYS + 1) * SECONDS_PER_DAY)
        deadline = stopwatch() + MAX_PRUNE_SECONDS
        while stopwatch() < deadline and self._connection.read(throughput.is_foldable):
            self._connection.write(throughput.fold)
        self._prune("throughput", HOUR_RETENTION_SECONDS)

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        """Store the progress of jobs, without waiting for other writers."""
        entries = as_json([(note.lease.job_id, note.lease.token, note.done, note.text) for note in notes])
        self._no_wait_connection.write(lambda tx: tx.run("keep_progress", notes=entries))

    async def close(self) -> None:
        """Close the connections."""
        await super().close()
        self._no_wait_connection.close()

    async def worker_seen(self, description: WorkerDescription, declarations: TaskDeclarations) -> None:
        """Insert or update the worker in the list of workers."""
        if not self._has_declared:
            await self.declare_tasks(declarations)
            self._has_declared = True
        tasks = None if description.tasks is None else as_json(description.tasks)
        flags = None if description.forbidden_flags is None else as_json(description.forbidden_flags)
        entry = msgspec.structs.asdict(description) | {
            "tasks": tasks,
            "forbidden_flags": flags,
            "queues": None if description.queues.only is None else as_json(description.queues.only),
            "excluded_queues": as_json(description.queues.excluded),
        }

        def write(tx: Transaction) -> None:
            tx.run("worker_seen", **entry)
            if description.app_version is not None:
                updated = tx.run(
                    "app_version_seen", version=description.app_version, gone=micros(VERSION_ABSENCE_SECONDS)
                )
                if not updated.rowcount:
                    tx.run("app_version_new", version=description.app_version)

        self._connection.write(write)

    async def declare_tasks(self, declarations: TaskDeclarations) -> None:
        """Store the queues and limits of tasks."""
        task_queues = as_json(declarations.queues)

        def write(tx: Transaction) -> None:
            tx.run("clear_task_queues", task_queues=task_queues)
            tx.run("set_task_queues", task_queues=task_queues)
            limits.declare(tx, declarations)

        if declarations.queues:
            self._connection.write(write)

    async def worker_gone(self, name: str) -> None:
        """Remove the worker from the list of workers."""
        self._connection.write(lambda tx: tx.run("worker_gone", name=name))

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        """Write the counts of a worker. Return the (minute, task) pairs that were not written."""
        return self._connection.write(lambda tx: throughput.write(tx, writer, minutes))

    def _prune_flows(self, age: float) -> None:
        deadline = stopwatch() + MAX_PRUNE_SECONDS
        while stopwatch() < deadline:
            if not self._connection.write(lambda tx: flow_tables.prune(tx, age=age)):
                return

    def _prune_steps(self) -> None:
        """Delete the steps of jobs that are no longer known, among the next jobs that have steps."""
        page = self._connection.read(
            lambda tx: tx.rows("jobs_with_steps", after=self._last_job_with_steps, limit=MAX_JOBS_PER_STEP_CHECK)
        )
        self._last_job_with_steps = page[-1][0] if len(page) == MAX_JOBS_PER_STEP_CHECK else 0
        unknown_ids = as_json([job_id for job_id, is_known in page if not is_known])

        def prune(tx: Transaction) -> int:
            return tx.run("prune_steps", ids=unknown_ids, limit=MAX_ROWS_PER_PRUNE).rowcount

        deadline = stopwatch() + MAX_PRUNE_SECONDS
        while unknown_ids != "[]" and stopwatch() < deadline and self._connection.write(prune):
            pass

    def _prune(self, kind: str, age: float) -> None:
        def is_old(tx: Transaction) -> bool:
            return tx.row(f"is_{kind}_old", before=tx.now.wall - micros(age)) is not None

        def prune(tx: Transaction) -> None:
            tx.run(f"prune_{kind}", before=tx.now.wall - micros(age), limit=MAX_ROWS_PER_PRUNE)

        deadline = stopwatch() + MAX_PRUNE_SECONDS
        while stopwatch() < deadline and self._connection.read(is_old):
            self._connection.write(prune)
