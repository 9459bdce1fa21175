"""The queue's settlements: its statements for the shared settler, and the jobs it enqueues with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import msgspec
import psycopg

from stowhand.errors import InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement, Wait
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Connection, Row, rows
from stowhand.stores.database.statements import plain_array, text_array
from stowhand.stores.postgres.queue.claims import queue_values
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.new_jobs import (
    bulk_values,
    enqueue_call,
    enqueue_jobs_call,
    has_extended_options,
)
from stowhand.stores.postgres.queue.producer import MAX_JOBS_PER_CHUNK
from stowhand.stores.postgres.queue.rows import pairs, read_claims
from stowhand.stores.postgres.shared.plan import Query
from stowhand.stores.postgres.shared.settler import Settler
from stowhand.stores.verdicts import Entry, Pair, continues, pair, recorded_before


class Settlements:
    """Recorder of the outcomes of attempts, which also enqueues the jobs that follow them."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._plan = QueuePlan(context)
        self._settler = Settler(context, self._plan, self._write)

    async def settle(self, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        """Record the outcomes. Return the replies in the order of the batch."""
        return await self._settler.settle(batch, repeat=repeat)

    async def settle_and_claim(
        self, batch: Sequence[Entry], request: ClaimRequest
    ) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
        """Record a batch, and claim jobs if one statement can complete the batch.

        The statement is sent once: the caller abandons a claim whose reply was lost.
        """
        leases = self._settler.plain_leases(batch)
        if len(leases) < len(batch):
            return await self.settle(batch, repeat=False), ()
        values = (
            *(*pairs(leases), self._context.keeps_history, request.worker, request.token, request.limit, request.lease),
            None if request.tasks is None else list(request.tasks),
            *(list(request.forbidden_flags) or None, self._context.now(), *queue_values(request.queues)),
        )
        with self._context.translated():
            try:
                first, *claimed = await self._settler.once(lambda to: self._rows(to, "settle_and_claim", values))
            except psycopg.Error as error:
                if postgres_errors.ends_connection(error):
                    raise
                return await self.settle(batch, repeat=False), ()  # the server has rolled back the statement
        claims = read_claims([row[1:] for row in claimed], request.worker, request.token)
        return await self._settler.settle_rest(batch, frozenset(first[0] or ()), repeat=False), claims

    async def close(self) -> None:
        """Close the connection."""
        await self._settler.close()

    async def _write(self, connection: Connection, entries: Sequence[Entry]) -> Mapping[Pair, State]:
        """Write the settlements and the jobs that the accepted ones enqueue, in one transaction."""
        query = self._plan.settle(entries)
        follow_ups = [(entry, job) for entry in entries for job in entry[1].then]
        families = [(entry, entry[1].wait) for entry in entries if entry[1].wait is not None and entry[1].wait.children]
        if not follow_ups and not families:
            return dict(await self._settler.run(connection, query))
        async with connection.transaction():
            accepted = dict(await self._settler.run(connection, query))
            accepted_jobs = [job for entry, job in follow_ups if accepted.get(pair(entry)) is entry[1].state]
            await self._enqueue(connection, accepted_jobs)
            for entry, wait in families:
                if accepted.get(pair(entry)) is entry[1].state:
                    await self._enqueue_children(connection, entry[0].job_id, wait)
        return accepted

    async def _enqueue_children(self, connection: Connection, parent: JobId, wait: Wait) -> None:
        """Enqueue the children of a workflow: plain ones by one statement for many, others as any job."""
        children = [self._context.options.with_max_attempts(job) for job in wait.children]  # checked: ``acceptable``
        plain = [place for place, job in enumerate(children) if not has_extended_options(job)]
        for start in range(0, len(plain), MAX_JOBS_PER_CHUNK):
            chunk = plain[start : start + MAX_JOBS_PER_CHUNK]
            values = bulk_values([children[place] for place in chunk], self._context.now())
            places = plain_array(wait.places[place] for place in chunk)
            await self._rows(connection, "enqueue_children", (parent, wait.step, places, *values))
        others = [place for place, job in enumerate(children) if has_extended_options(job)]
        if others:
            name, values = enqueue_jobs_call([children[place] for place in others], self._context.now())
            ids = plain_array(row[0] for row in await self._rows(connection, name, values))
            places = plain_array(wait.places[place] for place in others)
            await self._rows(connection, "adopt", (parent, wait.step, places, ids))

    async def _enqueue(self, connection: Connection, jobs: Sequence[NewJob]) -> None:
        if not jobs:
            return
        jobs = [self._context.options.with_max_attempts(limits.check_options(job)) for job in jobs]
        if len(jobs) == 1:
            await self._rows(connection, *enqueue_call(jobs[0], self._context.now()))
            return
        ordered_jobs = sorted(jobs, key=lambda job: job.key or "")  # the order in which one statement locks keys
        for start in range(0, len(ordered_jobs), MAX_JOBS_PER_CHUNK):
            await self._rows(
                connection, *enqueue_jobs_call(ordered_jobs[start : start + MAX_JOBS_PER_CHUNK], self._context.now())
            )

    async def _rows(self, connection: Connection, name: str, values: Sequence[object]) -> list[Row]:
        return await rows(connection, self._context.statements[name], values, self._context.dialer.prepared or None)


CONTINUED_STATE = "continued"
"""Sent instead of ``completed`` for a step of a flow whose job continues (``way_back`` in settle.sql)."""
_VERDICTS_BY_NAME: dict[str, Verdict] = {"busy": Verdict.BUSY, "lost": Verdict.LOST}


class QueuePlan:
    """Statements of settlements. Every list of leases is in id order, the order of locking."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    def acceptable(self, entry: Entry) -> str | None:
        """Return the reason why an entry is invalid; ``None`` if it is valid.

        This checks the remaining payload and the options of following jobs; their payloads were checked before.
        """
        try:
            limits.check_remaining_payload(entry[1])
            wait = entry[1].wait
            for job in (*entry[1].then, *(() if wait is None else wait.children)):
                limits.refuse_built_in(limits.check_options(job))
        except InvalidJob as error:
            return clean(postgres_errors.first_line(error))
        return None

    def is_plain(self, settlement: Settlement) -> bool:
        return (
            settlement.state is State.COMPLETED
            and settlement.result is None
            and settlement.error is None
            and not settlement.then
            and not settlement.refund
        )

    def complete(self, leases: Sequence[Lease]) -> Query[JobId]:
        values = (*pairs(leases), self._context.keeps_history, self._context.now())
        return Query(self._context.statements["settle_completed"], values, itemgetter(0))

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """Return the query that records any outcomes."""
        settlements = [settlement for _, settlement in entries]
        values = (
            *pairs([lease for lease, _ in entries]),
            text_array(CONTINUED_STATE if continues(settlement) else settlement.state for settlement in settlements),
            plain_array(settlement.delay for settlement in settlements),
            plain_array(settlement.refund for settlement in settlements),
            text_array(settlement.error for settlement in settlements),
            text_array(settlement.error_class for settlement in settlements),
            text_array(settlement.result for settlement in settlements),
            text_array(settlement.payload for settlement in settlements),
            self._context.keeps_history,
            self._context.now(),
            plain_array(settlement.holds_limits for settlement in settlements),
            None
            if all(settlement.wait is None for settlement in settlements)
            else text_array(_wait_text(settlement.wait) for settlement in settlements),
        )
        return Query(self._context.statements["settle"], values, lambda row: ((row[0], row[1]), State(row[2])))

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """Return the query that reads the outcomes of lost leases, from live jobs and the history."""
        settlements = {pair(entry): entry[1] for entry in entries}

        def read(row: Row) -> tuple[Pair, Reply | None]:
            job_id, token, found, state = row
            if found == "settled":
                return (job_id, token), recorded_before(settlements[job_id, token], State(state))
            return (job_id, token), _VERDICTS_BY_NAME.get(found)

        values = self._context.values(**self._context.leases([lease for lease, _ in entries]))
        return Query(self._context.statement("look"), values, read)


def _wait_text(wait: Wait | None) -> str | None:
    """Return a wait as JSON for ``start_wait`` (workflows.sql), with the number of its children."""
    if wait is None:
        return None
    fields = msgspec.to_builtins(wait)
    return msgspec.json.encode(fields | {"children": len(wait.children), "attempts": wait.attempts}).decode()
