"""Renewal, release and reset of leases, on a connection for the heartbeater's own loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.text import clean
from stowhand.protocols.store import Foreign, Pulse, RefusedChange
from stowhand.stores.calls import UNREPORTED, Calls, reported
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Link, Row
from stowhand.stores.database.postgres_errors import retry_transient
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.postgres.shared.plan import Context
from stowhand.stores.verdicts import Pair

C = TypeVar("C", bound=Context)
T = TypeVar("T")
MAX_ROWS_PER_PAGE = 1000


class Leaser(Generic[C]):
    """The common part of the heartbeats of the queue and of a user's table.

    The two files statements.sql have statements with the same names and result columns, but different SQL. Only one
    call runs at a time, on one loop. Every method may raise StoreUnreachable, and may be repeated.
    """

    def __init__(self, context: C, calls: Calls = UNREPORTED) -> None:
        self.calls = calls
        self._context = context
        self._link = Link(context.dialer, lambda: context.role("heart"))
        self._clock = SystemClock()
        self._refused: list[RefusedChange] = []

    @reported
    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now. A table ignores ``lease``, and uses its own option."""
        if not leases:
            return Pulse()
        answers: dict[str, set[Pair]] = {"lost": set(), "canceled": set(), "busy": set()}

        async def beat(part: Sequence[Lease]) -> list[Row]:
            return await self._run_once("beat", **self._context.leases(part), lease=lease)

        rows, refused = await self._write_each("beat", leases, beat, lambda lease: lease.job_id)
        for key, token, outcome in rows:
            if outcome == "moved":
                self._refused.append(
                    RefusedChange(self._context.job_id(key), "beat", self._context.changed_claim_reason)
                )
                outcome = "lost"
            if outcome != "renewed":
                answers[outcome].add((self._context.job_id(key), token))
        answers["refused"] = {lease.pair for lease in refused}
        return Pulse(**{name: frozenset(outcome) for name, outcome in answers.items()})

    @reported
    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return jobs to the queue without using an attempt. Return the leases of rows that are locked."""
        if not leases:
            return []

        async def release(part: Sequence[Lease]) -> list[Row]:
            return await self._run_once("release", **self._context.leases(part))

        released, refused = await self._write_each("release", leases, release, lambda lease: lease.job_id)
        done = {self._context.job_id(row[0]) for row in released} | {lease.job_id for lease in refused}
        missed = [lease for lease in leases if lease.job_id not in done]
        if not missed:
            return []
        nothing = [""] * len(missed)
        with self._context.translated():
            looked = await self._run("look", **self._context.leases(missed), states=nothing, errors=nothing)
        outcome = {(self._context.job_id(key), token): outcome for key, token, outcome, *_ in looked}
        return [lease for lease in missed if outcome.get((lease.job_id, lease.token)) == "busy"]

    @reported
    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Read the foreign leases."""
        with self._context.translated():
            ((late, ends_in),) = await self._run("foreign_leases", **self._context.leases(own_leases), slack=slack)
        return Foreign(has_expired=late, expires_in=ends_in)

    @reported
    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset jobs whose lease was not renewed in time."""
        return await self._reset(await self._find("find_stalled", slack=slack), slack)

    @reported
    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Reset all jobs of this worker, except those that another transaction has locked."""
        reset_jobs: list[ResetJob] = []
        while page := await self._reset(await self._find("find_held_by_worker", worker=worker)):
            reset_jobs += page
        return reset_jobs

    @reported
    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Reset the job of this lease."""
        values = {"id": lease.job_id, "token": lease.token, "epoch": lease.epoch}
        return await self._reset(await self._find("find_held_by_lease", **values))

    def refused(self) -> Sequence[RefusedChange]:
        """Return the changes that the database has refused since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Do nothing: a server that cannot write its log stops, and a standby refuses claims, which lock rows."""
        # If only the tables are on a full disk, a write that needs another page fails.

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _find(self, name: str, **values: object) -> list[Row]:
        with self._context.translated():
            return await self._run(name, page=MAX_ROWS_PER_PAGE, **values)

    async def _reset(self, outcome: Sequence[Row], slack: float | None = None) -> Sequence[ResetJob]:
        """Reset rows by the rules of ``lifecycle.reset``, if they have not changed since they were found."""
        if not outcome:
            return []

        async def reset(part: Sequence[Row]) -> list[Row]:
            decisions = [lifecycle.reset(resets=row[5], max_resets=row[6], max_attempts=row[7]) for row in part]
            return await self._run_once(
                "reset",
                ids=[row[0] for row in part],
                marks=[row[1] for row in part],
                epochs=[row[2] for row in part],
                states=[decision.state.value for decision in decisions],
                errors=[decision.error for decision in decisions],
                slack=slack,
            )

        rows, _ = await self._write_each("reset", outcome, reset, lambda row: self._context.job_id(row[0]))
        states_by_key = {key: State(state) for key, state in rows}
        return [
            ResetJob(self._context.job_id(key), task, states_by_key[key], worker or None, age)
            for key, _, _, task, worker, _, _, _, age in outcome
            if key in states_by_key
        ]

    async def _write_each(
        self,
        operation: str,
        items: Sequence[T],
        write: Callable[[Sequence[T]], Awaitable[Sequence[Row]]],
        job_id: Callable[[T], JobId],
    ) -> tuple[list[Row], list[T]]:
        """Write items. Return the answers, and the items that the database refuses, which are reported."""
        with self._context.translated():
            result = await write_each(items, write, self._clock, postgres_errors.concerns_call)
        for item, error in result.refused:
            self._refused.append(RefusedChange(job_id(item), operation, clean(postgres_errors.first_line(error))))
        return result.rows, [item for item, _ in result.refused]

    async def _run(self, name: str, /, **values: object) -> list[Row]:
        """Run a statement, repeated a few times after transient errors. Raise psycopg's errors."""
        return await retry_transient(lambda: self._run_once(name, **values), self._clock)

    async def _run_once(self, name: str, /, **values: object) -> list[Row]:
        statement, parameters = self._context.statement(name), self._context.values(**values)
        return await self._link.rows(statement, parameters, lambda: self._context.heartbeat_timeout_seconds)
