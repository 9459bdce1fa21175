"""Renews, releases and resets leases, on a connection for the loop of the heartbeater's thread."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.operating import WorkerCard
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.stores.database import trouble
from stowhand.stores.database.link import Link, Row
from stowhand.stores.database.refused_rows import halved
from stowhand.stores.database.repeating import repeated
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import in_id_order, pairs, plain_array, text_array
from stowhand.stores.postgres.queue.schema import too_new
from stowhand.stores.postgres.queue.texts import newest_known

PAGE = 1000


class PostgresHeartbeats:
    """One call at a time, on one loop. Every method raises StoreUnreachable, and may be repeated."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("heart"))
        self._clock = SystemClock()
        self._refused: list[Refusal] = []

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now."""
        if not leases:
            return Pulse()
        answers: dict[str, set[tuple[int, str]]] = {"lost": set(), "canceled": set(), "busy": set(), "refused": set()}

        async def beat(part: Sequence[Lease]) -> list[Row]:
            return await self._ask("beat", *pairs(part), lease, self._context.now())

        def refused(one: Lease, error: Exception) -> None:
            answers["refused"].add((one.job_id, one.token))
            self._refuse(one.job_id, "beat", error)

        with self._context.translated():
            for job_id, token, found in await halved(in_id_order(leases), beat, refused):
                answers[found].add((job_id, token))
        return Pulse(**{name: frozenset(found) for name, found in answers.items()})

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Returns the leases whose rows another transaction has locked."""
        if not leases:
            return []
        ids: set[int] = set()

        async def release(part: Sequence[Lease]) -> list[Row]:
            return await self._ask("release", *pairs(part), self._context.keep, self._context.now())

        def refused(one: Lease, error: Exception) -> None:
            ids.add(one.job_id)
            self._refuse(one.job_id, "release", error)

        with self._context.translated():
            ids |= {row[0] for row in await halved(in_id_order(leases), release, refused)}
            missed = [lease for lease in leases if lease.job_id not in ids]
            if not missed:
                return []
            found = {(job_id, token): what for job_id, token, what, _ in await self._ask("look", *pairs(missed))}
            return [lease for lease in missed if found.get((lease.job_id, lease.token)) == "busy"]

    async def abandon(self, token: str) -> bool:
        """Give back what this claim holds, and let it claim no more. False: some of it is locked, and still held."""
        with self._context.translated():
            try:
                ((done,),) = await self._ask("abandon", token, self._context.keep, self._context.now())
            except psycopg.Error as error:
                if not trouble.is_refusal(error):
                    raise
                return True  # what it holds comes back when its leases end; there is no use in asking again
        return bool(done)

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these."""
        ids = plain_array(lease.job_id for lease in ours)
        ((late, ends_in),) = await self._rows("foreign_leases", ids, slack, self._context.now())
        return Foreign(late=late, ends_in=ends_in)

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        return await self._reset(slack=slack)

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds."""
        taken: list[ResetJob] = []
        while page := await self._reset(worker=worker):
            taken += page
        return taken

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return await self._reset(lease=lease)

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check(self) -> None:
        """Raises SchemaTooNew once a newer, breaking migration has been applied."""
        ((newest,),) = await self._rows("newest_breaking")
        if newest > newest_known():
            raise too_new(self._context, newest)

    async def check_writable(self) -> None:
        """Nothing: a server that cannot write its log ends, and a claim locks rows, which a standby refuses."""
        # Where only the tables are on a full disk, a write that needs another page fails.

    async def maintain(self) -> None:
        """Makes days of the history ahead and drops old ones, and queue rows that no job needs.

        Raises StoreError when one of these could not be done; the others are done.
        """
        with self._context.translated():
            options, now = self._context.options, self._context.now()
            values = (options.history, now, options.failed_retention)
            ((trouble,),) = await self._link.rows(self._context.statements["maintain"], values)
        if trouble is not None:
            raise StoreError(f"{self._context.address}: not everything could be kept in order: {trouble}")

    async def worker_seen(self, card: WorkerCard) -> None:
        """An entry in the list of workers."""
        tasks = None if card.tasks is None else text_array(card.tasks)
        flags = None if card.forbidden_flags is None else text_array(card.forbidden_flags)
        about = (card.name, card.host, card.pid, card.version, tasks, card.concurrency, card.stopping)
        await self._rows("worker_seen", *about, self._context.now(), flags)

    async def worker_gone(self, name: str) -> None:
        """Out of the list of workers."""
        await self._rows("worker_gone", name)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _reset(
        self, slack: float | None = None, worker: str | None = None, lease: Lease | None = None
    ) -> Sequence[ResetJob]:
        """Find, decide by ``lifecycle.reset``, write: only where the lease is still the one that was found."""
        job_id, token = (lease.job_id, lease.token) if lease is not None else (None, None)
        became: dict[int, str] = {}

        async def reset(part: Sequence[Row]) -> list[Row]:
            decided = [lifecycle.reset(resets=row[4], max_resets=row[5], max_attempts=row[6]) for row in part]
            return await self._ask(
                "reset",
                plain_array(row[0] for row in part),
                plain_array(row[1] for row in part),
                text_array(each.state for each in decided),
                text_array(each.error for each in decided),
                slack,
                self._context.keep,
                self._context.now(),
            )

        with self._context.translated():
            found = await self._ask("find_stalled", slack, worker, job_id, token, PAGE, self._context.now())
            if found:
                became = dict(await halved(found, reset, lambda row, error: self._refuse(row[0], "reset", error)))
        return [
            ResetJob(job_id, task, State(became[job_id]), worker)
            for job_id, _, task, worker, *_ in found
            if job_id in became
        ]

    def _refuse(self, job_id: int, doing: str, error: Exception) -> None:
        self._refused.append(Refusal(job_id, doing, clean(trouble.first_line(error))))

    async def _rows(self, name: str, *values: object) -> list[Row]:
        with self._context.translated():
            return await self._ask(name, *values)

    async def _ask(self, name: str, *values: object) -> list[Row]:
        """Repeated a few times after errors by which nothing was done. Raises what psycopg raises."""
        statement = self._context.statements[name]
        return await repeated(lambda: self._link.rows(statement, values, self._context.patience), self._clock)
