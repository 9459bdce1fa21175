"""Renews, releases and resets leases, on a blocking connection for the heartbeater's own thread."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.errors import StoreError
from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.operating import WorkerCard
from stowhand.protocols.store import Foreign, Pulse, Refusal
from stowhand.stores.database import trouble
from stowhand.stores.database.blocking import BlockingLink, Row
from stowhand.stores.database.refused_rows import halved_blocking
from stowhand.stores.database.repeating import repeated_blocking
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import in_id_order, pairs, plain_array, text_array
from stowhand.stores.postgres.queue.schema import too_new
from stowhand.stores.postgres.queue.texts import newest_known

PAGE = 1000


class PostgresHeartbeats:
    """Blocking; one thread at a time. Every method raises StoreUnreachable, and may be repeated."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._link = BlockingLink(context.address, lambda: context.role("heart"), context.dialer.prepared)
        self._refused: list[Refusal] = []

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now."""
        if not leases:
            return Pulse()
        answers: dict[str, set[tuple[int, str]]] = {"lost": set(), "canceled": set(), "busy": set(), "refused": set()}

        def beat(part: Sequence[Lease]) -> list[Row]:
            return self._ask("beat", *pairs(part), lease, self._context.now())

        def refused(one: Lease, error: Exception) -> None:
            answers["refused"].add((one.job_id, one.token))
            self._refuse(one.job_id, "beat", error)

        with self._context.translated():
            for job_id, token, found in halved_blocking(in_id_order(leases), beat, refused):
                answers[found].add((job_id, token))
        return Pulse(**{name: frozenset(found) for name, found in answers.items()})

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent. Returns the leases whose rows another transaction has locked."""
        if not leases:
            return []
        ids: set[int] = set()

        def release(part: Sequence[Lease]) -> list[Row]:
            return self._ask("release", *pairs(part), self._context.keep, self._context.now())

        def refused(one: Lease, error: Exception) -> None:
            ids.add(one.job_id)
            self._refuse(one.job_id, "release", error)

        with self._context.translated():
            ids |= {row[0] for row in halved_blocking(in_id_order(leases), release, refused)}
            missed = [lease for lease in leases if lease.job_id not in ids]
            if not missed:
                return []
            found = {(job_id, token): what for job_id, token, what, _ in self._ask("look", *pairs(missed))}
            return [lease for lease in missed if found.get((lease.job_id, lease.token)) == "busy"]

    def abandon(self, token: str) -> bool:
        """Give back what this claim holds, and let it claim no more. False: some of it is locked, and still held."""
        with self._context.translated():
            try:
                ((done,),) = self._ask("abandon", token, self._context.keep, self._context.now())
            except psycopg.Error as error:
                if not trouble.is_refusal(error):
                    raise
                return True  # what it holds comes back when its leases end; there is no use in asking again
        return bool(done)

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these."""
        ids = plain_array(lease.job_id for lease in ours)
        ((late, ends_in),) = self._rows("foreign_leases", ids, slack, self._context.now())
        return Foreign(late=late, ends_in=ends_in)

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has not been renewed in time."""
        return self._reset(slack=slack)

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds."""
        taken: list[ResetJob] = []
        while page := self._reset(worker=worker):
            taken += page
        return taken

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return self._reset(lease=lease)

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    def check(self) -> None:
        """Raises SchemaTooNew once a newer, breaking migration has been applied."""
        ((newest,),) = self._rows("newest_breaking")
        if newest > newest_known():
            raise too_new(self._context, newest)

    def check_writable(self) -> None:
        """Nothing: a server that cannot write its log ends, and a claim locks rows, which a standby refuses."""
        # Where only the tables are on a full disk, a write that needs another page fails.

    def maintain(self) -> None:
        """Makes days of the history ahead and drops old ones, and queue rows that no job needs.

        Raises StoreError when one of these could not be done; the others are done.
        """
        with self._context.translated():
            options, now = self._context.options, self._context.now()
            values = (options.history, now, options.failed_retention)
            ((trouble,),) = self._link.rows(self._context.statements["maintain"], values)
        if trouble is not None:
            raise StoreError(f"{self._context.address}: not everything could be kept in order: {trouble}")

    def worker_seen(self, card: WorkerCard) -> None:
        """An entry in the list of workers."""
        tasks = None if card.tasks is None else text_array(card.tasks)
        flags = None if card.forbidden_flags is None else text_array(card.forbidden_flags)
        about = (card.name, card.host, card.pid, card.version, tasks, card.concurrency, card.stopping)
        self._rows("worker_seen", *about, self._context.now(), flags)

    def worker_gone(self, name: str) -> None:
        """Out of the list of workers."""
        self._rows("worker_gone", name)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _reset(
        self, slack: float | None = None, worker: str | None = None, lease: Lease | None = None
    ) -> Sequence[ResetJob]:
        """Find, decide by ``lifecycle.reset``, write: only where the lease is still the one that was found."""
        job_id, token = (lease.job_id, lease.token) if lease is not None else (None, None)
        became: dict[int, str] = {}

        def reset(part: Sequence[Row]) -> list[Row]:
            decided = [lifecycle.reset(resets=row[4], max_resets=row[5], max_attempts=row[6]) for row in part]
            return self._ask(
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
            found = self._ask("find_stalled", slack, worker, job_id, token, PAGE, self._context.now())
            if found:
                became = dict(halved_blocking(found, reset, lambda row, error: self._refuse(row[0], "reset", error)))
        return [
            ResetJob(job_id, task, State(became[job_id]), worker)
            for job_id, _, task, worker, *_ in found
            if job_id in became
        ]

    def _refuse(self, job_id: int, doing: str, error: Exception) -> None:
        self._refused.append(Refusal(job_id, doing, clean(trouble.first_line(error))))

    def _rows(self, name: str, *values: object) -> list[Row]:
        with self._context.translated():
            return self._ask(name, *values)

    def _ask(self, name: str, *values: object) -> list[Row]:
        """Repeated a few times after errors by which nothing was done. Raises what psycopg raises."""
        statement = self._context.statements[name]
        return repeated_blocking(lambda: self._link.rows(statement, values, self._context.patience))
