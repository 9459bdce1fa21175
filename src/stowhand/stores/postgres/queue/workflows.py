"""The steps and events of workflows, by the functions of the schema (functions/workflows.sql)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import msgspec
import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.protocols.validation import validate_id
from stowhand.protocols.workflows import NewStep, RecordedStep
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.statements import text_array
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.in_transaction import InTransaction
from stowhand.stores.postgres.queue.producer import Producer
from stowhand.stores.postgres.queue.rows import Row, pairs


class PostgresWorkflows:
    """Recorded steps and events."""

    def __init__(self, context: PostgresContext, jobs: Producer, transactions: InTransaction) -> None:
        self._context = context
        self._jobs = jobs
        self._transactions = transactions
        self._clock = SystemClock()

    async def record(self, steps: Sequence[tuple[Lease, NewStep]]) -> Sequence[bool]:
        """Record steps in one transaction. Return for each whether its lease holds the job."""
        if not steps:
            return []
        values = (
            *pairs([lease for lease, _ in steps]),
            text_array(step.name for _, step in steps),
            text_array(step.value for _, step in steps),
            text_array(step.error for _, step in steps),
            self._context.now(),
        )
        return [is_held for (is_held,) in await self._ask("record_steps", values)]

    async def read(self, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job, in the order in which they were recorded."""
        return [_read_step(row) for row in await self._ask("read_steps", (self._context.now(), validate_id(job_id)))]

    async def emit(self, event: str, payload: str, job_id: int | None = None) -> bool:
        """Emit an event for all jobs, or for one. Return whether it is the first with this name."""
        values = (event, payload, None if job_id is None else validate_id(job_id), self._context.now())
        ((is_first,),) = await self._ask("emit_event", values)
        return bool(is_first)

    def emit_in(
        self, connection: object, event: str, payload: str, job_id: int | None = None
    ) -> bool | Awaitable[bool]:
        """Emit an event inside the caller's transaction."""
        return self._in_transaction(connection, "emit_text", name=event, payload=payload, job_id=job_id)

    def record_in(self, connection: object, lease: Lease, step: NewStep) -> bool | Awaitable[bool]:
        """Record a step inside the caller's transaction, which locks the lease until it ends."""
        values = {"id": lease.job_id, "token": lease.token, "name": step.name, "value": step.value, "error": step.error}
        return self._in_transaction(connection, "record_text", **values)

    async def is_emitted(self, event: str, job_id: int | None = None) -> bool:
        """Return whether an event with this name is kept, for all jobs or for this one."""
        ((is_emitted,),) = await self._ask("is_emitted", (event, job_id or 0))
        return bool(is_emitted)

    async def fork(self, job_id: int, step: str) -> Job | None:
        """Enqueue a copy of a job with the steps that were recorded before this one. Raise InvalidJob."""
        ((fork_id,),) = await self._ask("fork_job", (validate_id(job_id), step, self._context.now()))
        return None if fork_id is None else await self._jobs.get(fork_id)

    def _in_transaction(self, connection: object, function: str, **values: object) -> bool | Awaitable[bool]:
        now = self._context.now()
        text = msgspec.json.encode(values if now is None else values | {"now": now}).decode()
        answer = self._transactions.call(connection, self._transactions.function_of(function), text)
        return answer == "true" if isinstance(answer, str) else _is_true(answer)

    async def _ask(self, name: str, values: Sequence[object]) -> list[Row]:
        with self._context.translated():
            try:
                return await retry_transient(lambda: self._context.ask("workflows", name, values), self._clock)
            except psycopg.Error as error:
                if postgres_errors.is_about_values(error):
                    raise InvalidJob(postgres_errors.first_line(error)) from None
                raise


async def _is_true(answer: Awaitable[str]) -> bool:
    return await answer == "true"


def _read_step(row: Row) -> RecordedStep:
    name, place, value, error, until, is_over, remaining, at = row
    return RecordedStep(
        name=name, place=place, value=value, error=error, until=until, is_over=is_over, remaining=remaining, at=at
    )
