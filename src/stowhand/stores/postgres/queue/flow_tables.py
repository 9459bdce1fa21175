"""The tables of flows in the schema: the functions of functions/flows.sql, for Python."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob, OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.jobs import limits
from stowhand.jobs.job import Job
from stowhand.protocols.flow_tables import NewFlow, ParentWakeup, RateLimitRequest
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Row, rows
from stowhand.stores.database.postgres_errors import MAX_TRANSIENT_ATTEMPTS, TRANSIENT_PAUSE_SECONDS, retry_transient
from stowhand.stores.database.statements import text_array
from stowhand.stores.kernel.steps import FlowSteps
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.new_jobs import bulk_values_of_each
from stowhand.stores.postgres.queue.reader import Reader
from stowhand.stores.postgres.queue.rows import read_job

MAX_JOBS_PER_STATEMENT = 1000


class PostgresFlowTables(FlowSteps):
    """Tables of flows. Each call is one statement; many jobs take several, in one transaction."""

    def __init__(self, context: PostgresContext) -> None:
        super().__init__(Reader(context))
        self._context = context
        self._clock = SystemClock()
        self.keeps_history = context.keeps_history

    async def create(self, flow: str, jobs: Sequence[NewFlow]) -> Sequence[str]:
        """Create all jobs or none. A repeat is safe: the caller chooses the ids, and existing jobs stay."""
        plain = [job for job in jobs if job.key is None]
        keyed = sorted((job for job in jobs if job.key is not None), key=lambda job: str(job.key))
        calls = [
            ("flow_create", self._call(flow, plain[start : start + MAX_JOBS_PER_STATEMENT]))
            for start in range(0, len(plain), MAX_JOBS_PER_STATEMENT)
        ]
        calls += _list_calls(plain)
        is_unanswered = False
        for attempt in range(1, MAX_TRANSIENT_ATTEMPTS + 1):
            try:
                holders = await self._create(calls, flow, keyed)
            except (psycopg.Error, TimeoutError, UnicodeError, OverflowError, StoreUnreachable) as error:
                is_unanswered = is_unanswered or postgres_errors.is_connection_lost(error)
                is_temporary = (
                    isinstance(error, StoreUnreachable)
                    or postgres_errors.is_connection_lost(error)
                    or postgres_errors.is_transient(error)
                )
                if attempt == MAX_TRANSIENT_ATTEMPTS or not is_temporary:
                    raise self._error_for(error, is_unanswered) from None
                await self._clock.sleep(TRANSIENT_PAUSE_SECONDS * attempt)
            else:
                return [holders.get(job.id, job.id) for job in jobs]
        raise AssertionError("the last attempt returns or raises")

    async def store_lists(self, job_id: str, lists: Sequence[tuple[str, str]]) -> None:
        """Store lists for as long as the job is known."""
        await self._rows("flow_keep", *_list_arrays([(job_id, *kept_list) for kept_list in lists]))

    async def read_list(self, list_id: str) -> str | None:
        """Return the content of a stored list; ``None`` if it is absent."""
        rows_found = await self._rows("flow_kept", list_id)
        return rows_found[0][0] if rows_found else None

    async def ids(self, flow: str, attribute: str, value: str) -> Sequence[str]:
        """Return the ids of the jobs with this attribute, in id order."""
        return [job_id for (job_id,) in await self._rows("flow_ids", flow, attribute, value)]

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that exist."""
        return {job_id for (job_id,) in await self._rows("flow_exists", text_array(ids))}

    async def latest(self, keys: Sequence[str]) -> Sequence[Job | None]:
        """Return the newest job of each key, in the order of the keys."""
        jobs = map(read_job, await self._rows("flow_latest", text_array(keys)))
        jobs_by_key = {job.key: job for job in jobs}
        return [jobs_by_key.get(key) for key in keys]

    async def delete(self, flow: str, job_id: str, keys: Sequence[str]) -> bool:
        """Delete the job and its steps in one transaction."""
        ((is_deleted,),) = await self._rows("flow_delete", flow, job_id, text_array(keys))
        return bool(is_deleted)

    async def wake(self, key: str) -> ParentWakeup:
        """Make the parked parent due if its children have ended."""
        ((woken,),) = await self._rows("flow_wake", key, self._context.now())
        return ParentWakeup(woken)

    async def spend(self, request: RateLimitRequest) -> float:
        """Use the rate limiter. Return the seconds to wait, by the server's clock."""
        values = (
            *(request.limiter, request.part, request.holder),
            *(request.reservoir, request.interval, self._context.now()),
        )
        ((wait,),) = await self._rows("flow_spend", *values)
        return float(wait)

    def _call(self, flow: str, jobs: Sequence[NewFlow]) -> tuple[object, ...]:
        entries = [(job.id, *lookup) for job in jobs for lookup in job.lookups]
        return (
            *(flow, text_array(job.id for job in jobs)),
            *(text_array(entry[place] for entry in entries) for place in range(3)),
            *bulk_values_of_each([limits.check(job.step) for job in jobs], self._context.now()),
        )

    async def _create(
        self, calls: Sequence[tuple[str, tuple[object, ...]]], flow: str, keyed: Sequence[NewFlow]
    ) -> dict[str, str]:
        """Create the jobs in one transaction. Return the ids of ``keyed`` jobs, or of the jobs that hold their keys.

        ``keyed`` jobs are in the order of their keys.
        """
        holders: dict[str, str] = {}
        async with (
            self._context.pool.connection("flow") as connection,
            connection.transaction() if keyed or len(calls) > 1 else nullcontext(),
        ):

            async def call(name: str, values: tuple[object, ...]) -> list[Row]:
                prepare = self._context.dialer.prepared or None
                return await rows(connection, self._context.statements[name], values, prepare)

            for name, values in calls:
                await call(name, values)
            for job in keyed:
                ((holders[job.id],),) = await call("flow_hold_key", (flow, job.key, job.id))
                if holders[job.id] == job.id:
                    for name, values in [("flow_create", self._call(flow, [job])), *_list_calls([job])]:
                        await call(name, values)
        return holders

    async def _rows(self, name: str, *values: object) -> list[Row]:
        with self._context.translated():
            return await retry_transient(lambda: self._context.ask("flow", name, values), self._clock)

    def _error_for(self, error: BaseException, is_unanswered: bool) -> StoreError | InvalidJob:
        if isinstance(error, UnicodeError | OverflowError) or postgres_errors.is_about_values(error):
            return InvalidJob(f"one of the jobs: {postgres_errors.first_line(error)}. Nothing was written.")
        failure = error if isinstance(error, StoreError) else self._context.translate(error)
        return OutcomeUnknown(f"{failure}. The jobs may or may not have been committed") if is_unanswered else failure


def _list_calls(jobs: Sequence[NewFlow]) -> list[tuple[str, tuple[object, ...]]]:
    lists = [(job.id, *kept_list) for job in jobs for kept_list in job.lists]
    return [("flow_keep", _list_arrays(lists))] if lists else []


def _list_arrays(lists: Sequence[tuple[str, str, str]]) -> tuple[object, ...]:
    """``lists``: (job id, list id, content)."""
    jobs, ids, contents = zip(*lists, strict=True)
    return text_array(ids), text_array(jobs), text_array(contents)
