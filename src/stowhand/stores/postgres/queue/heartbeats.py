"""The queue's heartbeats: leases, maintenance of the schema, and the list of workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import psycopg

from stowhand.errors import StoreError
from stowhand.jobs.lease import Lease, Pair
from stowhand.jobs.task_limits import TaskDeclarations
from stowhand.protocols.attempt import Progress
from stowhand.protocols.operator import WorkerDescription
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.protocols.throughput import TaskMinute
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Row
from stowhand.stores.database.statements import plain_array, text_array
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.function_texts import MIGRATIONS
from stowhand.stores.postgres.queue.rows import pairs
from stowhand.stores.postgres.shared.leaser import Leaser


class PostgresHeartbeats(Leaser[PostgresContext]):
    """Heartbeats of the queue. The schema keeps abandoned tokens."""

    _has_declared = False

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Return the leases whose jobs have a cancellation request."""
        with self._context.translated():
            rows = await self._run("find_canceled", **self._context.leases(leases))
        return frozenset((self._context.job_id(key), token) for key, token in rows)

    async def abandon(self, token: str) -> bool:
        """Return the jobs of this claim to the queue and forbid it to claim more. False: locked jobs are still held."""
        with self._context.translated():
            try:
                ((done,),) = await self._run("abandon", token=token)
            except psycopg.Error as error:
                if postgres_errors.concerns_call(error):
                    raise
                return True  # the jobs return when their leases expire; a repeat would fail again
        return bool(done)

    async def check(self) -> None:
        """Raise SchemaTooNew after a newer, breaking migration was applied."""
        ((newest,),) = await self._rows("newest_breaking")
        self._refuse_newer(newest)

    async def maintain(self) -> None:
        """Create coming days of the history, drop old ones, and delete rows of unused serial keys.

        Raise StoreError if one of these failed; the others are done. Heartbeats wait for this call, so it has their
        timeout. A slow server continues the statement after the timeout.
        """
        options = self._context.options
        values = self._context.values(history=options.history, failed_retention=options.failed_retention)
        with self._context.translated():
            ((problem,),) = await self._link.rows(
                self._context.statement("maintain"), values, lambda: self._context.heartbeat_timeout_seconds
            )
        if problem is not None:
            raise StoreError(f"{self._context.address}: not everything could be kept in order: {problem}")

    async def keep_progress(self, notes: Sequence[Progress], timeout: float) -> None:
        """Store the progress of jobs in one transaction."""
        by_id = sorted(notes, key=lambda note: note.lease.job_id)
        ids, tokens = pairs([note.lease for note in by_id])
        values = self._context.values(
            ids=ids,
            tokens=tokens,
            progress=plain_array(note.done for note in by_id),
            texts=text_array(note.text for note in by_id),
        )
        with self._context.translated():
            await self._link.rows(self._context.statement("keep_progress"), values, lambda: timeout)

    async def worker_seen(self, description: WorkerDescription, declarations: TaskDeclarations) -> None:
        """Update the worker's entry. Raise SchemaTooNew as ``check`` does: an idle worker makes no other call."""
        if not self._has_declared:
            await self.declare_tasks(declarations)
            self._has_declared = True
        lists = {
            "tasks": None if description.tasks is None else text_array(description.tasks),
            "forbidden_flags": None if description.forbidden_flags is None else text_array(description.forbidden_flags),
            "queues": None if description.queues.only is None else text_array(description.queues.only),
            "excluded_queues": text_array(description.queues.excluded),
        }
        ((_, newest),) = await self._rows("worker_seen", **msgspec.structs.asdict(description) | lists)
        self._refuse_newer(newest)

    async def declare_tasks(self, declarations: TaskDeclarations) -> None:
        """Store the queues and limits of tasks."""
        if declarations.queues:
            await self._rows("declare_tasks", declarations=msgspec.json.encode(declarations).decode())

    async def worker_gone(self, name: str) -> None:
        """Remove the worker from the list."""
        await self._rows("worker_gone", name=name)

    async def write_throughput(self, writer: str, minutes: Sequence[TaskMinute]) -> Collection[tuple[int, str]]:
        """Write the counts of a worker. Return the (minute, task) pairs that were not written."""
        rows = [{"minute": row.minute, "task": row.task, "tally": row.tally.numbers()} for row in minutes]
        return await self._rows("write_throughput", writer=writer, rows=msgspec.json.encode(rows).decode())

    def _refuse_newer(self, newest: int) -> None:
        status = SchemaStatus(newest, MIGRATIONS.newest, breaking=newest > MIGRATIONS.newest)
        MIGRATIONS.refuse_newer(status, self._context.place)

    async def _rows(self, name: str, /, **values: object) -> list[Row]:
        with self._context.translated():
            return await self._run(name, **values)
